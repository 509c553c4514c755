"""Node ports at localhost: real listeners, clients and endpoints in a network namespace, as orders come and change."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple
from unittest.mock import call, patch

import pytest
from nftproxy_conformance.lab import Namespace, obstacle
from nftproxy_conformance.lab.echo import EchoServer

from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.extensions.localhost.agent.forwarder import CannotForward, ForwarderLimits, LocalhostForwarder, affordable
from nftproxy.extensions.localhost.forwardings import Forwarding
from nftproxy.model.addresses import LOCALHOST, Address, Family
from nftproxy.model.objects import Place
from nftproxy.trace.links import add_addresses
from tests.support.factories import IPV4, IPV6, key
from tests.support.metrics import all_metrics
from tests.support.waiting import until

TIMEOUT = 60.0
WEB, SHOP = key("shop/web"), key("shop/other")
PODS = {IPV4: ("10.1.0.4", "10.1.0.5"), IPV6: ("fd00:1::4", "fd00:1::5")}
NODE_PORT, OTHER_PORT = 30080, 30081
HTTP, HTTP6, OTHER = (Place(LOCALHOST[f], p) for f, p in ((IPV4, NODE_PORT), (IPV6, NODE_PORT), (IPV4, OTHER_PORT)))
OUTCOMES = "nftproxy_localhost_connections_total"
FAILURES = "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total"
LISTENERS = "kubeproxy_nftables_localhost_nodeport_listeners"

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


class World(NamedTuple):
    """A forwarder in a namespace, its reports, and its metrics."""

    forwarder: LocalhostForwarder
    reports: list[CannotForward]
    metrics: Metrics
    namespace: Namespace

    def series(self, name: str, label: str) -> float:
        """A series of the metrics, 0 if there is none."""
        lines = (line.rpartition(" ") for line in self.metrics.exposition().decode().splitlines())
        return next((float(value) for text, _, value in lines if text.startswith(name) and label in text), 0.0)


Test = Callable[["World"], Awaitable[None]]


def in_a_namespace(
    limits: ForwarderLimits | None = None, *, has_ipv6: bool = True
) -> Callable[[Test], Callable[[], None]]:
    """Run a test on an event loop in a namespace where pods have their addresses, with a World as its argument."""

    def decorate(test: Test) -> Callable[[], None]:
        async def limited(namespace: Namespace) -> None:
            async with asyncio.timeout(TIMEOUT), serving(namespace, limits, has_ipv6=has_ipv6) as world:
                await test(world)

        def run() -> None:
            with Namespace("localhost") as namespace:
                namespace.sysctl({"ipv6/conf/lo/disable_ipv6": "0" if has_ipv6 else "1"})
                namespace.ip("link set lo up")
                add_addresses(namespace, "lo", *PODS[IPV4], *(PODS[IPV6] if has_ipv6 else ()))
                namespace.call(lambda: asyncio.run(limited(namespace)))

        run.__doc__ = test.__doc__
        return run

    return decorate


@asynccontextmanager
async def serving(namespace: Namespace, limits: ForwarderLimits | None, *, has_ipv6: bool) -> AsyncIterator[World]:
    """A forwarder and two pods of each family, named pod-0 and pod-1."""
    families = (IPV4, IPV6) if has_ipv6 else (IPV4,)
    pods = [EchoServer(namespace, f"pod-{n}", PODS[family][n], 8080) for family in families for n in (0, 1)]
    reports: list[CannotForward] = []
    metrics = all_metrics()
    world = World(LocalhostForwarder(metrics, reports.append, limits), reports, metrics, namespace)
    try:
        yield world
    finally:
        await world.forwarder.close()
        for pod in pods:
            await asyncio.to_thread(pod.close)


def to(*numbers: int, family: Family = IPV4, service: str = "shop/web", affinity: int | None = None) -> Forwarding:
    """The forwarding to these pods."""
    return Forwarding(key(service), tuple(Place(Address(PODS[family][n]), 8080) for n in numbers), affinity)


class Client:
    """A connection to a local port that asks for the name of its server."""

    def __init__(self, port: Place) -> None:
        self._is_reset = False
        try:
            self.end = socket.create_connection(port, timeout=TIMEOUT)
        except ConnectionResetError:  # the forwarder's reset may come before this function looks at the connection
            self.end, self._is_reset = socket.socket(), True

    def ask(self) -> str:
        """The name of the server, or the name of the error if there is one."""
        if self._is_reset:
            return ConnectionResetError.__name__
        try:
            self.end.sendall(b"?\n")
            return (self.end.recv(1000).decode() or "nobody").split()[0]
        except OSError as error:
            return type(error).__name__

    def close(self) -> None:
        """Hang up."""
        self.end.close()


async def ask(port: Place) -> str:
    """The server of a new connection, or the error."""

    def once() -> str:
        try:
            client = Client(port)
        except OSError as error:
            return type(error).__name__
        try:
            return client.ask()
        finally:
            client.close()

    return await asyncio.to_thread(once)


async def anyone(port: Place) -> set[str]:
    """The servers of some new connections: both of two pods, but once in a million million times."""
    return {await ask(port) for _ in range(40)}


async def until_served(port: Place, name: str) -> None:
    """Wait until new connections reach a server."""
    while await ask(port) != name:  # noqa: ASYNC110  -- what is waited for has no event
        await asyncio.sleep(0.01)


@in_a_namespace()
async def test_every_endpoint_serves(world: World) -> None:
    """Connections of either family reach each endpoint of that family."""
    world.forwarder.serve({HTTP: to(0, 1), HTTP6: to(0, 1, family=IPV6)})
    assert await anyone(HTTP) == {"pod-0", "pod-1"}
    assert await anyone(HTTP6) == {"pod-0", "pod-1"}
    assert world.series(OUTCOMES, "forwarded") == 80
    assert (world.series(LISTENERS, "IPv4"), world.series(LISTENERS, "IPv6")) == (1, 1)


@in_a_namespace()
async def test_nothing_else_is_served(world: World) -> None:
    """A port is refused without an order, on another loopback address, and once its order is gone."""
    world.forwarder.serve({HTTP: to(0)})
    assert await ask(HTTP) == "pod-0"
    assert await ask(HTTP6) == await ask(OTHER) == "ConnectionRefusedError"
    assert await ask(Place(Address("127.0.0.2"), NODE_PORT)) == "ConnectionRefusedError"
    world.forwarder.serve({OTHER: to(1)})
    assert (await ask(HTTP), await ask(OTHER)) == ("ConnectionRefusedError", "pod-1")


@in_a_namespace()
async def test_established_connections_stay(world: World) -> None:
    """Changes of endpoints and removals of ports affect new connections only."""
    world.forwarder.serve({HTTP: to(0)})
    client = await asyncio.to_thread(Client, HTTP)
    for order in ({HTTP: to(1)}, {HTTP: to(1, service="shop/other")}, {}):
        assert await asyncio.to_thread(client.ask) == "pod-0"
        world.forwarder.serve(order)
        assert await ask(HTTP) == ("pod-1" if order else "ConnectionRefusedError")
    assert await asyncio.to_thread(client.ask) == "pod-0"
    client.close()


@in_a_namespace()
async def test_affinity(world: World) -> None:
    """All clients of the node get the same endpoint, and another when that endpoint is no longer a choice."""
    world.forwarder.serve({HTTP: to(0, 1, affinity=10800)})
    (first,) = await anyone(HTTP)
    world.forwarder.serve({HTTP: to(0, 1, affinity=10700)})
    assert await anyone(HTTP) == {first}
    other = 1 - int(first[-1])
    world.forwarder.serve({HTTP: to(other, affinity=10800)})
    assert await anyone(HTTP) == {f"pod-{other}"}
    world.forwarder.serve({HTTP: to(0, 1, affinity=10800)})
    assert await anyone(HTTP) == {f"pod-{other}"}
    world.forwarder.serve({HTTP: to(0, 1)})
    assert await anyone(HTTP) == {"pod-0", "pod-1"}


@in_a_namespace()
async def test_an_endpoint_that_refuses(world: World) -> None:
    """A client whose endpoint can't be reached is reset, and counted."""
    world.forwarder.serve({HTTP: Forwarding(WEB, (Place(Address(PODS[IPV4][0]), 9999),), None)})
    assert await ask(HTTP) == "ConnectionResetError"
    await until(lambda: world.series(OUTCOMES, "unreachable") == 1)
    assert world.series(OUTCOMES, "forwarded") == 0


