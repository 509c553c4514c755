"""Ports at loopback addresses stay closed to other machines, even if kube-proxy has left route_localnet on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab.namespace import Namespace

from nftproxy.agent.http.connection_limits import MOST, BoundedConnections
from nftproxy.agent.http.server import HttpRequest, HttpResponse, HttpServer

PORT = 10249
NODE, OTHER = "192.168.7.1", "192.168.7.2"


async def answer(_request: HttpRequest) -> HttpResponse:
    """Answer any request."""
    return HttpResponse(200, {}, b"")


@pytest.fixture
def machines() -> Iterator[tuple[Namespace, Namespace]]:
    """A node with route_localnet, and another machine of its network, which sends packets for 127.0.0.1 there."""
    with Namespace("node") as node, Namespace("other") as other:
        node.ip("link set lo up", "link add outer type veth peer name inner", f"link set inner netns {other.path}")
        node.ip(f"addr add {NODE}/24 dev outer", "link set outer up")
        other.ip(f"addr add {OTHER}/24 dev inner", "link set inner up", f"route add 127.0.0.1/32 via {NODE} dev inner")
        for each in (node, other):
            each.sysctl({"ipv4/conf/all/route_localnet": "1", "ipv4/conf/all/rp_filter": "0"})
        yield node, other


async def asked(client: socket.socket, place: tuple[str, int], *, is_server_plain: bool = False) -> bytes:
    """The answer to a request over a socket, from a plain listener that says hello, or from the agent's server."""
    loop = asyncio.get_running_loop()
    server = HttpServer("metrics", BoundedConnections(MOST), answer)
    listening = socket.create_server(place)
    if is_server_plain:
        listening.setblocking(False)
    else:
        await server.open(listening, 16)
    client.setblocking(False)
    try:
        await asyncio.wait_for(loop.sock_connect(client, place), 30)
        if is_server_plain:
            accepted, _ = await loop.sock_accept(listening)
            accepted.sendall(b"hello")
            accepted.close()
        await loop.sock_sendall(client, b"HEAD / HTTP/1.0\r\n\r\n")
        return await asyncio.wait_for(loop.sock_recv(client, 100), 30)
    except ConnectionError:
        return b"reset"
    finally:
        client.close()
        listening.close()
        await server.close()


@pytest.mark.parametrize(
    ("is_outside", "address", "begins"),
    [(True, "127.0.0.1", b"reset"), (True, NODE, b"HTTP/1.1 200"), (False, "127.0.0.1", b"HTTP/1.1 200")],
)
def test_loopback_addresses_answer_this_machine_alone(
    machines: tuple[Namespace, Namespace], is_outside: bool, address: str, begins: bytes
) -> None:
    """Another machine's connection to 127.0.0.1 arrives with route_localnet, and is reset without an answer."""
    client = machines[is_outside].socket(socket.AF_INET, socket.SOCK_STREAM)
    found = machines[0].call(lambda: asyncio.run(asked(client, (address, PORT))))
    assert found.startswith(begins)


def test_another_machine_reaches_a_plain_listener(machines: tuple[Namespace, Namespace]) -> None:
    """With route_localnet a program that listens at 127.0.0.1 answers another machine, so the test above tests it."""
    client = machines[1].socket(socket.AF_INET, socket.SOCK_STREAM)
    found = machines[0].call(lambda: asyncio.run(asked(client, ("127.0.0.1", PORT), is_server_plain=True)))
    assert found == b"hello"
