"""`nftproxy explain`: what becomes of a connection, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from nftproxy.commands.codes import print_article
from nftproxy.commands.live import LIVE, Agent
from nftproxy.commands.offline import OFFLINE_IF_ANY, OFFLINE_ONLY, PATHS_IF_ANY, offline_cluster, refuse_given
from nftproxy.commands.tables import json_text
from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.kernel import with_kernel
from nftproxy.explanation.packets import plan
from nftproxy.explanation.picture import svg
from nftproxy.explanation.question import Question, parse_source, parse_to
from nftproxy.explanation.text import text
from nftproxy.kernel.elements import Elements
from nftproxy.kernel.table_copy import TableCopy, read_table
from nftproxy.model.addresses import Family
from nftproxy.trace.follow import Trace, follow
from nftproxy.trace.text import text as trace_text

PICTURE = Path(__file__).resolve().parents[1] / "explanation" / "picture.svg.j2"
"""The template of --svg."""

COPIED = {True: "what the kernel of this machine holds", False: "the rules that these manifests render to"}
"""What a trace goes through: the kernel's own rules if the kernel is to be asked."""


class Traced(msgspec.Struct, frozen=True):
    """An explanation, and what the kernel did with such packets."""

    explanation: Explanation
    traces: tuple[Trace, ...]


@click.command("explain")
@click.argument("to", metavar="TO", is_eager=True, callback=print_article)
@PATHS_IF_ANY
@OFFLINE_IF_ANY
@LIVE
@click.option("--from", "source", metavar="SOURCE", help="An address, pod/NAMESPACE/NAME, node or outside.")
@click.option("--kernel", is_flag=True, help="Ask this machine's kernel for these elements, and whom it remembers.")
@click.option("--trace", "wants_trace", is_flag=True, help="Send such packets through a copy of the rules; as root.")
@click.option("--svg", "wants_picture", is_flag=True, help="Draw the way of such connections, as SVG.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def explain_command(
    to: str,
    paths: tuple[Path, ...],
    source: str | None,
    kernel: bool,
    wants_trace: bool,
    wants_picture: bool,
    output: str,
    agent_socket: str,
    timeout: float,
    **options: Any,
) -> None:
    """Say what becomes of a connection to TO, and why.

    TO is ADDRESS:PORT (an IPv6 address in brackets), svc/NAMESPACE/NAME, svc/NAMESPACE/NAME:PORT with a port's name or
    number, or node:PORT; after a port there may be /udp or /sctp.  PATHS are manifests, as for render, seen from the
    node that --node names; without any the agent of this node is asked, which also says what its kernel holds.

    With --trace the kernel of this machine shows what it does: exit status 1 if that isn't what the explanation says.
    With --kernel, too, and without PATHS, packets go through a copy of what that kernel holds, else of what the
    manifests render to.

    TO may also be a code that a warning or an Event names, as NFT012, or the word codes for a list of them all; these
    need nothing else.
    """
    if wants_picture and (wants_trace or output != "text"):
        raise click.UsageError("--svg is an output of its own, without --trace and --output")
    question = Question(parse_to(to), parse_source(source) if source else None)
    if not paths:
        refuse_given(("node", *OFFLINE_ONLY), "counts with PATHS: without any the agent answers for its own node")
        agent = Agent(agent_socket, timeout)
        explanation = agent.explain(to, source or "")
        traces = follow(agent.plan(to, source or ""), _held(Family)) if wants_trace else None
        _show(explanation, traces, True, output, wants_picture=wants_picture)
        return
    if not options["node"]:
        raise click.UsageError("with PATHS give --node NAME, too: it says whose rules these are")
    cluster = offline_cluster(paths, with_pods=True, **options)
    explanation = cluster.explain(question.to, question.source)
    if kernel:
        with Elements() as elements:
            explanation = with_kernel(explanation, elements.find)
    pipeline, pods = cluster.pipeline, cluster.manifests.pods
    rules = _held(pipeline.generations) if kernel else pipeline.full_transaction({})
    traces = follow(plan(pipeline, question, pods), rules) if wants_trace else None
    _show(explanation, traces, kernel, output, wants_picture=wants_picture)


def _show(
    explanation: Explanation, traces: tuple[Trace, ...] | None, kernel: bool, output: str, *, wants_picture: bool
) -> None:
    """Print an answer, and end with status 1 if the kernel does something else; `kernel` says what was traced."""
    if wants_picture:
        click.echo(svg(explanation, PICTURE.read_text()), nl=False)
    elif output == "json":
        answer = explanation if traces is None else Traced(explanation, traces)
        click.echo(json_text(answer))
    else:
        click.echo("\n".join(text(explanation)))
        if traces is not None:
            click.echo("\n".join(trace_text(traces, COPIED[kernel])))
    if any(trace.differences for trace in traces or ()):
        sys.exit(1)


def _held(families: Iterable[Family]) -> list[TableCopy]:
    """What the kernel of this machine holds."""
    return [copy for family in families if (copy := read_table(family))]
