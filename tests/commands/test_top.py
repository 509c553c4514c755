"""`nftproxy top`: connections by Service, their order, and their format."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nftproxy.agent.socket.answers import ConflictRow, End, ServiceRow
from nftproxy.commands.top import ServiceNames, TopRow, lines_of, top_of
from nftproxy.kernel.conntrack.connection_counts import ConnectionCounts, Translation
from nftproxy.model.addresses import Address, Protocol
from tests.support.command import nftproxy

TCP, UDP = Protocol.TCP, Protocol.UDP


def service_row(name: str, ips: tuple[str, ...], *ports: str) -> ServiceRow:
    """The agent's row of a Service, which has or claims an external IP."""
    external = ("203.0.113.9",)
    return ServiceRow("shop", name, "ClusterIP", ips, external, ports, 0, "Served", 1, 1, 1, "Local", "Local", None, {})


WEB = service_row("web", ("10.96.0.10", "fd00:96::10"), "80:30080/TCP", "53/UDP")
OTHER = service_row("other", ("10.96.0.11",), "80/TCP", "81:30081/TCP")
LOST = ConflictRow("shop", "other", "http", "203.0.113.9 . tcp . 80", "it belongs to shop/web", "shop/web")
LOST_PORT = ConflictRow("shop", "other", "more", "tcp . 30081", "it belongs to shop/web", "shop/web")


def way(address: str, port: int, endpoint: str = "10.1.0.4", protocol: Protocol = TCP) -> Translation:
    """From an address and port to an endpoint."""
    return Translation(protocol, Address(address), port, Address(endpoint), 8080)


def found(counts: dict[Translation, int], others: int = 0) -> ConnectionCounts:
    """The connections in conntrack."""
    return ConnectionCounts(Counter(counts), others)


def row(service: str, port: str, endpoint: str, count: int, protocol: str = "tcp") -> TopRow:
    """A row of the table."""
    return TopRow(service, port, protocol, endpoint, count)


NAMES = ServiceNames([WEB, OTHER, End(), LOST, LOST_PORT])


def test_connections_of_all_fronts_add_up() -> None:
    """Connections to any address of a Service port are a row for each endpoint, most connections first."""
    counts = {
        way("10.96.0.10", 80): 1,
        way("203.0.113.9", 80): 2,
        way("192.168.0.2", 30080): 4,
        way("10.96.0.11", 80, "10.1.0.5"): 9,
        way("fd00:96::10", 80, "fd00:1::4"): 3,
        way("10.96.0.10", 53, protocol=UDP): 5,
    }
    assert top_of(found(counts), NAMES).rows == (
        row("shop/other", "80", "10.1.0.5:8080", 9),
        row("shop/web", "80", "10.1.0.4:8080", 7),
        row("shop/web", "53", "10.1.0.4:8080", 5, "udp"),
        row("shop/web", "80", "[fd00:1::4]:8080", 3),
    )


def test_what_a_service_lost_is_not_its_own() -> None:
    """An address or node port that a Service has lost to another Service isn't counted for it."""
    rows = top_of(found({way("192.168.0.2", 30081): 1, way("203.0.113.9", 80): 1}), NAMES).rows
    assert rows == (row("", "192.168.0.2:30081", "10.1.0.4:8080", 1), row("shop/web", "80", "10.1.0.4:8080", 1))


def test_without_names_addresses_are_shown() -> None:
    """A place of no known Service is shown by its address and port."""
    top = top_of(found({way("10.96.0.10", 80): 2, way("fd00:96::10", 80): 1}), ServiceNames(), problem="no agent")
    assert [line.split() for line in lines_of(top)] == [
        ["SERVICE", "PORT", "ENDPOINT", "CONNECTIONS"],
        ["<none>", "10.96.0.10:80/tcp", "10.1.0.4:8080", "2"],
        ["<none>", "[fd00:96::10]:80/tcp", "10.1.0.4:8080", "1"],
    ]
    assert top.problem == "no agent"


def test_one_namespace() -> None:
    """With a namespace only its Services are shown, and added up."""
    counts = {way("10.96.0.10", 80): 2, way("10.96.9.9", 80): 5}
    top = top_of(found(counts), NAMES, "shop")
    assert (top.connections, top.rows) == (2, (row("shop/web", "80", "10.1.0.4:8080", 2),))
    assert top_of(found(counts), NAMES, "sho").rows == ()


def test_what_does_not_fit_is_added_up() -> None:
    """Rows beyond a terminal's lines, and connections without a row, are in a single sum."""
    counts = {way("10.96.0.10", 80, f"10.1.0.{number}"): number for number in (1, 2, 3)}
    top = top_of(found(counts, others=10), NAMES)
    assert top.connections == 16
    assert list(lines_of(top, 1)) == [
        "SERVICE    PORT     ENDPOINT        CONNECTIONS",
        "shop/web   80/tcp   10.1.0.3:8080   3",
        "and 13 more",
    ]


def test_without_an_agent(namespace: None, tmp_path: Path) -> None:  # noqa: ARG001 -- where there are no connections
    """Where no agent answers a warning says so, and the table is printed all the same, once in a pipe."""
    done = nftproxy("top", "--agent-socket", str(tmp_path / "none.sock"))
    assert (done.status, done.out.splitlines()) == (0, ["SERVICE   PORT   ENDPOINT   CONNECTIONS"])
    assert done.err.startswith("warning: NFT023: no agent answers at ")
    assert "addresses are shown instead of Services" in done.err
