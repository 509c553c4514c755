"""What the agent answers over its socket, and how: from what it has in memory, and what only the kernel knows.

Answers come in pieces of `PIECE` seconds of work.  What takes the kernel's time is asked in threads of its own.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from nftproxy import __version__
from nftproxy.agent.affinity import affinity_maps, clients
from nftproxy.agent.answers import (
    AffinityMap,
    AgentState,
    End,
    FamilyState,
    LastRefusal,
    LastTransaction,
    Line,
    NodeFacts,
    Row,
    Versions,
    Watch,
)
from nftproxy.agent.control import Question
from nftproxy.agent.health import Status
from nftproxy.agent.inventory import LISTINGS, Scope
from nftproxy.agent.vitals import Vitals
from nftproxy.api.configz import configz
from nftproxy.api.selectors import parse_selector
from nftproxy.explanation.answer import Explanation, Place
from nftproxy.explanation.explain import explaining
from nftproxy.explanation.kernel import with_kernel
from nftproxy.explanation.packets import planning
from nftproxy.explanation.question import Question as Asked
from nftproxy.explanation.question import parse_source, parse_to
from nftproxy.kernel.capabilities import known_lacks
from nftproxy.kernel.elements import Elements
from nftproxy.kernel.other_proxies import Traces
from nftproxy.model.addresses import FAMILY_NAMES, Family, host_port
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem, Unavailable
from nftproxy.model.steps import Steps
from nftproxy.pipeline import Pipeline
from nftproxy.sources.activity import Activity

PIECE = 0.005
"""Seconds of work after which others have their turn."""
MOST_CLIENTS = 10_000
"""Clients that one answer has."""
LONGEST_TEXT = 1_000
"""Characters of a reason or warning that are shown: the kernel's refusals may quote a statement of any length."""
GOING_ON = b"\n"
"""What is sent after each step of an answer that is one value: whoever asks sees that there will be one."""

_encode = msgspec.json.Encoder().encode


class Knowledge(NamedTuple):
    """Whom to ask; `source` is what the agent follows, `libnftables` the library's version."""

    pipeline: Pipeline
    vitals: Vitals
    started: float
    libnftables: str
    source: Callable[[], str]
    activities: Callable[[], Iterable[Activity]]
    other_proxies: Callable[[], Traces]


def questions(known: Knowledge) -> Mapping[str, Question]:
    """The answers, by the paths of the requests."""
    listings = {f"/v1/{name}": _listing(known.pipeline, rows) for name, rows in LISTINGS.items()}
    return {
        **listings,
        "/v1/affinity": _affinity(known.pipeline),
        "/v1/status": _status(known),
        "/v1/explain": _explain(known.pipeline),
        "/v1/packets": _packets(known.pipeline),
        "/v1/node": _node_facts(known.pipeline),
    }


def _listing(pipeline: Pipeline, rows: Callable[[Pipeline, Scope], Iterator[Row | None]]) -> Question:
    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        scope = _scope(query)
        for piece in _pieces(rows(pipeline, scope)):
            yield piece
        yield _line(End())

    return answer


def _pieces(rows: Iterable[Row | None]) -> Iterator[bytes]:
    """Lines, as many as are made in a short time."""
    lines, began = [], time.perf_counter()
    for row in rows:
        if row is not None:
            lines.append(_line(row))
        if time.perf_counter() - began >= PIECE:
            yield b"".join(lines)
            lines, began = [], time.perf_counter()
    yield b"".join(lines)


def _line(row: Line | Row | AgentState) -> bytes:
    return _encode(row) + b"\n"


def _affinity(pipeline: Pipeline) -> Question:
    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        room = _limit(query)
        async for part in clients(pipeline.state, pipeline.generations, _scope(query)):
            yield b"".join(map(_line, part[:room]))
            room -= len(part)
            if room < 0:
                break
        yield _line(End(is_cut=room < 0))

    return answer


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "500")
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_CLIENTS))
    if not (is_number and 1 <= int(text) <= MOST_CLIENTS):
        raise BadInput(
            [Problem("", "", "limit", f"{text[:20]!r} is not from 1 to {MOST_CLIENTS}", Code.SELECTION_UNREADABLE)]
        )
    return int(text)


def _scope(query: Mapping[str, str]) -> Scope:
    return Scope(query.get("namespace", ""), parse_selector(query.get("selector", "")))


def _status(known: Knowledge) -> Question:
    async def answer(_query: Mapping[str, str]) -> AsyncIterator[bytes]:
        affinity = await asyncio.to_thread(_affinity_maps, known.pipeline.generations)
        yield _line(_agent_state(known, affinity))

    return answer


