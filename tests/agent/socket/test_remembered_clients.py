"""The clients that session affinity remembers, as the agent lists them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from nftproxy.agent.socket import remembered_clients
from nftproxy.agent.socket.listings import ListingScope
from nftproxy.agent.socket.remembered_clients import clients
from nftproxy.kernel.nfnetlink import elements
from nftproxy.kernel.nfnetlink.elements import ListedElement
from tests.support.factories import IPV4, pipeline
from tests.support.waiting import PATIENCE


def test_a_listing_that_is_cut_off_ends_in_good_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled listing ends as cancelled, and its reading thread ends once the kernel has answered."""
    asked, answered, ended = threading.Event(), threading.Event(), threading.Event()

    def dump(*_: object) -> Iterator[list[ListedElement]]:
        try:
            asked.set()
            answered.wait(PATIENCE)
            yield []
        finally:
            ended.set()

    monkeypatch.setattr(elements, "listed_elements", dump)
    monkeypatch.setattr(remembered_clients, "_maps", lambda _: ["a map"])

    async def read() -> None:
        async for _ in clients(pipeline().state, [IPV4], ListingScope()):
            pass

    async def main() -> None:
        reading = asyncio.create_task(read())
        assert await asyncio.to_thread(asked.wait, PATIENCE)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not ended.is_set()
        answered.set()

    asyncio.run(main())
    assert ended.wait(PATIENCE)
