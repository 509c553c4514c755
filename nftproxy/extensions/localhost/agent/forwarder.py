"""The forwarder: node ports at localhost, TCP only, in userspace (nodePortAddresses, KEP-6032).

It listens on the ports that policy decides (../forwardings.py), connects each client to an endpoint, and carries
bytes both ways (relay.py), on the agent's loop.  It exists only if the configuration enables localhost.

* A port without endpoints has no listener, so the kernel rejects its clients.  A port that another program has is
  retried with backoff.
* After any change established connections stay as they are, as with rules.  New connections follow the change.
* Connections and listeners are bounded, and so are their file descriptors.  A client beyond the limits is reset.
* The fuller it is, the fewer connections a Service and a namespace may have, so that there is room for any other.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from nftproxy.agent.http.listeners import BACKOFF
from nftproxy.agent.reporting.metrics import Metric, MetricRows, Metrics
from nftproxy.agent.reporting.occurrences import Occurrence
from nftproxy.agent.tcp import pause_accepting, reset, socket_family
from nftproxy.extensions.localhost.agent.relay import connect, relay
from nftproxy.extensions.localhost.codes import LocalhostCode
from nftproxy.extensions.localhost.forwardings import Forwarding, Pin, pinned
from nftproxy.kernel.process_resources import allowed_files
from nftproxy.logs import inform, warn
from nftproxy.model.addresses import Family, family_of
from nftproxy.model.codes import Code
from nftproxy.model.errors import NftproxyError
from nftproxy.model.fairness import Holdings
from nftproxy.model.objects import ObjectKey, Place

LOCALHOST_METRICS = MetricRows(
    counters=(
        Metric(
            "nftables_localhost_nodeport_listener_creation_failures_total",
            "Cumulative node ports that could not be listened on at localhost",
        ),
        Metric(
            "nftproxy_localhost_connections_total",
            "Connections to node ports at localhost",
            ("outcome",),
            known=("forwarded", "unreachable", "limit"),
        ),
    ),
    gauges=(Metric("nftables_localhost_nodeport_listeners", "Node ports that are listened on at localhost"),),
)

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Connections that are accepted before other tasks of the loop get their turn."""
_METRIC = "kubeproxy_nftables_localhost_nodeport"
_NO_SUCH_ADDRESS = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class ForwarderLimits(NamedTuple):
    """The most connections of all Services together, the most of a single Service, and the most listeners."""

    connections: int
    of_a_service: int
    listeners: int