def _node_facts(pipeline: Pipeline) -> Question:
    async def answer(_query: Mapping[str, str]) -> AsyncIterator[bytes]:
        state, node = pipeline.state, pipeline.state.node
        facts = NodeFacts(
            name=node.name,
            zone=node.zone,
            internal_ips=node.internal_ips,
            external_ips=node.external_ips,
            pod_cidrs=tuple(map(str, node.pod_cidrs)),
            service_cidrs=tuple(map(str, state.service_cidrs)),
            host_addresses=None if state.host_addresses is None else tuple(sorted(state.host_addresses)),
            families=tuple(family.value for family in pipeline.generations),
            wide_maps=pipeline.settings.capabilities.wide_maps,
            configuration=msgspec.Raw(configz(pipeline.settings.config)),
        )
        yield _encode(facts)

    return answer


def _explain(pipeline: Pipeline) -> Question:
    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        steps = Steps(explaining(pipeline, _asked(query)))
        for _ in steps:
            yield GOING_ON
        explanation, places = steps.result, list[Place]()
        for place in explanation.places:
            one = msgspec.structs.replace(explanation, places=(place,))
            places += (await asyncio.to_thread(_with_kernel, one)).places
            yield GOING_ON
        yield _encode(msgspec.structs.replace(explanation, places=tuple(places)))

    return answer


def _packets(pipeline: Pipeline) -> Question:
    """What to send to see what an explanation says; whoever asks has the rights for that, which the agent has not."""

    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        steps = Steps(planning(pipeline, _asked(query)))
        for _ in steps:
            yield GOING_ON
        yield _encode(steps.result)

    return answer


def _asked(query: Mapping[str, str]) -> Asked:
    source = query.get("from")
    return Asked(parse_to(query.get("to", "")), parse_source(source) if source else None)


def _with_kernel(explanation: Explanation) -> Explanation:
    """With what the kernel has of it, element by element; without where it can't be asked."""
    try:
        with Elements() as elements:
            return with_kernel(explanation, elements.find)
    except Unavailable:
        return explanation


def _affinity_maps(families: Iterable[Family]) -> list[AffinityMap]:
    try:
        return affinity_maps(families)
    except Unavailable:
        return []  # asked for also while nothing else works


def _agent_state(known: Knowledge, affinity: Iterable[AffinityMap]) -> AgentState:
    pipeline, status = known.pipeline, known.vitals.status()
    waiting = known.vitals.waiting()
    applied, failed = known.vitals.last_applied, known.vitals.last_failed
    return AgentState(
        is_healthy=status.is_healthy,
        why_not=tuple(why_not(status, waiting)),
        warnings=tuple(text[:LONGEST_TEXT] for text in status.warnings),
        node=pipeline.state.node.name,
        process=os.getpid(),
        started=known.started,
        now=status.now.wall,
        source=known.source(),
        services=len(pipeline.state.given),
        conflicts=sum(map(len, pipeline.losses.values())),
        quarantined=len(pipeline.quarantined),
        silent=tuple(host_port(*place) for place in pipeline.state.silent),
        families=tuple(_family_state(pipeline, status, family, waiting.get(family, 0.0)) for family in Family),
        watches=tuple(map(_watch, known.activities())),
        last_transaction=applied
        and LastTransaction(applied.at, applied.seconds, applied.size, applied.is_full, _names(applied.families)),
        last_refusal=failed and LastRefusal(failed.at, _names(failed.families), failed.reason[:LONGEST_TEXT]),
        affinity=tuple(affinity),
        other_proxies=known.other_proxies(),
        missing=known_lacks(),
        versions=Versions(__version__, platform.release(), known.libnftables, platform.python_version()),
    )


def why_not(status: Status, waiting: Mapping[Family, float]) -> Iterator[str]:
    """Why the proxy isn't healthy, in words."""
    yield from (f"waiting for {what}" for what in status.waiting)
    for family, each in status.families.items():
        if not each.is_healthy:
            yield f"{FAMILY_NAMES[family]}: a change waits since {waiting.get(family, 0.0):.0f} s to be in the kernel"


def _names(families: Iterable[Family]) -> tuple[str, ...]:
    return tuple(FAMILY_NAMES[family] for family in families)


def _family_state(pipeline: Pipeline, status: Status, family: Family, waiting: float) -> FamilyState:
    found, generation = status.families.get(family), pipeline.generations.get(family)
    return FamilyState(
        FAMILY_NAMES[family],
        last_updated=found.last_updated if found else None,
        is_healthy=found.is_healthy if found else True,
        waiting=waiting,
        elements=generation.element_count() if generation else 0,
    )


def _watch(activity: Activity) -> Watch:
    return Watch(
        activity.resource,
        activity.what,
        activity.since,
        activity.last_event,
        activity.last_heard,
        activity.problem[:LONGEST_TEXT],
    )
