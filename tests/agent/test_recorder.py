"""Events that the agent sends: what they say, how often, and that they are never in the way."""

from __future__ import annotations

import asyncio
import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from nftproxy.agent.forwarder import CannotForward
from nftproxy.agent.recorder import (
    NOTE_LENGTH,
    Events,
    Happening,
    event_json,
    of_conflict,
    of_forwarder,
    of_listener,
    of_refusal,
    of_start,
)
from nftproxy.agent.servers import CannotListen, Place
from nftproxy.model.errors import Unavailable
from nftproxy.policy.claims import Denial
from nftproxy.policy.fronts import Lost
from nftproxy.sources.apiserver import Cluster
from tests.support.apiserver import ApiServer
from tests.support.factories import IPV6, addresses, claim, key

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, datetime.UTC)
CONFLICT = of_conflict(
    Lost(key("shop/web"), "http", claim("203.0.113.7 80/tcp"), "203.0.113.7 . tcp . 80", Denial.TAKEN)
)


def document(happening: Happening) -> dict[str, Any]:
    """The Event as the API gets it."""
    _, body = event_json(happening, "node-a", NOW)
    found: dict[str, Any] = json.loads(body)
    return found


def sent(*tellings: Happening, failures: int = 0) -> list[str]:
    """The notes that are sent, if so many attempts to send fail at first."""
    notes: list[str] = []
    faults = [Unavailable("not now")] * failures

    async def post(_namespace: str, body: bytes) -> None:
        if faults:
            raise faults.pop()
        notes.append(json.loads(body)["note"])

    async def main() -> None:
        events = Events("node-a")
        task = asyncio.create_task(events.run(post))
        for happening in tellings:
            events.tell([happening])
        await asyncio.sleep(0.05 if not failures else 2.5)
        task.cancel()

    asyncio.run(main())
    return notes


def test_a_lost_address_is_a_warning_on_the_service() -> None:
    """The loser gets a Warning in its namespace that names what it doesn't get and why, but no other Service."""
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
        "note": "203.0.113.7 . tcp . 80 of port http is not served: "
        "it belongs to another Service, which takes precedence",
        "type": "Warning",
    }


def test_rules_that_are_refused_are_a_warning_on_the_service() -> None:
    """The note has what the kernel said, and of which statement."""
    why = "Could not process rule: No such file or directory\n  in: add element ip nftproxy services { ... }"
    happening = of_refusal(IPV6, key("shop/web"), why)
    assert (happening.namespace, happening.name, happening.is_warning) == ("shop", "web", True)
    assert (happening.reason, happening.action) == ("RulesRefused", "Load")
    assert happening.note == f"the kernel refuses its rules for IPv6: {why}"


def test_the_start_is_told_of_the_node() -> None:
    """The start of the proxy is a Normal event on the Node, in the namespace that Nodes' events have."""
    found = document(of_start("node-a"))
    assert (found["type"], found["reason"], found["metadata"]["namespace"]) == ("Normal", "Starting", "default")
    assert found["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}


def test_a_health_check_port_that_is_taken_is_told_of_the_service() -> None:
    """A health-check node port that can't be bound is a Warning on its Service, in kube-proxy's words."""
    (address,) = addresses(["192.168.0.2"])
    place = Place(address, 32000)
    happening = of_listener(CannotListen(place, key("shop/web"), "address in use"), "node-a")
    assert happening.reason == "FailedToStartServiceHealthcheck"
    assert happening.note == 'node node-a failed to start healthcheck "shop/web" on port 32000: address in use'


def test_a_port_that_is_taken_at_localhost_is_told_of_the_service() -> None:
    """A node port that can't be listened on at localhost is a Warning on its Service that names the node."""
    (address,) = addresses(["::1"])
    place = Place(address, 30080)
    found = document(of_forwarder(CannotForward(place, key("shop/web"), "Address already in use"), "node-a"))
    assert (found["type"], found["reason"]) == ("Warning", "FailedToListenOnLocalhost")
    assert (found["regarding"]["namespace"], found["regarding"]["name"]) == ("shop", "web")
    assert found["note"] == "node node-a can't listen on [::1]:30080 for a node port: Address already in use"


def test_a_note_is_bounded() -> None:
    """A note is no longer than the API takes, whatever its letters weigh."""
    assert len(document(CONFLICT._replace(note="é" * NOTE_LENGTH))["note"].encode()) == NOTE_LENGTH


def test_the_same_is_said_once() -> None:
    """What has been said is not said again, but something else is."""
    other = CONFLICT._replace(note="something else")
    assert sent(CONFLICT, CONFLICT, other, CONFLICT) == [CONFLICT.note, other.note]


def test_sending_is_tried_again() -> None:
    """An API that is away for a moment gets the event later."""
    assert sent(CONFLICT, failures=1) == [CONFLICT.note]


LONG_NAME = f"{'n' * 235}-{'n' * 17}"
"""A node's name that is as long as one may be, with a dash where it is cut."""


@pytest.mark.parametrize(
    "happening",
    [
        CONFLICT,
        of_refusal(IPV6, key("shop/web"), "é" * NOTE_LENGTH),
        of_listener(CannotListen(Place(addresses(["192.168.0.2"])[0], 32000), key("shop/web"), "in use"), "node-a"),
        of_listener(CannotListen(Place(addresses(["192.168.0.2"])[0], 10256), None, "in use"), "node-a"),
        of_start("node-a"),
        of_start(LONG_NAME),
    ],
    ids=["conflict", "refusal", "health check", "own port", "start", "long name"],
)
def test_events_reach_the_api(tmp_path: Path, caplog: pytest.LogCaptureFixture, happening: Happening) -> None:
    """Every Event that there is passes the API's validation, and is created with the agent's credentials."""
    with ApiServer(tls=True, authenticate=True) as server:
        server.put({"kind": "Service", "metadata": {"namespace": "shop", "name": "web"}})
        cluster = Cluster(str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        asyncio.run(cluster.post(*event_json(happening, (happening.namespace and "node-a") or happening.name, NOW)))
        (event,) = server.objects("Event")
    assert event["metadata"]["namespace"] == (happening.namespace or "default")
    assert event["regarding"]["name"] == happening.name
    assert caplog.messages == []


def test_an_api_that_is_away_is_no_end(tmp_path: Path) -> None:
    """While the API can't be reached an Event can't be sent, which is to be tried again."""
    with ApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    with pytest.raises(Unavailable, match="ConnectError"):
        asyncio.run(Cluster(str(kubeconfig)).post(*event_json(CONFLICT, "node-a", NOW)))
