"""Health, metrics and health-check node ports are served over real HTTP, and follow each change of configuration."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
import itertools
import json
import logging
import random
import select
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import aiohttp
import pytest

from nftproxy.agent.http import listeners
from nftproxy.agent.http.connection_limits import ConnectionLimits, affordable
from nftproxy.agent.http.listeners import CannotListen, Listeners
from nftproxy.agent.reporting.health import DELETION_TAINT, Health, Moment
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.sync_reporter import Clocks, SyncReporter
from nftproxy.config.configz import configz
from nftproxy.model.addresses import ANY, Address, Family
from nftproxy.model.events import Put
from nftproxy.model.objects import ObjectKey, Place
from nftproxy.pipeline import Pipeline
from nftproxy.policy.health_checks import HealthCheck
from tests.support.factories import addresses, key, node, pipeline
from tests.support.waiting import PATIENCE, until

HERE = Address("127.0.0.1")
BOTH = frozenset(Family)
JSON = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
OURS = ("Content-Type", "X-Content-Type-Options", "X-Load-Balancing-Endpoint-Weight")
QUICK = 20.0
"""Servers close within so many seconds, even with silent clients, which otherwise have a minute (IDLE)."""


def check(service: ObjectKey, local_endpoints: int) -> HealthCheck:
    """The answer of a dual-stack Service's health-check node port."""
    return HealthCheck(service, dict.fromkeys(Family, local_endpoints))


class Reply(NamedTuple):
    """The status, the headers of interest, and the body."""

    status: int
    headers: dict[str, str]
    body: bytes


async def fetch(url: str, method: str = "GET") -> Reply:
    """Send a request over a new connection."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session, session.request(method, url) as reply:
        headers = {name: reply.headers[name] for name in OURS if name in reply.headers}
        return Reply(reply.status, headers, await reply.read())


async def is_refused(url: str) -> bool:
    """True if nobody listens there."""
    try:
        await fetch(url)
    except aiohttp.ClientConnectorError:
        return True
    return False


async def eventually(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Repeat the request until the answer is the expected answer."""
    async with asyncio.timeout(PATIENCE):
        while await ask() != wanted:  # noqa: ASYNC110 -- what is asked tells nobody when it changes
            await asyncio.sleep(0.02)


def failed_attempts() -> AbstractContextManager[Mock]:
    """A mock that is called for each attempt to listen that fails."""
    return patch.object(listeners, "CannotListen", wraps=CannotListen)


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens at any address, and that the kernel doesn't assign to clients."""
    return list(itertools.islice(filter(_is_free, random.sample(range(20000, 30000), 10000)), count))


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", port))
        return True
    return False


class Running(NamedTuple):
    """The open servers, the state they serve from, and their reports."""

    listeners: Listeners
    pipeline: Pipeline
    reporter: SyncReporter
    reports: list[CannotListen]
    health: str
    metrics: str

    def fall_ill(self) -> None:
        """Make the proxy unhealthy: a change has waited for too long."""
        self.reporter.health.queued(Moment(Clocks()().steady - 60, 0))


@contextlib.asynccontextmanager
async def serving(
    health: str = "127.0.0.1", metrics: str = "127.0.0.1", limits: ConnectionLimits | None = None, **tweaks: Any
) -> AsyncIterator[Running]:
    """Servers at free ports of these hosts."""
    ports = free_ports(2)
    where = [f"{host}:{port}" for host, port in zip((health, metrics), ports, strict=True)]
    tweaks = {"healthz_bind_address": where[0], "metrics_bind_address": where[1]} | tweaks
    made = pipeline(**tweaks)
    reporter = SyncReporter(Health(30.0), Metrics(), find_node=lambda: made.state.node)
    reporter.waits_for(())
    reporter.taken()
    reporter.applied(1, BOTH, full=True)
    reports: list[CannotListen] = []
    async with Listeners(made.settings.config, reporter, reports.append, limits) as listeners:
        yield Running(listeners, made, reporter, reports, *(f"http://{each}" for each in where))


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a new event loop."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


