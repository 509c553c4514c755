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
from nftproxy.commands.other_nodes import (
    FLEET_PARAMETERS,
    NODES_WITHOUT_NAMES,
    NodesAsked,
    nodes_asked,
    report_failures,
)
from nftproxy.commands.output import STRUCTURED, structured
from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.brief import brief
from nftproxy.explanation.expected import missing_chains, with_kernel
from nftproxy.explanation.explained_extension import added_stages
from nftproxy.explanation.packets import Plan, plan
from nftproxy.explanation.picture import svg
from nftproxy.explanation.question import Question, in_namespace, parse_source, parse_to
from nftproxy.installed import INSTALLED, OWN_TABLES
from nftproxy.kernel.nfnetlink.elements import ElementLookup
from nftproxy.kernel.nfnetlink.nft_queries import hooked_chains, tables
from nftproxy.kernel.nfnetlink.table_copy import read_other_tables, read_table
from nftproxy.kernel.others.xtables import legacy_tables
from nftproxy.library import Cluster
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.texts import printable
from nftproxy.sources.context_namespace import context_namespace
from nftproxy.trace.text import text as trace_text
from nftproxy.trace.tracing import OTHERS, ROUTES, Trace, trace_beside, trace_plan

PICTURE = Path(__file__).resolve().parents[1] / "explanation" / "picture.svg.j2"
"""The template of --svg."""

COPIED = {True: "what the kernel of this machine holds", False: "the rules that these manifests render to"}
"""The rules that a trace goes through, by whether the kernel is asked."""


UNCOPIED = {"netdev": 5, "bridge": 7}
"""The families of tables at a device and at bridges, with their numbers (NFPROTO_*).  A copy has other devices."""
_Traces = tuple[tuple[Trace, ...], tuple[str, ...]]
"""Traces, and the parts of the node that weren't tried."""


class Traced(msgspec.Struct, frozen=True):
    """An explanation, with traces of packets through the kernel."""

    explanation: Explanation
    traces: tuple[Trace, ...]
    untried: tuple[str, ...]
    """The parts of the node that the copy lacks."""


