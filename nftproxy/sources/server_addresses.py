"""The addresses and ports at which this agent reaches the API server, as events for the policy.

A tenant's external address must not capture them: the agent could no longer be corrected by the API (CVE-2020-8554).
The agent has them from its URLs, if these have an address, and from the peers of its connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from urllib.parse import urlsplit

from nftproxy.model.addresses import parse_virtual_address
from nftproxy.model.events import ApiServers, Event, Put
from nftproxy.model.objects import Place

MAX_PEERS = 16
"""Peers that are kept, the most recent: more than a cluster has API servers and load balancers before them."""


class ServerAddresses:
    """The addresses and ports of the API server: in its URLs, and of the peers of connections."""

    def __init__(self, urls: Iterable[str]) -> None:
        """Read the addresses in URLs.  A host name has no address until a connection has a peer."""
        self._configured = {place for url in urls for place in [_place_of_url(url)] if place}
        self._peers: dict[Place, None] = {}
        self._has_changed = asyncio.Event()

    def add_peer(self, address: str, port: int) -> None:
        """Add the peer of a connection."""
        place = _place(address, port)
        if place is None or place in self._configured or next(reversed(self._peers), None) == place:
            return
        is_new = place not in self._peers
        self._peers.pop(place, None)
        self._peers[place] = None
        if len(self._peers) > MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        if is_new:
            self._has_changed.set()

    async def events(self) -> AsyncGenerator[list[Event]]:
        """Yield all addresses at once, and again with each new peer.  It ends only with the task."""
        while True:
            self._has_changed.clear()
            yield [Put(ApiServers(frozenset(self._configured | self._peers.keys())))]
            await self._has_changed.wait()


def _place_of_url(url: str) -> Place | None:
    parts = urlsplit(url)
    default = 80 if parts.scheme == "http" else 443
    return _place(parts.hostname or "", parts.port or default)


def _place(address: str, port: int) -> Place | None:
    """Return an address that a Service could capture, with a port, or None for a host name and for loopback."""
    try:
        return Place(parse_virtual_address(address), port)
    except ValueError:
        return None
