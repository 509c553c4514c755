"""Leaves out endpoints that don't answer: asks the kernel, tries who is under suspicion, and lets the pipeline know.

Policy decides (policy/silence.py); here are the clock, the kernel's answers (kernel/unanswered.py) and our own
connections.  What comes out is an event like any other: the pipeline makes rules of it, in the same transaction as of
whatever else has come.

* While no Service asks for it this waits, without a timer or a socket.
* Then it looks every `INTERVAL`, at one set for each family, and does nothing more while these are empty.
* Connection tracking forgets connections that wait for an endpoint that has been left out, so that the client's next
  packet goes to another one.  A connection that was ever answered is never touched.
* Looking takes a tenth of a CPU at most, however many connections are without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from nftproxy.kernel.unanswered import Noted, Unanswered
from nftproxy.model.addresses import Family, family_of, host_port
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Event, Put, SilentPlaces
from nftproxy.model.objects import ObjectKey, Place
from nftproxy.policy.silence import Silence
from nftproxy.policy.state import ClusterState

log = logging.getLogger(__name__)

INTERVAL = 0.25
"""Seconds between two looks: a quarter of the time after which a client sends its first packet again."""
GRACE = 0.3
"""Seconds that an endpoint has to answer what was sent again: with the second before it, longer than any way takes."""
SHARE = 9.0
"""How many times as long as it took the next look is away at least."""
LONGEST_PAUSE = 30.0
"""Seconds before the next look where the kernel doesn't answer: at the most (as the agent does with rules)."""
MOST_TRIED = 32
"""Our own connections at one time."""


class Reader(Protocol):
    """What asks the kernel (kernel/unanswered.py has it)."""

    def noted(self, family: Family) -> list[Noted]:
        """What was noted lately; raises Unavailable."""

    def unanswered(self, noted: Iterable[Noted]) -> list[Unanswered]:
        """Those without a reply; raises Unavailable."""

    def forget(self, connections: Iterable[Unanswered]) -> int:
        """Have these translated anew; raises Unavailable."""

    def close(self) -> None:
        """Let go of the kernel."""


class Change(NamedTuple):
    """An endpoint that has fallen silent, or answers again, and the Services that leave it out."""

    place: Place
    is_silent: bool
    services: Sequence[ObjectKey]


class Figures(Protocol):
    """Where it is counted (agent/metrics.py has it)."""

    def silence(self, counts: Mapping[Family, int]) -> None:
        """So many endpoints of each family don't answer now."""

    def fell_silent(self, family: Family) -> None:
        """An endpoint doesn't answer any more."""

    def tried_silent(self, *, has_answered: bool) -> None:
        """A connection of our own was answered, or not."""

    def moved_unanswered(self, count: int) -> None:
        """So many connections will be translated anew."""


Connect = Callable[[Place, float], Awaitable[bool]]
"""Connects to a place, and says whether it answered within so many seconds."""


async def answers(place: Place, patience: float) -> bool:
    """Whether an endpoint answers by TCP within so many seconds; a reset is an answer."""
    family = socket.AF_INET6 if family_of(place.address) is Family.IPV6 else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as ours:
        try:
            async with asyncio.timeout(patience):
                await asyncio.get_running_loop().sock_connect(ours, place)
        except ConnectionRefusedError:
            return True
        return True
    return False


