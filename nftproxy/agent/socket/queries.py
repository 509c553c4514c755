"""The handlers of queries on the agent's socket, from the agent's memory and from the kernel.

Answers come in pieces of `WORK_SECONDS` seconds of work.  The kernel is read in threads.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

import msgspec

from nftproxy.agent.pod_routes import sample
from nftproxy.agent.reporting.health import HealthStatus, Moment
from nftproxy.agent.socket.agent_socket import QueryHandler
from nftproxy.agent.socket.answers import (
    AffinityMap,
    AgentState,
    ConflictRow,
    End,
    FamilyState,
    Line,
    ListingRow,
    NodeInputs,
    Versions,
    WatchState,
)
from nftproxy.agent.socket.connections import connections
from nftproxy.agent.socket.listings import LISTINGS, ListingScope, faults
from nftproxy.agent.socket.query_context import QueryContext, Status
from nftproxy.agent.socket.readiness import elements_of_earlier_agent, when_known
from nftproxy.agent.socket.remembered_clients import affinity_maps, clients
from nftproxy.agent.socket.shared_reading import GOING_ON, SharedReading, signs_of_life
from nftproxy.api.selectors import parse_selector
from nftproxy.config.configz import configuration_digest, configz
from nftproxy.explanation.answer import ExplainedPlace, Explanation
from nftproxy.explanation.answering import explaining
from nftproxy.explanation.expected import missing_chains, with_kernel
from nftproxy.explanation.packets import planning
from nftproxy.explanation.question import Question, ToService, parse_source, parse_to
from nftproxy.kernel.capabilities import known_lacks
from nftproxy.kernel.nfnetlink.elements import ElementLookup
from nftproxy.kernel.nfnetlink.nft_queries import hooked_chains
from nftproxy.logs import dropped_lines
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem, Unavailable
from nftproxy.model.objects import ObjectKey
from nftproxy.model.steps import Steps
from nftproxy.pipeline import Pipeline
from nftproxy.sources.api_client import ResourceActivity
from nftproxy.version import __version__

WORK_SECONDS = 0.005
"""Seconds of work after which other tasks have their turn."""
MOST_CLIENTS = 10_000
"""Limit of clients in an answer."""
LONGEST_TEXT = 1_000
"""Limit of characters of a reason or warning: the kernel's refusals may quote a statement of any length."""
COMPARISONS, AGAIN = 4, 0.3
"""How often an explanation is compared with the kernel, and the seconds in between.  A change that is on its way to the
kernel is no damage: it takes milliseconds, or as long as nftables.minSyncPeriod."""
OF_PACKETS = (
    Code.NODE_ELSEWHERE,
    Code.LOCAL_SOURCES_UNKNOWN,
    Code.NOT_FORWARDING,
    Code.PODS_UNROUTED,
    Code.CONNTRACK_FULL,
    Code.OTHER_PROXY,
)
"""Warnings about the node that an explanation repeats, as the rules don't show them."""
OF_SERVICES = (Code.NODE_ELSEWHERE, Code.NODE_PORTS_NOWHERE)
"""Warnings about the node by which Services that a listing shows as served may not be."""

_encode = msgspec.json.Encoder().encode


def query_handlers(known: QueryContext) -> Mapping[str, QueryHandler]:
    """Return the handlers, by the paths of requests."""
    pipeline = known.pipeline
    about_the_cluster = {
        **{name: _listing(known, rows) for name, rows in LISTINGS.items()},
        "services": _listing(known, LISTINGS["services"], caveats=OF_SERVICES),
        "conflicts": _listing(known, LISTINGS["conflicts"], _own_ports),
        "affinity": _affinity(known),
        "explain": _explain(known),
        "packets": _packets(pipeline),
        "connections": connections(pipeline.state, known.reporter),
        "node": _node_facts(pipeline),
    }
    handlers = {
        f"/v1/{name}": when_known(handler, pipeline, known.reporter) for name, handler in about_the_cluster.items()
    }
    return {**handlers, "/v1/status": _status(known)}


def _listing(
    known: QueryContext,
    rows: Callable[[Pipeline, ListingScope], Iterator[ListingRow | None]],
    extra: Callable[[QueryContext, ListingScope], Iterable[ListingRow]] = lambda _known, _scope: (),
    caveats: tuple[Code, ...] = (),
) -> QueryHandler:
    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        scope = _scope(query)
        for piece in _pieces(itertools.chain(rows(known.pipeline, scope), extra(known, scope))):
            yield piece
        yield _line(End(caveat=known.reporter.caveat() or next(_of_node(known, caveats), "")))

    return answer


def _own_ports(known: QueryContext, scope: ListingScope) -> Iterator[ConflictRow]:
    """Yield a row for each of the agent's own ports that it can't open, unless only some Services are asked for."""
    for warning in known.reporter.status().warnings if scope == ListingScope() else ():
        if warning.startswith(Code.OWN_PORT_TAKEN):
            yield ConflictRow("", "", "", "the agent's own port", warning, "")


