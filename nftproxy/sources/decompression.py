"""The contents of answers, decompressed piece by piece.

httpx decompresses as much at once as the server sends, and a megabyte of gzip can be a gigabyte of JSON.  So we
decompress in pieces, and stop where an answer is compressed more than JSON ever is.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from typing import TYPE_CHECKING

from nftproxy.api.decode import show

if TYPE_CHECKING:
    import httpx  # api_connection.py imports it, with less beside it

PIECE = 2**18
"""Bytes that are decompressed at once."""
RATIO = 100
"""The most bytes that a compressed byte may stand for.  Lists of the API have 10 to 50 (gzip's level 1), and gzip can
have 1,030."""
FREE = 2**20
"""Bytes that may be decompressed at any ratio, as a short answer may be very regular."""

_GZIP = zlib.MAX_WBITS | 16
"""The format gzip (zlib's inflateInit2)."""


async def pieces(response: httpx.Response) -> AsyncGenerator[bytes]:
    """Yield the content of an answer in pieces of at most `PIECE` bytes if it is compressed, else as it comes.

    Raises:
        ConnectionError: it is compressed too much, or in a way that was not asked for, or is damaged.
    """
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        stream = response.stream  # `aiter_raw` would gather bytes for pieces of a size, which nobody asked for
        assert isinstance(stream, AsyncIterable), "an answer to an asynchronous client"
        async for data in stream:
            yield data
    elif encoding == "gzip":
        content = _Compressed()
        async for data in response.aiter_raw():
            for piece in content.decompressed(data):
                yield piece
    else:
        raise ConnectionError(f"its answer is encoded as {show(encoding)}, which the request does not accept")


class _Compressed:
    """A compressed answer, and how much of it has come."""

    def __init__(self) -> None:
        self._gzip = zlib.decompressobj(_GZIP)
        self._room = FREE

    def decompressed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed pieces of the next data."""
        self._room += RATIO * len(data)
        while data and not self._gzip.eof:
            try:
                piece = self._gzip.decompress(data, PIECE)
            except zlib.error as error:
                raise ConnectionError(f"its answer is damaged: {error}") from error
            data = self._gzip.unconsumed_tail
            self._room -= len(piece)
            if self._room < 0:
                raise ConnectionError(f"its answer is compressed more than {RATIO} times, as no list is")
            if piece:
                yield piece
