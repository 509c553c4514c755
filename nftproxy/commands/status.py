"""`nftproxy status`: say whether this node's rules follow the cluster, and if not, why.

The agent answers.  If it doesn't, the kernel still shows the rules that are in force.
"""

from __future__ import annotations

import datetime
import platform
import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from nftproxy.agent.socket.answers import (
    LIMITS,
    AffinityMap,
    AgentState,
    FamilyState,
    Versions,
    WatchState,
)
from nftproxy.commands.agent_client import LIVE, AgentClient, NoAnswer
from nftproxy.commands.other_nodes import NODES, NodesAsked, nodes_asked
from nftproxy.commands.output import STRUCTURED, age, duration, painted, structured, table, with_times
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.others.other_proxies import other_proxies
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.texts import printable
from nftproxy.rules.ruleset import NftKind
from nftproxy.version import __version__

OUT_OF_TOUCH = 3
"""The exit status for a healthy agent that changes of the cluster don't reach, or whose node is being removed."""


COLOURS = {0: "green", OUT_OF_TOUCH: "yellow", 1: "red"}
"""The colour of the first lines, by the exit status."""


class TableState(msgspec.Struct, frozen=True, rename="camel"):
    """Our table of a family, as the kernel has it."""

    family: str
    is_there: bool
    """False for a table without hooks, too, which a first load has begun or left behind."""
    shape: str = ""
    """The shape of the rules in force, "" if another program made the table."""
    sets: int = 0
    chains: int = 0
    elements: int = 0
    """-1 if the kernel doesn't count them."""


class KernelState(msgspec.Struct, frozen=True, rename="camel"):
    """The rules in the kernel, with or without an agent."""

    tables: tuple[TableState, ...]
    other_proxies: dict[str, list[str]]
    versions: Versions


class StatusReport(msgspec.Struct, frozen=True, rename="camel"):
    """The output of `-o json`: the agent's state, or the problem with the agent, its remedy, and the kernel's state.

    A healthy agent may still be out of touch with the cluster: then `agent.caveat` says why.
    """

    is_healthy: bool
    agent: AgentState | None = None
    problem: str = ""
    advice: str = ""
    process: int = 0
    kernel: KernelState | None = None


@click.command("status")
@click.option("-o", "--output", type=click.Choice(["text", "wide", *STRUCTURED]), default="text", show_default=True)
@NODES
@LIVE
def status_command(output: str, agent_socket: str, timeout: float, **fleet: Any) -> None:
    """Say whether the agent of this node is healthy, and why not.

    It also prints the age of the rules and the agent's view of the cluster.  If the agent doesn't answer, it prints the
    reason and the kernel's tables.  Exit status 0 if the agent is healthy, 3 if it is healthy but changes of the
    cluster don't reach it or its node is being removed, else 1.

    With --all-nodes, --node or -l it asks the agents of these nodes, from anywhere with a kubeconfig: it prints a line
    about all of them, and a row for each node that needs attention, or with -o wide for each node.  The exit status is
    the worst of all, and 1 for a node that doesn't answer.
    """
    asked = nodes_asked(agent_socket=agent_socket, timeout=timeout, **fleet)
    if asked:
        sys.exit(_of_nodes(asked, output))
    report = _report(AgentClient(agent_socket, timeout))
    status = _exit_status(report)
    if output in STRUCTURED:
        click.echo(structured(with_times(report), output))
        sys.exit(status)
    for topic, lines in _topics(report):
        for number, line in enumerate(lines or ["none"]):
            text = f"{'' if number else topic + ':':18}{printable(line)}"
            click.echo(painted(text, COLOURS[status] if topic == "Agent" else ""))
    sys.exit(status)


def _of_nodes(asked: NodesAsked, output: str) -> int:
    """Print the states of nodes, and return the exit status."""
    from nftproxy.fleet import cluster_status as fleet

    found = fleet.cluster_status(asked.answers(("nftproxy", "status", "-o", "json"), fleet.node_status))
    status = fleet.exit_status(found)
    if output in STRUCTURED:
        click.echo(structured(found, output))
        return status
    click.echo(painted(found.summary, COLOURS[status]))
    for remark in fleet.remarks(found):
        click.echo(painted(printable(remark), "yellow"))
    header, rows = (fleet.WIDE, fleet.wide(found)) if output == "wide" else (fleet.HEADER, fleet.attention(found))
    if shown := list(rows):
        click.echo("\n".join(["", *table(header, shown)]))
    return status


def _exit_status(report: StatusReport) -> int:
    if not report.is_healthy:
        return 1
    return OUT_OF_TOUCH if report.agent and (report.agent.caveat or not report.agent.is_eligible) else 0


def _report(agent: AgentClient) -> StatusReport:
    try:
        found = agent.get(AgentState, "/v1/status")
    except NoAnswer as error:
        alone = StatusReport(is_healthy=False, problem=error.what, advice=error.advice, process=error.process)
        try:
            return msgspec.structs.replace(alone, kernel=_kernel_state())
        except Unavailable as unavailable:
            return msgspec.structs.replace(
                alone, problem=f"{error.what}; the kernel can't be read either: {unavailable}"
            )
    return StatusReport(is_healthy=found.is_healthy, agent=found)


def _kernel_state() -> KernelState:
    versions = Versions(__version__, platform.release(), Kernel().version(), platform.python_version())
    return KernelState(tuple(map(_table_state, Family)), other_proxies(), versions)