def _of_node(known: QueryContext, codes: tuple[Code, ...]) -> Iterator[str]:
    """Yield the warnings about the node that have one of these codes."""
    return (each for each in known.reporter.status().warnings if each.startswith(codes))


def _pieces(rows: Iterable[ListingRow | None]) -> Iterator[bytes]:
    """Yield the lines of rows, as many at a time as `WORK_SECONDS` seconds make."""
    lines, began = [], time.perf_counter()
    for row in rows:
        if row is not None:
            lines.append(_line(row))
        if time.perf_counter() - began >= WORK_SECONDS:
            yield b"".join(lines)
            lines, began = [], time.perf_counter()
    yield b"".join(lines)


def _line(row: Line | ListingRow | AgentState) -> bytes:
    return _encode(row) + b"\n"


def _affinity(known: QueryContext) -> QueryHandler:
    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        room, pipeline = _limit(query), known.pipeline
        async for part in clients(pipeline.state, pipeline.generations, _scope(query)):
            yield b"".join(map(_line, part[:room]))
            room -= len(part)
            if room < 0:
                break
        yield _line(End(is_cut=room < 0, caveat=known.reporter.caveat()))

    return answer


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "500")
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_CLIENTS))
    if not (is_number and 1 <= int(text) <= MOST_CLIENTS):
        raise BadInput(
            Problem("", "", "limit", f"{text[:20]!r} is not from 1 to {MOST_CLIENTS}", Code.SELECTION_UNREADABLE)
        )
    return int(text)


def _scope(query: Mapping[str, str]) -> ListingScope:
    return ListingScope(query.get("namespace", ""), parse_selector(query.get("selector", "")))


def _status(known: QueryContext) -> QueryHandler:
    reading = SharedReading(lambda: _of_features(known.statuses))

    async def answer(_query: Mapping[str, str]) -> AsyncIterator[bytes]:
        task = reading.join()
        async for sign in signs_of_life(task):
            yield sign
        features, families = task.result(), known.pipeline.generations
        affinity = await asyncio.to_thread(_affinity_maps, families)
        unloaded = [family for family in families if not known.reporter.has_loaded(family)]
        earlier = await asyncio.to_thread(elements_of_earlier_agent, unloaded)
        yield _line(msgspec.structs.replace(_agent_state(known, affinity, earlier), features=features))

    return answer


def _node_facts(pipeline: Pipeline) -> QueryHandler:
    async def answer(_query: Mapping[str, str]) -> AsyncIterator[bytes]:
        state, node, config = pipeline.state, pipeline.state.node, pipeline.settings.config
        facts = NodeInputs(
            name=node.name,
            zone=node.zone,
            internal_ips=node.internal_ips,
            external_ips=node.external_ips,
            pod_cidrs=tuple(map(str, node.pod_cidrs)),
            service_cidrs=tuple(map(str, state.service_cidrs)),
            host_addresses=None if state.host_addresses is None else tuple(sorted(state.host_addresses)),
            api_servers=tuple(sorted(state.api_servers)),
            families=tuple(family.value for family in pipeline.generations),
            wide_maps=pipeline.settings.capabilities.wide_maps,
            configuration=msgspec.Raw(configz(config)),
            endpoints=tuple(sample(state.slices(), config.cluster_cidrs, left_out=node.name)),
        )
        yield _encode(facts)

    return answer


def _explain(known: QueryContext) -> QueryHandler:
    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        question = _question(query)
        for is_last in (*[False] * (COMPARISONS - 1), True):
            steps = Steps(explaining(known.pipeline, question))
            for _ in steps:
                yield GOING_ON
            explanation, places = steps.result, list[ExplainedPlace]()
            for place in explanation.places:
                one = msgspec.structs.replace(explanation, places=(place,))
                places += (await asyncio.to_thread(_with_kernel, one)).places
                yield GOING_ON
            present = await asyncio.to_thread(_hooked_chains, {place.family for place in explanation.places})
            missing = missing_chains(known.pipeline, explanation, present.__getitem__) if present else ()
            explanation = msgspec.structs.replace(explanation, places=tuple(places), missing_chains=missing)
            if is_last or not explanation.is_damaged:
                break
            await asyncio.sleep(AGAIN)
        of_objects = _faults(known.pipeline, question, explanation)
        notes = (*_of_the_node(known), *explanation.notes, *of_objects, *_changes(known, explanation))
        yield _encode(msgspec.structs.replace(explanation, notes=notes))

    return answer


def _of_the_node(known: QueryContext) -> Iterator[str]:
    """Yield the reasons why packets may fare otherwise than the rules say, or the rules may be out of date."""
    yield from filter(None, [known.reporter.caveat()])
    yield from _of_node(known, OF_PACKETS)


