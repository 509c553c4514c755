"""The elements that the kernel must hold for a place or must not, and the elements that it holds.

The generation says which sets and maps that are keyed by addresses, fronts or node ports have an element for the place.
Further elements of a front (endpoints, their number, source ranges) are in the Service's blocks.  Sets and maps are
recognised by the type of their keys, so that templates may name them freely.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from nftproxy.explanation.answer import (
    Affinity,
    Case,
    Expected,
    ExplainedPlace,
    Explanation,
    Fate,
    OwnBaseChain,
    Remembered,
)
from nftproxy.explanation.clients import Client
from nftproxy.explanation.explained_extension import words_of
from nftproxy.explanation.ownership import Served, serves_node_ports
from nftproxy.explanation.question import ToAddress
from nftproxy.model.addresses import Address, Family
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import NODE
from nftproxy.policy.compile import PortKey
from nftproxy.policy.facts import PortFacts
from nftproxy.policy.fronts import ClaimedFront
from nftproxy.rules.ruleset import Declaration, Element, FoundElement, Generation, NftKind

_HOOK = re.compile(r"type \w+ hook (\w+) priority ([\w-]+)")


def expected_at(pipeline: Pipeline, spot: ToAddress, served: Served | None) -> tuple[Expected, ...]:
    """The elements about a place.  The sets and maps that are keyed by places come first."""
    generation = pipeline.generations[spot.family]
    keys = _keys(pipeline, spot)
    found = {
        (declaration.name, key): Expected(declaration.name, key, generation.value(declaration.name, key))
        for declaration in generation.used_declarations().values()
        if (key := keys.get(_key_type(declaration), "")) and _is_asked(declaration)
    }
    for element in _elements(pipeline, generation, served) if served else ():
        found[element.container, element.key] = Expected(element.container, element.key, element.value)
    return tuple(found.values())


def _keys(pipeline: Pipeline, spot: ToAddress) -> dict[str, str]:
    """The keys of a place in sets and maps, by the type of the key."""
    ip, protocol, port = spot.family.value, spot.protocol.value, spot.port
    keys = {
        f"{ip} daddr": spot.address,
        f"{ip} daddr . meta l4proto . th dport": f"{spot.address} . {protocol} . {port}",
    }
    if serves_node_ports(pipeline, spot.address):
        keys["meta l4proto . th dport"] = f"{protocol} . {port}"
    return keys


def _key_type(declaration: Declaration) -> str:
    for line in declaration.body if declaration.kind is not NftKind.CHAIN else ():
        if line.startswith("typeof "):
            return line.removeprefix("typeof ").partition(" : ")[0]
    return ""


def _is_asked(declaration: Declaration) -> bool:
    """Whether to ask for a key: not if packets write the set, its keys are ranges, or its values are verdicts."""
    is_of_number = any(line.endswith(" : verdict") for line in declaration.body)
    return not declaration.is_dynamic and not is_of_number and not any("interval" in line for line in declaration.body)


def _elements(pipeline: Pipeline, generation: Generation, served: Served) -> Iterator[Element]:
    """A front's elements in the Service's blocks: slots, their number, source ranges, and the entry of the draw."""
    front, facts = served.reach.front, served.facts
    ranges = _range_keys(pipeline, facts)
    numbers = {number for each, number in (*facts.services, *facts.short_circuits) if each == front}
    draws = f"{front.prefix}draws"
    for port in served.service.ports:
        block = generation.blocks.get(PortKey(served.service.key, port.name, port.protocol))
        if block is None:
            continue
        is_own = port == served.port
        for element in block.elements:
            if element.key in ranges or (is_own and _is_of_front(element, served.reach)):
                yield element
        for entry in itertools.chain.from_iterable(each.entries for each in block.declarations if is_own):
            if entry.container == draws and entry.key in numbers:
                yield entry


def _range_keys(pipeline: Pipeline, facts: PortFacts) -> set[str]:
    """The keys of the source ranges that admit or deny clients of a Service port."""
    own = {f"{name} . {source}" for name, source in facts.allowed}
    return own.union(*(each.range_keys(facts) for each in words_of(pipeline)))


def _is_of_front(element: Element, reach: ClaimedFront) -> bool:
    """Whether an element's key begins with a front, in a set or map of fronts of this kind."""
    is_node_port = element.container.startswith("nodeport-")
    return is_node_port == (reach.claim.address == NODE) and f"{element.key} . ".startswith(f"{reach.front.where} . ")


