"""Every request that came, for a test to count and to wait for.

The server writes from its thread and tests read from theirs; what they get are copies.
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
    """One request and what became of it.

    Args:
        method: of HTTP.
        path: of the URL, without the query.
        query: of the URL; of a key that comes twice, the last.
        headers: by lower-case name.
        verb: what RBAC calls it: list, watch, get, create, update, patch, delete.
        resource: what RBAC calls it, `services/status` for example; of another path, the path.
        namespace: "" for all.
        name: "" for all.
        peer: the address that it came from.
        port: the port there, another one for each connection.
        time: when, in seconds since the epoch.
        user: who, once known.
        status: of the answer; 0 while there is none.
        bytes: of the answer's body, as sent; counted before the client has them.
        events: sent by a watch so far, bookmarks among them.
        ended: when the answer was complete, or cut off, which the client may know before; None until then.
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
    """All requests, in the order in which they came."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        """Errors of the server itself; there are none, unless it has a bug."""
        self._requests: deque[Request] = deque(maxlen=REQUESTS)
        self._changed = threading.Condition()
        self._changes = 0

    def begin(self, request: Request) -> None:
        """Note a request that has come."""
        with self._changed:
            self._requests.append(request)
            self.tell()

    def end(self, request: Request) -> None:
        """Note that it is answered, or cut off."""
        with self._changed:
            request.ended = time.time()
            self.tell()

    def tell(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def requests(self, **wanted: str | int) -> list[Request]:
        """Those requests whose fields have these values."""
        with self._changed:
            chosen = (r for r in self._requests if all(getattr(r, key) == value for key, value in wanted.items()))
            return [copy.copy(request) for request in chosen]

    def metrics(self) -> bytes:
        """How many requests there have been, of those that are kept, as kube-apiserver's /metrics tells it."""
        with self._changed:
            counts = Counter((each.verb.upper(), each.resource, each.status) for each in self._requests)
        lines = (
            f'apiserver_request_total{{verb="{verb}",resource="{resource}",code="{code}"}} {count}\n'
            for (verb, resource, code), count in sorted(counts.items())
        )
        return "".join(lines).encode()

    def forget(self) -> None:
        """Drop all requests, but for the watches that run."""
        with self._changed:
            running = [request for request in self._requests if request.verb == "watch" and request.ended is None]
            self._requests.clear()
            self._requests.extend(running)

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> None:
        """Wait for something about requests to be so.

        Raises:
            TimeoutError: it isn't, after so many seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            seen = self._changes
            if condition():  # asked without the lock: it may ask the server's thread, which may want it
                return
            with self._changed:
                if not self._changed.wait_for(lambda: self._changes != seen, deadline - time.monotonic()):  # noqa: B023
                    break
        had = "\n".join(f"  {r.verb} {r.resource} {dict(r.query)}: {r.status}" for r in self.requests())
        raise TimeoutError(f"not within {timeout} s; the requests were:\n{had}")
