"""What is being done about each resource of the API, for `nftproxy status`: kept as it happens, at next to no cost."""

from __future__ import annotations

import time

import msgspec


class Activity(msgspec.Struct):
    """One resource: listing, watching or pausing; times are in seconds since the epoch, None before the first.

    `since` is when the present request, or pause, began; `problem` is why it pauses, "" if nothing is wrong.
    """

    resource: str
    what: str = "starting"
    since: float = msgspec.field(default_factory=time.time)
    last_event: float | None = None
    last_heard: float | None = None
    problem: str = ""

    def asks(self, *, is_watch: bool) -> None:
        """A request has been made."""
        self.what, self.since = "watching" if is_watch else "listing", time.time()

    def hears(self, *, has_events: bool) -> None:
        """Something has come; bookmarks are no events."""
        self.last_heard, self.problem = time.time(), ""
        if has_events:
            self.last_event = self.last_heard

    def pauses(self, problem: str) -> None:
        """The next request comes later."""
        self.what, self.since = "pausing", time.time()
        self.problem = problem
