"""Leaves out silent endpoints: reads the kernel's retransmissions, probes suspects, and sends events to the pipeline.

Policy decides (../silence.py).  This module has the clock, the kernel's answers (unanswered.py)
and the probes.  The pipeline turns its events into rules, in the same transaction as all other events.

* Until a Service has the annotation this waits, without a timer or a socket.
* Then it reads a set for each family every `INTERVAL`, and does nothing more while these are empty.
* Connection tracking entries of connections that wait for a silent endpoint are deleted, so that the client's next
  packet goes to another endpoint.  So are those of connections that got an ICMP error, or whose endpoint is in no slice
  any more.  A connection that was ever answered is never touched.
* Reading takes at most a tenth of a CPU, however many connections have no answer.
* Probes take turns by namespace, and a namespace leaves room for as many probes as it makes at once.  So a tenant with
  many silent endpoints doesn't delay the probes of other tenants.
* If the rules can't note a namespace's connections since its share is used up, a warning and a metric say so.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nftproxy.agent.looks import Looks
from nftproxy.agent.reporting.fault_reporter import ReportOngoing
from nftproxy.agent.reporting.metrics import Metric, MetricRows, Metrics
from nftproxy.agent.reporting.occurrences import Occurrence
from nftproxy.agent.tcp import socket_family
from nftproxy.extensions.failover.agent.unanswered import STUCK, Retransmission, UnansweredConnection, UnansweredReader
from nftproxy.extensions.failover.annotations import Failover
from nftproxy.extensions.failover.codes import FailoverCode
from nftproxy.extensions.failover.silence import ProbeAnswer, Silence
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.extensions.failover.watched import silent_places, watched, watched_places
from nftproxy.logs import inform, warn
from nftproxy.model.addresses import Family, family_of
from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Event, Put
from nftproxy.model.fairness import Holdings, TurnQueue
from nftproxy.model.objects import ObjectKey, Place
from nftproxy.policy.numbers import namespace_number
from nftproxy.policy.state import ClusterState

FAILOVER_METRICS = MetricRows(
    counters=(
        Metric(
            "nftproxy_silences_total",
            "Times that an endpoint stopped answering, for Services that leave out silent endpoints",
        ),
        Metric(
            "nftproxy_silence_overflows_total",
            "Looks that found a namespace with more connections without an answer than its share",
        ),
        Metric(
            "nftproxy_silence_checks_total",
            "Connections of the agent to endpoints that seem silent",
            ("answered",),
            known=("true", "false"),
        ),
        Metric("nftproxy_connections_moved_total", "Unanswered connections that were moved to another endpoint", ()),
    ),
    gauges=(
        Metric(
            "nftproxy_silent_endpoints",
            "Endpoints that don't answer this node, for Services that leave out silent endpoints",
        ),
    ),
)

INTERVAL = 0.25
"""Seconds between two looks: a quarter of the time after which a client retransmits its first packet."""
RETRANSMISSION_WAIT = 0.3
"""Seconds that an endpoint has to answer a retransmission.  With the second before it, this exceeds any round trip."""
REST = 9.0
"""Wait at least `REST` times as long as the last look took."""
MOST_TRIED = 64
"""Limit of probes at the same time.  A namespace alone gets half of them."""
REMINDER = 300.0
"""Seconds between two warnings about connections that aren't noted."""
MOST_NAMED = 3
"""The number of namespaces that such a warning names."""
_LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
"""The errors of a node that lacks files, memory, or a local port or address.  Nothing was sent to the endpoint."""


class SilenceChange(NamedTuple):
    """An endpoint of some Services that has fallen silent, perhaps by refusing connections, or that answers again."""

    place: Place
    is_silent: bool
    refuses: bool
    services: Sequence[ObjectKey]

    def occurrences(self, node: str) -> Iterator[Occurrence]:
        """Yield an Event (`Fault`) for each of the Services if the endpoint has fallen silent."""
        fails = "refuses" if self.refuses else "doesn't answer"
        note = f"endpoint {self.place} {fails} node {node}, which sends new connections to other endpoints"
        for service in self.services if self.is_silent else ():
            yield Occurrence(service, "EndpointSilent", "LeaveOut", note, FailoverCode.ENDPOINT_SILENT)


Connect = Callable[[Place, float], Awaitable[ProbeAnswer]]
"""Probes a place, and returns its answer within so many seconds."""