@in_a_namespace(limits=ForwarderLimits(connections=8, of_a_service=2, listeners=10))
async def test_connections_are_bounded(world: World) -> None:
    """A client beyond the limit of a Service, or beyond its share, is reset until another client hangs up."""
    world.forwarder.serve({HTTP: to(0), OTHER: to(1, service="shop/other")})
    clients = [await asyncio.to_thread(Client, HTTP) for _ in range(2)]
    for each in clients:
        assert await asyncio.to_thread(each.ask) == "pod-0"
    assert [await ask(HTTP), await ask(HTTP)] == ["ConnectionResetError"] * 2
    clients.append(await asyncio.to_thread(Client, OTHER))
    assert await asyncio.to_thread(clients[2].ask) == "pod-1"
    assert await ask(OTHER) == "ConnectionResetError"
    assert world.series(OUTCOMES, "limit") == 3
    clients.pop(0).close()
    await until_served(OTHER, "pod-1")
    for each in clients:
        each.close()


@in_a_namespace(limits=ForwarderLimits(connections=40, of_a_service=10, listeners=10))
async def test_greedy_services_leave_room_for_others(world: World) -> None:
    """Four Services that take all that they can get leave room for another of their namespace, and of another one."""
    ports = [Place(LOCALHOST[IPV4], NODE_PORT + number) for number in range(6)]
    names = [*(f"evil/web-{number}" for number in range(5)), "shop/web"]
    world.forwarder.serve({port: to(0, service=name) for port, name in zip(ports, names, strict=True)})
    taken: dict[str, int] = {}
    clients: list[Client] = []
    for name, port in zip(names[:4], ports, strict=False):
        while await asyncio.to_thread((client := await asyncio.to_thread(Client, port)).ask) == "pod-0":
            clients.append(client)
        client.close()
        taken[name] = len(clients) - sum(taken.values())
    assert taken == {"evil/web-0": 10, "evil/web-1": 5, "evil/web-2": 3, "evil/web-3": 1}
    assert [await ask(port) for port in ports[4:]] == ["pod-0", "pod-0"]
    for each in clients:
        each.close()