class SilenceWatch:
    """Follows who doesn't answer this node.

    Args:
        state: the cluster as the pipeline knows it.
        families: those that are served.
        reader: asks the kernel.
        figures: where it is counted.
        report: called with what has changed, once for each endpoint.
        connect: connects to an endpoint.
    """

    def __init__(
        self,
        state: ClusterState,
        families: Iterable[Family],
        reader: Reader,
        figures: Figures,
        report: Callable[[Change], object],
        connect: Connect = answers,
    ) -> None:
        self._state = state
        self._families = tuple(families)
        self._reader = reader
        self._figures = figures
        self._report = report
        self._connect = connect
        self._known = Silence()
        self._published: tuple[Place, ...] = ()
        self._places: Mapping[Place, Sequence[ObjectKey]] = {}
        self._in_force: frozenset[Place] = frozenset()
        self._tries: dict[Place, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(MOST_TRIED)
        self._wanted = asyncio.Event()

    def follow_rules(self) -> None:
        """The kernel has the rules for the present state: to be called after each change of them."""
        self._in_force = frozenset(self._state.silent)
        if self._state.watched:
            self._wanted.set()
        if len(self._known) or self._published:
            self._places = self._state.watched_places()
            self._known.keep(self._places)

    async def follow(self) -> AsyncIterator[Sequence[Event]]:
        """Who doesn't answer, whenever that has changed; at first nothing is known."""
        yield []
        pause = INTERVAL
        try:
            while True:
                await self._wanted.wait()
                began = time.monotonic()
                try:
                    await self._look()
                    pause = max(INTERVAL, SHARE * (time.monotonic() - began))
                except Unavailable as error:
                    pause = min(2 * pause, LONGEST_PAUSE)
                    text = "%(error)s; endpoints that don't answer stay as they are, looking again in %(pause).1f s"
                    what = {"error": error, "pause": pause}
                    log.warning(text, what, extra={"code": Code.SILENCE_UNREADABLE})
                if self._known.silent != self._published:
                    yield [Put(SilentPlaces(self._publish()))]
                if not self._state.watched and not len(self._known):
                    self._wanted.clear()
                await asyncio.sleep(pause)
        finally:
            for task in self._tries.values():
                task.cancel()
            self._reader.close()

    async def _look(self) -> None:
        """One look at the kernel, and what follows from it."""
        noted = [each for family in self._families for each in self._reader.noted(family)]
        missing = Counter[Place]()
        if noted:
            waiting = await asyncio.to_thread(self._reader.unanswered, noted)
            missing.update(each.place for each in waiting if each.noted.waits >= GRACE)
            stuck = [each for each in waiting if each.place in self._in_force]
            if stuck:
                self._figures.moved_unanswered(await asyncio.to_thread(self._reader.forget, stuck))
        if missing and not missing.keys() <= self._places.keys():
            self._places = self._state.watched_places()
        missing = Counter({place: count for place, count in missing.items() if place in self._places})
        self._known.observe(missing, time.monotonic())
        for place, patience in self._known.take_due(time.monotonic()):
            self._try(place, patience)

    def _try(self, place: Place, patience: float) -> None:
        if place not in self._tries:
            task = self._tries[place] = asyncio.create_task(self._tried(place, patience))
            task.add_done_callback(lambda _: self._tries.pop(place))

    async def _tried(self, place: Place, patience: float) -> None:
        async with self._room:
            has_answered = await self._connect(place, patience)
        self._figures.tried_silent(has_answered=has_answered)
        self._known.tried(place, time.monotonic(), has_answered=has_answered)

    def _publish(self) -> tuple[Place, ...]:
        """Report what has changed; who is silent now."""
        before, self._published = self._published, self._known.silent
        for place in [*self._published, *before]:
            if (place in before) != (place in self._published):
                self._say(Change(place, place in self._published, self._places.get(place, ())))
        families = Counter(family_of(place.address) for place in self._published)
        self._figures.silence({family: families[family] for family in self._families})
        return self._published

    def _say(self, change: Change) -> None:
        """Log and report one change; of an endpoint that has gone there is nothing to say."""
        if change.is_silent:
            self._figures.fell_silent(family_of(change.place.address))
        if change.services:
            what = {"place": host_port(*change.place), "services": ", ".join(map(str, change.services))}
            if change.is_silent:
                text = (
                    "endpoint %(place)s of Service %(services)s doesn't answer connections from this node: new ones go "
                    "to the others, and it is retried until it answers"
                )
                log.warning(text, what, extra={"code": Code.ENDPOINT_SILENT})
            else:
                log.info("endpoint %(place)s of Service %(services)s answers again, and serves", what)
            self._report(change)
