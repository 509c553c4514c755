"""What the commands share that work from manifests, without a cluster: their options, and what they make of these."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import click

from nftproxy.api.kinds import kinds_for
from nftproxy.commands.options import CONFIG, TEMPLATES, configuration, options, renderer
from nftproxy.kernel.capabilities import probe
from nftproxy.library import Cluster
from nftproxy.model.addresses import Family
from nftproxy.model.errors import BadInput
from nftproxy.model.settings import Capabilities, Config
from nftproxy.sources.files import Manifests, load, load_pods

AFFINITY_MODES = {"map": Capabilities(wide_maps=True), "hash": Capabilities(wide_maps=False)}

_NODE = "The node whose rules these are."
_OPTIONS = options(
    CONFIG,
    TEMPLATES,
    click.option("--family", type=click.Choice([family.value for family in Family]), help="One family only."),
    click.option("--strict", is_flag=True, help="Exit 2 if anything in the input is bad, instead of leaving it out."),
    click.option(
        "--ipv6-affinity",
        type=click.Choice(["auto", *AFFINITY_MODES]),
        default="auto",
        show_default=True,
        help="How IPv6 clients stick to a pod: remembered in a map, which nft 1.0.6 dies of, or hashed; auto does "
        "what the nft library of this machine can.",
    ),
)
OFFLINE = options(click.option("--node", required=True, help=_NODE, metavar="NAME"), _OPTIONS)
OFFLINE_IF_ANY = options(click.option("--node", help=f"{_NODE}  Needed with PATHS.", metavar="NAME"), _OPTIONS)
EXISTING = click.Path(exists=True, path_type=Path, allow_dash=True)
PATHS = click.argument("paths", nargs=-1, required=True, type=EXISTING)
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
    if strict and manifests.problems:
        raise BadInput(list(manifests.problems))
    for problem in manifests.problems:
        click.echo(f"warning: {problem.coded}", err=True)
    return manifests