# ---- health ----------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_healthy_proxy() -> None:
    """Both probes of a healthy proxy get 200, and the times at which its rules were last in step."""
    async with serving() as it:
        replies = {path: await fetch(f"{it.health}{path}") for path in ("/healthz", "/livez")}
        for path, (status, headers, body) in replies.items():
            told = json.loads(body)
            now = datetime.fromisoformat(told.pop("currentTime")).timestamp()
            assert abs(now - time.time()) < 5
            assert datetime.fromisoformat(told.pop("lastUpdated")).timestamp() == now
            families = told.pop("status")
            assert abs(datetime.fromisoformat(families["IPv6"].pop("lastUpdated")).timestamp() - now) < 5
            assert families["IPv6"] == {"healthy": True}
            assert list(families) == ["IPv4", "IPv6"]
            assert told == {"healthy": True} | ({"nodeEligible": True} if path == "/healthz" else {})
            assert (status, headers) == (200, JSON)


@on_a_loop
async def test_an_unhealthy_proxy() -> None:
    """Both probes of a proxy in which a change waits for too long get 503, until it is applied."""
    async with serving() as it:
        it.fall_ill()
        for path in ("/healthz", "/livez"):
            status, headers, body = await fetch(f"{it.health}{path}")
            assert (status, headers, json.loads(body)["healthy"]) == (503, JSON, False)
        it.reporter.taken()
        it.reporter.applied(1, BOTH, full=True)
        assert [(await fetch(f"{it.health}{path}")).status for path in ("/healthz", "/livez")] == [200, 200]


@on_a_loop
async def test_a_node_that_is_about_to_go() -> None:
    """/healthz follows the node as events come, and /livez ignores it."""
    async with serving() as it:
        for tweaks, status in (({"taints": (DELETION_TAINT,)}, 503), ({"is_deleted": True}, 503), ({}, 200)):
            it.pipeline.ingest([Put(node(**tweaks))])
            assert (await fetch(f"{it.health}/healthz")).status == status
            assert (await fetch(f"{it.health}/livez")).status == 200


@on_a_loop
async def test_probes_are_counted() -> None:
    """Each answer to a probe is counted by its status, and other requests aren't."""
    async with serving() as it:
        await fetch(f"{it.health}/healthz")
        it.fall_ill()
        for path in ("/healthz", "/livez", "/livez", "/", "/healthz/x"):
            await fetch(f"{it.health}{path}")
        text = (await fetch(f"{it.metrics}/metrics")).body.decode()
        assert [line for line in text.splitlines() if line.startswith(("kubeproxy_proxy_h", "kubeproxy_proxy_l"))] == [
            'kubeproxy_proxy_healthz_total{code="200"} 1.0',
            'kubeproxy_proxy_healthz_total{code="503"} 1.0',
            'kubeproxy_proxy_livez_total{code="200"} 0.0',
            'kubeproxy_proxy_livez_total{code="503"} 2.0',
        ]


