"""The contents of answers, decompressed piece by piece.

httpx decompresses as much at once as the server sends, and a megabyte of gzip can be a gigabyte of JSON.  So we
decompress in pieces, and their readers bound what they keep.  The ratio has no bound: a tenant's
annotations of a single letter are compressed 600 times.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from nftproxy.api.decode import show

if TYPE_CHECKING:
    import httpx  # api_connection.py imports it, with less beside it

PIECE = 2**18
"""Bytes that are decompressed at once."""
TOGETHER = 32
"""Pieces after which other tasks get their turn.  The reader of a socket has up to 64 KiB at a time, which may be
10,000 chunks of a byte (30 us each), or 64 MB of decompressed zeros."""

_GZIP = zlib.MAX_WBITS | 16
"""The format gzip (zlib's inflateInit2)."""


async def pieces(response: httpx.Response) -> AsyncGenerator[bytes]:
    """Yield the content of an answer in pieces of at most `PIECE` bytes if it is compressed, else as it comes.

    Other tasks run after `TOGETHER` pieces.

    Raises:
        ConnectionError: it is compressed in a way that was not asked for, or is damaged.
    """
    count = 0
    async with aclosing(_content(response)) as content:
        async for piece in content:
            count += 1
            if count % TOGETHER == 0:
                await asyncio.sleep(0)
            yield piece


async def _content(response: httpx.Response) -> AsyncGenerator[bytes]:
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        stream = response.stream  # `aiter_raw` would gather bytes for pieces of a size, which nobody asked for
        assert isinstance(stream, AsyncIterable), "an answer to an asynchronous client"
        async for data in stream:
            yield data
    elif encoding == "gzip":
        decompressor = zlib.decompressobj(_GZIP)
        async for data in response.aiter_raw():
            for piece in _decompressed(decompressor, data):
                yield piece
    else:
        raise ConnectionError(f"its answer is encoded as {show(encoding)}, which the request does not accept")


def _decompressed(decompressor: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield the decompressed pieces of the next data."""
    while data and not decompressor.eof:
        try:
            piece = decompressor.decompress(data, PIECE)
        except zlib.error as error:
            raise ConnectionError(f"its answer is damaged: {error}") from error
        data = decompressor.unconsumed_tail
        if piece:
            yield piece