@in_a_namespace(limits=ForwarderLimits(connections=3, of_a_service=2, listeners=1))
async def test_listeners_are_bounded(world: World) -> None:
    """A port beyond the limit is reported, and served as soon as there is room."""
    world.forwarder.serve({HTTP: to(0), OTHER: to(1, service="shop/other")})
    assert (await ask(HTTP), await ask(OTHER)) == ("pod-0", "ConnectionRefusedError")
    assert [(each.service, each.place) for each in world.reports] == [(SHOP, OTHER)]
    assert "1 node ports are served at localhost, which is the limit" in str(world.reports[0])
    world.forwarder.serve({OTHER: to(1, service="shop/other")})
    await until_served(OTHER, "pod-1")


@contextmanager
def taken(port: Place) -> Iterator[None]:
    """A port that another program listens on."""
    with socket.create_server(port):
        yield


@in_a_namespace()
async def test_a_taken_port(world: World) -> None:
    """A taken port is reported once for its Service, leaves other ports alone, and is served when free."""
    with taken(HTTP), patch.object(socket, "create_server", wraps=socket.create_server) as attempts:
        world.forwarder.serve({HTTP: to(0), OTHER: to(1)})
        world.forwarder.serve({HTTP: to(0, 1), OTHER: to(1)})
        world.forwarder.serve({HTTP: to(0, service="shop/other"), OTHER: to(1)})
        tried = attempts.call_count
        assert await ask(OTHER) == "pod-1"
        await until(lambda: attempts.call_count > tried)  # the retry isn't reported again
        assert attempts.call_args == call(HTTP, family=socket.AF_INET)
    assert [(each.service, each.reason) for each in world.reports] == [
        (WEB, "Address already in use"),
        (SHOP, "Address already in use"),
    ]
    message = "can't listen on 127.0.0.1:30080 for the node port of Service shop/web: Address already in use"
    assert str(world.reports[0]) == message
    assert world.series(FAILURES, "IPv4") == 2
    await until_served(HTTP, "pod-0")


