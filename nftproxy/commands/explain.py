"""`nftproxy explain`: what becomes of a connection, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from nftproxy.commands.codes import print_article
from nftproxy.commands.offline import OFFLINE, PATHS, loaded, offline_pipeline
from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.explain import explain
from nftproxy.explanation.kernel import with_kernel
from nftproxy.explanation.packets import plan
from nftproxy.explanation.question import Question, parse_source, parse_to
from nftproxy.explanation.text import text
from nftproxy.kernel.elements import Elements
from nftproxy.sources.files import load_pods
from nftproxy.trace.follow import Trace, follow
from nftproxy.trace.text import text as trace_text


class Traced(msgspec.Struct, frozen=True):
    """An explanation, and what the kernel did with such packets."""

    explanation: Explanation
    traces: tuple[Trace, ...]


@click.command("explain")
@click.argument("to", metavar="TO", is_eager=True, callback=print_article)
@PATHS
@OFFLINE
@click.option("--from", "source", metavar="SOURCE", help="An address, pod/NAMESPACE/NAME, node or outside.")
@click.option("--kernel", is_flag=True, help="Ask this machine's kernel for these elements, and whom it remembers.")
@click.option("--trace", "wants_trace", is_flag=True, help="Send such packets through a copy of the rules; as root.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def explain_command(
    to: str,
    paths: tuple[Path, ...],
    source: str | None,
    kernel: bool,
    wants_trace: bool,
    output: str,
    strict: bool,
    **options: Any,
) -> None:
    """Say what becomes of a connection to TO, and why.

    TO is ADDRESS:PORT (an IPv6 address in brackets), svc/NAMESPACE/NAME, svc/NAMESPACE/NAME:PORT with a port's name or
    number, or node:PORT; after a port there may be /udp or /sctp.  PATHS are manifests, as for render.

    With --trace the kernel of this machine shows what it does: exit status 1 if that isn't what the explanation says.

    TO may also be a code that a warning or an Event names, as NFT012, or the word codes for a list of them all; these
    need nothing else.
    """
    question = Question(parse_to(to), parse_source(source) if source else None)
    pipeline = offline_pipeline(**options)
    pipeline.apply(loaded(paths, pipeline.settings.config, strict).listing())
    pods = load_pods(paths)
    explanation = explain(pipeline, question, pods)
    if kernel:
        with Elements() as elements:
            explanation = with_kernel(explanation, elements.find)
    traces = follow(plan(pipeline, question, pods), pipeline.full_transaction({})) if wants_trace else None
    if output == "json":
        answer = explanation if traces is None else Traced(explanation, traces)
        click.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        click.echo("\n".join(text(explanation)))
        if traces is not None:
            click.echo("\n".join(trace_text(traces, "the rules that these manifests render to")))
    sys.exit(1 if any(trace.differences for trace in traces or ()) else 0)
