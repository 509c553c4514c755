"""The endpoints that don't answer or refuse, as seen from this node: when they are left out, retried, and come back.

A state machine without clock and sockets.  Its inputs are the time, the number of connections to each endpoint that
are without any reply, and the endpoints that refused any.  Its outputs are the endpoints to probe, and the
silent endpoints.

    unknown ──a connection without reply──> suspect ──none of some connections is answered, nor is ours──> silent
               or refused                      │      or one is refused, and ours isn't accepted              │
                                               └──────────────ours is answered──> well <──────────────────────┘

* Endpoints that no client has contacted are never probed: an endpoint becomes suspect by a client's connection that
  has sent its first packet twice and has no reply.
* It becomes silent when `THRESHOLD` connections are in that state at once, and a connection of our own isn't answered
  either.  So a pod stays that loses a packet, or that a network policy hides from some clients.
* An endpoint that refuses a client's connection is silent if it doesn't accept our own either.  So packets alone,
  whoever sent them, make no endpoint silent.
* A silent endpoint is retried by a connection of our own, with backoff, and comes back when the endpoint answers it.
  A reset is an answer, too, but not of an endpoint that refused.
* An endpoint that falls silent again within `PROBATION` goes on with twice its last pause, so that flapping is damped.
* If something keeps the node itself from connecting, no retry would ever be answered: after `TRIAL` the endpoint comes
  back without an answer.

The share of a list that may be left out is decided where the list is made (choosing/verdicts.py).  Memory is bounded:
`MOST_KNOWN` endpoints, and nothing about an endpoint that has gone, or that has been well for long enough.  Beyond
that, the namespace with the most endpoints makes room for any other (max-min fairness), so that no tenant keeps the
endpoints of another from being watched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto

from nftproxy.model.backoff import Backoff
from nftproxy.model.fairness import SharedRoom
from nftproxy.model.objects import Place

THRESHOLD = 3
"""Connections without a reply at the same time that make an endpoint a suspect.  A lost packet explains a single
connection, and clients that retry make a second likely.
Passive checks elsewhere wait for 3 (Envoy's consecutive gateway failures: 5, HAProxy's `fall`: 3)."""
CONFIRMATION = 0.5
"""Seconds within which a suspect must answer our own connection: by then clients have waited for more than a second."""
RETRY_PATIENCE = 2.0
"""Seconds within which a silent endpoint must answer to come back: enough for a slow endpoint, or for a lost packet."""
ACQUITTAL = 5.0
"""Seconds for which a suspect that has answered isn't probed, and after which a suspect without missing replies is
well."""
SUSPECT_PAUSE = 1.0
"""Seconds before a suspect that hasn't answered, or wasn't tried, and isn't silent yet, is tried again."""
BACKOFF = Backoff(1.0, 60.0)
"""The pauses before retries of a silent endpoint."""
PROBATION = 300.0
"""Seconds for which an endpoint that came back must be well until its pauses start over."""
TRIAL = 600.0
"""Seconds after which a silent endpoint comes back though no retry was answered."""
REFUSED_AGAIN = 1.0
"""Seconds for which refusals of an endpoint don't count after it has accepted our own connection."""
MOST_KNOWN = 4_096
"""The most endpoints remembered.  Beyond it, a new endpoint evicts the latest endpoint of the namespace with the most
endpoints, if its own namespace has fewer.  Otherwise the new endpoint is not watched."""


EVERYBODYS: Mapping[Place, Collection[str]] = {}
"""No namespace for any endpoint: all endpoints are treated as those of a single namespace."""


class ProbeAnswer(Enum):
    """The answer of an endpoint to a connection of our own."""

    ACCEPTED = auto()
    REFUSED = auto()
    NONE = auto()
    UNTRIED = auto()
    """The node had no resources for the connection, so nothing is known about the endpoint."""


class _Standing(Enum):
    SUSPECT = auto()
    SILENT = auto()
    WELL = auto()


class _Known:
    """The memory of an endpoint: its standing, since when, and when it is due to be probed (None: not now)."""

    missing: int
    """Connections without reply at the last look."""
    missed_at: float
    """The last time when there were any, or a refusal."""
    refuses: bool
    """Whether the endpoint refused clients' connections since it was last well."""
    namespace: str
    """The namespace for which the endpoint takes room."""

    def __init__(self, now: float, namespace: str) -> None:
        self.namespace = namespace
        self.become(_Standing.SUSPECT, now, due=now)
        self.acquitted_until = now
        self.failures = 0  # to answer a retry, since its pauses started over

    def become(self, standing: _Standing, now: float, due: float | None = None) -> None:
        self.standing, self.since, self.due = standing, now, due
        self.has_failed = False
        if standing is not _Standing.SILENT:
            self.refuses = False

    def fall_silent(self, now: float) -> None:
        """Leave the endpoint out, for longer than the last time."""
        self.become(_Standing.SILENT, now, due=self.next_retry(now))

    def next_retry(self, now: float) -> float:
        """Count a failure, and return the time of the next retry."""
        self.failures += 1
        return now + BACKOFF.pause(self.failures)

    def has_answered(self, answer: ProbeAnswer) -> bool:
        """Whether an answer shows that the endpoint is well."""
        return answer is ProbeAnswer.ACCEPTED or (answer is ProbeAnswer.REFUSED and not self.refuses)


