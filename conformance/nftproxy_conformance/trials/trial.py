"""Real connections on a node, and their outcomes compared with the oracle's.

A `Subject` serves a world on the node: rules that templates render (rendered.py), or a proxy that runs there
(proxy.py).

Endpoints are drawn at random, so many connections are needed until all have been seen.  Most show in the connections
that are tried anyway.  For the rest more connections follow, so many that a possible endpoint stays unseen once in
10**9 times.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, Self

from nftproxy.model.events import Event
from nftproxy_conformance.lab import Kind, Lab, Outcome, Probe
from nftproxy_conformance.specification.deviations import deviation_of, deviation_of_move
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import CHANGES_ONLY, NOT_REMEMBERED
from nftproxy_conformance.specification.world import View, World
from nftproxy_conformance.strategies.probes import others_like

UNSEEN = 1e-9
"""The probability that a possible endpoint stays unseen, which is a false alarm."""
TIMES = 2
"""Tries of each connection at first, as a remembered client must be seen twice."""
ELSEWHERE = "went elsewhere"
"""The `what` of a `Difference` for a connection with a wrong outcome."""


def exactly(outcome: Outcome) -> Outcome:
    """Return the outcome itself: all of its fields count."""
    return outcome


def but_for_sources(outcome: Outcome) -> Outcome:
    """An outcome without the masquerading."""
    return dataclasses.replace(outcome, masqueraded=False)


class Difference(NamedTuple):
    """A connection with wrong outcomes.

    `expected` are all allowed outcomes.  `seen` are the wrong outcomes, or all outcomes of many tries if some are
    missing, as `what` says.  `deviation` is the number of the deviation from kube-proxy in docs/semantics.md that
    explains the outcomes, or "".  `ours` are the outcomes on a second node that runs nftproxy, if there is one.
    """

    probe: Probe
    expected: frozenset[Outcome]
    seen: frozenset[Outcome]
    what: str
    deviation: str = ""
    ours: frozenset[Outcome] = frozenset()


class Subject(Protocol):
    """The subject of a trial, which serves worlds on a lab's node."""

    may_deviate: bool
    """True for another proxy, which may behave like kube-proxy where nftproxy deviates from that."""

    @property
    def lab(self) -> Lab:
        """The lab of its node, which may change with each `load`."""

    def load(self, world: World) -> bool:
        """Serve a world on the node.  True if the node is like new."""

    def follow(self, after: World, happened: Sequence[Event]) -> None:
        """Apply events to the loaded world, which lead to the world `after`."""

    def settle(self) -> bool:
        """Wait until it has applied all changes.  False if it never needs to wait."""

    def leave_out(self, world: World) -> None:
        """Leave out the world's silent endpoints, if nothing does that by itself once clients notice the silence."""

    def end_gone(self) -> float:
        """End connections to endpoints that are gone, where it is asked for, within the returned seconds."""

    def health(self, probe: Probe) -> Outcome:
        """Ask for the answer of a health-check node port."""

    def renew(self) -> bool:
        """Load the present world again on a new node.  False if each load does that."""

    def close(self) -> None:
        """End the proxy, and remove its node."""


