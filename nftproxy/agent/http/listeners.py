"""The listeners for health, metrics, and the health-check node ports of Services.

Other modules decide the answers (health.py, health_checks.py, metrics.py).  This module serves them, on the agent's
loop, which no answer holds up for longer than it takes to write a scrape.

* Each address and port has a listener.  It is open, or retried with backoff: another program may have the port, and the
  address may not exist yet.
* Unwanted listeners are closed with their connections before new listeners are opened, so that a port can go to another
  Service, and no client gets an answer about a Service that is gone.
* Connections are bounded (connection_limits.py), and so are listeners, by the file descriptors of the process.
* The Service of a health-check node port is looked up at each request, in a map that is replaced whole.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from nftproxy.agent.http.connection_limits import BoundedConnections, ConnectionLimits, affordable
from nftproxy.agent.http.reserve import NO_RESERVE, Reserve
from nftproxy.agent.http.server import HttpRequest, HttpResponse, HttpServer
from nftproxy.agent.http.shared_text import SharedText
from nftproxy.agent.http.split_listener import own_listener, split_listener
from nftproxy.agent.reporting.health import healthz, livez
from nftproxy.agent.reporting.occurrences import Occurrence
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.agent.tcp import socket_family
from nftproxy.config.configz import configz
from nftproxy.kernel.process_resources import allowed_files
from nftproxy.logs import inform, warn
from nftproxy.model.addresses import ANY, Address, family_of
from nftproxy.model.backoff import Backoff
from nftproxy.model.codes import Code
from nftproxy.model.errors import NftproxyError
from nftproxy.model.objects import ObjectKey, Place
from nftproxy.model.settings import Config
from nftproxy.policy.health_checks import JSON, Answer, HealthCheck, health_check

BACKOFF = Backoff(0.2, 5.0)
"""The pauses before retries of a port that can't be bound.  The longest is kube-proxy's pause (serveHealthz)."""

MOST_SHOWN = 10
"""Limit of warnings about listeners of a kind: a cluster may have thousands of health-check node ports."""

BACKLOG = 4096
"""Connections that may wait to be accepted: the most that the kernel allows by default (net.core.somaxconn).  A probe
behind them waits for its turn.  Without room its first packet is dropped, and sent again after 1 s and 3 s."""

_TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
_NOT_FOUND = Answer(404, _TEXT, b"404 page not found\n")
_CLOSED = Answer(503, _TEXT, b"")

Respond = Callable[[str], Awaitable[Answer]]
"""Answers a request for a path."""
Exposition = Callable[[], Awaitable[bytes]]
"""Returns the counts of Services, in Prometheus' text format."""


class CannotListen(NftproxyError):
    """A listener can't be opened.  `service` has the health-check node port, None for health and metrics."""

    def __init__(self, place: Place, service: ObjectKey | None, reason: str) -> None:
        purpose = f"the health check of Service {service}" if service else "health and metrics"
        super().__init__(f"can't listen on {place} for {purpose}: {reason}")
        self.place = place
        self.service = service
        self.reason = reason
        self.code = Code.HEALTH_CHECK_PORT_TAKEN if service else Code.OWN_PORT_TAKEN

    def occurrences(self, node: str) -> list[Occurrence]:
        """Return its Event (`Fault`), about the Service or the Node, with kube-proxy's reasons."""
        if self.service is None:
            subject = ObjectKey("", node)
            return [Occurrence(subject, "FailedToStartProxierHealthcheck", "StartKubeProxy", str(self), self.code)]
        check = f'healthcheck "{self.service}" on port {self.place.port}'
        note = f"node {node} failed to start {check}: {self.reason}"
        return [Occurrence(self.service, "FailedToStartServiceHealthcheck", "Listen", note, self.code)]


Listen = Callable[[Place, socket.AddressFamily], Sequence[socket.socket]]
"""Opens the sockets of a listener.  Raises OSError if it can't."""