@in_a_namespace(has_ipv6=False)
async def test_without_ipv6(world: World) -> None:
    """Without ::1 no client can connect to it, and nothing is reported."""
    world.forwarder.serve({HTTP: to(0), HTTP6: to(0, family=IPV6)})
    assert await ask(HTTP) == "pod-0"
    assert world.reports == []


@in_a_namespace()
async def test_closing(world: World) -> None:
    """When the agent ends, nobody listens, connections are reset, and no task is left."""
    world.forwarder.serve({HTTP: to(0)})
    client = await asyncio.to_thread(Client, HTTP)
    assert await asyncio.to_thread(client.ask) == "pod-0"
    await world.forwarder.close()
    assert await asyncio.to_thread(client.ask) in ("ConnectionResetError", "BrokenPipeError")
    assert await ask(HTTP) == "ConnectionRefusedError"
    assert len(asyncio.all_tasks()) == 1
    client.close()


@in_a_namespace()
async def test_no_more_file_descriptors(world: World) -> None:
    """Without free file descriptors a client waits, and is served when a descriptor is free again."""
    world.forwarder.serve({HTTP: to(0)})
    client = Client(HTTP)  # the kernel has it, and the forwarder has not seen it yet
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_free = os.dup(0)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    try:
        for _ in range(10):
            await asyncio.sleep(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert world.series(OUTCOMES, "forwarded") == 0
    assert await asyncio.to_thread(client.ask) == "pod-0"
    client.close()


def test_a_full_service_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log names the Service and the limit once, however many connections are reset."""

    @in_a_namespace(limits=ForwarderLimits(connections=9, of_a_service=1, listeners=10))
    async def flood(world: World) -> None:
        world.forwarder.serve({HTTP: to(0)})
        client = await asyncio.to_thread(Client, HTTP)
        assert await asyncio.to_thread(client.ask) == "pod-0"
        for _ in range(5):
            assert await ask(HTTP) == "ConnectionResetError"
        client.close()

    with caplog.at_level(logging.WARNING):
        flood()
    assert [record.getMessage() for record in caplog.records] == [
        "Service shop/web: resetting new connections at localhost: it has 1, and all Services 1 of 9"
    ]


def test_a_service_without_connections_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    """A Service for which others left no room is logged again if it is full after it had room."""

    @in_a_namespace(limits=ForwarderLimits(connections=2, of_a_service=1, listeners=10))
    async def flood(world: World) -> None:
        world.forwarder.serve({HTTP: to(0), OTHER: to(1, service="shop/other")})
        first = await asyncio.to_thread(Client, HTTP)
        assert await asyncio.to_thread(first.ask) == "pod-0"
        assert await ask(OTHER) == "ConnectionResetError"
        first.close()
        while await asyncio.to_thread((second := await asyncio.to_thread(Client, OTHER)).ask) != "pod-1":
            second.close()
        assert await ask(OTHER) == "ConnectionResetError"
        second.close()

    with caplog.at_level(logging.WARNING):
        flood()
    text = "Service shop/other: resetting new connections at localhost: it has %d, and all Services 1 of 2"
    assert [record.getMessage() for record in caplog.records] == [text % 0, text % 1]


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        (1024, ForwarderLimits(85, 21, 256)),
        (1 << 20, ForwarderLimits(1000, 250, 5536)),
        (24, ForwarderLimits(2, 1, 6)),
    ],
)
def test_limits_follow_from_file_descriptors(files: int, limits: ForwarderLimits) -> None:
    """Connections take at most half of the file descriptors, listeners a quarter."""
    assert affordable(files) == limits


RESET = struct.pack("ii", 1, 0)


@in_a_namespace()
async def test_clients_that_come_and_go(world: World) -> None:
    """Clients that reset, stay silent or leave at once cost no descriptor, and no other client loses a connection."""
    world.forwarder.serve({HTTP: to(0, 1)})
    assert await ask(HTTP) in ("pod-0", "pod-1")
    for _ in range(60):
        client = Client(HTTP)
        client.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        Client(HTTP).close()
    assert await anyone(HTTP) == {"pod-0", "pod-1"}
    await until(lambda: len(asyncio.all_tasks()) == 1)
