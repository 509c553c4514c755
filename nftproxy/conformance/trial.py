"""A node that is as some world says, real connections, and their outcomes compared with the oracle's.

What makes the node so is a `Subject`: rules that templates render (rendered.py), or a proxy that runs there (proxy.py).

Endpoints are drawn at random, so it takes many connections until all have shown.  Most show in the few that are tried
anyway; for the others there are more, so many that an endpoint that can be drawn stays unseen once in 10**9 times.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from nftproxy.conformance.deviations import deviation_of
from nftproxy.conformance.oracle import Oracle, View, World
from nftproxy.conformance.probes import others_like
from nftproxy.conformance.semantics import CHANGES_ONLY, NOT_REMEMBERED
from nftproxy.lab import Kind, Lab, Outcome, Probe
from nftproxy.model.events import Event

UNSEEN = 1e-9
"""How often an endpoint that can be drawn may go unseen, and so be missed wrongly."""
TIMES = 2
"""How often each connection is tried at first: a client that is remembered must be seen twice."""
ELSEWHERE = "went elsewhere"
"""What a `Difference` says of a connection with an outcome that it may not have."""


def exactly(outcome: Outcome) -> Outcome:
    """All of an outcome counts."""
    return outcome


def but_for_sources(outcome: Outcome) -> Outcome:
    """An outcome as it is when nobody cares whether the source was hidden."""
    return dataclasses.replace(outcome, masqueraded=False)


class Difference(NamedTuple):
    """A connection that went otherwise than it must.

    `expected` is all that may become of it; `seen` is what became of it wrongly, or all that became of many like it
    where that is too little, as `what` says.  `deviation` is the number of the deviation from kube-proxy, as
    docs/semantics.md has it, by which a proxy that behaves like kube-proxy does exactly this; "" without one.  `ours`
    is what became of it on a node beside it that runs nftproxy, where there is one.
    """

    probe: Probe
    expected: frozenset[Outcome]
    seen: frozenset[Outcome]
    what: str
    deviation: str = ""
    ours: frozenset[Outcome] = frozenset()


class Subject(Protocol):
    """What is on trial: something that makes a lab's node what it must be in a world."""

    may_deviate: bool
    """Whether it is another proxy, which may do what kube-proxy does where nftproxy deviates from it."""

    @property
    def lab(self) -> Lab:
        """The lab of its node, which may be another one after each `load`."""

    def load(self, world: World) -> bool:
        """Make the node what it must be in a world; whether it is as a node where nothing was before."""

    def follow(self, after: World, happened: Sequence[Event]) -> None:
        """Let things happen in the world that was loaded last, which lead to the world `after`."""

    def settle(self) -> bool:
        """Give it time to finish what it may still be doing; False if it never needs any."""

    def renew(self) -> bool:
        """Load the present world once more on a node where nothing was before; False if each load is like that."""

    def close(self) -> None:
        """End it, and remove its node."""


class Trial:
    """Connections on the node of a subject, in one world after the other; closes the subject at its end.

    Args:
        subject: what is on trial.
        most_more: how many connections may be tried, in all, beside those asked for, until all endpoints have shown.

    Attributes:
        connections: how many were tried.
        deviations: how many of them went as only a documented deviation from kube-proxy explains, by its number.
    """

    def __init__(self, subject: Subject, *, most_more: float = math.inf) -> None:
        self.connections = 0
        self.deviations = Counter[str]()
        self.subject = subject
        self._most_more = most_more
        self._remembered: set[Probe] = set()  # clients that connected since the node was new
        self._worlds: list[World] = []  # since then

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.subject.close()

    def load(self, world: World) -> None:
        """Make the node what it must be in a world.

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
        """Let things happen in the world that was loaded last, all at once, which lead to the world `after`.

        Raises: as `load` does.
        """
        self.subject.follow(after, happened)
        self._worlds.append(after)

    def traced(
        self, worlds: tuple[World, ...], difference: Difference, view: View
    ) -> tuple[tuple[World, ...], Difference]:
        """A difference in the last of some worlds, with the worlds that it takes to show it.

        If it doesn't show on a new node, the proxy has not followed a change: it takes the world before, too.
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

    def differences(self, world: World, probes: Iterable[Probe], view: View = exactly) -> list[Difference]:
        """What becomes of connections otherwise than the oracle says, in the world that was loaded last.

        What a documented deviation from kube-proxy explains is counted and left out.  All else counts if it is still
        there when the subject has had time to finish what it may be doing.

        Args:
            world: that world.
            probes: the connections.
            view: what of an outcome counts.
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

    def all_differences(self, world: World, probes: Iterable[Probe], view: View = exactly) -> list[Difference]:
        """The same, with those that a deviation explains, and at once."""
        found = self._compare(world, probes, view)
        if not self.subject.may_deviate:
            return found
        start = self._worlds[0].node if self._worlds else world.node
        return [each._replace(deviation=deviation_of(world, each.probe, each.seen, view, start)) for each in found]

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
        """Connections to a place that never reach what some of them must reach."""
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
        """So many more connections that all of `wanted` show; none where there aren't as many new clients."""
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
    """A client that is sent to another pod than before, though it must be remembered."""
    pods = {outcome.endpoint.ip for outcome in outcomes if outcome.kind is Kind.ENDPOINT and outcome.endpoint}
    if len(pods) > 1 and oracle.remembers(probe):
        return Difference(probe, oracle.expected(probe), frozenset(outcomes), NOT_REMEMBERED)
    return None