class Silence:
    """The memory of endpoints that don't answer.  All times are in seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._known: dict[Place, _Known] = {}
        self._room = SharedRoom[Place]()

    def __len__(self) -> int:
        """The number of endpoints remembered."""
        return len(self._known)

    def __contains__(self, place: object) -> bool:
        """Whether an endpoint is remembered."""
        return place in self._known

    @property
    def silent(self) -> tuple[Place, ...]:
        """The endpoints that don't answer, longest silence first."""
        found = [(each.since, place) for place, each in self._known.items() if each.standing is _Standing.SILENT]
        return tuple(place for _, place in sorted(found))

    @property
    def refusing(self) -> frozenset[Place]:
        """The silent endpoints that refuse."""
        return frozenset(place for place in self.silent if self._known[place].refuses)

    def namespace_of(self, place: Place) -> str:
        """The namespace for which an endpoint takes room, "" if the endpoint isn't known."""
        known = self._known.get(place)
        return known.namespace if known else ""

    def observe(
        self,
        missing: Mapping[Place, int],
        now: float,
        namespaces: Mapping[Place, Collection[str]] = EVERYBODYS,
        refused: Collection[Place] = (),
    ) -> None:
        """Take in the present number of unanswered connections of each endpoint.  Endpoints that are missing have none.

        `refused` are the endpoints that lately refused a connection.  `namespaces` has the namespaces of the Services
        that have an endpoint.  Its place is taken from the namespace with the fewest endpoints known.
        """
        for place in dict.fromkeys((*missing, *refused)):
            self._suspect(place, now, namespaces.get(place, ()), refuses=place in refused)
        for place, known in list(self._known.items()):
            known.missing = missing.get(place, 0)
            if known.missing or place in refused:
                known.missed_at = now
            _judge(known, now)
            if _is_forgettable(known, now):
                self._evict(place)

    def _suspect(self, place: Place, now: float, namespaces: Collection[str], *, refuses: bool) -> None:
        """Suspect an endpoint that isn't known yet, or was well for long enough."""
        known = self._known.get(place)
        if known is None:
            namespace = min(namespaces, key=self._room.count, default="")
            if (evicted := self._room.to_evict(namespace, MOST_KNOWN)) is not None:
                self._evict(evicted)
            if len(self._room) < MOST_KNOWN:
                known = self._known[place] = _Known(now, namespace)
                self._room.add(namespace, place)
        elif known.standing is _Standing.WELL and now >= (
            known.since + REFUSED_AGAIN if refuses else known.acquitted_until
        ):
            known.become(_Standing.SUSPECT, now, due=now)
        if known and known.standing is _Standing.SUSPECT:
            known.refuses |= refuses

    def _evict(self, place: Place) -> None:
        self._room.remove(self._known.pop(place).namespace, place)

    def pop_due_probes(self, now: float) -> list[tuple[Place, float]]:
        """The endpoints to probe now, with the seconds to wait.  Each is returned once, until `record_probe`."""
        due = [(place, known) for place, known in self._known.items() if known.due is not None and known.due <= now]
        for _, known in due:
            known.due = None
        return [(place, _patience(known)) for place, known in due]

    def record_probe(self, place: Place, now: float, answer: ProbeAnswer) -> None:
        """Record the outcome of our own connection to an endpoint."""
        known = self._known.get(place)
        if known is None or known.standing is _Standing.WELL:
            return
        if known.has_answered(answer):
            known.acquitted_until = now + (ACQUITTAL if known.standing is _Standing.SUSPECT else 0.0)
            known.become(_Standing.WELL, now)
        elif known.standing is _Standing.SUSPECT and answer is ProbeAnswer.UNTRIED:
            known.due = now + SUSPECT_PAUSE
        elif known.standing is _Standing.SUSPECT and known.refuses:
            known.fall_silent(now)
        elif known.standing is _Standing.SUSPECT:
            known.has_failed, known.due = True, now + SUSPECT_PAUSE
            _judge(known, now)
        elif now - known.since >= TRIAL:
            known.become(_Standing.WELL, now)
        else:
            known.due = known.next_retry(now)

    def retain(self, places: Collection[Place]) -> None:
        """Forget all endpoints except these."""
        for place in [place for place in self._known if place not in places]:
            self._evict(place)


def _judge(known: _Known, now: float) -> None:
    """Make a suspect silent if there is enough evidence, or well if no connection has missed a reply for long."""
    if known.standing is not _Standing.SUSPECT:
        return
    if known.has_failed and known.missing >= THRESHOLD:
        known.fall_silent(now)
    elif now - known.missed_at >= ACQUITTAL:
        known.become(_Standing.WELL, now)


def _is_forgettable(known: _Known, now: float) -> bool:
    until = known.since + PROBATION if known.failures else known.acquitted_until
    return known.standing is _Standing.WELL and now >= until


def _patience(known: _Known) -> float:
    return RETRY_PATIENCE if known.standing is _Standing.SILENT else CONFIRMATION
