"""Events that the agent sends to the API about what only it knows (events.k8s.io/v1, KEP-383).

An Event is an aid for people, so it must never be in the way: one that can't be sent is retried a few times and then
dropped with a log line, and their number is bounded (event_series.py).
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec
import tenacity

from nftproxy.agent.event_series import Correlator, Happening, Series
from nftproxy.agent.forwarder import CannotForward
from nftproxy.agent.servers import CannotListen
from nftproxy.api.responses import ErrorStatus
from nftproxy.model.addresses import FAMILY_NAMES, Family, host_port
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem, Unavailable
from nftproxy.model.objects import ObjectKey, Place
from nftproxy.policy.fronts import Lost

log = logging.getLogger(__name__)

CONTROLLER = "nftproxy"
NOTE_LENGTH = 1024
"""Bytes of a note that the API takes (events.k8s.io/v1 validation)."""

LONGEST_ABOUT = 236
"""Bytes of the name of what an Event is about that its own name may begin with: a name has 253 (RFC 1123)."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Post(Protocol):
    """Sends an Event's JSON to a namespace: a new one, or with a name a merge patch of the one that is there."""

    async def __call__(self, namespace: str, body: bytes, name: str = "", /) -> ErrorStatus | None:
        """Send it; what the API says if it doesn't take it.

        Raises:
            Unavailable: it should be tried again.
        """


def of_conflict(lost: Lost) -> Happening:
    """A Service doesn't get an address or port that it claims; who has it is not for every namespace to know."""
    port = f" of port {lost.port_name}" if lost.port_name else ""
    note = f"{lost.what}{port} is not served: {lost.denial.sentence()}"
    return Happening(lost.service.namespace, lost.service.name, "AddressConflict", "Claim", note, lost.denial.code)


def of_refusal(family: Family, service: ObjectKey, why: str) -> Happening:
    """A Service has no rules of a family, as the kernel refuses them."""
    note = f"the kernel refuses its rules for {FAMILY_NAMES[family]}: {why}"
    return Happening(service.namespace, service.name, "RulesRefused", "Load", note, Code.QUARANTINED, lasts=True)


def of_excess(service: ObjectKey, why: str) -> Happening:
    """A Service has no rules, as it exceeds a limit of what one may cost."""
    note = f"not served: {why}"
    return Happening(service.namespace, service.name, "LimitExceeded", "Load", note, Code.LIMIT_EXCEEDED, lasts=True)


def of_annotations(problems: Iterable[Problem]) -> Iterator[Happening]:
    """Annotations of nftproxy's own that have no effect, of Services: Events are about these and the Node alone."""
    for problem in problems:
        kind, _, name = problem.object.partition(" ")
        if problem.code is Code.ANNOTATION_UNUSED and kind == "Service":
            namespace, _, own = name.partition("/")
            note = f"{problem.field}: {problem.message}"
            yield Happening(namespace, own, "AnnotationUnused", "Parse", note, problem.code)


def of_silence(service: ObjectKey, place: Place, node: str) -> Happening:
    """An endpoint of a Service that leaves such out doesn't answer this node."""
    note = f"endpoint {host_port(*place)} doesn't answer connections from node {node}, where new ones go to others"
    return Happening(service.namespace, service.name, "EndpointSilent", "LeaveOut", note, Code.ENDPOINT_SILENT)


def of_listener(failure: CannotListen, node: str) -> Happening:
    """A health-check node port, or one of the agent's own, can't be listened on (reasons are kube-proxy's)."""
    if failure.service is None:
        return Happening("", node, "FailedToStartProxierHealthcheck", "StartKubeProxy", str(failure), failure.code)
    check = f'healthcheck "{failure.service}" on port {failure.place.port}'
    note = f"node {node} failed to start {check}: {failure.reason}"
    namespace, name = failure.service.namespace, failure.service.name
    return Happening(namespace, name, "FailedToStartServiceHealthcheck", "Listen", note, failure.code)


def of_forwarder(failure: CannotForward, node: str) -> Happening:
    """A node port can't be listened on at localhost."""
    service = failure.service
    note = f"node {node} can't listen on {failure.place} for a node port: {failure.reason}"
    return Happening(service.namespace, service.name, "FailedToListenOnLocalhost", "Listen", note, failure.code)


def of_configuration(node: str, fault: str) -> Happening:
    """The configuration has changed to one that can't be used."""
    note = f"the configuration has changed and can't be used, the old one stays in force: {fault}"
    return Happening("", node, "InvalidConfiguration", "Configure", note, Code.CONFIGURATION_NOT_APPLIED)


def of_startup_taint(node: str, why: str) -> Happening:
    """The startup taint can't be taken off the Node."""
    return Happening("", node, "StartupTaintStays", "RemoveTaint", why, Code.STARTUP_TAINT_STAYS)


def of_start(node: str) -> Happening:
    """The proxy begins its work on the node, as kube-proxy says it."""
    note = "nftproxy is starting"
    return Happening("", node, "Starting", "StartKubeProxy", note, Code.STARTING, is_warning=False)


