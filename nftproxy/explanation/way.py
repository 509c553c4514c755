"""The way of a connection as a picture shows it: through which hooks, asking which sets and maps, to which end.

Each place has a way for each case: a card for each stage at which packets meet our rules, until they are stopped.  What
a set or map answers comes from the elements that the explanation expects the kernel to hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nftproxy.explanation.answer import Admits, Case, Endpoint, Fate, List, Place
from nftproxy.explanation.question import Kind

Asked = Mapping[str, str]
"""What sets and maps answer about a place, by their names, and by "name key"; "" is a set's yes.

What has nothing is not there."""


class Stage(NamedTuple):
    """Where packets meet our rules: the hooks, their priority in nft, and what is done there."""

    hooks: str
    priority: str
    does: str


GUARD = Stage("prerouting, output", "-101", "source ranges")
TRANSLATE = Stage("prerouting, output", "-101", "translation")
REMEMBER = Stage("prerouting, output", "-90", "session affinity")
FILTER = Stage("forward, input; output", "0; -90", "filter")
HIDE = Stage("postrouting", "100", "masquerading")
SCREEN = Stage("postrouting, input", "99", "what clients may not do")
STAGES = (GUARD, TRANSLATE, REMEMBER, FILTER, HIDE)
AGENT = Stage("its own socket", "", "the agent")


class Row(NamedTuple):
    """A line of a card: the set, map or statement, and what it says of this packet; either may be ""."""

    name: str
    words: str


class Card(NamedTuple):
    """What happens at one stage: the chain with its rows, or only words where nothing applies (`is_quiet`)."""

    chain: str
    rows: tuple[Row, ...]
    is_quiet: bool = False
    is_end: bool = False


class Way(NamedTuple):
    """The way of connections of one case: who they come from, a card for each stage, and what becomes of them.

    `end` says what becomes of a connection that reaches no endpoint, "" if there are endpoints; `is_good` says that it
    goes on.
    """

    sources: tuple[str, ...]
    cards: Mapping[Stage, Card]
    end: str
    is_good: bool
    endpoints: tuple[Endpoint, ...]


def ways(place: Place) -> list[Way]:
    """The ways of connections to a place, one for each case."""
    held = [(each.container, each.key, each.value) for each in place.expected if each.value is not None]
    asked = {container: value for container, _, value in held}
    asked.update({f"{container} {key}": value for container, key, value in held})
    return [_way(place, asked, case) for case in place.cases]


def stages(place: Place) -> tuple[Stage, ...]:
    """The stages of a place's ways: those of the rules, or the agent's where it answers by itself."""
    if any(case.fate is Fate.FORWARDED for case in place.cases):
        return (AGENT,)
    return (*STAGES[:-1], SCREEN, HIDE) if _is_screened(place) else STAGES


def _is_screened(place: Place) -> bool:
    """Whether annotations say what clients may not do here."""
    return any(
        each.container in ("screened", "nodeport-screened") and each.value is not None for each in place.expected
    )


def _way(place: Place, asked: Asked, case: Case) -> Way:
    cards = dict(_cards(place, asked, case))
    drawn = case.fate in (Fate.ENDPOINT, Fate.FORWARDED)
    sources = case.sources if len(case.sources) < len(Kind) else ("anywhere",)
    return Way(sources, cards, "" if drawn else _end(case), case.fate in (Fate.PASSED, Fate.NODE), _shown(case, drawn))


def _shown(case: Case, drawn: bool) -> tuple[Endpoint, ...]:
    return tuple(sorted(case.endpoints, key=lambda each: not each.share)) if drawn else ()


_ENDS = {
    Fate.REJECTED: "rejected",
    Fate.DROPPED: "dropped",
    Fate.PASSED: "let through",
    Fate.NODE: "delivered to the node",
}


def _end(case: Case) -> str:
    return f"{_ENDS[case.fate]}: {case.rejection}" if case.rejection else _ENDS[case.fate]


def _cards(place: Place, asked: Asked, case: Case) -> Iterator[tuple[Stage, Card]]:
    """The cards of a way, up to the stage that ends it."""
    if case.fate is Fate.FORWARDED:
        yield AGENT, Card("", (Row("", "the agent accepts the connection, and connects to an endpoint itself"),))
        return
    yield GUARD, _guard(place, case)
    if case.admission and case.admission.admits is Admits.NO and not case.is_screened:
        return
    yield TRANSLATE, _translate(place, asked, case)
    yield REMEMBER, _remember(place, case)
    yield FILTER, _filter(asked, case)
    if _is_screened(place) and (case.is_screened or case.fate is Fate.ENDPOINT):
        yield SCREEN, _screen(place, asked, case)
    if case.fate in (Fate.ENDPOINT, Fate.PASSED):
        yield HIDE, _hide(case)


def _guard(place: Place, case: Case) -> Card:
    if not case.admission or not place.source_ranges or case.is_screened:
        return _quiet("no source ranges")
    rows = (
        Row("@guarded", f"source ranges: {', '.join(place.source_ranges)}"),
        Row("@allowed", case.admission.why),
    )
    return Card("guard", rows, is_end=case.admission.admits is Admits.NO)


def _screen(place: Place, asked: Asked, case: Case) -> Card:
    prefix = "nodeport-" if place.front == "node port" else ""
    said = {
        "denying": f"denies {', '.join(place.denied_ranges)}",
        "guarded": f"source ranges: {', '.join(place.source_ranges)}",
        "rates": "limits new connections per second",
        "connections": "limits connections at a time",
    }
    rows = [Row(f"@{prefix}{name}", words) for name, words in said.items() if f"{prefix}{name}" in asked]
    if case.is_screened:
        return Card("screen", (*rows, Row("drop", case.why)), is_end=True)
    return Card("screen", tuple(rows))


def _translate(place: Place, asked: Asked, case: Case) -> Card:
    prefix = "nodeport-" if place.front == "node port" else ""
    rows = tuple(_translation(asked, case, prefix))
    return Card("nodeports" if prefix else "services", rows) if rows else _quiet("no Service has this address and port")


def _translation(asked: Asked, case: Case, prefix: str) -> Iterator[Row]:
    if case.list and case.is_masqueraded:
        yield Row("meta mark", "marked for masquerading")
    is_short = f"{prefix}local-policy" in asked and case.list is List.CLUSTER
    if f"{prefix}local-policy" in asked:
        yield Row(f"@{prefix}local-policy", case.list_why)
    numbers = f"{prefix}short-circuit" if is_short else f"{prefix}services"
    if numbers not in asked:
        return
    chain = asked.get(f"{prefix}draws {asked[numbers]}", "")
    if not chain:
        yield Row(f"@{numbers}", f"{asked[numbers]}: no endpoint to draw")
        return
    count = sum(endpoint.share > 0 for endpoint in case.endpoints)
    yield Row(f"@{numbers}", f"{asked[numbers]}: {count} endpoint{'s' if count > 1 else ''}")
    yield Row(f"@{prefix}draws", chain)
    rows = int(chain.partition("-of-")[2].partition("-")[0])
    yield Row(f"@{_list(chain)}", f"{_how(chain)} a slot, 0 to {rows - 1}" if count > 1 else "has one slot, 0")


def _how(chain: str) -> str:
    """Who chooses the slot, by the name of the chain that does."""
    if "-by-client-and-port" in chain:
        return "the client's address and port choose"
    if "-by-client" in chain:
        return "the client's address chooses"
    return "takes in turn" if "-in-turn-" in chain else "draws"


def _list(chain: str) -> str:
    """The list of endpoints of which a chain draws, by a verdict: "goto tcp-endpoints-of-3"."""
    return chain.removeprefix("goto ").partition("-of-")[0]


def _remember(place: Place, case: Case) -> Card:
    if not place.affinity or case.fate is not Fate.ENDPOINT:
        return _quiet("no session affinity" if case.fate is Fate.ENDPOINT else "not translated")
    if not place.affinity.map:
        return _quiet(place.affinity.how)
    return Card(
        "remember", (Row(f"@{place.affinity.map}", f"remembers the client's pod for {place.affinity.timeout} s"),)
    )


def _filter(asked: Asked, case: Case) -> Card:
    if case.fate is Fate.ENDPOINT or case.is_screened:
        return _quiet("was translated: goes on")
    names = ("no-endpoints", "nodeport-no-endpoints", "fronts", "nodeport-fronts", "cluster-ips")
    held = [name for name in names if name in asked]
    chain = "unused-cluster-ips" if not held or held[0] == "cluster-ips" else "untranslated"
    if case.fate in (Fate.PASSED, Fate.NODE):
        return Card("", (Row("", case.why),), is_quiet=True)
    return Card(chain, (Row(f"@{held[0]}" if held else "@service-cidrs", case.why),), is_end=True)


def _hide(case: Case) -> Card:
    if case.is_masqueraded:
        return Card("take-node-address", (Row("masquerade", case.source_why),))
    return _quiet(f"source kept: {case.source_why}" if case.source_why else "source kept")


def _quiet(words: str) -> Card:
    return Card("", (Row("", words),), is_quiet=True)
