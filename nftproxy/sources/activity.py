"""The present activity of each resource of the API, for `nftproxy status`, recorded at next to no cost."""

from __future__ import annotations

import time

import msgspec


class ResourceActivity(msgspec.Struct):
    """The present request or pause of a resource.  Times are seconds since the epoch, None before the first."""

    resource: str
    what: str = "starting"  # then listing, watching or pausing
    since: float = msgspec.field(default_factory=time.time)  # when the request or pause began
    last_event: float | None = None
    last_heard: float | None = None
    problem: str = ""  # the reason of a pause, "" if nothing is wrong

    def begin_request(self, *, is_watch: bool) -> None:
        """Record that a request was made."""
        self.what, self.since = "watching" if is_watch else "listing", time.time()

    def record_data(self, *, has_events: bool) -> None:
        """Record that data came.  Bookmarks are no events."""
        self.last_heard, self.problem = time.time(), ""
        if has_events:
            self.last_event = self.last_heard

    def begin_pause(self, problem: str) -> None:
        """Record that the next request comes later."""
        self.what, self.since = "pausing", time.time()
        self.problem = problem
