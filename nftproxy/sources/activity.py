"""The present activity of each resource of the API, for `nftproxy status`, recorded at next to no cost.

Times are those of the steady clock: a wall clock that jumps makes no age wrong.
"""

from __future__ import annotations

import time

import msgspec


class ResourceActivity(msgspec.Struct):
    """The present request or pause of a resource.  Times are by `time.monotonic`, None before the first."""

    resource: str
    what: str = "starting"  # then listing, watching or pausing
    since: float = msgspec.field(default_factory=time.monotonic)  # when the request or pause began
    last_event: float | None = None
    last_heard: float | None = None
    """The server's last word: data, a listing, or the acceptance of a watch."""
    problem: str = ""  # the reason of the last pause, "" if nothing is wrong
    failing_since: float | None = None
    """The first failure after the server's last word, None if no request has failed since."""
    unusable_since: float | None = None
    """When the first listing came that can't be used, None if the last listing could be used."""
    is_absent: bool = False  # the cluster has no such kind, or doesn't need to let us list it

    def begin_request(self, *, is_watch: bool) -> None:
        """Record that a request was made."""
        self.what, self.since = "watching" if is_watch else "listing", time.monotonic()
        if is_watch:
            self.unusable_since = None

    def record_word(self, *, has_events: bool = False) -> None:
        """Record that the server has said something useful.  Bookmarks are no events."""
        self.last_heard, self.problem, self.failing_since = time.monotonic(), "", None
        if has_events:
            self.last_event = self.last_heard

    def record_unusable_listing(self) -> None:
        """Record that the server has answered with a listing that can't be used."""
        if self.unusable_since is None:
            self.unusable_since = time.monotonic()

    def begin_pause(self, problem: str, *, is_fault: bool, is_absent: bool) -> None:
        """Record that the next request comes later, and why."""
        self.what, self.since = "pausing", time.monotonic()
        self.problem, self.is_absent = problem, is_absent
        if problem and is_fault and self.failing_since is None:
            self.failing_since = self.since
