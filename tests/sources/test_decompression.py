"""The contents of answers: pieces of a bounded size, while other tasks run."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import AsyncIterator

import httpx
import pytest

from nftproxy.sources.http_client import CHUNKS_OF_A_TURN, LARGEST_CHUNK, pieces

RAW = 2**16
"""Bytes of compressed data that come at once, as from httpx."""


def answer(body: bytes, encoding: str = "gzip") -> httpx.Response:
    """An answer of the API with this body."""

    async def raw() -> AsyncIterator[bytes]:
        for start in range(0, len(body), RAW):
            yield body[start : start + RAW]

    return httpx.Response(
        200, headers={"content-encoding": encoding}, content=raw(), request=httpx.Request("GET", "http://x")
    )


async def test_an_answer_is_decompressed_in_pieces() -> None:
    """No piece is larger than its bound, and together they are the content."""
    content = (os.urandom(2**12) + bytes(2**17)) * 40
    found = [piece async for piece in pieces(answer(gzip.compress(content, 1)))]
    assert b"".join(found) == content
    assert len(found) > 1
    assert max(map(len, found)) <= LARGEST_CHUNK


async def test_an_answer_without_compression_comes_as_it_is() -> None:
    """Content that isn't compressed is yielded as it comes."""
    content = os.urandom(3 * RAW)
    assert [piece async for piece in pieces(answer(content, "identity"))] == [
        content[start : start + RAW] for start in range(0, len(content), RAW)
    ]


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_other_tasks_run_while_an_answer_comes(encoding: str) -> None:
    """Neither a bomb of 100 MB in 100 KB nor chunks of single bytes keep the event loop: others run between pieces."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(400):
            yield b"x"

    bomb = answer(gzip.compress(bytes(100_000_000)))
    plain = httpx.Response(200, content=chunks(), request=httpx.Request("GET", "http://x"))
    other = asyncio.create_task(count_turns())
    found = [len(piece) async for piece in pieces(bomb if encoding == "gzip" else plain)]
    other.cancel()
    assert sum(found) == (100_000_000 if encoding == "gzip" else 400)
    assert max(found) <= LARGEST_CHUNK
    assert len(found) // CHUNKS_OF_A_TURN <= turns <= len(found)


@pytest.mark.parametrize(
    ("body", "encoding", "text"),
    [(b"x", "br", "encoded as 'br'"), (b"no gzip", "gzip", "is damaged"), (b"x", "gzip, gzip", "encoded as")],
)
async def test_other_encodings_are_refused(body: bytes, encoding: str, text: str) -> None:
    """An encoding that wasn't asked for, and damaged data, are faults of the connection."""
    with pytest.raises(ConnectionError, match=text):
        assert [piece async for piece in pieces(answer(body, encoding))]
