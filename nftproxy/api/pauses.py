"""How long to wait before the next request, by the outcomes of the requests before it.

Three kinds of failures have their own backoff:

* No answer.  A failed attempt to connect costs the server nothing, so these pauses stay short, however long the server
  is away.  The rules are right a few seconds after it is back.
* A useful watch that is cut young, as by a balancer that cuts every connection after two seconds.  client-go watches
  again at once (tools/cache/reflector.go, VeryShortWatchError).  Here the version is probed, too, so there are pauses.
  They stay short, as each of them delays changes.
* An unhelpful answer.  It cost the server something, so these pauses grow until a watch was healthy.  A successful
  listing doesn't reset them: a server suffers most from a client that lists, fails to watch, and lists again.

Any answer resets the first backoff, and earlier failures to connect delay nothing that follows.  An API server that was
away has lost its history and answers each watch with 410, and the listing then comes within a second.  If the server
was away for long, answers from before don't count either.

Time and randomness come in as values.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from nftproxy.model.backoff import Backoff
from nftproxy.model.codes import Code


class ReflectorTimes(msgspec.Struct, frozen=True):
    """The durations of a reflector, in seconds.

    Pauses double from the first to the longest, and half of each is random, so that nodes don't come all at once.
    """

    shortest_watch: int = 300
    longest_watch: int = 600  # a watch ends after a random time between these two, as in client-go
    healthy: float = (
        5.0  # a watch that lasts this long was healthy, and a server that is away this long is a new server
    )
    useful: float = 1.0  # a watch that lasts this long, or brings a newer version, was useful (client-go has 1 s)
    absent: float = 600.0  # between looks for a kind that the server doesn't know
    longest_list: float = 600.0
    """For all pages of a listing: etcd compacts their version after 5 to 10 minutes (kube-apiserver,
    --etcd-compaction-interval)."""
    first_attempt: float = 0.5  # between requests that get no answer
    longest_attempt: float = 3.0  # short, and the first answer to any resource of the node wakes the others
    longest_cut: float = 3.0  # after a useful watch that was cut young
    first_error: float = 1.0  # after an unhelpful answer (client-go has 0.8), or a useful watch that was cut young
    longest_error: float = 30.0  # client-go has 30 too, and adds up to as much again at random


class Pause(NamedTuple):
    """How long to wait before the next request: a random time between two bounds."""

    shortest: float = 0.0  # seconds
    longest: float = 0.0  # seconds
    reason: str = ""  # for the log, "" if all is well
    is_fault: bool = True  # whether to log a warning
    awaits_server: bool = False  # end the pause once the server answers any other request of this node
    is_cut: bool = False  # the connection broke under an answer, as may those of all resources at once
    code: Code = Code.API_UNHELPFUL

    def seconds(self, chance: float) -> float:
        """Return the time to wait, by a random number from 0 up to 1."""
        return self.shortest + chance * (self.longest - self.shortest)


class FailureCounts:
    """Counts the failures of a resource's requests, and chooses the pause after each."""

    def __init__(self, times: ReflectorTimes) -> None:
        self._times = times
        self._attempts = Backoff(times.first_attempt, times.longest_attempt)
        self._cuts = Backoff(times.first_error, times.longest_cut)
        self._errors = Backoff(times.first_error, times.longest_error)
        self._unanswered = 0
        self._cut = 0
        self._unhelpful = 0
        self._away_since = 0.0

    def record_answer(self, now: float) -> None:
        """Reset the backoff of requests without an answer."""
        if self._unanswered and now - self._away_since >= self._times.healthy:
            self._unhelpful = 0
        self._unanswered = 0

    def reset(self) -> None:
        """Reset every backoff, after a healthy watch, however it ended."""
        self._unanswered = self._cut = self._unhelpful = 0

    def count_unanswered(self, reason: str, now: float, spent: float = 0.0) -> Pause:
        """Count a request without an answer, or with an answer that broke off, and return the pause.

        Args:
            reason: for the log.
            now: seconds of any clock that doesn't jump.
            spent: seconds that the attempt itself took.  The pause is shorter by these.
        """
        if not self._unanswered:
            self._away_since = now
        self._unanswered += 1
        longest = self._attempts.pause(self._unanswered)
        return Pause(
            max(longest / 2 - spent, 0.0),
            max(longest - spent, 0.0),
            reason,
            awaits_server=True,
            code=Code.API_UNREACHABLE,
        )

    def count_cut(self, reason: str) -> Pause:
        """Count a useful watch that was cut young, and return the pause."""
        self._cut += 1
        longest = self._cuts.pause(self._cut)
        return Pause(longest / 2, longest, reason, is_cut=True)

    def count_unhelpful(self, reason: str, at_least: float = 0.0, code: Code = Code.API_UNHELPFUL) -> Pause:
        """Count an unhelpful answer, and return the pause.  `at_least` are the seconds that the server asked for."""
        self._unhelpful += 1
        longest = self._errors.pause(self._unhelpful)
        return Pause(at_least + longest / 2, at_least + longest, reason, code=code)
