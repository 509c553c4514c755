"""`nftproxy explain`: the outcome of a connection, and the reasons."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from nftproxy.commands.agent_client import LIVE, AgentClient
from nftproxy.commands.articles import print_article
from nftproxy.commands.offline import OFFLINE_IF_ANY, OFFLINE_ONLY, PATHS_IF_ANY, offline_cluster, refuse_given
from nftproxy.commands.output import json_text
from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.expected import with_kernel
from nftproxy.explanation.packets import Plan, plan
from nftproxy.explanation.picture import svg
from nftproxy.explanation.question import Question, parse_source, parse_to
from nftproxy.kernel.nfnetlink.elements import ElementLookup
from nftproxy.kernel.nfnetlink.table_copy import TableCopy, read_table
from nftproxy.model.addresses import Family
from nftproxy.trace.text import text as trace_text
from nftproxy.trace.tracing import Trace, trace_plan

PICTURE = Path(__file__).resolve().parents[1] / "explanation" / "picture.svg.j2"
"""The template of --svg."""

COPIED = {True: "what the kernel of this machine holds", False: "the rules that these manifests render to"}
"""The rules that a trace goes through, by whether the kernel is asked."""


class Traced(msgspec.Struct, frozen=True):
    """An explanation, with traces of packets through the kernel."""

    explanation: Explanation
    traces: tuple[Trace, ...]


@click.command("explain")
@click.argument("to", metavar="TO", is_eager=True, callback=print_article)
@PATHS_IF_ANY
@OFFLINE_IF_ANY
@LIVE
@click.option("--from", "source", metavar="SOURCE", help="An address, pod/NAMESPACE/NAME, node or outside.")
@click.option(
    "--kernel", is_flag=True, help="Ask this machine's kernel for these elements, and for remembered clients."
)
@click.option("--trace", "wants_trace", is_flag=True, help="Send such packets through a copy of the rules; as root.")
@click.option("--svg", "wants_picture", is_flag=True, help="Draw the path of such connections, as SVG.")
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
    """Explain the outcome of a connection to TO.

    TO is ADDRESS:PORT (an IPv6 address in brackets), svc/NAMESPACE/NAME, svc/NAMESPACE/NAME:PORT with a port's name or
    number, or node:PORT.  A port may be followed by /udp or /sctp.  PATHS are manifests, as for render, seen from the
    node that --node names.  Without PATHS the agent of this node answers, and compares the answer with its kernel.

    With --trace packets go through a throw-away copy of the rules.  The exit status is 1 if the outcome differs from
    the explanation.  With --kernel, and without PATHS, it is a copy of this kernel's rules, otherwise of the rules of
    the manifests.

    TO may also be the code of a warning or an Event, as NFT012, or the word codes for the list of all codes, without
    further arguments.
    """
    if wants_picture and (wants_trace or output != "text"):
        raise click.UsageError("--svg is an output of its own, without --trace and --output")
    question = Question(parse_to(to), parse_source(source) if source else None)
    if not paths:
        refuse_given(("node", *OFFLINE_ONLY), "needs PATHS: without PATHS the agent answers for its own node")
        agent = AgentClient(agent_socket, timeout)
        asked = {"to": to, "from": source or ""}
        explanation = agent.get(Explanation, "/v1/explain", **asked)
        traces = trace_plan(agent.get(Plan, "/v1/packets", **asked), _held(Family)) if wants_trace else None
        _show(explanation, traces, True, output, wants_picture=wants_picture)
        return
    if not options["node"]:
        raise click.UsageError("with PATHS give --node NAME, too: the node that the rules are for")
    cluster = offline_cluster(paths, with_pods=True, **options)
    explanation = cluster.explain(question.to, question.source)
    if kernel:
        with ElementLookup() as elements:
            explanation = with_kernel(explanation, elements.find)
    pipeline, pods = cluster.pipeline, cluster.manifests.pods
    rules = _held(pipeline.generations) if kernel else pipeline.full_transaction({})
    traces = trace_plan(plan(pipeline, question, pods), rules) if wants_trace else None
    _show(explanation, traces, kernel, output, wants_picture=wants_picture)


def _show(
    explanation: Explanation, traces: tuple[Trace, ...] | None, kernel: bool, output: str, *, wants_picture: bool
) -> None:
    """Print an answer.  `kernel`: its own rules were traced.

    The exit status is 1 if the kernel differs, or if the question names an object that this proxy doesn't know.
    """
    if wants_picture:
        click.echo(svg(explanation, PICTURE.read_text()), nl=False)
    elif output == "json":
        answer = explanation if traces is None else Traced(explanation, traces)
        click.echo(json_text(answer))
    else:
        click.echo(explanation)
        if traces is not None:
            click.echo("\n".join(trace_text(traces, COPIED[kernel])))
    if explanation.is_damaged or not explanation.is_known or any(trace.differences for trace in traces or ()):
        sys.exit(1)


def _held(families: Iterable[Family]) -> list[TableCopy]:
    """The tables in the kernel of this machine."""
    return [copy for family in families if (copy := read_table(family))]
