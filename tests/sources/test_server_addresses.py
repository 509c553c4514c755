"""Where the agent reaches the API server: by its URLs and by the peers of its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from nftproxy.model.addresses import Address
from nftproxy.model.events import ApiServers, Event, Put
from nftproxy.model.objects import Place
from nftproxy.sources.server_addresses import MAX_PEERS, ServerAddresses
from tests.support.waiting import PATIENCE


async def next_places(batches: AsyncIterator[list[Event]]) -> set[tuple[str, int]]:
    """The places in the next batch, which is a single event."""
    (event,) = await asyncio.wait_for(anext(batches), PATIENCE)
    assert isinstance(event, Put)
    assert isinstance(event.object, ApiServers)
    return set(event.object.places)


async def test_addresses_in_urls_are_known_at_once() -> None:
    """Addresses and ports come from URLs.  A Service can't capture a name or loopback."""
    urls = ["https://192.0.2.1:6443", "https://[2001:db8::1]", "https://api.example:6443", "https://127.0.0.1:6443"]
    assert await next_places(ServerAddresses(urls).events()) == {("192.0.2.1", 6443), ("2001:db8::1", 443)}


async def test_peers_are_known_as_they_come() -> None:
    """A new peer is an event.  A known peer, or loopback, is none."""
    addresses = ServerAddresses(["https://192.0.2.1:6443"])
    batches = addresses.events()
    assert await next_places(batches) == {("192.0.2.1", 6443)}
    waiting = asyncio.ensure_future(next_places(batches))
    for known in ("192.0.2.1", "127.0.0.1"):
        addresses.add_peer(known, 6443)
        await asyncio.sleep(0)
        assert not waiting.done()
    addresses.add_peer("192.0.2.2", 6443)
    assert await waiting == {("192.0.2.1", 6443), ("192.0.2.2", 6443)}
    waiting = asyncio.ensure_future(next_places(batches))
    addresses.add_peer("192.0.2.2", 6443)
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_peers_are_bounded() -> None:
    """The most recent peers are remembered, beside the addresses in URLs."""
    addresses = ServerAddresses(["https://192.0.2.1:6443"])
    for number in range(MAX_PEERS + 3):
        addresses.add_peer(f"198.51.100.{number}", 6443)
        addresses.add_peer("198.51.100.0", 6443)
    found = await next_places(addresses.events())
    recent = {Place(Address(f"198.51.100.{number}"), 6443) for number in (0, *range(4, MAX_PEERS + 3))}
    assert found == recent | {("192.0.2.1", 6443)}
