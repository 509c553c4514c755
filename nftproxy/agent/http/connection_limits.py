"""Limits on connections to the HTTP servers: for each client, for each listener, and for the process.

Any client that reaches a health port may open connections and send nothing.  Beyond a limit each new connection closes
an old one: the oldest of the client with the most connections (model/fairness.py, with clients as its names).  So a
client that opens many closes its own, and an occasional probe always gets an answer.

A connection that is served costs ten times as much as a connection that is closed at once.  So if connections come
faster than they are accepted, a client that opens more than `RATE` a second is refused the rest (`ClientRates`), which
leaves the time to others.  Clients that are new in such a moment share a rate: a flood may come from any number of
addresses, and clients that came before it keep their own.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Hashable
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from nftproxy.agent.http.reserve import NO_RESERVE, Reserve
from nftproxy.model.fairness import SharedRoom, TokenBucket

Handler = Hashable


class ConnectionLimits(NamedTuple):
    """The limits of open connections and listeners."""

    of_a_client: int
    """Connections of a client to the same listener."""
    of_a_listener: int
    """Connections to a listener."""
    connections: int
    """Connections of the process."""
    listeners: int
    """Listeners of the process."""


MOST = ConnectionLimits(16, 128, 1024, 16_384)
"""The highest limits.  Probes and scrapes need less: each takes a connection for some milliseconds."""


def affordable(files: int) -> ConnectionLimits:
    """Return the limits for a number of file descriptors: a sixteenth for connections, an eighth for listeners.

    Forwarding at localhost may take three quarters of all descriptors (forwarder.py).  The rest is for the kernel and
    the API.
    """
    connections = max(1, min(MOST.connections, files // 16))
    per_listener = min(MOST.of_a_listener, connections)
    return ConnectionLimits(
        min(MOST.of_a_client, per_listener), per_listener, connections, min(MOST.listeners, files // 8)
    )


RATE, BURST = 200.0, 400
"""Connections to a listener that a client may open in a second, and at once.  Probes and scrapes open some in a minute,
and a connection that is served takes some 0.2 ms."""
MOST_CLIENTS = 4_096
"""Clients whose rates are remembered.  The longest unseen is forgotten."""
_NEWCOMERS = "new"
"""The client that stands for all clients that are new during a flood."""

_LOOPBACK = ip_network("127.0.0.0/8")
_USUAL = "127.0.0.1"
"""The loopback address of programs that choose none.  All other loopback addresses count as a single client."""
_SUBNET = 64
"""Bits of IPv6 addresses that tell clients apart: a host has all addresses of its subnet."""


class ClientRates:
    """The rates at which clients open connections: a token bucket for each, and of bounded memory.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[Hashable, str], TokenBucket] = {}
        """By listener and client, with a token every 1 / `RATE` seconds as the unit of time.  The latest are last."""

    def __len__(self) -> int:
        """Return the number of clients remembered."""
        return len(self._buckets)

    def admit(self, listener: Hashable, address: str, *, is_flooded: bool = False) -> bool:
        """Count a connection of a client, and return whether it is within the client's rate."""
        key, now = (listener, _client(address)), RATE * self._clock()
        if is_flooded and key not in self._buckets:
            key = (listener, _NEWCOMERS)
        bucket = self._buckets[key] = self._buckets.pop(key, TokenBucket(BURST, 1.0))
        is_admitted = not bucket.wait(now)
        if is_admitted:
            bucket.spend(now)
        if len(self._buckets) > MOST_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        return is_admitted


def _client(address: str) -> str:
    """Return the client to which an address belongs, "" for the client of a Unix socket."""
    if address in ("", _USUAL):
        return address
    found = ip_address(address.partition("%")[0])
    if found.version == 6:
        return str(ip_network((found, _SUBNET), strict=False))
    return str(_LOOPBACK) if found in _LOOPBACK else address


class _Open(NamedTuple):
    listener: Hashable
    client: str
    transport: asyncio.WriteTransport


class BoundedConnections:
    """The connections of all listeners, oldest first, and the descriptors that are kept for more."""

    def __init__(self, limits: ConnectionLimits, reserve: Reserve = NO_RESERVE) -> None:
        self.limits = limits
        self.reserve = reserve
        self._open: dict[Handler, _Open] = {}
        self._all = SharedRoom[Handler]()
        self._of_listener: dict[Hashable, SharedRoom[Handler]] = {}
        self._listeners = 0

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def acquire_listener(self) -> None:
        """Count a listener.  Call `release_listener` in any case.

        Raises:
            OSError: the limit is exceeded.
        """
        self._listeners += 1
        if self._listeners > self.limits.listeners:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def release_listener(self) -> None:
        """Uncount a listener, even if `acquire_listener` raised."""
        self._listeners -= 1

    def add(self, handler: Handler, listener: Hashable, transport: asyncio.WriteTransport) -> None:
        """Close an older connection if a limit would be exceeded, and add a connection."""
        peer = transport.get_extra_info("peername")
        client = peer[0] if peer else ""
        here = self._of_listener.setdefault(listener, SharedRoom())
        if here.count(client) >= self.limits.of_a_client:
            self._close(here.oldest(client))
        self._close(here.to_replace(client, self.limits.of_a_listener))
        self._close(self._all.to_replace(client, self.limits.connections))
        self._open[handler] = _Open(listener, client, transport)
        self._all.add(client, handler)
        self._of_listener.setdefault(listener, here).add(client, handler)

    def remove(self, handler: Handler) -> None:
        """Remove a connection."""
        if (known := self._open.pop(handler, None)) is None:
            return
        self._all.remove(known.client, handler)
        here = self._of_listener[known.listener]
        here.remove(known.client, handler)
        if not len(here):
            del self._of_listener[known.listener]

    def _close(self, handler: Handler | None) -> None:
        if handler is not None:
            transport = self._open[handler].transport
            self.remove(handler)
            transport.abort()