@click.command("explain")
@click.argument("to", metavar="TO", is_eager=True, callback=print_article)
@PATHS_IF_ANY
@OFFLINE_IF_ANY
@NODES_WITHOUT_NAMES
@LIVE
@click.option("-n", "--namespace", default="", help="The namespace of svc/NAME.  The default is the kubeconfig's.")
@click.option("--from", "source", metavar="SOURCE", help="An address, pod/NAMESPACE/NAME, node or outside.")
@click.option(
    "--kernel", is_flag=True, help="Ask this machine's kernel for these elements, and for remembered clients."
)
@click.option(
    "--trace", "wants_trace", is_flag=True, help="Send such packets through a copy of the rules.  Needs root."
)
@click.option("--svg", "wants_picture", is_flag=True, help="Draw the path of such connections, as SVG.")
@click.option("-o", "--output", type=click.Choice(["text", "wide", *STRUCTURED]), default="text", show_default=True)
def explain_command(
    to: str,
    paths: tuple[Path, ...],
    namespace: str,
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

    TO is ADDRESS:PORT (an IPv6 address in brackets), svc/NAME, svc/NAMESPACE/NAME, svc/NAMESPACE/NAME:PORT with a
    port's name or number, or node:PORT.  A port may be followed by /UDP or /SCTP.

    PATHS are manifests, as for render, seen from the node that --node names.  Without PATHS the agent of this node
    answers, and compares the answer with its kernel.  With --all-nodes, --node or -l, and without PATHS, the agents of
    these nodes answer, and nodes that agree are a single answer.

    The text has at most 40 lines, and with -o wide each source, list and endpoint.

    With --trace packets go through a throw-away copy of the rules.  The exit status is 1 if the outcome differs from
    the explanation.  With --kernel, and without PATHS, it is a copy of this kernel's rules, otherwise of the rules of
    the manifests.

    TO may also be the code of a warning or an Event, as NFT012, or the word codes for the list of all codes, without
    further arguments.
    """
    if wants_picture and (wants_trace or output != "text"):
        raise click.UsageError("--svg is an output of its own, without --trace and --output")
    to = in_namespace(to, namespace or context_namespace(options["kubeconfig"], options["context"]))
    question = Question(parse_to(to), parse_source(source) if source else None)
    fleet = {name: options.pop(name) for name in FLEET_PARAMETERS}
    names = (options["node"],) if options["node"] and not paths else ()
    if asked := nodes_asked(nodes=names, agent_socket=agent_socket, timeout=timeout, is_offline=bool(paths), **fleet):
        refuse_given(("paths", "kernel", "wants_trace", "wants_picture", *OFFLINE_ONLY), "is for a single node")
        sys.exit(_of_nodes(asked, to, source, output))
    if paths:
        if not options["node"]:
            raise click.UsageError("with PATHS give --node NAME, too: the node that the rules are for")
        cluster = offline_cluster(paths, with_pods=True, **options)
        explanation = _of_manifests(cluster, question, kernel)
        traced = _traced_manifests(cluster, question, kernel) if wants_trace else None
    else:
        refuse_given(OFFLINE_ONLY, "needs PATHS: without PATHS the agent answers for its own node")
        agent = AgentClient(agent_socket, timeout)
        query = {"to": to, "from": source or ""}
        explanation = agent.get(Explanation, "/v1/explain", **query)
        traced = _traced_kernel(agent.get(Plan, "/v1/packets", **query), Family) if wants_trace else None
    _show(explanation, traced, kernel or not paths, output, wants_picture=wants_picture)


def _of_nodes(asked: NodesAsked, to: str, source: str | None, output: str) -> int:
    """Print the merged answers of many nodes.

    The exit status is 1 if a node gives no answer, or has a differing kernel, or doesn't know an object.
    """
    from nftproxy.fleet.outlooks import MergedExplanations

    merged = MergedExplanations()
    client = [f"--from={source}"] if source else []
    outcomes = asked.answers(("nftproxy", "explain", to, "-o", "json", *client), merged.take)
    title = f"{to}{f' from {source}' if source else ''}"
    groups = merged.groups()
    if output in STRUCTURED:
        click.echo(structured({"to": to, "from": source or "", "groups": groups}, output))
    elif groups:
        click.echo("\n".join(map(printable, merged.text(title, is_wide=output == "wide"))))
    is_complete = report_failures(outcomes)
    return 0 if is_complete and all(each.is_well for each in groups) else 1


def _of_manifests(cluster: Cluster, question: Question, kernel: bool) -> Explanation:
    """Explain a connection by manifests, with `kernel` beside the elements and chains of this machine."""
    explanation = cluster.explain(question.to, question.source)
    if not kernel:
        return explanation
    with ElementLookup() as elements:
        explanation = with_kernel(explanation, elements.find)
    missing = missing_chains(cluster.pipeline, explanation, hooked_chains)
    return msgspec.structs.replace(explanation, missing_chains=missing)


def _traced_manifests(cluster: Cluster, question: Question, kernel: bool) -> _Traces:
    """Trace packets of manifests through a copy of the manifests' rules, or with `kernel` of this machine's rules."""
    packets = plan(cluster.pipeline, question, cluster.manifests.pods)
    if kernel:
        return _traced_kernel(packets, cluster.pipeline.generations)
    return trace_plan(packets, cluster.pipeline.full_transaction({})), (OTHERS, ROUTES)


def _show(explanation: Explanation, traced: _Traces | None, kernel: bool, output: str, *, wants_picture: bool) -> None:
    """Print an answer.  `kernel` is true if the kernel's own rules were traced.

    The exit status is 1 if the kernel differs, or if the question names an object that this proxy doesn't know.
    """
    traces, untried = traced or ((), ())
    if wants_picture:
        click.echo(svg(explanation, PICTURE.read_text(), added_stages(INSTALLED)), nl=False)
    elif output in STRUCTURED:
        answer = explanation if traced is None else Traced(explanation, traces, untried)
        click.echo(structured(answer, output))
    else:
        click.echo(explanation if output == "wide" else "\n".join(brief(explanation)))
        if traced is not None:
            click.echo("\n".join(trace_text(traces, COPIED[kernel], untried)))
    if explanation.is_damaged or not explanation.is_known or any(trace.differences for trace in traces):
        sys.exit(1)


def _traced_kernel(packets: Plan, families: Iterable[Family]) -> _Traces:
    """Trace packets through a copy of the tables in the kernel of this machine, other programs' among them."""
    ours = [copy for family in families if (copy := read_table(family))]
    traces, untried = trace_beside(packets, ours, read_other_tables((TABLE, *OWN_TABLES)))
    uncopied = [f"the table {title}" for title in tables(UNCOPIED)]
    legacy = ["legacy iptables"] if any(map(legacy_tables, Family)) else []
    return traces, (*untried, *uncopied, *legacy)
