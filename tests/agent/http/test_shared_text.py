"""A text is made once for all clients that wait for it."""

from __future__ import annotations

import asyncio

import pytest

from nftproxy.agent.http.shared_text import REST, SharedText


class Clock:
    """A clock that making a text moves by a second."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


async def test_all_that_wait_share_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many clients ask at once, a text is made for all, and the next after a rest in proportion to its cost."""
    clock, slept, made = Clock(), list[float](), list[bytes]()
    original = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds
        await original(0)

    def make(given: bytes) -> bytes:
        clock.now += 1.0
        made.append(given + str(len(made)).encode())
        return made[-1]

    async def counted() -> bytes:
        return b"text "

    monkeypatch.setattr("nftproxy.agent.http.shared_text.asyncio.sleep", sleep)
    text = SharedText(make, counted, clock)
    first = await asyncio.gather(*(text.get() for _ in range(100)))
    assert set(first) == {b"text 0"}
    assert first[0] is first[99], "no client has a copy of its own"
    assert set(await asyncio.gather(*(text.get() for _ in range(100)))) == {b"text 1"}
    assert slept == [0.0, REST]


async def test_a_client_gets_no_text_from_before_it_asked() -> None:
    """A client that asks while a text is being made gets the next."""
    under_way, go_on, count = asyncio.Event(), asyncio.Event(), 0

    async def counted() -> bytes:
        nonlocal count
        count += 1
        under_way.set()
        await go_on.wait()
        return str(count).encode()

    text = SharedText(lambda given: given, counted)
    early = asyncio.create_task(text.get())
    await under_way.wait()
    late = asyncio.create_task(text.get())
    await asyncio.sleep(0)
    go_on.set()
    assert (await early, await late) == (b"1", b"2")


async def test_a_client_that_goes_takes_no_text_from_others() -> None:
    """A client that is cancelled leaves the text to the others, and an error comes to all that wait for it."""
    text = SharedText(lambda given: given + b"all")
    gone, stays = asyncio.create_task(text.get()), asyncio.create_task(text.get())
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays == b"all"

    def fail(_given: bytes) -> bytes:
        raise ValueError("a defect")

    broken = SharedText(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="a defect"):
            await broken.get()
