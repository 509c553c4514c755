"""What the commands share that work from manifests, without a cluster: their options, and what they make of these."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from nftproxy.api.kinds import kinds_for
from nftproxy.commands.options import CONFIG, TEMPLATES, configuration, options, renderer
from nftproxy.kernel.capabilities import probe
from nftproxy.library import Cluster
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.objects import Node
from nftproxy.model.settings import Capabilities, Config
from nftproxy.sources.files import Manifests, load, load_pods

NODES_TO_NAME = 5
"""Nodes that the warning about an unknown one names."""

AFFINITY_MODES = {"map": Capabilities(wide_maps=True), "hash": Capabilities(wide_maps=False)}

_NODE = "The node whose rules these are."
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
        help="How IPv6 clients stick to a pod: by a map, which crashes nft 1.0.6, or by a hash; auto asks "
        "the nft library of this machine.",
    ),
)
OFFLINE = options(click.option("--node", required=True, help=_NODE, metavar="NAME"), _OPTIONS)
OFFLINE_IF_ANY = options(click.option("--node", help=f"{_NODE}  Needed without an agent.", metavar="NAME"), _OPTIONS)
EXISTING = click.Path(exists=True, path_type=Path, allow_dash=True)
PATHS = click.argument("paths", nargs=-1, required=True, type=EXISTING)
OFFLINE_ONLY = ("config_file", "templates", "family", "strict", "ipv6_affinity")
"""What `offline_cluster` takes beside the node, by the names of parameters."""
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
    """The cluster that manifests describe, as a node with these options sees it; with the names of pods, if wanted.

    Raises:
        BadInput: the configuration or the templates are wrong; or something in the manifests, and `strict`.
    """
    gc.disable()  # an offline command ends before garbage would count: a fifth of its time at 10,000 Services
    config = configuration(config_file)
    manifests = loaded(paths, config, strict)
    _report(_unknown(node, manifests), strict)
    return Cluster(
        manifests._replace(pods=load_pods(paths)) if with_pods else manifests,
        node,
        config,
        families=[Family(family)] if family else list(Family),
        capabilities=AFFINITY_MODES.get(ipv6_affinity) or probe().capabilities,
        templates=renderer(templates),
    )


def loaded(paths: Sequence[Path], config: Config, strict: bool) -> Manifests:
    """What files hold for a proxy with this configuration; what is wrong with it is a warning.

    Raises:
        BadInput: something is wrong, and `strict`.
    """
    manifests = load(paths, kinds_for(config.service_proxy_name))
    _report(manifests.problems, strict)
    return manifests


def refuse_given(names: Sequence[str], why: str) -> None:
    """Let nobody believe that options count which this use of a command has no use for.

    Raises:
        UsageError: one of them is on the command line.
    """
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} {why}")


def _unknown(node: str, manifests: Manifests) -> list[Problem]:
    """Whether the manifests have Nodes, but none of this name."""
    names = sorted(each.name for each in manifests.objects if isinstance(each, Node))
    if not names or node in names:
        return []
    some = ", ".join(names[:NODES_TO_NAME]) + (", ..." if len(names) > NODES_TO_NAME else "")
    message = f"the manifests have no Node {node!r}, only {some}: its addresses, zone and podCIDRs are unknown"
    return [Problem("", "", "--node", message, Code.NODE_UNKNOWN)]


def _report(problems: Sequence[Problem], strict: bool) -> None:
    """Problems are warnings, or raise BadInput if `strict`."""
    if strict and problems:
        raise BadInput(list(problems))
    for problem in problems:
        click.echo(f"warning: {problem.coded}", err=True)
