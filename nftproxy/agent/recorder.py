"""Events that the agent sends to the API about what only it can tell (events.k8s.io/v1, KEP-383).

An Event is an aid for people, so it must never be in the way: what can't be sent is tried a few times and then dropped
with a log line, and what has been said is not said again for an hour.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import msgspec
import tenacity

from nftproxy.agent.forwarder import CannotForward
from nftproxy.agent.servers import CannotListen
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.objects import ObjectKey
from nftproxy.policy.fronts import Lost

log = logging.getLogger(__name__)

CONTROLLER = "nftproxy"
SILENCE = 3600.0
"""Seconds in which the same is not said again: kube-apiserver forgets Events after an hour by default (--event-ttl)."""
WAITING = 1000
"""Events that wait to be sent at the most; what comes beyond is dropped."""
NOTE_LENGTH = 1024
"""Bytes of a note that the API takes (events.k8s.io/v1 validation)."""

LONGEST_ABOUT = 236
"""Bytes of the name of what an Event is about that its own name may begin with: a name has 253 (RFC 1123)."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Post = Callable[[str, bytes], Awaitable[None]]
"""Sends an Event's JSON to a namespace; raises Unavailable if that should be tried again."""


class Happening(NamedTuple):
    """What there is to tell: about a Service, or with a namespace of "" about the Node of that name."""

    namespace: str
    name: str
    reason: str
    action: str
    note: str
    is_warning: bool = True


def of_conflict(lost: Lost) -> Happening:
    """A Service doesn't get an address or port that it claims; who has it is not for every namespace to know."""
    port = f" of port {lost.port_name}" if lost.port_name else ""
    note = f"{lost.what}{port} is not served: {lost.denial.sentence()}"
    return Happening(lost.service.namespace, lost.service.name, "AddressConflict", "Claim", note)


def of_refusal(family: Family, service: ObjectKey, why: str) -> Happening:
    """A Service has no rules of a family, as the kernel refuses them."""
    note = f"the kernel refuses its rules for {FAMILY_NAMES[family]}: {why}"
    return Happening(service.namespace, service.name, "RulesRefused", "Load", note)


def of_listener(failure: CannotListen, node: str) -> Happening:
    """A health-check node port, or one of the agent's own, can't be listened on (reasons are kube-proxy's)."""
    if failure.service is None:
        return Happening("", node, "FailedToStartProxierHealthcheck", "StartKubeProxy", str(failure))
    check = f'healthcheck "{failure.service}" on port {failure.place.port}'
    note = f"node {node} failed to start {check}: {failure.reason}"
    return Happening(failure.service.namespace, failure.service.name, "FailedToStartServiceHealthcheck", "Listen", note)


def of_forwarder(failure: CannotForward, node: str) -> Happening:
    """A node port can't be listened on at localhost."""
    service = failure.service
    note = f"node {node} can't listen on {failure.place} for a node port: {failure.reason}"
    return Happening(service.namespace, service.name, "FailedToListenOnLocalhost", "Listen", note)


def of_configuration(node: str, fault: str) -> Happening:
    """The configuration has changed to one that can't be used."""
    note = f"the configuration has changed and can't be used, the old one stays in force: {fault}"
    return Happening("", node, "InvalidConfiguration", "Configure", note)


def of_start(node: str) -> Happening:
    """The proxy begins its work on the node, as kube-proxy says it."""
    return Happening("", node, "Starting", "StartKubeProxy", "nftproxy is starting", is_warning=False)


def event_json(happening: Happening, node: str, now: datetime.datetime) -> tuple[str, bytes]:
    """An Event's namespace and its JSON; that of a Node's is "default", as a Node has none."""
    namespace = happening.namespace or "default"
    regarding = {"apiVersion": "v1", "kind": "Service" if happening.namespace else "Node", "name": happening.name}
    if happening.namespace:
        regarding["namespace"] = happening.namespace
    else:
        regarding["uid"] = happening.name  # as the kubelet and kube-proxy do: `kubectl describe node` looks for it
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": _name(happening.name, now), "namespace": namespace},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": f"{CONTROLLER}-{node}"[:128],
        "action": happening.action,
        "reason": happening.reason,
        "regarding": regarding,
        "note": happening.note.encode()[:NOTE_LENGTH].decode(errors="ignore"),
        "type": "Warning" if happening.is_warning else "Normal",
    }
    return namespace, msgspec.json.encode(event)


def _name(about: str, now: datetime.datetime) -> str:
    """An Event's name, as client-go gives it: what it is about, a dot, and when (a time in hexadecimal digits).

    A `generateName` may not end in a dot; and by a name that is ours an Event that is sent again is still one.
    """
    nanoseconds = (now - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
    return f"{about[:LONGEST_ABOUT].rstrip('-.')}.{nanoseconds:x}"


class Events:
    """Sends what is told, in its own time."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._said: dict[Happening, float] = {}
        self._waiting = asyncio.Queue[Happening](WAITING)

    def tell(self, happenings: Iterable[Happening]) -> None:
        """Have these sent, but for those that were said a short while ago."""
        now = asyncio.get_running_loop().time()
        while self._said and now - self._said[oldest := next(iter(self._said))] >= SILENCE:
            del self._said[oldest]
        for happening in happenings:
            if happening not in self._said and not self._waiting.full():
                self._said[happening] = now
                self._waiting.put_nowait(happening)

    async def run(self, post: Post) -> None:
        """Send what waits; ends only with the task."""
        while True:
            happening = await self._waiting.get()
            namespace, body = event_json(happening, self._node, datetime.datetime.now(datetime.UTC))
            try:
                await _send(post, namespace, body)
            except Unavailable as error:
                text = "an Event could not be sent and is dropped: %(error)s: %(note)s"
                log.warning(text, {"error": error, "note": happening.note})


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(Unavailable),
    wait=tenacity.wait_random_exponential(multiplier=1, max=30),
    stop=tenacity.stop_after_attempt(5),
    reraise=True,
)
async def _send(post: Post, namespace: str, body: bytes) -> None:
    await post(namespace, body)
