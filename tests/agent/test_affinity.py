"""The clients that session affinity remembers, as the agent lists them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from nftproxy.agent import affinity
from nftproxy.agent.affinity import clients
from nftproxy.agent.inventory import Scope
from nftproxy.kernel import set_elements
from nftproxy.kernel.set_elements import Entry
from tests.support.factories import IPV4, pipeline

PATIENCE = 30.0


def test_a_listing_that_is_cut_off_ends_in_good_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cancels a listing while a thread reads gets just that, and the reading ends once the kernel has answered."""
    asked, answered, ended = threading.Event(), threading.Event(), threading.Event()

    def dump(*_: object) -> Iterator[list[Entry]]:
        try:
            asked.set()
            answered.wait(PATIENCE)
            yield []
        finally:
            ended.set()

    monkeypatch.setattr(set_elements, "dump", dump)
    monkeypatch.setattr(affinity, "_maps", lambda _: ["a map"])

    async def read() -> None:
        async for _ in clients(pipeline().state, [IPV4], Scope()):
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
