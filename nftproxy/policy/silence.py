"""Which endpoints don't answer, as this node sees it: who is left out, when one is retried, and who comes back.

A state machine without clock and sockets: how many connections to each endpoint stay without any reply goes in, with
the time; which endpoints to try, and which are silent, comes out.

    unknown ──a connection without reply──> suspect ──none of some connections is answered, nor is ours──> silent
                                               │                                                              │
                                               └──────────────ours is answered──> well <──────────────────────┘

* Nobody is tried whom no client has asked for: an endpoint becomes suspect by a client's connection that has sent its
  first packet twice and has no reply.
* It becomes silent when `THRESHOLD` connections are in that state at once, and a connection of our own isn't answered
  either.  So a pod that loses a packet stays, as does one that somebody else's policy hides from some clients.
* A silent endpoint is retried by a connection of our own, with pauses that grow from `FIRST_PAUSE` to `LONGEST_PAUSE`,
  and comes back when that is answered.  A reset is an answer, too.
* One that falls silent again within `PROBATION` goes on with twice its last pause, so that flapping is damped.
* Where something keeps the node itself from connecting, no retry would ever be answered: after `TRIAL` the endpoint
  comes back without.

How many of a list may be left out is not decided here but where the list is made (endpoints.py).  Memory is bounded:
`MOST_KNOWN` endpoints, and nothing about one that has gone, or that has been well for long enough.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto

from nftproxy.model.objects import Place

THRESHOLD = 3
"""Connections that are without reply at once.  One is a lost packet, and clients that repeat theirs make two likely;
passive checks elsewhere wait for 3 (Envoy's consecutive gateway failures: 5, HAProxy's `fall`: 3)."""
CONFIRMATION = 0.5
"""Seconds within which a suspect must answer our own connection: clients have waited for more than one by then."""
RETRY_PATIENCE = 2.0
"""Seconds within which a silent endpoint must answer to come back: a slow one does, and one packet may get lost."""
ACQUITTAL = 5.0
"""Seconds for which a suspect that has answered is left in peace, and after which one nobody misses is forgotten."""
SUSPECT_PAUSE = 1.0
"""Seconds before a suspect that hasn't answered, and isn't silent yet, is tried again."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a silent endpoint is retried: at first, and at the most; each pause is twice the last one."""
PROBATION = 300.0
"""Seconds for which an endpoint that came back must be well until its pauses begin at the first again."""
TRIAL = 600.0
"""Seconds after which a silent endpoint comes back though no retry was answered."""
MOST_KNOWN = 4_096
"""Endpoints about which something is remembered; more are not watched until some of these are forgotten."""


class _Standing(Enum):
    SUSPECT = auto()
    SILENT = auto()
    WELL = auto()


class _Known:
    """What is remembered of one endpoint: its standing, since when, and when it is to be tried (None: not now)."""

    missing: int
    """Connections without reply at the last look."""
    missed_at: float
    """When there were any for the last time."""

    def __init__(self, now: float) -> None:
        self.become(_Standing.SUSPECT, now, due=now)
        self.acquitted_until = now
        self.pause = 0.0

    def become(self, standing: _Standing, now: float, due: float | None = None) -> None:
        self.standing, self.since, self.due = standing, now, due
        self.has_failed = False


class Silence:
    """What is known of endpoints that don't answer.  All times are in seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._known: dict[Place, _Known] = {}

    def __len__(self) -> int:
        """Endpoints of which something is remembered."""
        return len(self._known)

    @property
    def silent(self) -> tuple[Place, ...]:
        """The endpoints that don't answer, the one that has been silent for longest first."""
        found = [(each.since, place) for place, each in self._known.items() if each.standing is _Standing.SILENT]
        return tuple(place for _, place in sorted(found))

    def observe(self, missing: Mapping[Place, int], now: float) -> None:
        """Take in how many connections to each endpoint are without reply now; the others have none."""
        for place in missing:
            self._suspect(place, now)
        for place, known in list(self._known.items()):
            known.missing = missing.get(place, 0)
            if known.missing:
                known.missed_at = now
            _judge(known, now)
            if _is_forgettable(known, now):
                del self._known[place]

    def _suspect(self, place: Place, now: float) -> None:
        """Try whoever isn't known yet, or was well for long enough."""
        known = self._known.get(place)
        if known is None:
            if len(self._known) < MOST_KNOWN:
                self._known[place] = _Known(now)
        elif known.standing is _Standing.WELL and now >= known.acquitted_until:
            known.become(_Standing.SUSPECT, now, due=now)

    def take_due(self, now: float) -> list[tuple[Place, float]]:
        """Whom to connect to now, and how long to wait for an answer; each is returned once, until `tried`."""
        due = [(place, known) for place, known in self._known.items() if known.due is not None and known.due <= now]
        for _, known in due:
            known.due = None
        return [(place, _patience(known)) for place, known in due]

    def tried(self, place: Place, now: float, *, has_answered: bool) -> None:
        """What has become of our own connection to an endpoint."""
        known = self._known.get(place)
        if known is None or known.standing is _Standing.WELL:
            return
        if has_answered:
            known.acquitted_until = now + (ACQUITTAL if known.standing is _Standing.SUSPECT else 0.0)
            known.become(_Standing.WELL, now)
        elif known.standing is _Standing.SUSPECT:
            known.has_failed, known.due = True, now + SUSPECT_PAUSE
            _judge(known, now)
        elif now - known.since >= TRIAL:
            known.become(_Standing.WELL, now)
        else:
            known.pause = min(2 * known.pause, LONGEST_PAUSE)
            known.due = now + known.pause

    def keep(self, places: Collection[Place]) -> None:
        """Forget all endpoints except these."""
        for place in [place for place in self._known if place not in places]:
            del self._known[place]


def _judge(known: _Known, now: float) -> None:
    """Let a suspect be silent if there is enough against it, and be well if nobody misses it any more."""
    if known.standing is not _Standing.SUSPECT:
        return
    if known.has_failed and known.missing >= THRESHOLD:
        known.pause = min(2 * known.pause, LONGEST_PAUSE) or FIRST_PAUSE
        known.become(_Standing.SILENT, now, due=now + known.pause)
    elif now - known.missed_at >= ACQUITTAL:
        known.become(_Standing.WELL, now)


def _is_forgettable(known: _Known, now: float) -> bool:
    until = known.since + PROBATION if known.pause else known.acquitted_until
    return known.standing is _Standing.WELL and now >= until


def _patience(known: _Known) -> float:
    return RETRY_PATIENCE if known.standing is _Standing.SILENT else CONFIRMATION