def affordable(files: int) -> ForwarderLimits:
    """Return the limits for a number of file descriptors: half of them for connections, a quarter for listeners.

    A connection may take six descriptors: two sockets and two pipes.  The default range of node ports in two families
    needs no more listeners (--service-node-port-range, 30000-32767).
    """
    connections = min(1000, files // 12)
    return ForwarderLimits(connections, max(1, connections // 4), min(2 * 2768, files // 4))


class CannotForward(NftproxyError):
    """The listener of a node port at localhost can't be opened."""

    code = LocalhostCode.LOCALHOST_PORT_TAKEN

    def __init__(self, place: Place, service: ObjectKey, reason: str) -> None:
        super().__init__(f"can't listen on {place} for the node port of Service {service}: {reason}")
        self.place = place
        self.service = service
        self.reason = reason

    def occurrences(self, node: str) -> list[Occurrence]:
        """Return its Event (`Fault`), about the Service."""
        note = f"node {node} can't listen on {self.place} for a node port: {self.reason}"
        return [Occurrence(self.service, "FailedToListenOnLocalhost", "Listen", note, self.code)]


class LocalhostForwarder:
    """Forwards connections to all node ports at localhost."""

    def __init__(
        self,
        metrics: Metrics,
        report: Callable[[CannotForward], None] = lambda _: None,
        limits: ForwarderLimits | None = None,
    ) -> None:
        """`report` is called once for each port whose listener can't be opened, and again for each new Service of it.

        By default `limits` follow from the limit of file descriptors.
        """
        self._limits = limits or affordable(allowed_files())
        self._metrics = metrics
        self._report = report
        self._wanted: Mapping[Place, Forwarding] = {}
        self._listening: dict[Place, socket.socket] = {}
        self._failed: dict[Place, ObjectKey] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._retries = 0
        self._pins: dict[Place, Pin] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._counts: Counter[ObjectKey] = Counter()
        self._held = Holdings()
        """The connections of each namespace."""
        self._full: set[ObjectKey] = set()
        """The Services of which a warning has said so, until a connection is taken while half of the share is free."""

    def serve(self, wanted: Mapping[Place, Forwarding]) -> None:
        """Serve exactly these ports.  Nothing happens if the mapping is the same object as before."""
        if wanted is self._wanted:
            return
        self._wanted = wanted
        for port in self._listening.keys() - wanted.keys():
            self._stop_listening(port)
        self._failed = {p: s for p, s in self._failed.items() if p in wanted and wanted[p].service == s}
        self._pins = {p: pin for p, pin in self._pins.items() if p in wanted}
        self._full.intersection_update(each.service for each in wanted.values())
        self._listen(sorted(wanted.keys() - self._listening.keys() - self._failed.keys()))

    async def close(self) -> None:
        """Stop listening, and reset all connections."""
        self.serve({})
        if self._retry:
            self._retry.cancel()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # Listeners

    def _listen(self, ports: list[Place]) -> None:
        for port in ports:
            if len(self._listening) < self._limits.listeners:
                self._try_to_listen(port)
            else:
                most = f"{self._limits.listeners} node ports are served at localhost, which is the limit"
                self._report_failure(port, most)
        self._count_listeners()
        if self._failed and not self._retry:
            self._retry = asyncio.get_running_loop().call_later(BACKOFF.pause(self._retries + 1), self._try_again)

    def _try_to_listen(self, port: Place) -> None:
        try:
            listener = socket.create_server(port, family=socket_family(port.address))
        except OSError as error:
            is_absent = error.errno in _NO_SUCH_ADDRESS
            self._report_failure(port, "" if is_absent else os.strerror(error.errno or 0))
            return
        listener.setblocking(False)
        self._listening[port] = listener
        self._failed.pop(port, None)
        asyncio.get_running_loop().add_reader(listener, self._accept, port)

    def _report_failure(self, port: Place, reason: str) -> None:
        """Report the failure once for each Service.  Without a reason (the kernel has no IPv6) nothing is reported."""
        service = self._wanted[port].service
        if reason and self._failed.get(port) != service:
            failure = CannotForward(port, service, reason)
            warn(failure.code, "%(failure)s; trying again", of=service.namespace, failure=failure)
            self._metrics.count(f"{_METRIC}_listener_creation_failures_total", family_of(port.address))
            self._report(failure)
        self._failed[port] = service

    def _try_again(self) -> None:
        self._retry = None
        self._retries = self._retries + 1 if self._failed else 0
        before = self._failed.keys() - self._listening.keys()
        self._listen(sorted(self._failed))
        for port in sorted(before - self._failed.keys()):
            text, service = (
                "now listening on %(place)s for the node port of Service %(service)s",
                self._wanted[port].service,
            )
            inform(text, of=service.namespace, place=port, service=service)

    def _stop_listening(self, port: Place) -> None:
        listener = self._listening.pop(port)
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()
        self._count_listeners()

    def _count_listeners(self) -> None:
        for family in Family:
            count = sum(family_of(port.address) is family for port in self._listening)
            self._metrics.set(f"{_METRIC}_listeners", count, family)

    # Connections

    def _accept(self, port: Place) -> None:
        listener = self._listening[port]
        for _ in range(AT_ONCE):
            try:
                client, _client_address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more file descriptors, or no memory
                warn(
                    LocalhostCode.LOCALHOST_ACCEPT_FAILED,
                    "can't accept connections on %(place)s, trying again soon: %(error)s",
                    of=self._wanted[port].service.namespace,
                    place=port,
                    error=error,
                )
                pause_accepting(listener, partial(self._accept, port), lambda: self._listening.get(port) is listener)
                return
            client.setblocking(False)
            self._forward(client, port)

    def _forward(self, client: socket.socket, port: Place) -> None:
        service = self._wanted[port].service
        if self._is_full(service):
            self._metrics.count("nftproxy_localhost_connections_total", "limit")
            with client:
                reset(client)
            return
        task = asyncio.get_running_loop().create_task(self._serve(client, self._choose(port)))
        self._connections.add(task)
        self._counts[service] += 1
        self._held.add(service.namespace)
        task.add_done_callback(lambda done: self._ended(done, client, service))

    def _share(self, service: ObjectKey) -> int:
        """Return how many connections a Service may have now.

        It is half of its namespace's room (model/fairness.py).  So each greedy Service leaves as much as it takes to
        further Services of its namespace, and they all leave half of the limit to other namespaces.
        """
        return min(self._limits.of_a_service, self._held.room(service.namespace, self._limits.connections) // 2)

    def _is_full(self, service: ObjectKey) -> bool:
        count, share = self._counts[service], self._share(service)
        if count < share:
            if 2 * count < share:
                self._full.discard(service)
            return False
        if service not in self._full:
            self._full.add(service)
            warn(
                LocalhostCode.LOCALHOST_FULL,
                "Service %(service)s: resetting new connections at localhost: it has %(count)d, and all Services "
                "%(total)d of %(most)d",
                of=service.namespace,
                service=service,
                count=count,
                total=len(self._connections),
                most=self._limits.connections,
            )
        return True

    def _ended(self, task: asyncio.Task[None], client: socket.socket, service: ObjectKey) -> None:
        client.close()  # even if the task was cancelled before it began
        self._connections.discard(task)
        self._counts -= Counter([service])  # which drops what is 0
        self._held.add(service.namespace, -1)
        if not task.cancelled() and (error := task.exception()):
            warn(
                Code.DEFECT,
                "a connection at localhost to Service %(service)s was lost",
                of=service.namespace,
                level=logging.ERROR,
                exc_info=error,
                service=service,
            )

    def _choose(self, port: Place) -> Place:
        """Return the endpoint that session affinity has for the node as a client, or else a random endpoint."""
        wanted, now = self._wanted[port], asyncio.get_running_loop().time()
        endpoint = pinned(self._pins.get(port), wanted, now) or random.choice(wanted.endpoints)
        self._pins[port] = Pin(wanted.service, endpoint, now)
        return endpoint

    async def _serve(self, client: socket.socket, endpoint: Place) -> None:
        try:
            server = await connect(endpoint)
        except OSError as error:
            log.debug(
                "a connection at localhost was reset, as %(endpoint)s can't be reached: %(error)s",
                {"endpoint": endpoint, "error": error},
            )
            self._metrics.count("nftproxy_localhost_connections_total", "unreachable")
            reset(client)
        except BaseException:
            reset(client)
            raise
        else:
            with server:
                self._metrics.count("nftproxy_localhost_connections_total", "forwarded")
                await relay(client, server)
