"""Faults on demand: their kind, the requests that they strike, and how often.

    server.faults.add(Fault(Respond(503), verb="list", resource="services", count=3))
    server.faults.add(Fault(Respond(500), verb="list", skip=1))     the second page, if nothing else is listed
    server.faults.add(Fault(Respond(410), when=lambda request: "continue" in request.query))
    server.faults.add(Fault(BlackHole(), verb="watch"))             a watch that runs, or else the next
    server.faults.add(Fault(EndWatch(), count=None))                every watch, at once, for ever

There are two sorts.  A fault of an answer strikes a request before it is answered, or its answer.  A fault of a stream
strikes a watch: first the running watches, oldest first, then new watches until its count is used up.  `Reset` and
`BlackHole` are of both sorts.  In a watch they strike the stream, after its headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Protocol

import msgspec

from nftproxy_conformance.apiserver.journal import Request
from nftproxy_conformance.apiserver.status import ApiError


class Parting(Enum):
    """How an answer ends before it is complete."""

    END = "end"
    """The answer ends as if it were complete."""
    CLOSE = "close"
    """The connection is closed."""
    RESET = "reset"
    """The connection is reset."""
    HANG = "hang"
    """It stays open, and nothing comes any more."""


@dataclass(frozen=True)
class Respond:
    """An answer other than the right answer.

    Args:
        code: the HTTP status.
        message: of the Status.
        reason: of the Status, by default the reason for the code.
        retry_after: seconds, in the header and in the Status.
        body: instead of a Status, such as a load balancer's page of HTML, or the plain text of a 429 from
            kube-apiserver's fairness queues.
        location: the target of a redirection.
    """

    code: int
    message: str = "a fault on demand"
    reason: str = ""
    retry_after: int | None = None
    body: bytes | None = None
    location: str = ""

    @property
    def error(self) -> ApiError:
        """The error that the client gets."""
        details = None if self.retry_after is None else {"retryAfterSeconds": self.retry_after}
        return ApiError(self.code, self.message, self.reason, details)


@dataclass(frozen=True)
class Slow:
    """A slow answer, which may have another fault too.

    Args:
        before: seconds before it begins.
        during: seconds over which its body is spread, except for watches.
    """

    before: float = 0.0
    during: float = 0.0


@dataclass(frozen=True)
class Truncate:
    """An answer that ends in the middle.  Not for watches.

    Args:
        fraction: how much of the body is sent.
        then: how it ends.
    """

    fraction: float = 0.5
    then: Parting = Parting.CLOSE


@dataclass(frozen=True)
class Endless:
    """An answer whose body goes on for as long as the client reads it.  Not for watches."""


@dataclass(frozen=True)
class Stale:
    """A list from a server that lags behind: the state of an earlier revision."""

    revision: int


@dataclass(frozen=True)
class Reset:
    """A fault that resets the connection."""


@dataclass(frozen=True)
class BlackHole:
    """Nothing comes any more, bookmarks included, and the connection stays open."""


@dataclass(frozen=True)
class EndWatch:
    """The watch ends as it does at its timeout: cleanly."""


@dataclass(frozen=True)
class Inject:
    """Arbitrary bytes in a watch.

    Args:
        data: the bytes, with the newline if any.
        then: how the stream ends after them, None if it goes on.
    """

    data: bytes
    then: Parting | None = None


@dataclass(frozen=True)
class CutLine:
    """Half of the watch's next event, and no more."""

    then: Parting = Parting.END


@dataclass(frozen=True)
class Duplicate:
    """The watch's next event comes twice."""


@dataclass(frozen=True)
class Swap:
    """The watch's next two events come in the wrong order."""


Action = (
    Respond | Slow | Truncate | Endless | Stale | Reset | BlackHole | EndWatch | Inject | CutLine | Duplicate | Swap
)
ANSWER_ONLY = (Respond, Slow, Truncate, Endless, Stale)
STREAM_ONLY = (EndWatch, Inject, CutLine, Duplicate, Swap)


def error_event(code: int = 500, message: str = "a fault on demand", reason: str = "") -> Inject:
    """An ERROR event with a Status, after which the watch ends as on real servers."""
    return Inject(ApiError(code, message, reason).event, Parting.END)