async def answer_of(place: Place, patience: float) -> ProbeAnswer:
    """Return an endpoint's answer to a TCP connection within `patience` seconds."""
    kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
    try:
        with socket.socket(socket_family(place.address), kind) as ours:
            async with asyncio.timeout(patience):
                await asyncio.get_running_loop().sock_connect(ours, place)
    except ConnectionRefusedError:
        return ProbeAnswer.REFUSED
    except OSError as error:
        return ProbeAnswer.UNTRIED if error.errno in _LACKS else ProbeAnswer.NONE
    return ProbeAnswer.ACCEPTED


class SilenceWatch:
    """Watches for endpoints that don't answer this node.

    Args:
        state: the cluster as the pipeline knows it.
        families: the families that are served.
        reader: reads the kernel.
        metrics: counts silent endpoints and probes.
        report: called with each change of an endpoint.
        connect: probes an endpoint.
        report_ongoing: replaces the present warnings of a code.
    """

    def __init__(
        self,
        state: ClusterState,
        families: Iterable[Family],
        reader: UnansweredReader,
        metrics: Metrics,
        report: Callable[[SilenceChange], object],
        connect: Connect = answer_of,
        report_ongoing: ReportOngoing = lambda *_: None,
    ) -> None:
        self._state = state
        self._families = tuple(families)
        self._reader = reader
        self._metrics = metrics
        self._report = report
        self._connect = connect
        self._report_ongoing = report_ongoing
        self._known = Silence()
        self._published = SilentPlaces(())
        self._places: Mapping[Place, Sequence[ObjectKey]] = {}
        self._has_changed = True
        """Whether rules were loaded since `_places` was looked up."""
        self._in_force: frozenset[Place] = frozenset()
        self._tries: dict[Place, asyncio.Task[None]] = {}
        self._trying = Holdings()
        """The number of probes of each namespace."""
        self._due = TurnQueue[tuple[Place, float]]()
        """The probes that wait, with their patience."""
        self._warn_at = 0.0
        self._wanted = asyncio.Event()

    def rules_loaded(self) -> None:
        """Note that the kernel holds the rules for the present state.  Call this after each change of rules."""
        self._in_force = frozenset(silent_places(self._state).places)
        if watched(self._state):
            self._wanted.set()
        self._has_changed = True
        if len(self._known) or self._published.places:
            self._refresh_places()
            self._known.retain(self._places)

    async def events(self) -> AsyncGenerator[Sequence[Event]]:
        """Yield the silent endpoints whenever they have changed, after an empty first batch."""
        yield []
        looks = Looks(self._look, self._report_look, interval=INTERVAL, share=REST)
        try:
            while True:
                await self._wanted.wait()
                pause = await looks.once()
                if SilentPlaces(self._known.silent, self._known.refusing) != self._published:
                    yield [Put(self._publish())]
                if not watched(self._state) and not len(self._known):
                    self._wanted.clear()
                await asyncio.sleep(pause)
        finally:
            self._due.clear()
            for task in self._tries.values():
                task.cancel()
            self._reader.close()

    async def _look(self) -> None:
        """Read the kernel, delete stuck connections, and probe the suspects that are due."""
        sent_again = [each for family in self._families for each in self._read(family)]
        asking = self._families if self._state.users_of(Failover.REFUSED) else ()
        refused = {place for family in asking for place in self._reader.refused(family)}
        if sent_again or refused:
            self._report_crowded()
        missing = await self._unanswered(sent_again) if sent_again else Counter[Place]()
        if refused:
            self._refresh_places()
        missing = Counter({place: count for place, count in missing.items() if place in self._places})
        refused &= self._places.keys()
        suspects = missing.keys() | refused
        namespaces = {place: {service.namespace for service in self._places[place]} for place in suspects}
        self._known.observe(missing, time.monotonic(), namespaces, refused)
        for place, patience in self._known.pop_due_probes(time.monotonic()):
            self._due.add(self._known.namespace_of(place), (place, patience))
        self._try_next()

    async def _unanswered(self, sent_again: Sequence[Retransmission]) -> Counter[Place]:
        """Count the unanswered connections to each endpoint, and delete those that must go to another endpoint."""
        waiting = await asyncio.to_thread(self._reader.unanswered, sent_again)
        missing = Counter(each.place for each in waiting if each.retransmission.waits >= RETRANSMISSION_WAIT)
        if missing:
            self._refresh_places()
        if stuck := [each for each in waiting if self._is_stuck(each)]:
            moved = await asyncio.to_thread(self._reader.delete, stuck)
            self._metrics.count("nftproxy_connections_moved_total", by=moved)
        return missing

    def _is_stuck(self, connection: UnansweredConnection) -> bool:
        """Whether a connection must go to another endpoint."""
        if connection.place in self._in_force:
            return True
        sent = connection.retransmission
        return sent.waits >= RETRANSMISSION_WAIT and (sent.is_stuck or connection.place not in self._places)

    def _refresh_places(self) -> None:
        """Look the endpoints of watched Services up again, if rules were loaded since."""
        if self._has_changed:
            self._places, self._has_changed = watched_places(self._state), False

    def _read(self, family: Family) -> Iterable[Retransmission]:
        """The retransmissions of a family.  Connections that must go to another endpoint are in a separate set."""
        noted = {each.key: each for each in self._reader.retransmissions(family)}
        if self._in_force or self._state.users_of(Failover.REFUSED):
            noted |= {each.key: each for each in self._reader.retransmissions(family, STUCK)}
        return noted.values()

    def _report_crowded(self) -> None:
        """Count the families of which some namespace had no room to note a connection, and warn now and then."""
        crowded = {family: self._reader.crowded(family) for family in self._families}
        for family in self._families:
            self._metrics.count("nftproxy_silence_overflows_total", family, by=bool(crowded[family]))
        if any(crowded.values()) and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + REMINDER
            text = (
                "more connections of %(namespaces)s have no answer than are noted: endpoints there that don't answer "
                "may be left out late"
            )
            warn(FailoverCode.SILENCE_CROWDED, text, namespaces=self._names(crowded))

    def _names(self, crowded: Mapping[Family, Collection[str]]) -> str:
        """The names of the namespaces with these numbers, only the first few."""
        known = {key.namespace for key in watched(self._state)}
        names = sorted(
            name for name in known if any(namespace_number(name, family) in crowded[family] for family in crowded)
        )
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"namespaces {', '.join(names[:MOST_NAMED])}{more}" if names else "namespaces that are gone"

    def _try_next(self) -> None:
        """Begin the probes for which there is room, one of each namespace in turn."""
        while (namespace := self._next_namespace()) is not None:
            place, patience = due = next(iter(self._due.of(namespace)))
            self._due.take(namespace, due)
            if place in self._known and place not in self._tries:
                self._try(place, patience, namespace)

    def _next_namespace(self) -> str | None:
        """Return the next namespace with a probe that waits, and with room for it."""
        return next((each for each in self._due.names() if self._trying.room(each, MOST_TRIED) > 0), None)

    def _try(self, place: Place, patience: float, namespace: str) -> None:
        self._trying.add(namespace)
        task = self._tries[place] = asyncio.create_task(self._tried(place, patience))
        task.add_done_callback(lambda _: self._ended(place, namespace))

    def _ended(self, place: Place, namespace: str) -> None:
        self._trying.add(namespace, -1)
        del self._tries[place]
        self._try_next()

    async def _tried(self, place: Place, patience: float) -> None:
        answer = await self._connect(place, patience)
        if answer is not ProbeAnswer.UNTRIED:
            self._metrics.count("nftproxy_silence_checks_total", str(answer is not ProbeAnswer.NONE).lower())
        self._known.record_probe(place, time.monotonic(), answer)

    def _publish(self) -> SilentPlaces:
        """Report the changes, and return the silent endpoints."""
        before, self._published = self._published, SilentPlaces(self._known.silent, self._known.refusing)
        now = self._published
        for place in [*now.places, *before.places]:
            if (place in before.places) != (place in now.places):
                services = self._places.get(place, ())
                self._report_change(SilenceChange(place, place in now.places, place in now.refusing, services))
        families = Counter(family_of(place.address) for place in now.places)
        for family in self._families:
            self._metrics.set("nftproxy_silent_endpoints", families[family], family)
        return self._published

    def _report_change(self, change: SilenceChange) -> None:
        """Log and report a change, unless no Service has the endpoint any more."""
        if change.is_silent:
            self._metrics.count("nftproxy_silences_total", family_of(change.place.address))
        if change.services:
            place, services = change.place, ", ".join(map(str, change.services))
            first, *others = sorted({each.namespace for each in change.services})
            of = "" if others else first
            if change.is_silent:
                text = (
                    "endpoint %(place)s of Service %(services)s %(fails)s connections from this node: new connections "
                    "go to other endpoints, and it is retried until it answers"
                )
                fails = "refuses" if change.refuses else "doesn't answer"
                warn(FailoverCode.ENDPOINT_SILENT, text, of=of, place=place, services=services, fails=fails)
            else:
                text = "endpoint %(place)s of Service %(services)s answers again, and gets connections again"
                inform(text, of=of, place=place, services=services)
            self._report(change)

    def _report_look(self, error: Unavailable | None) -> None:
        warnings = {"": f"{error}; the list of silent endpoints stays as it is"} if error else {}
        self._report_ongoing(
            FailoverCode.SILENCE_UNREADABLE, warnings, "connections without an answer can be read again"
        )
