"""What the kernel must hold for a place, element by element, and what it must not.

Every set and map that is keyed by an address, by a front or by a node port either has this one or hasn't: which it is
says the generation.  What a front has beyond that (endpoints, their number, source ranges) is in the Service's blocks.
Sets and maps are recognised by the type of their keys, so that templates may name them as they like.
"""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy.explanation.answer import Expected
from nftproxy.explanation.fronts import Served, Spot, serves_node_ports
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import NODE
from nftproxy.policy.compile import PortKey
from nftproxy.rules.ruleset import Declaration, Element, Generation, Kind


def expected_at(pipeline: Pipeline, spot: Spot, served: Served | None) -> tuple[Expected, ...]:
    """The elements about a place, those first that every place has or hasn't."""
    generation = pipeline.generations[spot.family]
    keys = _keys(pipeline, spot)
    found = {
        (declaration.name, key): Expected(declaration.name, key, generation.value(declaration.name, key))
        for declaration in generation.used_declarations().values()
        if (key := keys.get(_key_type(declaration), "")) and _is_asked(declaration)
    }
    for element in _elements(generation, served) if served else ():
        found[element.container, element.key] = Expected(element.container, element.key, element.value)
    return tuple(found.values())


def _keys(pipeline: Pipeline, spot: Spot) -> dict[str, str]:
    """What a place is called in sets and maps, by the type of their keys."""
    ip, protocol, port = spot.family.value, spot.protocol.value, spot.port
    keys = {
        f"{ip} daddr": spot.address,
        f"{ip} daddr . meta l4proto . th dport": f"{spot.address} . {protocol} . {port}",
    }
    if serves_node_ports(pipeline, spot.address):
        keys["meta l4proto . th dport"] = f"{protocol} . {port}"
    return keys


def _key_type(declaration: Declaration) -> str:
    for line in declaration.body if declaration.kind is not Kind.CHAIN else ():
        if line.startswith("typeof "):
            return line.removeprefix("typeof ").partition(" : ")[0]
    return ""


def _is_asked(declaration: Declaration) -> bool:
    """Whether one key has one element there: not so in what packets write, in ranges, and where numbers are keys."""
    is_of_number = any(line.endswith(" : verdict") for line in declaration.body)
    return not declaration.is_dynamic and not is_of_number and not any("interval" in line for line in declaration.body)


def _elements(generation: Generation, served: Served) -> Iterator[Element]:
    """What a front has in the Service's blocks: its slots, their number, source ranges, what draws from so many."""
    front, facts = served.reach.front, served.facts
    sources = facts.allowed if facts.guarded else ()
    if facts.screen:
        sources += facts.screen.denied + (facts.allowed if facts.screen.guarded and not facts.guarded else ())
    ranges = {f"{name} . {source}" for name, source in sources}
    numbers = {number for each, number in (*facts.services, *facts.short_circuits) if each == front}
    draws = f"{front.prefix}draws"
    for port in served.service.ports:
        block = generation.blocks.get(PortKey(served.service.key, port.name, port.protocol))
        for element in block.elements if block else ():
            is_node_port = element.container.startswith("nodeport-")
            is_own = port == served.port and is_node_port == (served.reach.claim.address == NODE)
            if element.key in ranges or (is_own and f"{element.key} . ".startswith(f"{front.where} . ")):
                yield element
        entries = (
            (entry for each in block.declarations for entry in each.entries) if block and port == served.port else ()
        )
        yield from (entry for entry in entries if entry.container == draws and entry.key in numbers)