def base_chains(pipeline: Pipeline) -> tuple[OwnBaseChain, ...]:
    """The base chains of our tables.  They are the same in both families."""
    declared = (each for made in pipeline.generations.values() for each in made.used_declarations().values())
    found = {each.name: _HOOK.match(each.body[0]) for each in declared if each.is_base_chain}
    return tuple(OwnBaseChain(name, *match.groups()) for name, match in found.items() if match)


def missing_chains(
    pipeline: Pipeline, explanation: Explanation, hooked: Callable[[Family], Collection[str]]
) -> tuple[str, ...]:
    """Return the base chains of an explanation's families that `hooked` doesn't have, each with its table.

    `hooked` returns the base chains of a family's table to which packets come.
    """
    found = []
    for family in dict.fromkeys(place.family for place in explanation.places):
        declared = pipeline.generations[family].used_declarations().values() if family in pipeline.generations else ()
        present = hooked(family)
        lacking = (each.name for each in declared if each.is_base_chain and each.name not in present)
        found += [f"{family.table} {name}" for name in lacking]
    return tuple(found)


def affinity_of(pipeline: Pipeline, spot: ToAddress, served: Served, asking: Sequence[Client]) -> Affinity | None:
    """The session affinity of a front, None if its Service has none."""
    timeout = served.service.affinity_timeout
    if timeout is None:
        return None
    seconds = [seconds for front, seconds in served.facts.affinities if front == served.reach.front]
    if not seconds:
        return Affinity(timeout, "by a hash of the client's address, as this nft can't remember IPv6 clients")
    client = asking[0].address if len(asking) == 1 else None
    return Affinity(
        timeout,
        "the kernel remembers clients by address",
        _map(pipeline, spot, f"{spot.protocol.value} . {seconds[0]}"),
        f"{client} . {spot.address} . {spot.port}" if client else "",
    )


def _map(pipeline: Pipeline, spot: ToAddress, key: str) -> str:
    """The map of clients that the chain behind a key writes, or ""."""
    declared = pipeline.generations[spot.family].declarations.values()
    leading = (each for each in declared if any(entry.key == key for entry in each.entries))
    found = [match[1] for each in leading if (match := _written(each))]
    return found[0] if found else ""


def _written(chain: Declaration) -> re.Match[str] | None:
    return next(filter(None, (re.search(r"update @([\w-]+)", line) for line in chain.body)), None)


# The elements in the kernel


Find = Callable[[Family, str, str], FoundElement | None]
"""Looks up the element with a key in a set or map of our table (kernel/nfnetlink/elements.py): family, name, key."""


def with_kernel(explanation: Explanation, find: Find) -> Explanation:
    """The explanation, with the kernel's element beside each expected element."""
    places = tuple(_place(place, find) for place in explanation.places)
    return msgspec.structs.replace(explanation, places=places)


def _place(place: ExplainedPlace, find: Find) -> ExplainedPlace:
    expected = tuple(_compared(each, find(place.family, each.container, each.key)) for each in place.expected)
    affinity = _remembered(place.affinity, place.family, find) if place.affinity else None
    cases = place.cases
    if affinity and affinity.remembered:
        pod = affinity.remembered.pod
        cases = tuple(_returning(case, pod) for case in place.cases)
        remembered = msgspec.structs.replace(affinity.remembered, is_used=cases != place.cases)
        affinity = msgspec.structs.replace(affinity, remembered=remembered)
    return msgspec.structs.replace(place, expected=expected, affinity=affinity, cases=cases)


def _returning(case: Case, pod: Address) -> Case:
    """The case of a client that is remembered with a pod: all its connections go there, if the list still has it."""
    on_list = [each for each in case.endpoints if each.share and each.address == pod]
    if case.fate is not Fate.ENDPOINT or not on_list:
        return case
    whole = sum(each.share for each in on_list)
    return msgspec.structs.replace(
        case,
        why=f"to {pod}, as session affinity remembers this client",
        drawn="",
        endpoints=tuple(
            msgspec.structs.replace(each, share=100 * each.share / whole if each in on_list else 0.0)
            for each in case.endpoints
        ),
    )


def _compared(expected: Expected, held: FoundElement | None) -> Expected:
    found = held.value if held else None
    return msgspec.structs.replace(expected, is_held=found == expected.value, found=found)


def _remembered(affinity: Affinity, family: Family, find: Find) -> Affinity:
    if not affinity.map or not affinity.key:
        return affinity
    held = find(family, affinity.map, affinity.key)
    remembered = Remembered(Address(held.value), held.seconds or 0.0) if held else None
    return msgspec.structs.replace(affinity, is_known=True, remembered=remembered)