class Trial:
    """Connections on the node of a subject, in one world after another.  At its end it closes the subject.

    Args:
        subject: the subject.
        most_more: the limit for all further connections that are needed until all endpoints have been seen.

    Attributes:
        connections: the number of connections.
        deviations: the number of connections that a documented deviation from kube-proxy explains, by its number.
    """

    def __init__(self, subject: Subject, *, most_more: float = math.inf) -> None:
        self.connections = 0
        self.deviations = Counter[str]()
        self.subject = subject
        self._most_more = most_more
        self._remembered: set[Probe] = set()  # clients since the node was new
        self._worlds: list[World] = []  # since then

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.subject.close()

    def load(self, world: World) -> None:
        """Load a world.

        Raises:
            Refused: the kernel or its library refuses the rules.
            TemplateError: they can't be rendered.
            ProxyFailed: the proxy ends, or never serves.
        """
        if self.subject.load(world):
            self._remembered.clear()
            self._worlds.clear()
        self._worlds.append(world)

    def follow(self, after: World, happened: Sequence[Event]) -> None:
        """Apply events to the loaded world, all at once, which lead to the world `after`.

        Raises: as `load` does.
        """
        self.subject.follow(after, happened)
        self._worlds.append(after)

    def traced(
        self, worlds: tuple[World, ...], difference: Difference, view: View
    ) -> tuple[tuple[World, ...], Difference]:
        """A difference in the last of some worlds, with the worlds that show it.

        If it doesn't show on a new node, the proxy has missed a change.  Then the world before belongs to it.
        """
        before = tuple(self._worlds[-2:])
        if not self.subject.renew():
            return worlds, difference
        self._remembered.clear()
        self._worlds = [worlds[-1]]
        if len(before) < 2 or self._compare(worlds[-1], [difference.probe], view):
            return worlds[-1:], difference
        return before, difference._replace(what=f"{difference.what}{CHANGES_ONLY}")

    def connect(self, probes: Sequence[Probe]) -> list[Outcome]:
        """Try connections, one after the other."""
        self.connections += len(probes)
        return self.subject.lab.connect_many(probes)

    def health(self, probe: Probe) -> Outcome:
        """Ask for the answer of a health-check node port."""
        self.connections += 1
        return self.subject.health(probe)

    def retransmit(self, probes: Sequence[Probe], silent: Container[tuple[str, int]]) -> None:
        """Try connections, and send the first packets of those to silent endpoints once more."""
        waiting = [each.probe for each in self.connect(probes) if each.endpoint in silent and each.probe]
        self.connect(waiting)

    def differences(self, world: World, probes: Iterable[Probe], view: View = exactly) -> list[Difference]:
        """The differences of connections from the oracle, in the loaded world.

        Differences that a documented deviation from kube-proxy explains are counted and left out.  The rest counts if
        it remains when the subject has applied all changes.

        Args:
            world: that world.
            probes: the connections.
            view: reduces an outcome to the part that counts.
        """
        wanted = list(probes)
        found = self._unexplained(self.all_differences(world, wanted, view))
        if found and self.subject.settle():
            found = self._unexplained(self.all_differences(world, wanted, view))
        return found

    def _unexplained(self, found: Iterable[Difference]) -> list[Difference]:
        left = []
        for difference in found:
            if difference.deviation:
                self.deviations[difference.deviation] += 1
            else:
                left.append(difference)
        return left

    def explains(self, deviation: str) -> bool:
        """True if the subject may deviate from kube-proxy in this way.  Each use of the deviation is counted."""
        if self.subject.may_deviate:
            self.deviations[deviation] += 1
        return self.subject.may_deviate

    def explains_move(self, world: World, probe: Probe, new: Outcome, tried: Iterable[Probe]) -> bool:
        """True if a deviation explains that a remembered client was sent to another pod.  Each use is counted."""
        seen = [but_for_sources(new)]
        deviation = self.subject.may_deviate and deviation_of_move(world, probe, seen, but_for_sources, tried)
        return bool(deviation) and self.explains(str(deviation))

    def all_differences(self, world: World, probes: Iterable[Probe], view: View = exactly) -> list[Difference]:
        """All differences, including differences that a deviation explains, without waiting."""
        wanted = list(probes)
        found = self._compare(world, wanted, view)
        if not self.subject.may_deviate:
            return found
        return [each._replace(deviation=self._deviation(world, each, view, wanted)) for each in found]

    def _deviation(self, world: World, found: Difference, view: View, tried: Iterable[Probe]) -> str:
        if found.what == NOT_REMEMBERED:
            return deviation_of_move(world, found.probe, map(view, found.seen), view, tried)
        return deviation_of(world, found.probe, found.seen, view, self._worlds)

    def _compare(self, world: World, probes: Iterable[Probe], view: View) -> list[Difference]:
        oracle = Oracle(world)
        expected = {probe: frozenset(map(view, oracle.expected(probe))) for probe in probes}
        tries = [probe for probe in expected for _ in range(TIMES)]
        seen: dict[Probe, list[Outcome]] = defaultdict(list)
        for probe, outcome in zip(tries, self.connect(tries), strict=True):
            seen[probe].append(view(outcome))
        return [
            *_wrong(expected, seen),
            *(difference for probe, outcomes in seen.items() if (difference := _unsteady(oracle, probe, outcomes))),
            *self._missing(oracle, expected, seen, view),
        ]

    def _missing(
        self,
        oracle: Oracle,
        expected: Mapping[Probe, frozenset[Outcome]],
        seen: Mapping[Probe, Sequence[Outcome]],
        view: View,
    ) -> list[Difference]:
        """Connections to a place that never have some of the expected outcomes."""
        alike: dict[tuple[str, int, str, frozenset[Outcome]], list[Probe]] = defaultdict(list)
        for probe, outcomes in expected.items():
            if len(outcomes) > 1:
                alike[probe.address, probe.port, probe.protocol, outcomes].append(probe)
        found = []
        for (*_, wanted), probes in alike.items():
            shown = {outcome for probe in probes for outcome in seen[probe]}
            if shown >= wanted or not shown <= wanted or not (more := self._more(oracle, probes, wanted, view)):
                continue
            shown |= set(map(view, self.connect(more)))
            if wrong := shown - wanted:
                found.append(Difference(probes[0], wanted, frozenset(wrong), ELSEWHERE))
            elif shown < wanted:
                found.append(Difference(probes[0], wanted, frozenset(shown), "some are never reached"))
        return found

    def _more(self, oracle: Oracle, probes: Sequence[Probe], wanted: frozenset[Outcome], view: View) -> list[Probe]:
        """Enough further connections to show all of `wanted`.  None if there are too few new clients."""
        least = oracle.least_share(probes[0], wanted)
        enough = math.ceil(math.log(UNSEEN / len(wanted)) / math.log(1 - least))
        if enough > self._most_more:
            return []
        self._most_more -= enough
        if not oracle.remembers(probes[0]):
            return list(itertools.islice(itertools.cycle(probes), enough))
        clients = {other: None for probe in probes for other in others_like(probe) if other not in self._remembered}
        alike = [other for other in clients if frozenset(map(view, oracle.expected(other))) == wanted][:enough]
        self._remembered.update(alike)
        return alike if len(alike) == enough else []


def _wrong(
    expected: Mapping[Probe, frozenset[Outcome]], seen: Mapping[Probe, Sequence[Outcome]]
) -> Iterable[Difference]:
    for probe, outcomes in seen.items():
        if wrong := set(outcomes) - expected[probe]:
            yield Difference(probe, expected[probe], frozenset(wrong), ELSEWHERE)


def _unsteady(oracle: Oracle, probe: Probe, outcomes: Sequence[Outcome]) -> Difference | None:
    """The difference if a client that must be remembered is sent to another pod."""
    pods = {outcome.endpoint.ip for outcome in outcomes if outcome.kind is Kind.ENDPOINT and outcome.endpoint}
    if len(pods) > 1 and oracle.remembers(probe):
        return Difference(probe, oracle.expected(probe), frozenset(outcomes), NOT_REMEMBERED)
    return None
