"""Sends the packets of a plan through a throw-away copy of the rules, and holds what they do to the explanation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from nftproxy.explanation.answer import Case, Endpoint, Fate
from nftproxy.explanation.packets import Packet, Plan
from nftproxy.explanation.question import Kind
from nftproxy.kernel.libnftables import check_text
from nftproxy.kernel.netns import in_scratch_namespace
from nftproxy.kernel.table_copy import TableCopy
from nftproxy.lab import Kind as Became
from nftproxy.lab import Origin, Outcome, Probe
from nftproxy.model.addresses import Address, Protocol, host_port
from nftproxy.rules.transaction import Transaction
from nftproxy.trace.scene import Scene, Traced
from nftproxy.trace.steps import Step

ORIGINS = {
    Kind.POD: Origin.POD,
    Kind.NODE: Origin.NODE,
    Kind.REMOTE_POD: Origin.REMOTE_POD,
    Kind.OUTSIDE: Origin.OUTSIDE,
}
_MASQUERADES = re.compile(r"(?<![\w-])masquerade\b")  # the statement, not the set @masqueraded
_FATES = {
    Became.ENDPOINT: Fate.ENDPOINT,
    Became.REJECTED: Fate.REJECTED,
    Became.DROPPED: Fate.DROPPED,
    Became.UNTOUCHED: Fate.PASSED,
    Became.NODE: Fate.NODE,
}
FATE_WORDS = {
    Fate.ENDPOINT: "translated to an endpoint",
    Fate.REJECTED: "rejected",
    Fate.DROPPED: "dropped",
    Fate.PASSED: "let through",
    Fate.NODE: "delivered to the node",
    Fate.FORWARDED: "left to the agent",
}


class Trace(msgspec.Struct, frozen=True):
    """The way of one packet through the kernel, and where that isn't what the explanation says.

    `fate` is what became of it, `endpoint` where it was sent to ("" unless translated), `source_there` the source
    address that came out ("" if nothing did), `rejection` how it was rejected, as nft names it.  `differences` are
    sentences; none says that the kernel did as explained.
    """

    address: Address
    protocol: Protocol
    port: int
    source: Address
    kind: Kind
    steps: tuple[Step, ...]
    fate: Fate
    endpoint: str = ""
    is_masqueraded: bool = False
    source_there: str = ""
    rejection: str = ""
    differences: tuple[str, ...] = ()


def follow(plan: Plan, rules: Transaction | Iterable[TableCopy]) -> tuple[Trace, ...]:
    """The ways of the packets of a plan through a copy of these rules; takes half a second.

    Args:
        plan: what to send.
        rules: the transaction that makes them where there are none, or what a kernel holds.

    Raises:
        Refused: the kernel refuses the rules.
        Unavailable: there can be no copy here; the message says what is missing, or what libnftables dies of.
    """
    if isinstance(rules, Transaction):
        in_scratch_namespace(check_text, rules.text)  # where the library may die, as 1.0.6 does of some rules
    with Scene(plan.node) as scene:
        if isinstance(rules, Transaction):
            scene.load(rules)
        else:
            scene.copy(rules)
        return tuple(send(scene, packet) for packet in plan.packets)


def send(scene: Scene, packet: Packet) -> Trace:
    """The way of one packet through the rules that a scene has."""
    place = packet.place
    probe = Probe(ORIGINS[packet.kind], place.address, place.port, place.protocol.value, packet.source)
    traced = scene.send(probe)
    outcome = traced.outcome
    bare = Trace(
        place.address,
        place.protocol,
        place.port,
        packet.source,
        packet.kind,
        tuple(traced.steps),
        _fate(packet, outcome),
        endpoint=str(outcome.endpoint or ""),
        is_masqueraded=_is_masqueraded(traced),
        source_there=outcome.source.ip if outcome.source else "",
        rejection=outcome.how.replace("tcp-reset", "tcp reset"),
    )
    return msgspec.structs.replace(bare, differences=tuple(_differences(packet.case, bare)))


def _fate(packet: Packet, outcome: Outcome) -> Fate:
    """What became of it; an endpoint at the very place that was asked for gets the packet as it was."""
    itself = _drawn(packet.case, host_port(packet.place.address, packet.place.port))
    is_through = outcome.kind in (Became.NODE, Became.UNTOUCHED)
    return Fate.ENDPOINT if itself and is_through else _FATES[outcome.kind]


def _is_masqueraded(traced: Traced) -> bool:
    """By the rules, or by the source that came out: the node's own connections may have the node's address anyway."""
    by_rule = any(_MASQUERADES.search(step.rule) or step.chain == "take-node-address" for step in traced.steps)
    return traced.outcome.masqueraded or (by_rule and traced.outcome.source is not None)


def _differences(case: Case, trace: Trace) -> Iterator[str]:
    if trace.fate is not case.fate or trace.rejection != case.rejection:
        explained, done = _words(case.fate, case.rejection), _words(trace.fate, trace.rejection)
        yield f"explained as {explained}, but {done} by the kernel"
    elif case.fate is Fate.ENDPOINT:
        yield from _endpoint_differences(case, trace)


def _endpoint_differences(case: Case, trace: Trace) -> Iterator[str]:
    where = trace.endpoint or host_port(trace.address, trace.port)
    endpoint = _drawn(case, where)
    if endpoint is None:
        yield f"the kernel sends it to {where}, where the explanation sends no connection"
    elif endpoint.is_masqueraded is not trace.is_masqueraded:
        words = ("kept", "masqueraded")
        explained, done = words[endpoint.is_masqueraded], words[trace.is_masqueraded]
        yield f"its source is explained as {explained}, but {done} by the kernel"


def _drawn(case: Case, where: str) -> Endpoint | None:
    """The endpoint at an address and port to which the case sends connections."""
    found = (each for each in case.endpoints if each.share and host_port(each.address, each.port) == where)
    return next(found, None)


def _words(fate: Fate, rejection: str) -> str:
    return f"{FATE_WORDS[fate]} ({rejection})" if rejection else FATE_WORDS[fate]
