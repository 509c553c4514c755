"""Faults on demand: what goes wrong, for which requests, how often.

    server.faults.add(Fault(Respond(503), verb="list", resource="services", count=3))
    server.faults.add(Fault(Respond(500), verb="list", skip=1))     the second page, if nothing else is listed
    server.faults.add(Fault(Respond(410), when=lambda request: "continue" in request.query))
    server.faults.add(Fault(BlackHole(), verb="watch"))             a watch that runs, or else the next
    server.faults.add(Fault(EndWatch(), count=None))                every watch, at once, for ever

There are two sorts.  Some happen to a request before it is answered, or to the answer.  The others happen inside a
watch's stream, and strike the watches that run already, oldest first; what is left of the count waits for new ones.
`Reset` and `BlackHole` are of both sorts: in a watch they strike the stream, after its headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Protocol

import msgspec

from nftproxy.lab.apiserver.journal import Request
from nftproxy.lab.apiserver.status import ApiError


class Parting(Enum):
    """How an answer ends before it is complete."""

    END = "end"
    """As if it were complete: only what it says is cut short."""
    CLOSE = "close"
    """The connection is closed."""
    RESET = "reset"
    """The connection is reset."""
    HANG = "hang"
    """It stays open, and nothing comes any more."""


@dataclass(frozen=True)
class Respond:
    """Another answer than the right one.

    Args:
        code: the HTTP status.
        message: of the Status, by default one that says it is on demand.
        reason: of the Status, by default what belongs to the code.
        retry_after: seconds, in the header and in the Status.
        body: instead of a Status, such as a load balancer's page of HTML, or the plain text of a 429 that
            kube-apiserver's fairness queues send.
        location: where it points, as a redirection does.
    """

    code: int
    message: str = "a fault on demand"
    reason: str = ""
    retry_after: int | None = None
    body: bytes | None = None
    location: str = ""

    @property
    def error(self) -> ApiError:
        """The Status that is answered."""
        details = None if self.retry_after is None else {"retryAfterSeconds": self.retry_after}
        return ApiError(self.code, self.message, self.reason, details)


@dataclass(frozen=True)
class Slow:
    """A slow answer; other faults may come on top.

    Args:
        before: seconds before it begins.
        during: seconds over which its body is spread; a watch's isn't.
    """

    before: float = 0.0
    during: float = 0.0


@dataclass(frozen=True)
class Truncate:
    """An answer, not of a watch, that ends in the middle.

    Args:
        fraction: how much of the body is sent.
        then: how it ends.
    """

    fraction: float = 0.5
    then: Parting = Parting.CLOSE


@dataclass(frozen=True)
class Endless:
    """An answer, not of a watch, whose body goes on for as long as the client reads it."""


@dataclass(frozen=True)
class Stale:
    """A list from a server that lags behind, as one of several may: with the state of an earlier revision."""

    revision: int


@dataclass(frozen=True)
class Reset:
    """The connection is reset."""


@dataclass(frozen=True)
class BlackHole:
    """Nothing comes any more, bookmarks included, and the connection stays open."""


@dataclass(frozen=True)
class EndWatch:
    """The watch ends as it does at its timeout: cleanly."""


@dataclass(frozen=True)
class Inject:
    """Something in a watch that isn't an event of an object.

    Args:
        data: the bytes, with the newline if there is to be one.
        then: how the stream ends after it, None if it goes on.
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
    """An ERROR event with a Status, after which the watch ends, as it does on real servers."""
    return Inject(ApiError(code, message, reason).event, Parting.END)


def unknown_event(type_: str = "SURPRISE") -> Inject:
    """An event of a type that no client knows, about an object that isn't there."""
    metadata = {"name": "surprise", "namespace": "default", "resourceVersion": "1"}
    event = {"type": type_, "object": {"kind": "Surprise", "apiVersion": "v1", "metadata": metadata}}
    return Inject(msgspec.json.encode(event) + b"\n")


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and where.

    Args:
        action: what.
        verb: list, watch, get, create, update, patch, delete; "*" is any.
        resource: by its plural, `services/status` for a subresource, or a path such as `/version`; "*" is any resource.
        count: how many times, None for always; inside streams, at most once in each.
        skip: how many requests that match pass unharmed before.
        when: what else must be true of the request.
    """

    action: Action
    _: KW_ONLY
    verb: str = "*"
    resource: str = "*"
    count: int | None = 1
    skip: int = 0
    when: Callable[[Request], bool] | None = None

    def is_about(self, request: Request) -> bool:
        """Whether a request is one of those."""
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
        """Whether it happens inside the stream that the request opens, and not to its answer."""
        return isinstance(self.action, STREAM_ONLY) or (
            request.verb == "watch" and not isinstance(self.action, ANSWER_ONLY)
        )


class Stream(Protocol):
    """A watch that runs."""

    request: Request

    def strike(self, action: Action) -> None:
        """Let it go wrong."""


@dataclass(eq=False)
class _Armed:
    """A fault that waits, and how often it still has to."""

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
        """Let these happen; of those that match a request, the one that was added first does."""
        self._run(lambda: self._add(faults))

    def clear(self) -> None:
        """Let no more happen; a watch that was struck stays so."""
        self._run(self._armed.clear)

    @property
    def waiting(self) -> tuple[Fault, ...]:
        """The faults that have not yet happened as often as they should."""
        return tuple(armed.fault for armed in self._armed)

    def of_answer(self, request: Request) -> Iterator[Action]:
        """Yield what goes wrong with the answer to a request: any `Slow`, then at most one other."""
        for action in self._firing(self._armed, request, in_stream=False):
            yield action
            if not isinstance(action, Slow):
                return

    def of_stream(self, stream: Stream) -> None:
        """Let go wrong what waits for a watch that has just begun."""
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
