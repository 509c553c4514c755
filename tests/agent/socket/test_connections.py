"""The agent's rows of connections: Service ports by address and node port, endpoints that are gone, and bounds."""

from __future__ import annotations

import threading
from collections import Counter

import msgspec
import pytest

from nftproxy.agent.socket import connection_rows, connections, shared_reading
from nftproxy.agent.socket.answers import ConnectionRow, Connections
from nftproxy.agent.socket.connection_rows import largest
from nftproxy.agent.socket.connections import naming
from nftproxy.kernel.conntrack.connection_counts import ConnectionCounts, Translation
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.objects import ClusterObject
from nftproxy.model.steps import finish
from tests.agent.reporting.test_metrics import reporter
from tests.agent.socket.together import ask_together
from tests.support.factories import pipeline, service, slice_of

TCP, UDP = Protocol.TCP, Protocol.UDP
WEB: tuple[ClusterObject, ...] = (
    service(
        cluster_ips=["10.96.0.10", "fd00:96::10"],
        external_ips=["203.0.113.9"],
        ports=["http:80:30080", "dns:53/udp"],
        type="NodePort",
        created=1,
    ),
    msgspec.structs.replace(slice_of(endpoints=["10.1.0.4", "10.1.0.5 unready"]), pods="web-1 web-2"),
    slice_of(endpoints=["fd00:1::4"], suffix="6"),
    slice_of(endpoints=["10.1.0.4"], ports=["dns:8080/udp"], suffix="udp"),
    service(
        "shop/other",
        cluster_ips=["10.96.0.11"],
        external_ips=["203.0.113.9"],
        ports=["http:80", "more:81:30080"],
        type="NodePort",
        created=2,
    ),
    slice_of("shop/other", endpoints=["10.1.0.9"]),
)


def way(address: str, port: int, endpoint: str = "10.1.0.4", protocol: Protocol = TCP) -> Translation:
    """From an address and port to an endpoint."""
    return Translation(protocol, Address(address), port, Address(endpoint), 8080)


def top(counts: dict[Translation, int], namespace: str = "", others: int = 0) -> Connections:
    """The rows of `top` for connections, if one connection of each translation is unanswered."""
    found = ConnectionCounts(Counter(counts), others, Counter(dict.fromkeys(counts, 1)))
    return largest(Connections(0, others, finish(naming(pipeline(*WEB).state, found))), namespace)


def row(
    name: str, port: str, endpoint: str, count: int, unanswered: int, *, protocol: str = "tcp", pod: str = ""
) -> ConnectionRow:
    """A row of an endpoint that is there."""
    return ConnectionRow(name, port, protocol, endpoint, count, unanswered, pod=pod)


def test_connections_of_all_fronts_add_up() -> None:
    """Connections to any address of a Service port are a row for each endpoint, most connections first."""
    counts = {
        way("10.96.0.10", 80): 1,
        way("203.0.113.9", 80): 2,
        way("192.168.0.2", 30080): 4,
        way("10.96.0.11", 80, "10.1.0.9"): 9,
        way("fd00:96::10", 80, "fd00:1::4"): 3,
        way("10.96.0.10", 53, protocol=UDP): 5,
    }
    assert top(counts).rows == (
        row("shop/other", "80", "10.1.0.9:8080", 9, 1),
        row("shop/web", "80", "10.1.0.4:8080", 7, 3, pod="shop/web-1"),
        row("shop/web", "53", "10.1.0.4:8080", 5, 1, protocol="udp", pod="shop/web-1"),
        row("shop/web", "80", "[fd00:1::4]:8080", 3, 1),
    )


def test_a_place_of_no_service_is_shown_by_its_address() -> None:
    """Connections that another program has translated, or of a Service that is gone, have no Service."""
    assert top({way("192.0.2.1", 8080): 1}).rows == (row("", "192.0.2.1:8080", "10.1.0.4:8080", 1, 1),)


def test_endpoints_that_are_gone_are_marked() -> None:
    """An endpoint that no EndpointSlice of the Service has is gone.  One that isn't ready is there."""
    counts = {way("10.96.0.10", 80, endpoint): 1 for endpoint in ("10.1.0.4", "10.1.0.5", "10.1.0.6")}
    gone = {each.endpoint: (each.is_gone, each.pod) for each in top(counts).rows}
    assert gone == {
        "10.1.0.4:8080": (False, "shop/web-1"),
        "10.1.0.5:8080": (False, "shop/web-2"),
        "10.1.0.6:8080": (True, ""),
    }


def test_one_namespace() -> None:
    """With a namespace only its Services are shown, and added up."""
    counts = {way("10.96.0.10", 80): 2, way("10.96.9.9", 80): 5}
    found = top(counts, "shop")
    assert (found.connections, len(found.rows)) == (2, 1)
    assert top(counts, "sho").rows == ()


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of rows, connections are only added up."""
    monkeypatch.setattr(connection_rows, "MOST_ROWS", 1)
    found = top({way("10.96.0.10", 80, f"10.1.0.{number}"): number for number in (1, 2, 3)}, others=10)
    assert ([each.connections for each in found.rows], found.others, found.connections) == ([3], 13, 16)


def test_one_reading_serves_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries during a reading wait for its result, with signs of life, instead of reading conntrack again."""
    ready, readings = threading.Event(), list[int]()

    def read() -> ConnectionCounts:
        readings.append(1)
        assert ready.wait(60)
        return ConnectionCounts(Counter({way("10.96.0.10", 80): 1}), 0)

    monkeypatch.setattr(connections, "active_connections", read)
    monkeypatch.setattr(shared_reading, "PROGRESS", 0.01)
    made = pipeline(*WEB)
    handler = connections.connections(made.state, reporter(made))

    for pieces in ask_together(handler, ready):
        assert pieces[0] == b"\n"
        answer = msgspec.json.decode(b"".join(pieces), type=Connections)
        assert [each.service for each in answer.rows] == ["shop/web"]
    assert len(readings) == 1
