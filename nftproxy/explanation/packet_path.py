"""The path of a connection through our rules, for a picture: the stages, the sets and maps, the end.

Each case of a place has a path: a card for each stage at which its packets meet our rules, until one stops them.  The
answers of sets and maps are the elements that the explanation expects in the kernel.  The hooks and priorities of a
stage are the hooks and priorities of its base chains in the templates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nftproxy.explanation.answer import Admits, Case, ExplainedPlace, Fate, List, OwnBaseChain

Answers = Mapping[str, str]
"""The answers of sets and maps about a place, by their names and by "name key".  A set answers "".

Sets and maps without an element about the place are absent."""


class HookStage(NamedTuple):
    """A stage at which packets meet our rules: its purpose and its base chains."""

    does: str
    chains: tuple[str, ...]

    def hooks(self, base_chains: Iterable[OwnBaseChain]) -> str:
        """The hooks with their priorities: "forward, input 0; output -90"."""
        found = [each for name in self.chains for each in base_chains if each.name == name]
        groups = itertools.groupby(found, key=lambda each: each.priority)
        return "; ".join(f"{', '.join(each.hook for each in group)} {priority}" for priority, group in groups)


GUARD = HookStage("source ranges", ("nat-prerouting", "nat-output"))
TRANSLATE = HookStage("translation", ("nat-prerouting", "nat-output"))
REMEMBER = HookStage("session affinity", ("remember-prerouting", "filter-output"))
FILTER = HookStage("filter", ("filter-forward", "filter-input", "filter-output"))
HIDE = HookStage("masquerading", ("nat-postrouting",))
AGENT = HookStage("the agent's own socket", ())
UNUSED = ("cluster-ips", "external-ips")
"""The sets of addresses whose ports without a Service are closed."""


class CardRow(NamedTuple):
    """A line of a card: the set, map or statement, and its answer about this packet.  Either may be ""."""

    name: str
    words: str


class Card(NamedTuple):
    """A stage on a path: the chain with its rows, or only words where nothing applies (`is_quiet`)."""

    chain: str
    rows: tuple[CardRow, ...]
    is_quiet: bool = False
    is_end: bool = False


class AddedStage(NamedTuple):
    """A stage that an extension adds between the filter and masquerading.

    `card` returns its card for a case, None if the packets don't reach it.
    """

    stage: HookStage
    card: Callable[[ExplainedPlace, Answers, Case], Card | None]


def stages(added: Sequence[AddedStage]) -> tuple[HookStage, ...]:
    """All stages, in the order of packets."""
    return (GUARD, TRANSLATE, REMEMBER, FILTER, *(each.stage for each in added), HIDE, AGENT)


def prefix_of(place: ExplainedPlace) -> str:
    """The prefix of the names of the sets and maps for a place: those of node ports are separate."""
    return "nodeport-" if place.front == "node port" else ""


class PacketPath(NamedTuple):
    """The path of the connections of one case: a card for each stage that they reach."""

    case: Case
    cards: Mapping[HookStage, Card]

    @property
    def leads_to_endpoints(self) -> bool:
        """True if the connections reach endpoints."""
        return self.case.fate in (Fate.ENDPOINT, Fate.FORWARDED)

    @property
    def is_stopped(self) -> bool:
        """True if the connections end before the last stage."""
        return not self.leads_to_endpoints and HIDE not in self.cards


def paths(place: ExplainedPlace, added: Sequence[AddedStage]) -> list[PacketPath]:
    """The paths of connections to a place, one for each case."""
    answers: dict[str, str] = {}
    for each in place.expected:
        if each.value is not None:
            answers[each.container] = answers[f"{each.container} {each.key}"] = each.value
    return [PacketPath(case, dict(_cards(place, answers, case, added))) for case in place.cases]


def _cards(
    place: ExplainedPlace, answers: Answers, case: Case, added: Sequence[AddedStage]
) -> Iterator[tuple[HookStage, Card]]:
    """The cards of a path, up to the stage that ends it."""
    if case.fate is Fate.FORWARDED:
        yield AGENT, Card("", (CardRow("", "the agent accepts the connection, and connects to an endpoint itself"),))
        return
    prefix = prefix_of(place)
    yield GUARD, _guard(place, case)
    if case.admission and case.admission.admits is Admits.NO and not case.is_restricted:
        return
    rows = tuple(_translation(answers, case, prefix))
    chain = "nodeports" if prefix else "services"
    yield TRANSLATE, Card(chain, rows) if rows else _quiet("no Service is served at this address and port")
    yield REMEMBER, _remember(place, case)
    yield FILTER, _filter(answers, case)
    for each in added:
        if card := each.card(place, answers, case):
            yield each.stage, card
    if case.fate in (Fate.ENDPOINT, Fate.PASSED):
        yield HIDE, _hide(case)


def _guard(place: ExplainedPlace, case: Case) -> Card:
    if not case.admission or not place.source_ranges or case.is_restricted:
        return _quiet("no source ranges")
    rows = (
        CardRow("@guarded", f"source ranges: {', '.join(place.source_ranges)}"),
        CardRow("@allowed", case.admission.why),
    )
    return Card("guard", rows, is_end=case.admission.admits is Admits.NO)


def _translation(answers: Answers, case: Case, prefix: str) -> Iterator[CardRow]:
    if case.list and case.is_masqueraded:
        yield CardRow("meta mark", "marked for masquerading")
    is_short = f"{prefix}local-policy" in answers and case.list is List.CLUSTER
    if f"{prefix}local-policy" in answers:
        yield CardRow(f"@{prefix}local-policy", case.list_why)
    numbers = f"{prefix}short-circuit" if is_short else f"{prefix}services"
    if numbers not in answers:
        return
    number = answers[numbers]
    chain = answers.get(f"{prefix}draws {number}", "")
    if not chain:
        yield CardRow(f"@{numbers}", f"{number}: no endpoint to draw")
        return
    count = sum(endpoint.share > 0 for endpoint in case.endpoints)
    yield CardRow(f"@{numbers}", f"{number}: {count} endpoint{'s' if count > 1 else ''}")
    yield CardRow(f"@{prefix}draws", chain)
    endpoints, _, draw = chain.removeprefix("goto ").partition("-of-")
    slots = int(draw.partition("-")[0])
    yield CardRow(f"@{endpoints}", f"{_how(chain)} a slot, 0 to {slots - 1}" if count > 1 else "has one slot, 0")


def _how(chain: str) -> str:
    """How the slot is chosen, by the name of the chain that chooses it."""
    if "-by-client-and-port" in chain:
        return "the client's address and port choose"
    if "-by-client" in chain:
        return "the client's address chooses"
    return "takes in turn" if "-in-turn-" in chain else "draws"


def _remember(place: ExplainedPlace, case: Case) -> Card:
    if case.fate is not Fate.ENDPOINT:
        return _quiet("not translated")
    if not place.affinity or not place.affinity.map:
        return _quiet(place.affinity.how if place.affinity else "no session affinity")
    words = f"remembers the client's pod for {place.affinity.timeout} s"
    return Card("remember", (CardRow(f"@{place.affinity.map}", words),))


def _filter(answers: Answers, case: Case) -> Card:
    if case.fate is Fate.ENDPOINT or case.is_restricted:
        return _quiet("was translated: goes on")
    if case.fate in (Fate.PASSED, Fate.NODE):
        return _quiet(case.why)
    names = ("no-endpoints", "nodeport-no-endpoints", "fronts", "nodeport-fronts", *UNUSED)
    name = next((name for name in names if name in answers), "service-cidrs")
    chain = "unused-cluster-ips" if name in (*UNUSED, "service-cidrs") else "untranslated"
    return Card(chain, (CardRow(f"@{name}", case.why),), is_end=True)


def _hide(case: Case) -> Card:
    if case.is_masqueraded:
        return Card("take-node-address", (CardRow("masquerade", case.source_why),))
    return _quiet(f"source kept: {case.source_why}" if case.source_why else "source kept")


def _quiet(words: str) -> Card:
    return Card("", (CardRow("", words),), is_quiet=True)
