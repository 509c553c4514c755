"""`nftproxy explain`: what becomes of a connection, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from nftproxy.commands.offline import OFFLINE, PATHS, loaded, offline_pipeline
from nftproxy.explain.explain import explain
from nftproxy.explain.question import Question, parse_source, parse_to
from nftproxy.explain.text import text


@click.command("explain")
@click.argument("to", metavar="TO")
@PATHS
@OFFLINE
@click.option("--from", "source", metavar="SOURCE", help="An address, pod/NAMESPACE/NAME, node or outside.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def explain_command(
    to: str, paths: tuple[Path, ...], source: str | None, output: str, strict: bool, **options: Any
) -> None:
    """Say what becomes of a connection to TO, and why.

    TO is ADDRESS:PORT (an IPv6 address in brackets), svc/NAMESPACE/NAME, svc/NAMESPACE/NAME:PORT with a port's name or
    number, or node:PORT; after a port there may be /udp or /sctp.  PATHS are manifests, as for render.
    """
    question = Question(parse_to(to), parse_source(source) if source else None)
    pipeline = offline_pipeline(**options)
    pipeline.apply(loaded(paths, pipeline.settings.config, strict).listing())
    explanation = explain(pipeline, question)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(explanation)))
    else:
        click.echo("\n".join(text(explanation)))