def event_json(series: Series, node: str) -> tuple[str, bytes]:
    """An Event's namespace and its JSON; that of a Node's is "default", as a Node has none."""
    happening = series.happening
    namespace = namespace_of(happening)
    regarding = {"apiVersion": "v1", "kind": "Service" if happening.namespace else "Node", "name": happening.name}
    if happening.namespace:
        regarding["namespace"] = happening.namespace
    else:
        regarding["uid"] = happening.name  # as the kubelet and kube-proxy do: `kubectl describe node` looks for it
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name_of(series), "namespace": namespace},
        "eventTime": _micro_time(series.began),
        "reportingController": CONTROLLER,
        "reportingInstance": f"{CONTROLLER}-{node}"[:128],
        "action": happening.action,
        "reason": happening.reason,
        "regarding": regarding,
        "note": f"{happening.code}: {happening.note}".encode()[:NOTE_LENGTH].decode(errors="ignore"),
        "type": "Warning" if happening.is_warning else "Normal",
    }
    return namespace, msgspec.json.encode(event | (_count(series) if series.count > 1 else {}))


def count_json(series: Series) -> bytes:
    """The merge patch that says how often something has happened: nothing else of an Event may change."""
    return msgspec.json.encode(_count(series))


def _count(series: Series) -> dict[str, object]:
    return {"series": {"count": series.count, "lastObservedTime": _micro_time(series.last)}}


def _micro_time(time: datetime.datetime) -> str:
    """A MicroTime: the API denies one without six digits after the point."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def namespace_of(happening: Happening) -> str:
    """Where its Event is."""
    return happening.namespace or "default"


def name_of(series: Series) -> str:
    """An Event's name, as client-go gives it: what it is about, a dot, and when (a time in hexadecimal digits).

    By a name that is ours an Event that is sent again is still one, and its count can be changed.  The API denies a
    `generateName` that ends in a dot.
    """
    nanoseconds = (series.began - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
    return f"{series.happening.name[:LONGEST_ABOUT].rstrip('-.')}.{nanoseconds:x}"


class Events:
    """Sends what is reported, in its own time."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._correlator = Correlator()
        self._woken = asyncio.Event()

    def report(self, happenings: Iterable[Happening]) -> None:
        """Have these sent, but for those that were said a short while ago."""
        happenings = list(happenings)
        if not happenings:  # as after nearly every change
            return
        now = asyncio.get_running_loop().time()
        self._correlator.observe(happenings, now, datetime.datetime.now(datetime.UTC))
        self._woken.set()
        if self._correlator.dropped:
            log.warning(
                "dropped %(count)d Events, the oldest of those that waited to be sent: too many objects have some",
                {"count": self._correlator.dropped},
                extra={"code": Code.EVENTS_DROPPED},
            )
            self._correlator.dropped = 0

    async def run(self, post: Post) -> None:
        """Send what waits; ends only with the task."""
        while True:
            series = await self._next()
            try:
                await self._send(post, series)
            except Unavailable as error:
                text = "an Event could not be sent and is dropped: %(error)s: %(note)s"
                log.warning(text, {"error": error, "note": series.happening.note}, extra={"code": Code.EVENT_NOT_SENT})

    async def _next(self) -> Series:
        """The next series that may be sent, once there is one."""
        while True:
            self._woken.clear()
            series, pause = self._correlator.next(asyncio.get_running_loop().time())
            if series is not None:
                return series
            try:
                await asyncio.wait_for(self._woken.wait(), pause)
            except TimeoutError:
                continue

    async def _send(self, post: Post, series: Series) -> None:
        """Raise the count of an Event that the API has, or create it: it may have forgotten it before its time."""
        namespace = namespace_of(series.happening)
        if series.is_created:
            failure = await _sent(post, namespace, count_json(series), name_of(series))
            if failure is None or failure.code != 404:
                _warn(series, failure)
                return
        failure = await _sent(post, *event_json(series, self._node))
        series.is_created = failure is None or failure.code == 409  # then it was sent, and only the answer was lost
        if not series.is_created:
            _warn(series, failure)


def _warn(series: Series, failure: ErrorStatus | None) -> None:
    if failure is not None:
        happening = series.happening
        about = f"Service {happening.namespace}/{happening.name}" if happening.namespace else f"Node {happening.name}"
        text = "the API denies an Event about %(about)s, which is dropped: %(reason)s: %(note)s"
        log.warning(
            text, {"about": about, "reason": failure.message, "note": happening.note}, extra={"code": Code.EVENT_DENIED}
        )


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(Unavailable),
    wait=tenacity.wait_random_exponential(multiplier=1, max=30),
    stop=tenacity.stop_after_attempt(5),
    reraise=True,
)
async def _sent(post: Post, namespace: str, body: bytes, name: str = "") -> ErrorStatus | None:
    return await post(namespace, body, name)