# ---- metrics ---------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_metrics() -> None:
    """The metrics server has metrics, a healthz of its own, the mode, and the configuration."""
    async with serving() as it:
        status, headers, body = await fetch(f"{it.metrics}/metrics")
        assert (status, headers) == (200, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
        assert b"\nkubeproxy_sync_proxy_rules_service_changes_total 0.0\n" in body
        assert await fetch(f"{it.metrics}/healthz") == Reply(200, TEXT, b"ok")
        assert await fetch(f"{it.metrics}/proxyMode") == Reply(200, TEXT, b"nftables")
        assert await fetch(f"{it.metrics}/configz") == Reply(200, JSON, configz(it.pipeline.settings.config))


@on_a_loop
async def test_other_paths() -> None:
    """Neither server has any other path."""
    async with serving() as it:
        for url in (f"{it.health}/", f"{it.health}/metrics", f"{it.metrics}/", f"{it.metrics}/livez"):
            assert await fetch(url) == Reply(404, TEXT, b"404 page not found\n")


@on_a_loop
async def test_any_method() -> None:
    """Each method gets the same answer, and HEAD gets it without the body."""
    async with serving() as it:
        for method, body in (("GET", b"nftables"), ("POST", b"nftables"), ("HEAD", b"")):
            assert await fetch(f"{it.metrics}/proxyMode", method) == Reply(200, TEXT, body)


# ---- addresses of the servers ----------------------------------------------------------------------------------------


@on_a_loop
async def test_ipv6() -> None:
    """A server listens on an IPv6 host, which is written in brackets."""
    async with serving(health="[::1]", metrics="[::1]") as it:
        assert (await fetch(f"{it.health}/livez")).status == 200
        assert (await fetch(f"{it.metrics}/healthz")).status == 200


@on_a_loop
async def test_an_address_is_that_alone() -> None:
    """A server at an address doesn't listen at any other address."""
    async with serving(health="127.0.0.2") as it:
        assert (await fetch(f"{it.health}/livez")).status == 200
        assert await is_refused(it.health.replace("127.0.0.2", "127.0.0.1"))


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
@on_a_loop
async def test_any_address(host: str) -> None:
    """The any-address of one family means any address of both families, as for kube-proxy."""
    async with serving(health=host, bind_address_hard_fail=True) as it:
        port = it.health.rpartition(":")[2]
        for address in ("127.0.0.1", "127.0.0.2", "[::1]"):
            assert (await fetch(f"http://{address}:{port}/livez")).status == 200


@on_a_loop
async def test_a_kernel_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without IPv6 the any-address means any IPv4 address, and nothing is reported."""
    real = socket.create_server

    def create_server(address: Place, *, family: socket.AddressFamily, **options: bool) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(address, family=family, **options)

    monkeypatch.setattr(socket, "create_server", create_server)
    async with serving(health="0.0.0.0", bind_address_hard_fail=True) as it:
        assert (await fetch(it.health.replace("0.0.0.0", "127.0.0.1") + "/livez")).status == 200
        assert it.reports == []


@contextlib.contextmanager
def taken(*ports: int, address: str = "127.0.0.1") -> Iterator[None]:
    """Ports on which another program listens."""
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server((address, port)))
        yield


@on_a_loop
async def test_a_taken_port_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A port that another program has is reported once, and served once the other program releases it."""
    (port,) = free_ports(1)
    with taken(port), failed_attempts() as attempts:
        context = serving(healthz_bind_address=f"127.0.0.1:{port}")
        it = await context.__aenter__()
        await until(lambda: attempts.call_count >= 3)
        expected = f"can't listen on 127.0.0.1:{port} for health and metrics: Address already in use"
        assert [str(report) for report in it.reports] == [expected]
        assert (it.reports[0].place, it.reports[0].service) == (Place(HERE, port), None)
        warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        assert warnings == [f"{expected}; retrying until it works"]
        assert (await fetch(f"{it.metrics}/healthz")).status == 200
    await eventually(lambda: is_refused(f"http://127.0.0.1:{port}/livez"), wanted=False)
    await context.__aexit__(None, None, None)


@pytest.mark.parametrize("server", ["healthz", "metrics"])
@on_a_loop
async def test_a_taken_port_is_fatal_with_bind_address_hard_fail(server: str) -> None:
    """With bindAddressHardFail a taken port is an error, and the servers that were open are closed."""
    ports = dict(zip(("healthz", "metrics"), free_ports(2), strict=True))
    tweaks: dict[str, Any] = {f"{name}_bind_address": f"127.0.0.1:{port}" for name, port in ports.items()}
    with taken(ports.pop(server)), pytest.raises(CannotListen, match="Address already in use"):
        async with serving(**tweaks, bind_address_hard_fail=True):
            pass
    assert await is_refused(f"http://127.0.0.1:{ports.popitem()[1]}/healthz")


@on_a_loop
async def test_one_place_for_both() -> None:
    """Two servers can't share an address and port, so the second is reported."""
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    async with serving(healthz_bind_address=place, metrics_bind_address=place) as it:
        assert [report.place for report in it.reports] == [Place(HERE, port)]
        assert (await fetch(f"http://{place}/livez")).status == 200


# ---- health-check node ports -----------------------------------------------------------------------------------------

WEB, SHOP = key("shop/web"), key("shop/shop")


@on_a_loop
async def test_a_health_check_node_port() -> None:
    """A health-check node port serves the Service, its local endpoints and the proxy's health, at any path."""
    (port,) = free_ports(1)
    async with serving() as it:
        await it.listeners.serve_checks({port: check(WEB, 2)}, [HERE])
        for path in ("", "/", "/healthz", "/some/where?else"):
            status, headers, body = await fetch(f"http://127.0.0.1:{port}{path}")
            assert (status, headers) == (200, JSON | {"X-Load-Balancing-Endpoint-Weight": "2"})
            assert json.loads(body) == {
                "service": {"namespace": "shop", "name": "web"},
                "localEndpoints": 2,
                "serviceProxyHealthy": True,
            }
        it.fall_ill()
        status, headers, body = await fetch(f"http://127.0.0.1:{port}")
        assert (status, headers) == (503, JSON | {"X-Load-Balancing-Endpoint-Weight": "2"})
        assert json.loads(body)["serviceProxyHealthy"] is False


async def told(port: int, address: str = "127.0.0.1") -> tuple[int, str, int] | None:
    """The answer of a health-check node port: status, Service name, number of endpoints. None if nobody listens."""
    if await is_refused(f"http://{address}:{port}"):
        return None
    status, _, body = await fetch(f"http://{address}:{port}")
    return status, json.loads(body)["service"]["name"], json.loads(body)["localEndpoints"]


@on_a_loop
async def test_node_ports_follow() -> None:
    """Ports open, change their answers, and close as configured."""
    first, second = free_ports(2)
    async with serving() as it:
        await it.listeners.serve_checks({first: check(WEB, 1)}, [HERE])
        assert (await told(first), await told(second)) == ((200, "web", 1), None)
        await it.listeners.serve_checks({first: check(WEB, 0), second: check(SHOP, 3)}, [HERE])
        assert (await told(first), await told(second)) == ((503, "web", 0), (200, "shop", 3))
        await it.listeners.serve_checks({second: check(SHOP, 2)}, [HERE])
        assert (await told(first), await told(second)) == (None, (200, "shop", 2))
        await it.listeners.serve_checks({}, [HERE])
        assert (await told(first), await told(second)) == (None, None)
    assert it.reports == []


@on_a_loop
async def test_a_port_changes_hands() -> None:
    """A port that moves to another Service, or that two Services exchange, answers for the new owner at once."""
    first, second = free_ports(2)
    async with serving() as it:
        await it.listeners.serve_checks({first: check(WEB, 1), second: check(SHOP, 2)}, [HERE])
        await it.listeners.serve_checks({first: check(SHOP, 2), second: check(WEB, 1)}, [HERE])
        assert (await told(first), await told(second)) == ((200, "shop", 2), (200, "web", 1))
    assert it.reports == []


@on_a_loop
async def test_node_port_addresses_follow() -> None:
    """Ports are served at the given addresses of both families, and no longer at removed addresses."""
    (port,) = free_ports(1)
    checks = {port: check(WEB, 1)}
    answers = []
    async with serving() as it:
        for where in (["127.0.0.1", "::1"], ["127.0.0.2"], ANY.values(), ["127.0.0.1"], []):
            await it.listeners.serve_checks(checks, addresses(where))
            answers.append(
                [address for address in ("127.0.0.1", "127.0.0.2", "[::1]") if await told(port, address) is not None]
            )
    assert answers == [
        ["127.0.0.1", "[::1]"],
        ["127.0.0.2"],
        ["127.0.0.1", "127.0.0.2", "[::1]"],
        ["127.0.0.1"],
        [],
    ]
    assert it.reports == []


@on_a_loop
async def test_each_family_has_its_answer() -> None:
    """An address gets the answer of its family, and an address of another family than the Service's isn't served."""
    both, single = free_ports(2)
    checks = {
        both: HealthCheck(WEB, {Family.IPV4: 0, Family.IPV6: 2}),
        single: HealthCheck(SHOP, {Family.IPV6: 1}),
    }
    async with serving() as it:
        await it.listeners.serve_checks(checks, addresses(["127.0.0.1", "::1"]))
        assert (await told(both), await told(both, "[::1]")) == ((503, "web", 0), (200, "web", 2))
        assert (await told(single), await told(single, "[::1]")) == (None, (200, "shop", 1))
        await it.listeners.serve_checks({single: check(SHOP, 3)}, addresses(["127.0.0.1", "::1"]))
        assert (await told(single), await told(single, "[::1]")) == ((200, "shop", 3), (200, "shop", 3))
    assert it.reports == []


@on_a_loop
async def test_a_taken_node_port() -> None:
    """A taken port is reported once for its Service, leaves other ports alone, and is served when free."""
    mine, theirs = free_ports(2)
    checks = {mine: check(WEB, 1), theirs: check(SHOP, 2)}
    async with serving() as it:
        with taken(theirs), failed_attempts() as attempts:
            await it.listeners.serve_checks(checks, [HERE])
            await it.listeners.serve_checks(checks | {mine: check(WEB, 5)}, [HERE])
            assert await told(mine) == (200, "web", 5)
            await until(lambda: attempts.call_count >= 3)
        (report,) = it.reports
        assert (report.service, report.place, report.reason) == (
            SHOP,
            Place(HERE, theirs),
            "Address already in use",
        )
        assert str(report) == (
            f"can't listen on 127.0.0.1:{theirs} for the health check of Service shop/shop: Address already in use"
        )
        await eventually(lambda: told(theirs), (200, "shop", 2))


@on_a_loop
async def test_a_taken_node_port_for_another_service() -> None:
    """A Service that takes over a port that can't be opened gets the report too."""
    (port,) = free_ports(1)
    async with serving() as it:
        with taken(port):
            await it.listeners.serve_checks({port: check(WEB, 1)}, [HERE])
            await it.listeners.serve_checks({port: check(SHOP, 1)}, [HERE])
        assert [report.service for report in it.reports] == [WEB, SHOP]


@on_a_loop
async def test_a_taken_node_port_that_is_given_up() -> None:
    """A port that no Service has any more is not opened when it becomes free."""
    port, wanted = free_ports(2)
    async with serving() as it:
        with taken(port), taken(wanted):
            await it.listeners.serve_checks({port: check(WEB, 1), wanted: check(SHOP, 1)}, [HERE])
            await it.listeners.serve_checks({wanted: check(SHOP, 1)}, [HERE])
        # Both would be retried at the same times, the first port first
        await eventually(lambda: told(wanted), (200, "shop", 1))
        assert await told(port) is None


@pytest.mark.usefixtures("namespace")
@on_a_loop
async def test_an_address_that_comes_later() -> None:
    """An address that is not on the machine yet is served once it is there."""
    later = Address("192.0.2.7")
    await _ip("link", "set", "lo", "up")
    async with serving() as it:
        await it.listeners.serve_checks({32000: check(WEB, 1)}, [HERE, later])
        assert [(report.place, report.reason) for report in it.reports] == [
            (Place(later, 32000), "Cannot assign requested address")
        ]
        assert await told(32000) == (200, "web", 1)
        await _ip("address", "add", f"{later}/32", "dev", "lo")
        await eventually(lambda: told(32000, later), (200, "web", 1))


async def _ip(*arguments: str) -> None:
    await asyncio.to_thread(subprocess.run, ["ip", *arguments], check=True)


# ---- connections -----------------------------------------------------------------------------------------------------


@on_a_loop
async def test_an_open_connection_of_a_closed_port() -> None:
    """A connection made before its Service was removed gets no answer about that Service."""
    (port,) = free_ports(1)
    async with serving() as it:
        await it.listeners.serve_checks({port: check(WEB, 1)}, [HERE])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"true\n}")).startswith(b"HTTP/1.1 200 OK\r\n")
        await it.listeners.serve_checks({}, [HERE])
        assert await asyncio.wait_for(reader.read(), QUICK) == b""
        writer.close()


