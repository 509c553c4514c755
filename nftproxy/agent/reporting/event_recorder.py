"""Sends the agent's Events to the API (events.k8s.io/v1, KEP-383).

Events help people, so they must never be in the way.  An Event that can't be sent is retried a few times and then
dropped with a log line, and the number of Events is bounded (event_series.py).
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Iterable, Mapping

import tenacity

from nftproxy.agent.reporting.event_series import EventCorrelator, EventSeries
from nftproxy.agent.reporting.occurrences import Fault, Occurrence
from nftproxy.api.responses import ErrorStatus
from nftproxy.logs import warn
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable

CONTROLLER = "nftproxy"
NOTE_LENGTH = 1024
"""Bytes of a note that the API takes (events.k8s.io/v1 validation)."""

LONGEST_ABOUT = 236
"""Bytes of an object's name that an Event's name begins with.  An Event's name may have 253 bytes (RFC 1123)."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


PostEvent = Callable[[str, Mapping[str, object], str], Awaitable[ErrorStatus | None]]
"""Sends an object to the API, given a namespace, the object and a name.

Without a name the object is a new Event, with a name it is a merge patch of that Event.  Returns the API's error if it
denies the Event, and raises Unavailable if it should be retried."""


def event_of(series: EventSeries, node: str) -> tuple[str, dict[str, object]]:
    """Return an Event's namespace ("default" for a Node, which has none) and the Event."""
    occurrence = series.occurrence
    namespace, name = _namespace(series), occurrence.subject.name
    if occurrence.subject.namespace:
        regarding = {"apiVersion": "v1", "kind": "Service", "name": name, "namespace": namespace}
    else:  # the uid as the kubelet and kube-proxy do: `kubectl describe node` looks for it
        regarding = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name_of(series), "namespace": namespace},
        "eventTime": _micro_time(series.began),
        "reportingController": CONTROLLER,
        "reportingInstance": f"{CONTROLLER}-{node}"[:128],
        "action": occurrence.action,
        "reason": occurrence.reason,
        "regarding": regarding,
        "note": f"{occurrence.code}: {occurrence.note}".encode()[:NOTE_LENGTH].decode(errors="ignore"),
        "type": "Warning" if occurrence.is_warning else "Normal",
    }
    return namespace, event | (count_of(series) if series.count > 1 else {})


def count_of(series: EventSeries) -> dict[str, object]:
    """Return the merge patch with the count of a series.  No other field of an Event may change."""
    return {"series": {"count": series.count, "lastObservedTime": _micro_time(series.last)}}


def _micro_time(time: datetime.datetime) -> str:
    """Return a MicroTime.  The API requires six digits after the point."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _namespace(series: EventSeries) -> str:
    return series.occurrence.subject.namespace or "default"


def name_of(series: EventSeries) -> str:
    """Return an Event's name in client-go's form: the object's name, a dot, and the time in hexadecimal digits.

    A name of our own makes sending idempotent, and lets the count be changed.  The API denies a `generateName` that
    ends in a dot.
    """
    nanoseconds = (series.began - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
    return f"{series.occurrence.subject.name[:LONGEST_ABOUT].rstrip('-.')}.{nanoseconds:x}"


class EventRecorder:
    """Sends the reported occurrences as Events, in the background."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._correlator = EventCorrelator()
        self._woken = asyncio.Event()

    def report(self, occurrences: Iterable[Occurrence]) -> None:
        """Queue occurrences to be sent, within the bounds of event_series.py."""
        occurrences = list(occurrences)
        if not occurrences:  # as after nearly every change
            return
        now = asyncio.get_running_loop().time()
        self._correlator.observe(occurrences, now, datetime.datetime.now(datetime.UTC))
        self._woken.set()
        if self._correlator.dropped:
            warn(
                Code.EVENTS_DROPPED,
                "dropped the %(count)d oldest of the Events that waited to be sent: too many objects have Events",
                of="",
                count=self._correlator.dropped,
            )
            self._correlator.dropped = 0

    def report_fault(self, fault: Fault) -> None:
        """Queue the Events of a fault."""
        self.report(fault.occurrences(self._node))

    async def run(self, post: PostEvent) -> None:
        """Send the Events that wait, until the task is cancelled."""
        while True:
            series = await self._next()
            try:
                await self._send(post, series)
            except Unavailable as error:
                text = "an Event could not be sent and is dropped: %(error)s: %(note)s"
                occurrence = series.occurrence
                warn(Code.EVENT_NOT_SENT, text, of=occurrence.subject.namespace, error=error, note=occurrence.note)

    async def _next(self) -> EventSeries:
        """Wait for the next series that may be sent."""
        while True:
            self._woken.clear()
            series, pause = self._correlator.next(asyncio.get_running_loop().time())
            if series is not None:
                return series
            try:
                await asyncio.wait_for(self._woken.wait(), pause)
            except TimeoutError:
                continue

    async def _send(self, post: PostEvent, series: EventSeries) -> None:
        """Raise the count of an Event, or create it.  The API may have deleted it early."""
        namespace = _namespace(series)
        if series.is_created:
            failure = await _sent(post, namespace, count_of(series), name_of(series))
            if failure is None or failure.code != 404:
                _warn(series, failure)
                return
        failure = await _sent(post, *event_of(series, self._node), "")
        series.is_created = failure is None or failure.code == 409  # 409: it was created, and only the answer was lost
        if not series.is_created:
            _warn(series, failure)


def _warn(series: EventSeries, failure: ErrorStatus | None) -> None:
    if failure is not None:
        occurrence = series.occurrence
        subject = occurrence.subject
        about = f"Service {subject}" if subject.namespace else f"Node {subject.name}"
        text = "the API denies an Event about %(about)s, which is dropped: %(reason)s: %(note)s"
        of = subject.namespace
        warn(Code.EVENT_DENIED, text, of=of, about=about, reason=failure.message, note=occurrence.note)


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(Unavailable),
    wait=tenacity.wait_random_exponential(multiplier=1, max=30),
    stop=tenacity.stop_after_attempt(5),
    reraise=True,
)
async def _sent(post: PostEvent, namespace: str, body: Mapping[str, object], name: str) -> ErrorStatus | None:
    return await post(namespace, body, name)
