"""The options of commands that work from manifests, and the cluster that manifests and options make."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from nftproxy.api.kinds import kinds_for
from nftproxy.commands.options import CONFIG, TEMPLATES, configuration, options
from nftproxy.installed import OPTIONS
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.in_two import in_two
from nftproxy.library import Cluster, renderer
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.objects import Node
from nftproxy.model.settings import Capabilities, Config
from nftproxy.sources.files import Manifests, load, load_pods

NODES_TO_NAME = 5
"""Nodes that the warning about an unknown node names."""

AFFINITY_MODES = {"map": Capabilities(wide_maps=True), "hash": Capabilities(wide_maps=False)}

_NODE = "The node that the rules are for."
_OPTIONS = options(
    CONFIG,
    TEMPLATES,
    click.option(
        "--family", type=click.Choice([family.value for family in Family]), help="Make rules for one family only."
    ),
    click.option("--strict", is_flag=True, help="Exit 2 if anything in the input is bad, instead of leaving it out."),
    click.option(
        "--ipv6-affinity",
        type=click.Choice(["auto", *AFFINITY_MODES]),
        default="auto",
        show_default=True,
        help="How IPv6 clients stick to a pod: by a map, which crashes nft 1.0.6, or by a hash; auto tries "
        "the nft library of this machine.",
    ),
)
OFFLINE = options(click.option("--node", required=True, help=_NODE, metavar="NAME"), _OPTIONS)
OFFLINE_IF_ANY = options(click.option("--node", help=f"{_NODE}  Needed without an agent.", metavar="NAME"), _OPTIONS)
EXISTING = click.Path(exists=True, path_type=Path, allow_dash=True)
PATHS = click.argument("paths", nargs=-1, required=True, type=EXISTING)
OFFLINE_ONLY = ("config_file", "templates", "family", "strict", "ipv6_affinity")
"""The parameters of `offline_cluster` beside the node."""
PATHS_IF_ANY = click.argument("paths", nargs=-1, type=EXISTING)


def offline_cluster(
    paths: Sequence[Path],
    node: str,
    config_file: Path | None,
    templates: Path | None,
    family: str | None,
    ipv6_affinity: str,
    strict: bool,
    *,
    with_pods: bool = False,
) -> Cluster:
    """Return the cluster that manifests describe, as a node with these options sees it.

    `with_pods` loads the names of pods, too.

    Raises:
        BadInput: the configuration or the templates are bad, or the manifests are and `strict` is set.
    """
    gc.disable()  # a command ends before garbage matters: at 10,000 Services collection takes a fifth of the time
    config = configuration(config_file)
    manifests = loaded(paths, config, strict)
    report(_unknown(node, manifests), strict)
    return Cluster(
        manifests._replace(pods=load_pods(paths)) if with_pods else manifests,
        node,
        config,
        families=[Family(family)] if family else list(Family),
        capabilities=AFFINITY_MODES.get(ipv6_affinity) or probe().capabilities,
        templates=renderer(templates),
        each=in_two,
    )


def loaded(paths: Sequence[Path], config: Config, strict: bool) -> Manifests:
    """Load manifests for a proxy with this configuration, and print their faults as warnings.

    Raises:
        BadInput: there is a fault, and `strict` is set.
    """
    manifests = load(paths, kinds_for(config.service_proxy_name, OPTIONS), in_two)
    report(manifests.problems, strict)
    return manifests


def refuse_given(names: Sequence[str], why: str) -> None:
    """Refuse options that have no effect in this use of a command.

    Raises:
        UsageError: an option of these names is on the command line.
    """
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} {why}")


def _unknown(node: str, manifests: Manifests) -> list[Problem]:
    """The problem of manifests that have Nodes, but none of this name."""
    names = sorted(each.name for each in manifests.objects if isinstance(each, Node))
    if not names or node in names:
        return []
    some = ", ".join(names[:NODES_TO_NAME]) + (", ..." if len(names) > NODES_TO_NAME else "")
    message = f"the manifests have no Node {node!r}, only {some}: its addresses, zone and podCIDRs are unknown"
    return [Problem("", "", "--node", message, Code.NODE_UNKNOWN)]


def report(problems: Sequence[Problem], strict: bool) -> None:
    """Print problems as warnings.

    Raises:
        BadInput: there is one, and `strict` is set.
    """
    if strict and problems:
        raise BadInput(*problems)
    for problem in problems:
        click.echo(f"warning: {problem.coded}", err=True)