def _table_state(family: Family) -> TableState:
    installed = Kernel().read_back(family)
    if installed is None or not installed.has_hooks:
        return TableState(FAMILY_NAMES[family], is_there=False)
    counts = [each.count for each in nft_queries.sets(family)]
    chains = sum(container.kind is NftKind.CHAIN for container in installed.containers)
    known = [count for count in counts if count is not None]
    elements = sum(known) if len(known) == len(counts) else -1
    return TableState(FAMILY_NAMES[family], True, installed.shape, len(counts), chains, elements)


Topic = tuple[str, list[str]]


def _topics(report: StatusReport) -> Iterator[Topic]:
    if report.agent:
        yield from _of_agent(report.agent)
        return
    yield "Agent", [f"no answer: {report.problem}", report.advice]
    if report.kernel:
        yield "Tables", list(map(_table_text, report.kernel.tables))
        yield "Other proxies", _proxies(report.kernel.other_proxies)
        yield "Versions", [_versions(report.kernel.versions)]


def _of_agent(agent: AgentState) -> Iterator[Topic]:
    follows = ", BUT OUT OF TOUCH with the cluster" if agent.caveat else ""
    count = len(agent.warnings)
    faults = f", with {count} warning{'s' * (count > 1)} (below)" if count and not agent.caveat else ""
    leaves = ", BUT NO NEW CONNECTIONS from load balancers" if not agent.is_eligible else ""
    health = f"healthy{follows}{leaves}{faults}" if agent.is_healthy else "NOT HEALTHY"
    uptime = age(agent.now - agent.started)
    yield "Agent", [f"{health}; node {agent.node}, process {agent.process}, up for {uptime}", *agent.why_not]
    yield "Follows", [agent.source]
    yield "Rules", [_rules(family, agent.now) for family in agent.families]
    yield "Watches", [_watch(watch, agent.now) for watch in agent.watches]
    yield "Last transaction", _last_transaction(agent)
    yield "Last refusal", _last_refusal(agent)
    yield "Services", [_services(agent)]
    yield from ((title, list(lines)) for title, lines in agent.features.items())
    limits = [each for each in agent.affinity if each.name.startswith(LIMITS)]
    yield "Affinity", [_affinity(each) for each in agent.affinity if each not in limits]
    if limits:
        yield "Limits", list(map(_affinity, limits))
    yield "Other proxies", _proxies(agent.other_proxies)
    yield "Missing", list(agent.missing)
    yield "Warnings", list(agent.warnings)
    if agent.dropped_lines:
        yield "Log", [f"lines that were dropped, as nobody read them in time: {agent.dropped_lines}"]
    yield "Versions", [_versions(agent.versions)]


def _rules(family: FamilyState, now: float) -> str:
    if family.last_updated is None:
        if family.of_earlier_agent is None:
            return f"{family.family}: not loaded yet, and nothing is served"
        left = f"{family.of_earlier_agent} elements of an earlier agent are in force and follow no changes"
        return f"{family.family}: not loaded yet; {left}"
    waits = f"; a change waits for {duration(family.waiting)}" if family.waiting else ""
    as_of = family.as_of or family.last_updated
    return f"{family.family} for the cluster as of {_when(as_of, now)}, {family.elements} elements{waits}"


def _services(agent: AgentState) -> str:
    if not agent.knows_cluster:
        return "not known yet"
    return f"{agent.services}, of which {agent.quarantined} are quarantined; conflicts: {agent.conflicts}"


def _watch(watch: WatchState, now: float) -> str:
    event = "no event yet" if watch.last_event is None else f"last event {age(now - watch.last_event)} ago"
    heard = "" if watch.last_heard is None else f", last heard {age(now - watch.last_heard)} ago"
    problem = f": {watch.problem}" if watch.problem else ""
    return f"{watch.resource}: {watch.activity} for {age(now - watch.since)}, {event}{heard}{problem}"


def _last_transaction(agent: AgentState) -> list[str]:
    last = agent.last_transaction
    if last is None:
        return []
    kind = "everything" if last.is_full else "a change"
    families = " and ".join(sorted(last.families))
    return [f"{_when(last.at, agent.now)}: {kind}, {last.size} bytes in {duration(last.duration)}, {families}"]


def _last_refusal(agent: AgentState) -> list[str]:
    last = agent.last_refusal
    return [f"{_when(last.at, agent.now)}: {' and '.join(sorted(last.families))}: {last.reason}"] if last else []


def _affinity(each: AffinityMap) -> str:
    if each.is_full:
        cost = "without a limit" if each.name.startswith(LIMITS) else "but not remembered"
        fill = f"FULL, {each.size} clients: further clients are served, {cost}"
    elif each.is_at_least:
        fill = f"{each.clients} clients or more, of at most {each.size}, and not full"
    else:
        fill = f"{each.clients} clients of at most {each.size} ({100 * each.clients / each.size:.1f} %)"
    return f"{each.family} {each.name}: {fill}"


def _proxies(found: dict[str, list[str]]) -> list[str]:
    return [f"{proxy}: {', '.join(traces)}" for proxy, traces in found.items()]


def _versions(found: Versions) -> str:
    return f"nftproxy {found.nftproxy}, Linux {found.kernel}, libnftables {found.libnftables}, Python {found.python}"


def _table_text(table: TableState) -> str:
    if not table.is_there:
        return f"{table.family}: there is none, so nothing is served"
    shape = f"shape {table.shape}" if table.shape else "not made by this proxy"
    elements = "" if table.elements < 0 else f", {table.elements} elements"
    return f"{table.family}: {shape}, {table.sets} sets and maps, {table.chains} chains{elements}"


def _when(seconds: float, now: float) -> str:
    return (
        f"{datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(' ', 'seconds')} ({age(now - seconds)} ago)"
    )
