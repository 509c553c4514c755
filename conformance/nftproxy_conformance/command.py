"""`nftproxy conformance`: compares our templates, or any proxy, with docs/semantics.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nftproxy.commands.offline import EXISTING
from nftproxy.commands.options import CONFIG, TEMPLATES
from nftproxy.commands.output import STRUCTURED
from nftproxy.config.parse_config import EMPTY_CONFIG, parse_config
from nftproxy.installed_fields import FIELDS
from nftproxy.kernel.capabilities import probe
from nftproxy.library import renderer
from nftproxy.model.errors import BadInput, Problem
from nftproxy.sources.config_documents import config_document
from nftproxy.sources.files import load_documents
from nftproxy_conformance.reports.report import Effort, conform, features_named
from nftproxy_conformance.session import Session


@click.command("conformance")
@TEMPLATES
@click.option(
    "--examples",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="How many clusters to make up for each feature.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another number makes up other clusters.")
@click.option("--feature", "features", multiple=True, help="Try this feature alone; repeatable.", metavar="NAME")
@click.option(
    "--proxy",
    help="Try a proxy instead of templates: a command line, in which {config} stands for a KubeProxyConfiguration.",
    metavar="COMMAND",
)
@click.option("--against", is_flag=True, help="Run nftproxy beside the proxy, and show where the two differ.")
@click.option("--fast-path", is_flag=True, help="Establish each connection, and try it on the templates' fast path.")
@click.option(
    "--manifests",
    multiple=True,
    type=EXISTING,
    help="Try the Services of these files or directories, not made-up clusters; repeatable.",
    metavar="PATH",
)
@click.option("--node", default="", help="Which Node of the manifests to play, if there are several.", metavar="NAME")
@CONFIG
@click.option("-o", "--output", type=click.Choice(["text", *STRUCTURED]), default="text", show_default=True)
def conformance_command(
    templates: Path | None,
    examples: int,
    seed: int,
    features: Sequence[str],
    proxy: str | None,
    against: bool,
    fast_path: bool,
    manifests: Sequence[Path],
    node: str,
    config_file: Path | None,
    output: str,
) -> None:
    """Send real packets through the rules, or through any proxy.

    All of it happens in throw-away network namespaces.  Without --proxy it tries the templates' rules for made-up
    clusters on this kernel.  With --proxy it starts the proxy on a scratch node, against an API server with made-up
    clusters or with the objects of --manifests.

    Needs root.  Exit status 1 if a connection breaks a rule of docs/semantics.md and no documented deviation from
    kube-proxy explains it.
    """
    _check_usage(templates, proxy, against, fast_path, manifests, node, config_file)
    effort = Effort(features_named(features), examples, seed)
    if proxy is None:
        is_well = conform(renderer(templates), probe().capabilities, effort, output=output, with_fast_path=fast_path)
    else:
        session = Session(proxy, against, _configuration(config_file), output)
        if manifests:
            is_well = session.try_own(_documents(manifests), node)
        else:
            is_well = session.try_made_up(effort)
    sys.exit(0 if is_well else 1)


def _check_usage(
    templates: Path | None,
    proxy: str | None,
    against: bool,
    fast_path: bool,
    manifests: Sequence[Path],
    node: str,
    config_file: Path | None,
) -> None:
    if proxy is None:
        alone = {"--against": against, "--manifests": manifests, "--node": node, "--config": config_file}
        for option in (name for name, value in alone.items() if value):
            raise click.UsageError(f"{option} needs --proxy")
    elif fast_path:
        raise click.UsageError("--fast-path tries templates, --proxy a proxy: one of them")
    elif templates:
        raise click.UsageError("--templates tries templates, --proxy a proxy: one of them")
    elif "{config}" not in proxy:
        raise click.BadParameter("{config} is missing, which stands for the configuration", param_hint="--proxy")
    elif node and not manifests:
        raise click.UsageError("--node needs --manifests")


def _configuration(file: Path | None) -> dict[str, Any]:
    """The configuration in a file, validated, as decoded JSON.

    Raises:
        BadInput: it can't be read, or isn't valid.
    """
    raw = dict(EMPTY_CONFIG) if file is None else config_document(file)
    parse_config(raw, str(file), FIELDS)
    assert isinstance(raw, dict)
    return raw


def _documents(paths: Sequence[Path]) -> list[dict[str, Any]]:
    problems: list[Problem] = []
    documents = [dict(each) for each in load_documents(paths, problems)]
    if problems:
        raise BadInput(*problems)
    return documents
