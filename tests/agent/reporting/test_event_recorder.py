"""The agent's Events: their contents, their number, and that they are never in the way."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.faults import Fault, Respond

from nftproxy.agent.http.listeners import CannotListen
from nftproxy.agent.reporting import occurrences
from nftproxy.agent.reporting.event_recorder import NOTE_LENGTH, EventRecorder, event_of
from nftproxy.agent.reporting.event_series import EventCorrelator, EventSeries
from nftproxy.agent.reporting.occurrences import Occurrence
from nftproxy.api.responses import ErrorStatus
from nftproxy.extensions.localhost.agent.forwarder import CannotForward
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem, Unavailable
from nftproxy.model.events import Put
from nftproxy.model.objects import Place
from nftproxy.policy.claims import Denial
from nftproxy.policy.fronts import LostClaim
from nftproxy.sources.api_client import ApiClient
from tests.support import objects
from tests.support.factories import IPV6, addresses, claim, key, pipeline, service

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, datetime.UTC)
(HERE,) = addresses(["192.168.0.2"])
CONFLICT = occurrences.conflict(
    LostClaim(key("shop/web"), "http", claim("203.0.113.7 80/tcp"), "203.0.113.7:80/TCP", Denial.TAKEN)
)


class Watched(EventRecorder):
    """Events that say when they have nothing to send."""

    def __init__(self) -> None:
        super().__init__("node-a")
        self.idle = asyncio.Event()

    async def _next(self) -> EventSeries:
        self.idle.set()
        series = await super()._next()
        self.idle.clear()
        return series


Step = Sequence[Occurrence] | Callable[[], object]
"""Occurrences that are reported together, or an action."""


def document(occurrence: Occurrence) -> dict[str, Any]:
    """The Event as the API gets it."""
    _, event = event_of(EventSeries(occurrence, NOW, 1, NOW), "node-a")
    found: dict[str, Any] = json.loads(json.dumps(event))
    return found


def sent(*tellings: Occurrence, failures: int = 0) -> list[str]:
    """The notes that are sent if the first `failures` attempts fail."""
    notes: list[str] = []
    faults = [Unavailable("not now")] * failures
    come = asyncio.Event()

    async def post(_namespace: str, body: Mapping[str, object], _name: str = "", /) -> None:
        if faults:
            raise faults.pop()
        notes.append(str(body["note"]))
        come.set()

    async def main() -> None:
        events = EventRecorder("node-a")
        events.report(tellings)
        task = asyncio.create_task(events.run(post))
        await asyncio.wait_for(come.wait(), 30.0)
        task.cancel()

    asyncio.run(main())
    return notes


@contextmanager
def reaching(server: ApiServer, tmp_path: Path) -> Iterator[Callable[[Sequence[Step]], None]]:
    """A function that makes an agent report occurrences in sequence, each once the previous is answered."""
    kubeconfig = str(server.write_kubeconfig(tmp_path / "kubeconfig"))

    async def tell(steps: Sequence[Step]) -> None:
        events = Watched()
        answered = asyncio.Event()
        async with aclosing(ApiClient(kubeconfig)) as cluster:

            async def post(namespace: str, body: Mapping[str, object], name: str = "", /) -> ErrorStatus | None:
                failure = await cluster.send_event(namespace, body, name)
                answered.set()
                return failure

            task = asyncio.create_task(events.run(post))
            for step in steps:
                if callable(step):
                    step()
                    continue
                answered.clear()
                events.report(step)
                await asyncio.wait_for(answered.wait(), 30.0)
                await asyncio.wait_for(events.idle.wait(), 30.0)
            task.cancel()

    yield lambda steps: asyncio.run(tell(steps))


def test_a_lost_address_is_a_warning_on_the_service() -> None:
    """The loser gets a Warning with the lost address and the reason, but without another Service's name."""
    assert document(CONFLICT) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "web.1886caf21ca08a70", "namespace": "shop"},
        "eventTime": "2026-01-02T03:04:05.000678Z",
        "reportingController": "nftproxy",
        "reportingInstance": "nftproxy-node-a",
        "action": "Claim",
        "reason": "AddressConflict",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web"},
        "note": "NFT301: 203.0.113.7:80/TCP of port http is not served: "
        "it belongs to another Service, which takes precedence",
        "type": "Warning",
    }


def test_rules_that_are_refused_are_a_warning_on_the_service() -> None:
    """The note has the kernel's error and the refused statement."""
    why = "Could not process rule: No such file or directory\n  in: add element ip nftproxy services { ... }"
    occurrence = occurrences.refusal(IPV6, key("shop/web"), why)
    assert (occurrence.subject, occurrence.is_warning) == (key("shop/web"), True)
    assert occurrence.lasts, "it is reported after each commit, as long as the kernel refuses"
    assert (occurrence.reason, occurrence.action) == ("RulesRefused", "Load")
    assert occurrence.note == f"the kernel refuses its rules for IPv6: {why}"