@on_a_loop
async def test_closing_is_quick() -> None:
    """Servers close at once, even with clients that are silent, or have sent half a request or half a body."""
    words = (b"", b"GET /liv", b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nhalf")
    async with serving() as it:
        host, _, port = it.health.removeprefix("http://").rpartition(":")
        writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(30)]
        for index, writer in enumerate(writers):
            writer.write(words[index % len(words)])
        await fetch(f"{it.health}/livez")
        began = time.monotonic()
    assert time.monotonic() - began < QUICK
    assert await is_refused(it.health)
    for writer in writers:
        writer.close()


@on_a_loop
async def test_many_ports() -> None:
    """A hundred ports open and close without blocking the loop, in which rules are written, for long."""
    ports = free_ports(100)
    async with serving() as it:
        longest = await _longest_pause(it.listeners.serve_checks({port: check(WEB, 1) for port in ports}, [HERE]))
        assert await told(ports[-1]) == (200, "web", 1)
        longest = max(longest, await _longest_pause(it.listeners.serve_checks({}, [HERE])))
    assert longest < 0.1


async def _longest_pause(work: Coroutine[Any, Any, None]) -> float:
    """The longest processor time in which nothing else could run while this was done.  No garbage is collected."""
    gc.disable()  # as in an agent, where all that the tests have loaded isn't there to be looked through
    try:
        task, longest, before = asyncio.create_task(work), 0.0, time.process_time()
        while not task.done():
            await asyncio.sleep(0)
            longest, before = max(longest, time.process_time() - before), time.process_time()
        await task
    finally:
        gc.enable()
    return longest


