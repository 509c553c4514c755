"""Send the packets of a plan through a throw-away copy of the rules, and compare their fate with the explanation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from nftproxy.explanation.answer import Case, EndpointShare, Fate, outcome
from nftproxy.explanation.packets import Packet, Plan
from nftproxy.explanation.question import SourceKind
from nftproxy.kernel.child_process import in_scratch_namespace
from nftproxy.kernel.libnftables import check_text
from nftproxy.kernel.nfnetlink.table_copy import TableCopy
from nftproxy.model.addresses import Address, Protocol, host_port
from nftproxy.model.errors import Unavailable
from nftproxy.model.texts import first_of
from nftproxy.rules.transaction import Transaction
from nftproxy.trace.node import NewConnection
from nftproxy.trace.scene import Passage, Scene
from nftproxy.trace.sentences import DROPPED_BY, Step

_MASQUERADES = re.compile(r"(?<![\w-])masquerade\b")  # the statement, not the set @masqueraded


class Trace(msgspec.Struct, frozen=True):
    """The way of a packet through the kernel, and its differences from the explanation.

    `endpoint` is the address and port that it was translated to, or "".  `source_there` is the source address after the
    node, or "" if no packet was seen.  `rejection` is the way of a rejection by nft's name.  `differences` are
    sentences.  Without any, the kernel did as explained.
    """

    address: Address
    protocol: Protocol
    port: int
    source: Address
    kind: SourceKind
    steps: tuple[Step, ...]
    fate: Fate
    endpoint: str = ""
    is_masqueraded: bool = False
    source_there: str = ""
    rejection: str = ""
    differences: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """The chains of other programs in which a rule matched, in words."""


def trace_plan(plan: Plan, rules: Transaction | Iterable[TableCopy]) -> tuple[Trace, ...]:
    """Trace the packets of a plan through a copy of these rules, which takes half a second.

    Args:
        plan: the node and its packets.
        rules: a transaction for an empty kernel, or the tables of a kernel.

    Raises:
        Refused: the kernel refuses the rules.
        Unavailable: this machine doesn't allow a copy, or libnftables dies of the rules.
    """
    if isinstance(rules, Transaction):
        in_scratch_namespace(check_text, rules.text)  # in a child process, as libnftables 1.0.6 dies of some rules
    with Scene(plan.node) as scene:
        if isinstance(rules, Transaction):
            scene.load(rules)
        else:
            scene.copy(rules)
        return tuple(trace_packet(scene, packet) for packet in plan.packets)


ROUTES = (
    "this node's routes, sysctls (rp_filter), MTUs, bridge ports (hairpin), neighbours (a pod's address twice) and "
    "connections; `nftproxy doctor` looks at routes, MTUs and bridge ports"
)
OTHERS = "other programs' tables"
"""Parts of a node that a copy lacks."""


def trace_beside(
    plan: Plan, tables: Iterable[TableCopy], others: Sequence[TableCopy]
) -> tuple[tuple[Trace, ...], tuple[str, ...]]:
    """Trace the packets of a plan through a copy of our tables and of other programs' tables.

    Args:
        plan: the node and its packets.
        tables: our tables of a kernel.
        others: other programs' tables of the same kernel.

    Returns:
        The traces, and the parts of the node that weren't tried.  Other programs' tables are left out if their rules
        keep the packets that end a trace from passing.

    Raises:
        Unavailable: this machine doesn't allow a copy, or refuses that of our tables.
    """
    tables = list(tables)
    with Scene(plan.node) as scene:
        refused = scene.copy(tables, others)
        try:
            found = tuple(trace_packet(scene, packet) for packet in plan.packets)
        except Unavailable:
            if len(refused) == len(others):
                raise
            refused = [each.title for each in others]
            scene.copy(tables)
            found = tuple(trace_packet(scene, packet) for packet in plan.packets)
    return found, (ROUTES, *(f"the table {title}" for title in refused))


def trace_packet(scene: Scene, packet: Packet) -> Trace:
    """Trace a packet through the rules of a scene."""
    place = packet.place
    passage = scene.send(NewConnection(packet.kind, packet.source, place.address, place.port, place.protocol))
    outcome = passage.outcome
    bare = Trace(
        place.address,
        place.protocol,
        place.port,
        packet.source,
        packet.kind,
        tuple(passage.steps),
        _fate(packet, outcome.fate),
        endpoint=outcome.endpoint,
        is_masqueraded=_is_masqueraded(packet, passage),
        source_there=outcome.source,
        rejection=outcome.rejection,
        others=passage.others,
    )
    return msgspec.structs.replace(bare, differences=tuple(_differences(packet.case, bare)))


def _fate(packet: Packet, fate: Fate) -> Fate:
    """The fate of a packet.  An endpoint at the packet's own destination gets the packet unchanged."""
    itself = _drawn(packet.case, host_port(packet.place.address, packet.place.port))
    return Fate.ENDPOINT if itself and fate in (Fate.NODE, Fate.PASSED) else fate


def _is_masqueraded(packet: Packet, passage: Passage) -> bool:
    """True if the packet's source was masqueraded.

    Either its source has changed, or a masquerading rule matched: the node's own connections may keep the same address.
    """
    source = passage.outcome.source
    by_rule = any(_MASQUERADES.search(step.rule) or step.chain == "take-node-address" for step in passage.steps)
    return source not in ("", packet.source) or (by_rule and source != "")


def _differences(case: Case, trace: Trace) -> Iterator[str]:
    if trace.fate is not case.fate or trace.rejection != case.rejection:
        yield f"explained as {case.outcome}, but {outcome(trace.fate, trace.rejection)} by the kernel{_by(trace)}"
    elif case.fate is Fate.ENDPOINT:
        yield from _endpoint_differences(case, trace)


def _by(trace: Trace) -> str:
    """Name the chain of another program that dropped the packet."""
    step = next((each for each in trace.steps if each.words.startswith(DROPPED_BY)), None)
    if step is None:
        return ""
    table = step.words.removeprefix(DROPPED_BY).partition(":")[0].strip()
    caveat = "unless its rules accept packets by the names of interfaces, which a copy doesn't have"
    return f", in the chain {step.chain} of the table {table} of another program, {caveat}"


def _endpoint_differences(case: Case, trace: Trace) -> Iterator[str]:
    where = trace.endpoint or host_port(trace.address, trace.port)
    endpoint = _drawn(case, where)
    if endpoint is None:
        yield f"the kernel sends it to {where}, where the explanation sends no connection"
    elif endpoint.is_masqueraded is not trace.is_masqueraded:
        words = ("kept", "masqueraded")
        explained, done = words[endpoint.is_masqueraded], words[trace.is_masqueraded]
        others = f"; rules of other programs matched in {first_of(trace.others)}" if trace.others else ""
        yield f"its source is explained as {explained}, but {done} by the kernel{others}"


def _drawn(case: Case, where: str) -> EndpointShare | None:
    """The endpoint at an address and port to which the case sends connections."""
    found = (each for each in case.endpoints if each.share and host_port(each.address, each.port) == where)
    return next(found, None)
