"""Another proxy's connections beside nftproxy's own: the same cluster and packets on two nodes.

Both nodes play the same Node of the cluster, so that the same endpoints are local to both.  The oracle judges each of
them.  The two can only differ in connections that the oracle finds wrong on either node.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from nftproxy.model.events import Event
from nftproxy_conformance.lab import Outcome, Probe
from nftproxy_conformance.specification.world import View, World
from nftproxy_conformance.trials.trial import TIMES, Difference, Subject, Trial, exactly

OURS = "nftproxy itself: "
"""The start of `what` in a difference of nftproxy, not of the other proxy."""


class Against(Trial):
    """A trial of another proxy that tries each connection with nftproxy too.

    Args:
        subject: the other proxy.
        ours: nftproxy, with the same cluster.
        most_more: as for `Trial`.
    """

    def __init__(self, subject: Subject, ours: Subject, *, most_more: float = float("inf")) -> None:
        super().__init__(subject, most_more=most_more)
        self._ours = Trial(ours, most_more=most_more)

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._ours.__exit__(*error)

    def load(self, world: World) -> None:
        """Load a world on both nodes.

        Raises: as `Trial.load` does.
        """
        super().load(world)
        self._ours.load(world)

    def follow(self, after: World, happened: Sequence[Event]) -> None:
        """Apply events to the loaded world, on both nodes.

        Raises: as `Trial.load` does.
        """
        super().follow(after, happened)
        self._ours.follow(after, happened)

    def traced(
        self, worlds: tuple[World, ...], difference: Difference, view: View
    ) -> tuple[tuple[World, ...], Difference]:
        """A difference with the worlds that show it.  Differences of nftproxy are returned unchanged."""
        if difference.what.startswith(OURS):
            return worlds, difference
        return super().traced(worlds, difference, view)

    def retransmit(self, probes: Sequence[Probe], silent: Container[tuple[str, int]]) -> None:
        """Try connections on both nodes, and send the first packets of those to silent endpoints once more."""
        super().retransmit(probes, silent)
        self._ours.retransmit(probes, silent)

    def all_differences(self, world: World, probes: Iterable[Probe], view: View = exactly) -> list[Difference]:
        """The wrong outcomes on either node.  The other proxy's differences come with nftproxy's outcome."""
        wanted = list(probes)
        theirs = super().all_differences(world, wanted, view)
        own = self._ours.differences(world, wanted, view)
        known = {each.probe for each in theirs}
        left = [each for each in own if each.probe not in known]
        return [
            *(each._replace(ours=self._outcomes(each.probe, view)) for each in theirs),
            *(each._replace(what=f"{OURS}{each.what}", ours=each.seen) for each in left),
        ]

    def _outcomes(self, probe: Probe, view: View) -> frozenset[Outcome]:
        return frozenset(map(view, self._ours.connect([probe] * TIMES)))
