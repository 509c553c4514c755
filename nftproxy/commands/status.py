"""`nftproxy status`: whether this node's rules follow the cluster, and if not, why.

The agent knows; where it can't be asked, the kernel still shows what is in force.
"""

from __future__ import annotations

import datetime
import platform
import sys
from collections.abc import Iterator

import click
import msgspec

from nftproxy import __version__
from nftproxy.agent.answers import AffinityMap, AgentState, FamilyState, Versions, Watch
from nftproxy.commands.live import LIVE, Agent, NoAnswer
from nftproxy.commands.tables import age, duration, json_text
from nftproxy.kernel import nftables_netlink
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.other_proxies import other_proxies
from nftproxy.model.addresses import FAMILY_NAMES, TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.printable import printable
from nftproxy.rules.ruleset import Kind


class TableState(msgspec.Struct, frozen=True, rename="camel"):
    """Our table of one family as the kernel has it; `elements` is -1 where the kernel doesn't count them.

    `shape` is that of the rules that are in force, "" if the table isn't of this proxy's making.  A table without
    hooks, which a first load has begun or left behind, isn't there yet.
    """

    family: str
    is_there: bool
    shape: str = ""
    sets: int = 0
    chains: int = 0
    elements: int = 0


class KernelState(msgspec.Struct, frozen=True, rename="camel"):
    """What is in force, whoever put it there."""

    tables: tuple[TableState, ...]
    other_proxies: dict[str, list[str]]
    versions: Versions


class State(msgspec.Struct, frozen=True, rename="camel"):
    """What `-o json` prints: what the agent says; or why it doesn't, what to do, and what the kernel has."""

    is_healthy: bool
    agent: AgentState | None = None
    problem: str = ""
    advice: str = ""
    process: int = 0
    kernel: KernelState | None = None


@click.command("status")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@LIVE
def status_command(output: str, agent_socket: str, timeout: float) -> None:
    """Say whether the agent of this node is healthy, and why not.

    It also says how new the rules are, and what the agent sees of the cluster.  If it can't be asked, say why, and what
    the kernel holds all the same.  Exit status 0 if it is healthy, else 1.
    """
    state = _state(Agent(agent_socket, timeout))
    if output == "json":
        click.echo(json_text(state))
    else:
        for topic, lines in _topics(state):
            for number, line in enumerate(lines or ["none"]):
                click.echo(f"{'' if number else topic + ':':18}{printable(line)}")
    sys.exit(0 if state.is_healthy else 1)


def _state(agent: Agent) -> State:
    try:
        found = agent.state()
    except NoAnswer as error:
        silent = State(is_healthy=False, problem=error.what, advice=error.advice, process=error.process)
        try:
            return msgspec.structs.replace(silent, kernel=kernel_state())
        except Unavailable as unavailable:
            return msgspec.structs.replace(silent, problem=f"{error.what}; nor can the kernel be asked: {unavailable}")
    return State(is_healthy=found.is_healthy, agent=found)


def kernel_state() -> KernelState:
    """What the kernel has of ours and of others.

    Raises:
        Unavailable: it can't be asked.
    """
    versions = Versions(__version__, platform.release(), Kernel().version(), platform.python_version())
    return KernelState(tuple(map(_table_state, Family)), other_proxies(), versions)


def _table_state(family: Family) -> TableState:
    installed = Kernel().read_back(family)
    if installed is None or not installed.has_hooks:
        return TableState(FAMILY_NAMES[family], is_there=False)
    counts = [each.count for each in nftables_netlink.sets(family, TABLE)]
    chains = sum(container.kind is Kind.CHAIN for container in installed.containers)
    known = [count for count in counts if count is not None]
    elements = sum(known) if len(known) == len(counts) else -1
    return TableState(FAMILY_NAMES[family], True, installed.shape, len(counts), chains, elements)


Topic = tuple[str, list[str]]


def _topics(state: State) -> Iterator[Topic]:
    if state.agent:
        yield from _of_agent(state.agent)
        return
    yield "Agent", [f"no answer: {state.problem}", state.advice]
    if state.kernel:
        yield "Tables", list(map(_table_text, state.kernel.tables))
        yield "Other proxies", _proxies(state.kernel.other_proxies)
        yield "Versions", [_versions(state.kernel.versions)]


def _of_agent(agent: AgentState) -> Iterator[Topic]:
    health = "healthy" if agent.is_healthy else "NOT HEALTHY"
    uptime = age(agent.now - agent.started)
    yield "Agent", [f"{health}; node {agent.node}, process {agent.process}, up for {uptime}", *agent.why_not]
    yield "Follows", [agent.source]
    yield "Rules", [_rules(family, agent.now) for family in agent.families]
    yield "Watches", [_watch(watch, agent.now) for watch in agent.watches]
    yield "Last transaction", _last_transaction(agent)
    yield "Last refusal", _last_refusal(agent)
    yield "Services", [f"{agent.services}, of which {agent.quarantined} are quarantined; conflicts: {agent.conflicts}"]
    yield "Silent endpoints", list(agent.silent)
    yield "Affinity", list(map(_affinity, agent.affinity))
    yield "Other proxies", _proxies(agent.other_proxies)
    yield "Missing", list(agent.missing)
    yield "Warnings", list(agent.warnings)
    yield "Versions", [_versions(agent.versions)]


def _rules(family: FamilyState, now: float) -> str:
    if family.last_updated is None:
        return f"{family.family}: not loaded yet"
    text = f"{family.family} as of {_time(family.last_updated)} ({age(now - family.last_updated)} ago)"
    waits = f"; a change waits for {duration(family.waiting)}" if family.waiting else ""
    return f"{text}, {family.elements} elements{waits}"


def _watch(watch: Watch, now: float) -> str:
    event = "no event yet" if watch.last_event is None else f"last event {age(now - watch.last_event)} ago"
    heard = "" if watch.last_heard is None else f", last heard {age(now - watch.last_heard)} ago"
    problem = f": {watch.problem}" if watch.problem else ""
    return f"{watch.resource}: {watch.activity} for {age(now - watch.since)}, {event}{heard}{problem}"


def _last_transaction(agent: AgentState) -> list[str]:
    last = agent.last_transaction
    if last is None:
        return []
    kind = "everything" if last.is_full else "a change"
    when = f"{_time(last.at)} ({age(agent.now - last.at)} ago)"
    return [f"{when}: {kind}, {last.size} bytes in {duration(last.duration)}, {' and '.join(sorted(last.families))}"]


def _last_refusal(agent: AgentState) -> list[str]:
    last = agent.last_refusal
    if last is None:
        return []
    when = f"{_time(last.at)} ({age(agent.now - last.at)} ago)"
    return [f"{when}: {' and '.join(sorted(last.families))}: {last.reason}"]


def _affinity(each: AffinityMap) -> str:
    if each.is_full:
        fill = f"FULL, {each.size} clients: more are served, but not remembered"
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
    shape = f"shape {table.shape}" if table.shape else "not of this proxy's making"
    elements = "" if table.elements < 0 else f", {table.elements} elements"
    return f"{table.family}: {shape}, {table.sets} sets and maps, {table.chains} chains{elements}"


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
