"""The journal of requests, which tests count and wait for.

The server writes from its thread, and tests get copies in theirs.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

REQUESTS = 100_000
"""Requests that are kept: half an hour of a bench that writes fifty times a second."""


@dataclass(eq=False)
class Request:
    """A request and its answer.

    Args:
        method: of HTTP.
        path: of the URL, without the query.
        query: of the URL, with the last value of a repeated key.
        headers: by lower-case name.
        verb: RBAC's verb: list, watch, get, create, update, patch, delete.
        resource: RBAC's resource, such as `services/status`, or the path if it isn't a resource's.
        namespace: "" for all.
        name: "" for all.
        peer: the client's address.
        port: the client's port, which differs between connections.
        time: of its arrival, in seconds since the epoch.
        user: the user, once known.
        status: of the answer, 0 before it.
        bytes: of the answer's body, as sent, counted before the client has them.
        events: sent by a watch so far, with bookmarks.
        ended: the time at which the answer was complete or cut off, None until then.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    verb: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    peer: str = ""
    port: int = 0
    time: float = field(default_factory=time.time)
    user: str = ""
    status: int = 0
    bytes: int = 0
    events: int = 0
    ended: float | None = None


class Journal:
    """All requests that the server received, in their order."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        """Errors in the server's own code."""
        self._requests: deque[Request] = deque(maxlen=REQUESTS)
        self._changed = threading.Condition()
        self._changes = 0

    def add(self, request: Request) -> None:
        """Add a new request."""
        with self._changed:
            self._requests.append(request)
            self.notify()

    def finish(self, request: Request) -> None:
        """Record that a request was answered or cut off."""
        with self._changed:
            request.ended = time.time()
            self.notify()

    def notify(self) -> None:
        """Let waiting tests check their conditions again."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def requests(self, **wanted: str | int) -> list[Request]:
        """The requests whose fields have these values."""
        with self._changed:
            chosen = (r for r in self._requests if all(getattr(r, key) == value for key, value in wanted.items()))
            return [copy.copy(request) for request in chosen]

    def metrics(self) -> bytes:
        """The counts of kept requests, in the format of kube-apiserver's /metrics."""
        with self._changed:
            counts = Counter((each.verb.upper(), each.resource, each.status) for each in self._requests)
        lines = (
            f'apiserver_request_total{{verb="{verb}",resource="{resource}",code="{code}"}} {count}\n'
            for (verb, resource, code), count in sorted(counts.items())
        )
        return "".join(lines).encode()

    def clear(self) -> None:
        """Drop all requests except running watches."""
        with self._changed:
            running = [request for request in self._requests if request.verb == "watch" and request.ended is None]
            self._requests.clear()
            self._requests.extend(running)

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> None:
        """Wait until a condition on requests is true.

        Raises:
            TimeoutError: it isn't true after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            seen = self._changes
            if condition():  # without the lock, which the server's thread may need to evaluate it
                return
            with self._changed:
                if not self._changed.wait_for(lambda: self._changes != seen, deadline - time.monotonic()):  # noqa: B023
                    break
        had = "\n".join(f"  {r.verb} {r.resource} {dict(r.query)}: {r.status}" for r in self.requests())
        raise TimeoutError(f"not within {timeout} s; the requests were:\n{had}")
