"""A listener of two sockets: connections from this machine don't wait behind a flood from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Hashable, Iterator

import pytest
from nftproxy_conformance.lab.namespace import Namespace

from nftproxy.agent.http import server as http_server
from nftproxy.agent.http.connection_limits import BURST, MOST, BoundedConnections, ClientRates
from nftproxy.agent.http.server import HttpRequest, HttpResponse, HttpServer
from nftproxy.agent.http.split_listener import ELSEWHERE, HERE, split_listener

PORT = 10256
CROWD = 2_000
"""Connections from elsewhere, each from an address of its own."""


@pytest.fixture
def node() -> Iterator[Namespace]:
    """A machine with all addresses of two ranges, between which connections are as if they came from elsewhere."""
    with Namespace("split") as made:
        made.ip("link set lo up")
        made.ip("route add local 10.0.0.0/8 dev lo", "route add local fd00:1::/64 dev lo")
        made.sysctl({"ipv4/ip_nonlocal_bind": "1", "ipv6/ip_nonlocal_bind": "1"})
        yield made


def listened(family: socket.AddressFamily, source: str, destination: str) -> int:
    """The number of the socket at which a connection arrives."""
    sockets = split_listener(("::" if family is socket.AF_INET6 else "0.0.0.0", PORT), family)
    with contextlib.ExitStack() as stack:
        for each in sockets:
            stack.enter_context(each).setblocking(False)
        stack.enter_context(socket.create_connection((destination, PORT), source_address=(source, 0), timeout=10))
        for number, each in enumerate(sockets):
            with contextlib.suppress(BlockingIOError):
                each.accept()[0].close()
                return number
    raise AssertionError("the connection arrived nowhere")


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        ("10.1.0.1", "10.1.0.1", HERE),
        ("127.0.0.1", "127.0.0.1", HERE),
        ("127.0.0.9", "127.0.0.1", HERE),
        ("127.0.0.1", "10.1.0.1", HERE),
        ("10.1.0.2", "10.1.0.1", ELSEWHERE),
        ("10.1.0.1", "127.0.0.1", ELSEWHERE),
        ("fd00:1::1", "fd00:1::1", HERE),
        ("::1", "::1", HERE),
        ("fd00:1::2", "fd00:1::1", ELSEWHERE),
        ("fd00:1::1", "::1", ELSEWHERE),
    ],
)
def test_connections_of_this_machine_have_a_socket_of_their_own(
    node: Namespace, source: str, destination: str, expected: int
) -> None:
    """A connection whose addresses are the same, or from a loopback address, comes to the first socket."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    assert node.call(listened, family, source, destination) == expected


def test_a_port_is_not_shared(node: Namespace) -> None:
    """If another program listens at the port, even with SO_REUSEPORT, the listener is refused."""

    def listen_twice() -> int | None:
        with socket.create_server(("0.0.0.0", PORT), reuse_port=True):
            try:
                split_listener(("0.0.0.0", PORT), socket.AF_INET)
            except OSError as error:
                return error.errno
        return None

    assert node.call(listen_twice) == errno.EADDRINUSE


class Counting(ClientRates):
    """Counts the connections that are accepted, and the admitted connections among them."""

    accepted = admitted = 0

    def admit(self, listener: Hashable, address: str, *, is_flooded: bool = False) -> bool:
        """Count a connection."""
        is_admitted = super().admit(listener, address, is_flooded=is_flooded)
        self.accepted += 1
        self.admitted += is_admitted
        return is_admitted


async def answer(_request: HttpRequest) -> HttpResponse:
    """Answer any request."""
    return HttpResponse(200, {}, b"")


def flood(place: tuple[str, int]) -> list[socket.socket]:
    """Begin connections from elsewhere, each from an address of its own."""
    begun = []
    for number in range(CROWD):
        begun.append(socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
        begun[-1].bind((f"10.2.{number >> 8}.{number & 255}", 0))
        begun[-1].connect_ex(place)
    return begun


async def probed(listen: Callable[[], list[socket.socket]], source: str, rates: Counting) -> int:
    """The connections that were accepted until a probe behind a crowd had its answer."""
    server = HttpServer("it", BoundedConnections(MOST), answer)
    server._rates = rates
    for each in listen():
        await server.open(each, 4096)
    crowd = flood(("10.1.0.1", PORT))
    reader, writer = await asyncio.open_connection("10.1.0.1", PORT, local_addr=(source, 0))
    writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
    try:
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        return rates.accepted
    finally:
        writer.close()
        for each in crowd:
            each.close()
        await server.close()


def test_a_probe_from_this_machine_waits_for_no_flood(node: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind 2,000 connections from as many addresses elsewhere, a probe of this machine is answered before most are
    accepted.
    """
    monkeypatch.setattr(http_server, "AT_ONCE", 8)

    def split() -> list[socket.socket]:
        return split_listener(("0.0.0.0", PORT), socket.AF_INET)

    assert node.call(lambda: asyncio.run(probed(split, "10.1.0.1", Counting()))) < CROWD / 4


def test_new_clients_share_a_rate_during_a_flood(node: Namespace) -> None:
    """Most of 2,000 connections from new addresses are refused, and a known client behind them is served."""
    now = 1000.0
    rates = Counting(lambda: now)

    def listen() -> list[socket.socket]:
        listening = socket.create_server(("0.0.0.0", PORT))
        assert rates.admit(listening, "10.1.0.2")
        return [listening]

    node.call(lambda: asyncio.run(probed(listen, "10.1.0.2", rates)))
    assert rates.accepted == CROWD + 2
    assert rates.admitted == 2 + http_server.AT_ONCE + BURST
