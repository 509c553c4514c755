"""Large changes in pieces: bounded, in an order in which every front stays usable, and with the same end."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest

from nftproxy.model.addresses import Family
from nftproxy.model.events import Event, Put, Removed
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.pipeline import Pipeline
from nftproxy.rules import ruleset
from nftproxy.rules.pieces import DECLARATIONS, PIECE, parts_of_declarations, pieces_of
from nftproxy.rules.transaction import Installed, Transaction
from tests.support.factories import Ledger, key, pipeline, service, slice_of

SIZE = 600
"""Characters of a piece here, some 14 elements."""

FRONTS = ("services", "fronts", "masqueraded", "local-policy", "affinity", "guarded", "screened", "denying")


def web(ports: int, **tweaks: Any) -> Put:
    """A Service of both families with `ports` ports and an external IP."""
    tweaks = {"external_ips": ["203.0.113.9"]} | tweaks
    numbers = [f"p{each}:{each + 1}" for each in range(ports)]
    return Put(service("shop/web", cluster_ips=["10.96.0.10", "fd00:96::10"], ports=numbers, **tweaks))


def pods(count: int, ports: int, first: int = 1) -> list[Event]:
    """This number of endpoints in each family."""
    numbers = [f"p{each}:8080" for each in range(ports)]
    four = [f"10.1.{each // 250}.{each % 250 + 1}@node-a" for each in range(first, first + count)]
    six = [f"fd00:1::{each:x}@node-a" for each in range(first, first + count)]
    return [
        Put(slice_of("shop/web", four, ports=numbers, suffix="4")),
        Put(slice_of("shop/web", six, ports=numbers, suffix="6")),
    ]


BALANCED: dict[str, Any] = {"type": "LoadBalancer", "load_balancer_ips": ["203.0.113.1"]}
RANGES, OTHERS = ([f"10.{first}.{each}.0/24" for each in range(0, 60, 2)] for first in (9, 8))


@functools.cache
def history() -> list[list[Event]]:
    """Changes that are larger than a piece, of each kind."""
    return [
        [web(6), *pods(20, 6)],
        pods(33, 6),
        pods(9, 6),
        pods(9, 6, first=50),
        [web(6, annotations={"algorithm": "round-robin"})],
        [web(1, annotations={"algorithm": "consistent-hash"})],
        [web(8, affinity_timeout=60), *pods(9, 8)],
        [web(8, external_policy="Local")],
        [web(8, source_ranges=RANGES, **BALANCED)],
        [web(8, source_ranges=OTHERS, **BALANCED)],
        [web(8, annotations={"denied-source-ranges": ",".join(RANGES)}, **BALANCED)],
        [web(8, annotations={"denied-source-ranges": ",".join(OTHERS)}, **BALANCED)],
        [web(3), *pods(40, 3)],
        [Removed(Service, service("shop/web").key), *(Removed(EndpointSlice, each.object.key) for each in pods(1, 1))],  # type: ignore[union-attr]
    ]


def changes() -> Iterator[tuple[Ledger, Pipeline, Transaction]]:
    """Each change of the history, with the tables before it, which the test must bring up to date."""
    agent = pipeline(service("shop/other", cluster_ips=["10.96.0.20"]), slice_of("shop/other"))
    ledger = Ledger()
    ledger.apply(agent.full_transaction({}))
    for events in history():
        yield ledger, agent, agent.ingest(events)


def split(change: Transaction) -> list[Transaction]:
    """The pieces of a change, some thirty if it is very large."""
    return pieces_of(change, max(SIZE, len(change.text) // 30))


def test_pieces_lead_to_the_same_rules() -> None:
    """The tables hold the generations after the last piece, and no piece has a statement out of order."""
    count = 0
    for ledger, agent, change in changes():
        for piece in split(change):
            ledger.apply(piece)
            count += 1
        for family, generation in agent.generations.items():
            assert ledger.held(family) == set(generation.elements())
    assert count > 10 * len(history())


def test_every_front_is_usable_after_each_piece() -> None:
    """A front that draws among some rows has all of these rows."""
    seen = 0
    for ledger, _, change in changes():
        for piece in split(change):
            ledger.apply(piece)
            seen += sum(missing_rows(ledger, family) == [] for family in Family)
            assert [missing_rows(ledger, family) for family in Family] == [[], []]
    assert seen > 100


def missing_rows(ledger: Ledger, family: Family) -> list[str]:
    """The rows that fronts may draw and that no list has (numbers.py has the bits of a number)."""
    held = ledger.elements[family.table]
    missing = []
    for front, number in held.get("services", {}).items():
        bits = int(ip_address(number))
        address, protocol, port = front.split(" . ")
        local, consistent = "local-" * (bits >> 21 & 1), "consistent-" * (bits >> 16 & 15 in (3, 4))
        rows = held.get(f"{protocol}-{local}{consistent}endpoints", {})
        slots = (f"{address} . {port} . {slot_text(slot, family)}" for slot in range(bits & 0xFFFF))
        missing += [slot for slot in slots if slot not in rows]
        if family is Family.IPV6 and bits & 0xFFFF:
            size = 1 << ((bits & 0xFFFF) - 1).bit_length()
            numbers = held.get(f"{protocol}-slots-{size}", {})
            missing += [f"slot {slot}" for slot in range(size) if f"{protocol} . {slot}" not in numbers]
    return missing


def slot_text(slot: int, family: Family) -> str:
    """A slot as an address."""
    return str(ip_address(slot.to_bytes(4 if family is Family.IPV4 else 16)))


def test_a_front_changes_in_a_single_piece() -> None:
    """All elements of a front, in all sets and maps, are in the same piece."""
    for ledger, _, change in changes():
        homes: dict[tuple[str, str], set[int]] = {}
        for number, piece in enumerate(split(change)):
            ledger.apply(piece)
            for table, name, front in elements_of(piece):
                if name.removeprefix("nodeport-") in FRONTS:
                    homes.setdefault((table, front), set()).add(number)
        assert all(len(numbers) == 1 for numbers in homes.values())


def test_lists_of_ranges_change_as_a_whole() -> None:
    """New ranges come in the piece in which the old ranges go, so that a client never meets half of a list."""
    replaced = 0
    for ledger, _, change in changes():
        pieces = split(change)
        for name in ("allowed", "denied"):
            deleting = {
                number for number, piece in enumerate(pieces) if f"delete element ip nftproxy {name} " in piece.text
            }
            adding = {number for number, piece in enumerate(pieces) if f"add element ip nftproxy {name} " in piece.text}
            if deleting and adding:
                assert deleting == adding
                assert len(adding) == 1
                replaced += 1
        for piece in pieces:
            ledger.apply(piece)
    assert replaced


def test_pieces_are_bounded() -> None:
    """A piece of elements is hardly longer than asked for, however large the change is."""
    agent = pipeline()
    agent.ingest([web(50), *pods(1, 50)])
    large = agent.ingest(pods(200, 50))
    assert len(large.text) > 20 * PIECE
    declared, *pieces = pieces_of(large)
    assert max(len(each.text) for each in pieces) < 1.1 * PIECE
    assert len(declared.text) < PIECE
    assert sum(1 for _ in elements_of(large)) == sum(1 for each in pieces for _ in elements_of(each))


def timeouts(count: int) -> list[Event]:
    """Services with ever other affinity timeouts, each of which has a map and chains of its own."""
    made = [
        service(f"evil/s{each}", cluster_ips=[f"10.97.0.{each}"], affinity_timeout=60 * each + 1)
        for each in range(count)
    ]
    return [*map(Put, made), *(Put(slice_of(str(each.key))) for each in made)]


@pytest.mark.parametrize("state", ["none", "replaced", "refilled"])
def test_a_load_in_parts_leads_to_the_same_rules(state: str) -> None:
    """The parts of a load are bounded, and lead to the same tables.  No chain in force is left empty between them."""
    agent, ledger = pipeline(), Ledger()
    agent.ingest(timeouts(20))
    if state != "none":
        ledger.apply(agent.full_transaction({}))
    agent.ingest([*gone(10), web(2), *pods(9, 2)])
    whole = copy.deepcopy(ledger)
    found = {family: Installed() if state == "replaced" else ledger.installed(family) for family in Family}
    load = agent.full_transaction(found if state != "none" else {})
    whole.apply(load)
    staying = {
        (family.table, name)
        for family in Family
        for name in ledger.chains.get(family.table, {}).keys() & whole.chains[family.table].keys()
    }
    parts = parts_of_declarations(load, 5_000)
    declared = [len(each.text) for each in parts if " element " not in each.text]
    assert len(declared) > 5
    assert max(declared) < 10_000
    for part in parts:
        ledger.apply(part)
        assert state == "replaced" or all(ledger.chains[table][name] for table, name in staying)
    assert vars(ledger) == vars(whole)


def gone(count: int) -> list[Event]:
    """The end of these Services."""
    return [Removed(Service, key(f"evil/s{each}")) for each in range(count)]


def test_pieces_of_declarations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many new maps and chains come in pieces before the elements that lead to them, and go in pieces after these."""
    monkeypatch.setattr(ruleset, "MAX_UNUSED", 0)
    agent, ledger = pipeline(), Ledger()
    ledger.apply(agent.full_transaction({}))
    for events in (timeouts(200), gone(200)):
        change = agent.ingest(events)
        pieces = pieces_of(change, SIZE)
        commands = [piece for piece in pieces if " element " not in piece.text]
        assert sum(len(each.text) for each in commands) > 4 * DECLARATIONS * SIZE
        assert max(len(each.text) for each in commands) < 1.2 * DECLARATIONS * SIZE
        for piece in pieces:
            ledger.apply(piece)
        assert {name for _, name, _ in ledger.declared(Family.IPV4)} == {
            name for _, name in agent.generations[Family.IPV4].declarations
        }
        assert ledger.held(Family.IPV4) == set(agent.generations[Family.IPV4].elements())


def test_a_small_change_stays_whole() -> None:
    """A change that fits into a piece is sent as it is."""
    agent = pipeline()
    change = agent.ingest([web(3), *pods(3, 3)])
    assert pieces_of(change) == [change]


def test_declarations_go_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains and maps that nothing uses any more go when no element leads to them."""
    monkeypatch.setattr(ruleset, "MAX_UNUSED", 0)
    for ledger, agent, change in changes():
        for piece in split(change):
            ledger.apply(piece)
        for family, generation in agent.generations.items():
            assert {(kind, name) for kind, name, _ in ledger.declared(family)} == generation.declarations.keys()


def elements_of(transaction: Transaction) -> Iterator[tuple[str, str, str]]:
    """The table, container and key of each element."""
    for line in transaction.text.splitlines():
        match line.split(" ", 5):
            case ["add" | "delete", "element", family, _, name, elements]:
                keys = (each.partition(" : ")[0] for each in elements[2:-2].split(", "))
                yield from zip(itertools.repeat(family), itertools.repeat(name), keys)