class _Listener:
    """A listener that is open, or retried until it is."""

    def __init__(
        self,
        place: Place,
        respond: Respond,
        connections: BoundedConnections,
        service: ObjectKey | None = None,
        listen: Listen = own_listener,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called after a retry that opens the listener."""
        self.service = service
        self._changed = changed
        self._listen = listen
        self._connections = connections
        self.failure: CannotListen | None = None
        self._place = place
        self._respond = respond
        self._server: HttpServer | None = None
        self._retry: asyncio.Task[None] | None = None

    @property
    def namespace(self) -> str:
        """The namespace of the Service, "" for the agent's own ports."""
        return self.service.namespace if self.service else ""

    async def open(self) -> None:
        """Open the listener, or note the failure and start to retry."""
        await self._try()
        if self.failure:
            self._retry = asyncio.create_task(self._keep_trying())

    async def close(self) -> None:
        """Close the listener with all its connections, or stop retrying."""
        if self._retry:
            self._retry.cancel()
            await asyncio.wait([self._retry])
        if self._server:
            await self._server.close()
            self._connections.release_listener()

    async def _keep_trying(self) -> None:
        failures = 1
        while self.failure:
            await asyncio.sleep(BACKOFF.pause(failures))
            failures += 1
            await self._try()
        inform("now listening on %(place)s", of=self.namespace, place=self._place)
        self._changed()

    async def _try(self) -> None:
        self.failure = None
        try:
            self._connections.acquire_listener()
            listening = self._listen(self._place, socket_family(self._place.address))
        except OSError as error:
            self._connections.release_listener()
            if not _has_no_such_family(error, self._place):
                self.failure = CannotListen(self._place, self.service, os.strerror(error.errno or 0))
            return
        self._server = HttpServer(self._place, self._connections, self._handle)
        for each in listening:
            await self._server.open(each, BACKLOG)

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        answer = await self._respond(request.path)
        return HttpResponse(*answer)


def _has_no_such_family(error: OSError, place: Place) -> bool:
    """True for an any-address whose family the kernel lacks, such as [::] without IPv6.

    No client can connect in that family either, so nothing is lost without the listener.
    """
    return error.errno == errno.EAFNOSUPPORT and place.address in ANY.values()


class Listeners:
    """All listeners of an agent.  They are open inside this asynchronous context."""

    def __init__(
        self,
        config: Config,
        reporter: SyncReporter,
        report: Callable[[CannotListen], None] = lambda _: None,
        limits: ConnectionLimits | None = None,
        exposed: Sequence[Exposition] = (),
        note_taken: Callable[[frozenset[int]], None] = lambda _: None,
        reserve: Reserve = NO_RESERVE,
    ) -> None:
        """Nothing is opened yet.

        Args:
            config: has the addresses, and is shown by /configz.
            reporter: has health and metrics.
            report: called once for each listener that can't be opened, and again for each new Service of its port.
            limits: limits of connections and listeners, by default from the limit of file descriptors.
            exposed: called before each text of metrics, for series to add.
            note_taken: called with the health-check node ports that can't be opened at some address, when these change.
            reserve: lends descriptors for connections when the process has no others.
        """
        self._connections = BoundedConnections(limits or affordable(allowed_files()), reserve)
        self._config = config
        self._reporter = reporter
        self._report = report
        self._exposed = exposed
        self._scrape = SharedText(lambda added: reporter.scrape() + added, self._expose)
        self._note_taken = note_taken
        self._checks: Mapping[int, HealthCheck] = {}
        self._addresses: tuple[Address, ...] = ()
        self._lock = asyncio.Lock()
        self._node_ports: dict[Place, _Listener] = {}
        self._fixed = [
            *(
                _Listener(place, self._health, self._connections, listen=split_listener, changed=self._show_failures)
                for place in _places(self._config.healthz_bind_address)
            ),
            *(self._listener(place, self._metrics) for place in _places(self._config.metrics_bind_address)),
        ]

    async def __aenter__(self) -> Self:
        """Open the health and metrics servers.

        Raises:
            CannotListen: a listener can't be opened, and bindAddressHardFail is set.
        """
        for listener in self._fixed:
            await self._open(listener)
            if listener.failure and self._config.bind_address_hard_fail:
                await self._close()
                raise listener.failure
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def serve_checks(self, checks: Mapping[int, HealthCheck], addresses: Iterable[Address]) -> None:
        """Serve exactly these health-check node ports, each at all of these addresses that are of its families.

        Nothing happens if the mapping is the same object as before, at the same addresses.
        """
        addresses = tuple(addresses)
        if checks is self._checks and addresses == self._addresses:
            return
        self._checks, self._addresses = checks, addresses
        async with self._lock:
            wanted = {
                Place(address, port): check.service
                for address in addresses
                for port, check in checks.items()
                if family_of(address) in check.local_endpoints
            }
            unwanted = [place for place, known in self._node_ports.items() if not _is_same(known, wanted.get(place))]
            await asyncio.gather(*(self._node_ports.pop(place).close() for place in unwanted))
            for place, service in wanted.items():
                if place not in self._node_ports:
                    self._node_ports[place] = self._listener(place, self._check_of(place), service)
                    await self._open(self._node_ports[place])
        self._show_failures()

    def _listener(self, place: Place, respond: Respond, service: ObjectKey | None = None) -> _Listener:
        return _Listener(place, respond, self._connections, service, changed=self._show_failures)

    def _show_failures(self) -> None:
        """Let health have a warning for each listener that isn't open, as its clients get another program's answers."""
        failing = [each.failure for each in (*self._fixed, *self._node_ports.values()) if each.failure]
        for code in (Code.OWN_PORT_TAKEN, Code.HEALTH_CHECK_PORT_TAKEN):
            texts = [str(each) for each in failing if each.code is code]
            more = [f"and {len(texts) - MOST_SHOWN} more"] if len(texts) > MOST_SHOWN else []
            self._reporter.health.set_warnings(code, texts[:MOST_SHOWN] + more)
        self._note_taken(frozenset(each.place.port for each in failing if each.service))

    async def _open(self, listener: _Listener) -> None:
        await listener.open()
        self._show_failures()
        if listener.failure:
            text = "%(failure)s; retrying until it works"
            warn(listener.failure.code, text, of=listener.namespace, failure=listener.failure)
            self._report(listener.failure)

    async def _close(self) -> None:
        async with self._lock:
            await asyncio.gather(*(listener.close() for listener in (*self._fixed, *self._node_ports.values())))
            self._node_ports.clear()

    async def _health(self, path: str) -> Answer:
        status = self._reporter.status()
        if path == "/healthz":
            answer = healthz(status)
        elif path == "/livez":
            answer = livez(status)
        else:
            return _NOT_FOUND
        self._reporter.metrics.count(f"kubeproxy_proxy_{path[1:]}_total", str(answer.status))
        return answer

    async def _expose(self) -> bytes:
        return b"".join([await each() for each in self._exposed])

    async def _metrics(self, path: str) -> Answer:
        match path:
            case "/metrics":
                return Answer(200, {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}, await self._scrape.get())
            case "/healthz":
                return Answer(200, _TEXT, b"ok")
            case "/proxyMode":
                return Answer(200, _TEXT, b"nftables")
            case "/configz":
                return Answer(200, JSON, configz(self._config))
            case _:
                return _NOT_FOUND

    def _check_of(self, place: Place) -> Respond:
        family = family_of(place.address)

        async def respond(_path: str) -> Answer:
            check = self._checks.get(place.port)
            if check is None or family not in check.local_endpoints:
                return _CLOSED
            return health_check(check, family, is_healthy=self._reporter.status().serves([family]))

        return respond


def _is_same(listener: _Listener, wanted: ObjectKey | None) -> bool:
    """Return whether a listener can stay.

    An open listener may change its Service.  A failing listener can't, because its failure is reported by Service.
    """
    return wanted is not None and (listener.failure is None or listener.service == wanted)


def _places(host_port: str) -> list[Place]:
    """Return the listeners of "host:port".  The any-address of a family stands for both, as in Go (net.Listen)."""
    host, _, port = host_port.rpartition(":")
    address = Address(host.strip("[]"))
    return [Place(each, int(port)) for each in (ANY.values() if address in ANY.values() else (address,))]