@on_a_loop
async def test_what_is_no_http(caplog: pytest.LogCaptureFixture) -> None:
    """Input from port scanners is refused, and nothing is logged."""
    async with serving() as it:
        host, _, port = it.health.removeprefix("http://").rpartition(":")
        for words in (
            b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
            b"HELP\r\n\r\n",
            b"GET " + b"/" * 20000 + b" HTTP/1.1\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(words)
            assert (await reader.readline()).startswith(b"HTTP/1.1 4")
            writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# ---- bounds ----------------------------------------------------------------------------------------------------------

FEW = ConnectionLimits(of_a_client=4, of_a_listener=10, connections=16, listeners=5)


class Crowd:
    """Silent connections from several addresses of this machine, and the connections that were closed."""

    def __init__(self) -> None:
        self.closed: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def join(self, url: str, clients: Iterable[int]) -> None:
        """Open a connection from each of these clients, one after the other."""
        for client in clients:
            where = ("127.0.0.1", int(url.rpartition(":")[2]))
            reader, writer = await asyncio.open_connection(*where, local_addr=(f"127.0.1.{client}", 0))
            self._tasks.append(asyncio.create_task(self._follow(reader, len(self._tasks))))
            self._writers.append(writer)

    async def _follow(self, reader: asyncio.StreamReader, number: int) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        self.closed.append(number)

    async def until_closed(self, count: int) -> list[int]:
        """The numbers of the closed connections, once `count` are closed."""

        async def many() -> bool:
            return len(self.closed) >= count

        await eventually(many, wanted=True)
        return sorted(self.closed)

    def leave(self) -> None:
        """Close all connections."""
        for task, writer in zip(self._tasks, self._writers, strict=True):
            task.cancel()
            writer.close()


@on_a_loop
async def test_a_probe_finds_room_behind_a_crowd() -> None:
    """While the agent is busy, hundreds of connections wait without a lost packet, and all find a server then."""
    crowd: list[socket.socket] = []
    async with serving() as it:
        poll, where = select.poll(), ("127.0.0.1", int(it.health.rpartition(":")[2]))
        for _ in range(300):  # none of them is accepted before this function waits
            crowd.append(socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            crowd[-1].connect_ex(where)
            poll.register(crowd[-1], select.POLLOUT)
        waiting, until = len(crowd), time.monotonic() + 10
        while waiting and time.monotonic() < until:
            for number, _ in poll.poll(100):
                poll.unregister(number)
                waiting -= 1
        assert waiting == 0
        for each in crowd:
            each.close()


@on_a_loop
async def test_a_client_has_so_many_connections() -> None:
    """A client beyond its limit loses its oldest connection, and other clients keep theirs and get answers."""
    crowd = Crowd()
    async with serving(limits=FEW) as it:
        await crowd.join(it.health, [1, 2, 3])
        await crowd.join(it.health, [9] * 30)
        assert (await crowd.until_closed(26)) == list(range(3, 29))
        assert (await fetch(f"{it.health}/livez")).status == 200
        assert len(crowd.closed) == 26
        crowd.leave()


@on_a_loop
async def test_a_listener_has_so_many_connections() -> None:
    """The limit of a listener holds for any number of clients, and each listener has its own."""
    crowd = Crowd()
    async with serving(limits=FEW) as it:
        await crowd.join(it.metrics, [1, 2, 3])
        await crowd.join(it.health, range(1, 31))
        assert (await crowd.until_closed(20)) == list(range(3, 23))
        for url in (f"{it.health}/livez", f"{it.metrics}/healthz"):
            assert (await fetch(url)).status == 200
        crowd.leave()


@on_a_loop
async def test_all_listeners_have_so_many_connections() -> None:
    """Beyond the limit of all listeners the client with most connections loses its oldest."""
    crowd = Crowd()
    ports = free_ports(5)
    limits = ConnectionLimits(of_a_client=4, of_a_listener=10, connections=12, listeners=50)
    async with serving(limits=limits) as it:
        await it.listeners.serve_checks({port: check(WEB, 1) for port in ports}, [HERE])
        await crowd.join(it.health, [1, 2, 3])
        for port in ports:
            await crowd.join(f"http://127.0.0.1:{port}", [9] * 3)
        assert (await crowd.until_closed(6)) == [3, 4, 5, 6, 7, 8]
        crowd.leave()


@on_a_loop
async def test_there_are_so_many_listeners() -> None:
    """A listener beyond the limit is reported for its Service, and served once another has gone.

    All others are served.
    """
    ports = free_ports(5)
    async with serving(limits=FEW) as it:
        await it.listeners.serve_checks({port: check(WEB, 1) for port in ports}, [HERE])
        assert [report.place.port for report in it.reports] == ports[3:]
        assert it.reports[0].reason == "Too many open files"
        assert [await told(port) is not None for port in ports] == [True] * 3 + [False] * 2
        await it.listeners.serve_checks({port: check(WEB, 1) for port in ports[1:4]}, [HERE])
        await eventually(lambda: told(ports[3]), (200, "web", 1))


@pytest.mark.parametrize(
    ("files", "limits"), [(1024, (16, 64, 64, 128)), (2**20, (16, 128, 1024, 16_384)), (16, (1, 1, 1, 2))]
)
def test_limits_follow_from_the_open_files(files: int, limits: tuple[int, int, int, int]) -> None:
    """Connections and listeners together leave most file descriptors to the rest of the agent."""
    assert affordable(files) == limits