def unknown_event(type_: str = "SURPRISE") -> Inject:
    """An event of an unknown type, about a missing object."""
    metadata = {"name": "surprise", "namespace": "default", "resourceVersion": "1"}
    event = {"type": type_, "object": {"kind": "Surprise", "apiVersion": "v1", "metadata": metadata}}
    return Inject(msgspec.json.encode(event) + b"\n")


@dataclass(frozen=True)
class Fault:
    """A fault, and the requests that it strikes.

    Args:
        action: the fault.
        verb: list, watch, get, create, update, patch, delete, or "*" for any.
        resource: the plural, `services/status` for a subresource, a path such as `/version`, or "*" for any resource.
        count: how many times, None for always.  A stream is struck at most once.
        skip: matching requests to spare first.
        when: a further condition on the request.
    """

    action: Action
    _: KW_ONLY
    verb: str = "*"
    resource: str = "*"
    count: int | None = 1
    skip: int = 0
    when: Callable[[Request], bool] | None = None

    def is_about(self, request: Request) -> bool:
        """True if a request matches."""
        if self.verb not in {"*", request.verb}:
            return False
        if isinstance(self.action, Stale) and request.verb != "list":
            return False
        if isinstance(self.action, Truncate | Endless) and request.verb == "watch":
            return False
        if self.resource == "*" and request.resource.startswith("/"):
            return False
        return self.resource in {"*", request.resource} and (self.when is None or self.when(request))

    def is_in_stream(self, request: Request) -> bool:
        """True if the fault strikes the stream of a request, and not its answer."""
        return isinstance(self.action, STREAM_ONLY) or (
            request.verb == "watch" and not isinstance(self.action, ANSWER_ONLY)
        )


class Stream(Protocol):
    """A watch that runs."""

    request: Request

    def strike(self, action: Action) -> None:
        """Strike the watch with a fault."""


@dataclass(eq=False)
class _Armed:
    """A fault that waits, and how often it still strikes."""

    fault: Fault
    skip: int
    left: int | None

    def fires(self) -> bool:
        if self.skip:
            self.skip -= 1
            return False
        if self.left is not None:
            self.left -= 1
        return True


class Faults:
    """The faults that wait for a request.

    Args:
        run: runs a function in the server's thread, where everything here happens.
        streams: the watches that run.
    """

    def __init__(self, run: Callable[[Callable[[], None]], None], streams: Iterable[Stream]) -> None:
        self._run = run
        self._streams = streams
        self._armed: list[_Armed] = []

    def add(self, *faults: Fault) -> None:
        """Add faults.  If several match a request, the oldest strikes."""
        self._run(lambda: self._add(faults))

    def clear(self) -> None:
        """Remove all faults.  Watches that were struck stay struck."""
        self._run(self._armed.clear)

    @property
    def waiting(self) -> tuple[Fault, ...]:
        """The faults that have not yet struck as often as they should."""
        return tuple(armed.fault for armed in self._armed)

    def of_answer(self, request: Request) -> Iterator[Action]:
        """Yield the faults of an answer: any `Slow`, then at most one more."""
        for action in self._firing(self._armed, request, in_stream=False):
            yield action
            if not isinstance(action, Slow):
                return

    def of_stream(self, stream: Stream) -> None:
        """Strike a new watch with the faults that wait for it."""
        for action in self._firing(self._armed, stream.request, in_stream=True):
            stream.strike(action)

    def _add(self, faults: Iterable[Fault]) -> None:
        added = [_Armed(fault, fault.skip, fault.count) for fault in faults]
        self._armed.extend(added)
        for stream in list(self._streams):
            for action in self._firing(added, stream.request, in_stream=True):
                stream.strike(action)

    def _firing(self, among: Iterable[_Armed], request: Request, *, in_stream: bool) -> Iterator[Action]:
        for armed in list(among):
            fault = armed.fault
            if armed.left == 0 or not fault.is_about(request) or fault.is_in_stream(request) != in_stream:
                continue
            if armed.fires():
                if armed.left == 0:
                    self._armed.remove(armed)
                yield fault.action
