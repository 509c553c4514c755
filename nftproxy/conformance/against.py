"""Another proxy's connections beside nftproxy's own: the same cluster, the same packets, on two nodes.

Both nodes are the same Node of the cluster, so that the same endpoints are local to both.  The oracle is between them:
it says of each which connections went otherwise than they must, and these are where the two can differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from nftproxy.conformance.oracle import View, World
from nftproxy.conformance.trial import TIMES, Difference, Subject, Trial, exactly
from nftproxy.lab import Outcome, Probe
from nftproxy.model.events import Event

OURS = "nftproxy itself: "
"""How `what` of a difference begins that is nftproxy's own, and not the other proxy's."""


class Against(Trial):
    """A trial of another proxy, each of whose connections is tried with nftproxy too.

    Args:
        subject: the other proxy.
        ours: nftproxy, which follows the same cluster.
        most_more: as of `Trial`.
    """

    def __init__(self, subject: Subject, ours: Subject, *, most_more: float = float("inf")) -> None:
        super().__init__(subject, most_more=most_more)
        self._ours = Trial(ours, most_more=most_more)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._ours.__exit__(kind, error, traceback)

    def load(self, world: World) -> None:
        """Make both nodes what they must be in a world.

        Raises: as `Trial.load` does.
        """
        super().load(world)
        self._ours.load(world)

    def follow(self, after: World, happened: Sequence[Event]) -> None:
        """Let things happen in the world that was loaded last, for both nodes.

        Raises: as `Trial.load` does.
        """
        super().follow(after, happened)
        self._ours.follow(after, happened)

    def traced(
        self, worlds: tuple[World, ...], difference: Difference, view: View
    ) -> tuple[tuple[World, ...], Difference]:
        """A difference with the worlds that it takes to show it; nftproxy's own are shown as they were found."""
        if difference.what.startswith(OURS):
            return worlds, difference
        return super().traced(worlds, difference, view)

    def all_differences(self, world: World, probes: Iterable[Probe], view: View = exactly) -> list[Difference]:
        """What becomes of connections otherwise than it must, on either node; of the other proxy's with our outcome."""
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
