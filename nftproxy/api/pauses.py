"""How long to wait before the next request, by the outcome of those before it.

Two sorts of failures have their own pauses:

* Nobody answers.  An attempt to connect that fails costs a server nothing, so these pauses stay short, however long it
  is away, and the rules are right a few seconds after it is back.
* An answer doesn't help.  It cost the server something, so these pauses grow until a watch was a healthy one.  That a
  listing succeeded is no reason to be quick: listing and failing to watch, again and again, is the worst that can be
  done to a server.

Any answer, whatever it says, ends the pauses of the first sort, and nothing that failed before it delays what follows:
an API server that was away has lost its history and answers each watch with 410, and the listing then comes within a
second.  Where it was away for long, answers of the time before don't count either.

No clock and no chance is in here: both come in as values.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from nftproxy.model.codes import Code


class Times(msgspec.Struct, frozen=True):
    """What following a resource takes its time for, in seconds.

    `shortest_watch` and `longest_watch` (whole seconds): after how long a watch is to end, at random, as in client-go.
    `healthy`: a watch that lived that long was a good one, and a server that was away for that long is a new one.
    `absent`: between looks for a kind that isn't there.  `longest_list`: for all pages of a listing; after 5 to 10
    minutes etcd has compacted the version that they are of (kube-apiserver, --etcd-compaction-interval).

    `first_attempt` and `longest_attempt`: from one attempt that nobody answers to the next.  The resources of a node
    wait independently, and the first that is answered wakes the others.  `first_error` and `longest_error`: after
    an answer that doesn't help (client-go has 0.8 and 30, and up to as much again by chance).  Each pause is twice the
    one before it, and half of it is left to chance, so that not all nodes come at once.
    """

    shortest_watch: int = 300
    longest_watch: int = 600
    healthy: float = 5.0
    absent: float = 600.0
    longest_list: float = 600.0
    first_attempt: float = 0.5
    longest_attempt: float = 3.0
    first_error: float = 1.0
    longest_error: float = 30.0


class Pause(NamedTuple):
    """How long to wait before the next request, in seconds: any time between `shortest` and `longest`.

    `reason` is for the log, "" if all is well; `is_fault`: it is worth a warning, under this `code`.  `awaits_server`:
    nobody answered, so the pause ends when the server answers any other request of this node.
    """

    shortest: float = 0.0
    longest: float = 0.0
    reason: str = ""
    is_fault: bool = True
    awaits_server: bool = False
    code: Code = Code.API_UNHELPFUL

    def seconds(self, chance: float) -> float:
        """The time to wait, by a random number from 0 up to 1."""
        return self.shortest + chance * (self.longest - self.shortest)


class Failures:
    """The failures of one resource's requests, and the pause that follows each."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._unanswered = 0
        self._unhelpful = 0
        self._away_since = 0.0

    def note_answer(self, now: float) -> None:
        """The server has answered something."""
        if self._unanswered and now - self._away_since >= self._times.healthy:
            self._unhelpful = 0
        self._unanswered = 0

    def forgive(self) -> None:
        """A watch was a healthy one, however it ended."""
        self._unanswered = self._unhelpful = 0

    def unanswered(self, reason: str, now: float, spent: float = 0.0) -> Pause:
        """Nobody answered, or nobody does any more.

        Args:
            reason: for the log.
            now: seconds of any clock that doesn't jump.
            spent: seconds that the attempt itself took; the pause is as much shorter.
        """
        if not self._unanswered:
            self._away_since = now
        self._unanswered += 1
        longest = _doubled(self._times.first_attempt, self._unanswered, self._times.longest_attempt)
        return Pause(
            max(longest / 2 - spent, 0.0),
            max(longest - spent, 0.0),
            reason,
            awaits_server=True,
            code=Code.API_UNREACHABLE,
        )

    def unhelpful(self, reason: str, at_least: float = 0.0, code: Code = Code.API_UNHELPFUL) -> Pause:
        """The server gave an answer that doesn't help; `at_least` are the seconds that it asked for."""
        self._unhelpful += 1
        longest = _doubled(self._times.first_error, self._unhelpful, self._times.longest_error)
        return Pause(at_least + longest / 2, at_least + longest, reason, code=code)


def _doubled(first: float, count: int, longest: float) -> float:
    """The pause after so many failures; the exponent is bounded, as a float is."""
    return min(first * 2.0 ** min(count - 1, 30), longest)
