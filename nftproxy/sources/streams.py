"""Streams of bytes: the first at once, then as much at a time as has come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

MOST_AT_ONCE = 2**20
"""Bytes that are gathered: some 300 EndpointSlices, which take 10 ms to parse."""

_TURNS = 3
"""Turns of the loop that bytes in the socket's buffer need on their way through TLS and HTTP."""


async def gathered(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The same bytes: what had to be waited for at once, and then all that has come meanwhile as one piece.

    So a single change is on its way before anyone looks for a second one.  What the chunks raise is raised after all
    that came before it.
    """
    coming = asyncio.ensure_future(_next(chunks))
    try:
        while True:
            parts, size = list[bytes](), 0
            while size < MOST_AT_ONCE and (more := await _at_once(coming)):
                parts.append(more)
                size += len(more)
                coming = asyncio.ensure_future(_next(chunks))
            if parts:
                yield b"".join(parts)
            elif data := await coming:
                yield data
                coming = asyncio.ensure_future(_next(chunks))
            else:
                return
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def _next(chunks: AsyncIterator[bytes]) -> bytes:
    """The next chunk that has anything in it, nothing at the end."""
    async for chunk in chunks:
        if chunk:
            return chunk
    return b""


async def _at_once(coming: asyncio.Future[bytes]) -> bytes:
    """What comes without waiting; nothing also if that is an end or an error."""
    for _ in range(_TURNS):
        if coming.done():
            break
        await asyncio.sleep(0)
    return coming.result() if coming.done() and not coming.exception() else b""