def _faults(pipeline: Pipeline, question: Question, explanation: Explanation) -> Iterator[str]:
    """Yield the faults of the Services that a question names or that own a place, and of their EndpointSlices."""
    owners = filter(None, [place.owner for place in explanation.places])
    keys = [ObjectKey(each.namespace, each.name) for each in owners]
    if isinstance(question.to, ToService):
        keys.append(question.to.service)
    for key in dict.fromkeys(keys):
        if service := pipeline.state.given.get(key):
            yield from faults(pipeline, service)


def _changes(known: QueryContext, explanation: Explanation) -> Iterator[str]:
    """Yield the changes that may be a difference between an explanation and the kernel."""
    for family, seconds in known.reporter.waiting().items() if explanation.is_damaged else ():
        yield f"{FAMILY_NAMES[family]}: a change waits for {seconds:.0f} s to reach the kernel: maybe this difference"


def _packets(pipeline: Pipeline) -> QueryHandler:
    """Plan the packets that show an explanation.  The client sends them, as the agent lacks the rights."""

    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        steps = Steps(planning(pipeline, _question(query)))
        for _ in steps:
            yield GOING_ON
        yield _encode(steps.result)

    return answer


def _question(query: Mapping[str, str]) -> Question:
    source = query.get("from")
    return Question(parse_to(query.get("to", "")), parse_source(source) if source else None)


def _with_kernel(explanation: Explanation) -> Explanation:
    """Add the kernel's elements to an explanation, if the kernel can be read."""
    try:
        with ElementLookup() as elements:
            return with_kernel(explanation, elements.find)
    except Unavailable:
        return explanation


def _hooked_chains(families: Iterable[Family]) -> dict[Family, frozenset[str]]:
    """Return the base chains of each family to which packets come, nothing if the kernel can't be read."""
    try:
        return {family: hooked_chains(family) for family in families}
    except Unavailable:
        return {}


def _affinity_maps(families: Iterable[Family]) -> list[AffinityMap]:
    try:
        return affinity_maps(families)
    except Unavailable:
        return []  # status must work also while the kernel doesn't


def _of_features(statuses: Iterable[Status]) -> dict[str, tuple[str, ...]]:
    return {title: tuple(lines) for status in statuses for title, lines in status().items()}


def _agent_state(known: QueryContext, affinity: Iterable[AffinityMap], earlier: Mapping[Family, int]) -> AgentState:
    pipeline, status = known.pipeline, known.reporter.status()
    waiting = known.reporter.waiting(status.now)
    failed = known.reporter.last_failed
    return AgentState(
        is_healthy=status.is_healthy,
        is_eligible=not status.why_ineligible,
        why_not=status.why_not,
        warnings=tuple(text[:LONGEST_TEXT] for text in status.warnings),
        node=pipeline.state.node.name,
        process=os.getpid(),
        started=known.started,
        now=status.now.wall,
        source=known.source(),
        caveat=known.reporter.caveat(status.now),
        knows_cluster=known.reporter.knows_cluster,
        services=len(pipeline.state.given),
        conflicts=sum(map(len, pipeline.losses.by_service.values())),
        quarantined=len(pipeline.quarantined),
        families=tuple(
            _family_state(known, status, family, waiting.get(family, 0.0), earlier.get(family)) for family in Family
        ),
        watches=tuple(_watch(each, status.now) for each in known.reporter.activities()),
        last_transaction=known.reporter.last_applied,
        last_refusal=failed and msgspec.structs.replace(failed, reason=failed.reason[:LONGEST_TEXT]),
        affinity=tuple(affinity),
        other_proxies=known.other_proxies(),
        missing=known_lacks(),
        versions=Versions(__version__, platform.release(), known.libnftables, platform.python_version()),
        configuration=configuration_digest(pipeline.settings.config),
        dropped_lines=dropped_lines(),
    )


def _family_state(
    known: QueryContext, status: HealthStatus, family: Family, waiting: float, earlier: int | None
) -> FamilyState:
    found, generation = status.families.get(family), known.pipeline.generations.get(family)
    return FamilyState(
        FAMILY_NAMES[family],
        last_updated=found.last_updated if found else None,
        is_healthy=found.is_healthy if found else True,
        waiting=waiting,
        elements=generation.element_count() if generation else 0,
        as_of=known.reporter.as_of(family, status.now) if generation else None,
        of_earlier_agent=earlier,
    )


def _watch(activity: ResourceActivity, now: Moment) -> WatchState:
    event, heard = activity.last_event, activity.last_heard
    return WatchState(
        activity.resource,
        activity.what,
        now.wall_time(activity.since),
        None if event is None else now.wall_time(event),
        None if heard is None else now.wall_time(heard),
        activity.problem[:LONGEST_TEXT],
    )