def test_the_start_is_an_event_on_the_node() -> None:
    """The start of the proxy is a Normal event on the Node, in the namespace that Nodes' events have."""
    found = document(occurrences.start("node-a"))
    assert (found["type"], found["reason"], found["metadata"]["namespace"]) == ("Normal", "Starting", "default")
    assert found["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}


def test_a_taken_health_check_port_is_an_event_on_the_service() -> None:
    """A health-check node port that can't be bound is a Warning on its Service, in kube-proxy's words."""
    place = Place(HERE, 32000)
    (occurrence,) = CannotListen(place, key("shop/web"), "address in use").occurrences("node-a")
    assert occurrence.reason == "FailedToStartServiceHealthcheck"
    assert occurrence.note == 'node node-a failed to start healthcheck "shop/web" on port 32000: address in use'


def test_a_taken_port_at_localhost_is_an_event_on_the_service() -> None:
    """A node port that can't be listened on at localhost is a Warning on its Service that names the node."""
    (address,) = addresses(["::1"])
    place = Place(address, 30080)
    found = document(*CannotForward(place, key("shop/web"), "Address already in use").occurrences("node-a"))
    assert (found["type"], found["reason"]) == ("Warning", "FailedToListenOnLocalhost")
    assert (found["regarding"]["namespace"], found["regarding"]["name"]) == ("shop", "web")
    assert found["note"] == "NFT011: node node-a can't listen on [::1]:30080 for a node port: Address already in use"


def test_an_annotation_without_effect_is_an_event_on_the_service() -> None:
    """An annotation of nftproxy's own that has no effect is a Warning on its Service, other problems are nothing."""
    field = "metadata.annotations[nftproxy.dev/x]"
    problems = [
        Problem("", "Service shop/web", field, "is not known", Code.ANNOTATION_UNUSED),
        Problem("", "Service shop/web", "spec.ports[0].port", "0 is not a port", Code.SERVICE_FIELD),
        Problem("", "EndpointSlice shop/web-1", field, "is not known", Code.ANNOTATION_UNUSED),
        Problem("", "", "", "and 3 more problems like these", Code.MORE_PROBLEMS),
    ]
    (occurrence,) = occurrences.unused_annotations(problems)
    found = document(occurrence)
    assert (found["type"], found["reason"]) == ("Warning", "AnnotationUnused")
    assert (found["regarding"]["namespace"], found["regarding"]["name"]) == ("shop", "web")
    assert found["note"] == f"NFT211: {field}: is not known"


def test_a_note_is_bounded() -> None:
    """A note has at most as many bytes as the API takes, for any letters."""
    assert len(document(CONFLICT._replace(note="é" * NOTE_LENGTH))["note"].encode()) == NOTE_LENGTH


def test_nothing_to_report_wakes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """After most changes there is nothing to report, and so nobody looks whether anything is to be sent."""
    looks: list[float] = []
    look = EventCorrelator.next

    def note(correlator: EventCorrelator, now: float) -> tuple[EventSeries | None, float | None]:
        looks.append(now)
        return look(correlator, now)

    async def turns() -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        return len(looks)

    async def post(_namespace: str, _body: Mapping[str, object], _name: str = "") -> None:
        pass

    async def run() -> None:
        events = EventRecorder("node-a")
        sending = asyncio.create_task(events.run(post))
        assert await turns() == 1
        events.report(iter(()))
        assert await turns() == 1
        events.report([CONFLICT])
        assert await turns() > 1
        sending.cancel()

    monkeypatch.setattr(EventCorrelator, "next", note)
    asyncio.run(run())


def test_sending_is_tried_again() -> None:
    """An API that is away for a moment gets the event later."""
    assert sent(CONFLICT, failures=1) == [f"NFT301: {CONFLICT.note}"]


WEB = objects.service()

RIVALS = ("bakery/web", "museum/web")


def ages(turn: int) -> tuple[int, int]:
    """When each of two Services was created, the older one in turns."""
    return (1, 2) if turn % 2 else (2, 1)


LONG_NAME = f"{'n' * 235}-{'n' * 17}"
"""A node's name that is as long as one may be, with a dash where it is cut."""


@pytest.mark.parametrize(
    "occurrence",
    [
        CONFLICT,
        occurrences.refusal(IPV6, key("shop/web"), "é" * NOTE_LENGTH),
        *CannotListen(Place(HERE, 32000), key("shop/web"), "in use").occurrences("node-a"),
        *CannotListen(Place(HERE, 10256), None, "in use").occurrences("node-a"),
        occurrences.start("node-a"),
        occurrences.start(LONG_NAME),
        *occurrences.unused_annotations([Problem("", "Service shop/web", "x", "y", Code.ANNOTATION_UNUSED)]),
    ],
    ids=["conflict", "refusal", "health check", "own port", "start", "long name", "annotation"],
)
def test_events_reach_the_api(tmp_path: Path, caplog: pytest.LogCaptureFixture, occurrence: Occurrence) -> None:
    """Every Event that there is passes the API's validation, and is created with the agent's credentials."""
    with ApiServer(tls=True, authenticate=True) as server, reaching(server, tmp_path) as tell:
        server.put(WEB)
        tell([[occurrence]])
        (event,) = server.objects("Event")
    assert event["metadata"]["namespace"] == (occurrence.subject.namespace or "default")
    assert event["regarding"]["name"] == occurrence.subject.name
    assert caplog.messages == []


def test_a_repeated_loss_raises_the_count_of_its_event(tmp_path: Path) -> None:
    """A Service that loses a thousand ports repeatedly is a single Event with a count, over a single connection."""
    rounds = [[CONFLICT._replace(note=f"{turn} {port}") for port in range(1000)] for turn in range(20)]
    with ApiServer(tls=True, authenticate=True) as server, reaching(server, tmp_path) as tell:
        server.put(WEB)
        tell(rounds)
        (event,) = server.objects("Event")
        requests = server.requests(resource="events")
    assert (event["note"], event["series"]["count"]) == ("NFT301: 0 0 (and 999 more)", 20)
    assert [request.method for request in requests] == ["POST"] + ["PATCH"] * 19
    assert {request.status for request in requests} == {200, 201}
    assert len({request.port for request in requests}) == 1


def test_two_services_that_contend_cost_the_api_little(tmp_path: Path) -> None:
    """Two Services of two namespaces that take 100 ports from each other are an Event each, which names no other.

    The owner changes with each round, as if a Service of another age came and went.
    """
    ports = [f"p{number}:{number}" for number in range(1, 101)]
    made = pipeline()
    rounds = []
    for turn in range(20):
        first, second = (service(name, created=age, ports=ports) for name, age in zip(RIVALS, ages(turn), strict=True))
        made.ingest([Put(first), Put(second)])
        rounds.append([occurrences.conflict(lost) for lost in made.losses.pop_judged().losses])
    assert sum(map(len, rounds)) >= 20 * 100
    with ApiServer() as server, reaching(server, tmp_path) as tell:
        server.put(*(objects.service(namespace=name.partition("/")[0]) for name in RIVALS))
        tell([list(itertools.chain(*rounds[turn : turn + 10])) for turn in (0, 10)])
        found = {event["metadata"]["namespace"]: event for event in server.objects("Event")}
        assert [request.method for request in server.requests(resource="events")] == ["POST"] * 2 + ["PATCH"] * 2
    assert set(found) == {"bakery", "museum"}
    for namespace, event in found.items():
        (other,) = set(found) - {namespace}
        assert other not in json.dumps(event)
        assert event["series"]["count"] == 2


def test_an_event_that_the_api_has_forgotten_is_created_again(tmp_path: Path) -> None:
    """If the Event of a series is gone from the API, it is created again with the present count."""

    def forget(server: ApiServer) -> None:
        (event,) = server.objects("Event")
        server.delete("Event", "shop", event["metadata"]["name"])

    with ApiServer() as server, reaching(server, tmp_path) as tell:
        server.put(WEB)
        tell([[CONFLICT], lambda: forget(server), [CONFLICT._replace(note="more")]])
        (event,) = server.objects("Event")
        methods = [(request.method, request.status) for request in server.requests(resource="events")]
    assert methods == [("POST", 201), ("PATCH", 404), ("POST", 201)]
    assert (event["note"], event["series"]["count"]) == (f"NFT301: {CONFLICT.note}", 2)


def test_an_event_that_was_sent_before_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the answer to it was lost, it is sent again, which is no fault, and no second Event."""
    with ApiServer() as server, reaching(server, tmp_path) as tell:
        server.put(WEB)
        server.faults.add(Fault(Respond(409), verb="create", resource="events"))
        tell([[CONFLICT]])
        assert [request.status for request in server.requests(resource="events")] == [409]
    assert caplog.messages == []


def test_an_event_that_the_api_denies_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An Event that the API denies is not sent again, and the log has its note and the reason."""
    with ApiServer() as server, reaching(server, tmp_path) as tell:
        tell([[CONFLICT]])
        (request,) = server.requests(resource="events")
    assert request.status == 404
    (message,) = caplog.messages
    assert message.startswith("the API denies an Event about Service shop/web, which is dropped: 404 NotFound: ")
    assert message.endswith(CONFLICT.note)


def test_sending_survives_an_api_that_is_away(tmp_path: Path) -> None:
    """While the API can't be reached an Event can't be sent, which is to be tried again."""
    with ApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    with pytest.raises(Unavailable, match=r"no connection to 127\.0\.0\.1:\d+: Connection refused"):
        asyncio.run(ApiClient(str(kubeconfig)).send_event("shop", {}))


def test_sending_survives_unusable_credentials(tmp_path: Path) -> None:
    """A token that is no ASCII text is denied like any other wrong token, and the Event is to be tried again too."""
    with ApiServer(tls=True, authenticate=True) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        kubeconfig.write_text(kubeconfig.read_text().replace(server.token, "\N{EURO SIGN}"))
        with pytest.raises(Unavailable, match="the API answered 401"):
            asyncio.run(ApiClient(str(kubeconfig)).send_event("shop", {}))
