"""The connection of a request: sends answers and streams, and cuts them short for faults.

Bodies of more than a few kilobytes are chunked, as Go's server sends bodies of unknown length.  Large lists are
compressed if the client accepts that.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from aiohttp import web

from nftproxy_conformance.apiserver.credentials import common_name
from nftproxy_conformance.apiserver.faults import Action, BlackHole, Endless, Parting, Reset, Slow, Truncate
from nftproxy_conformance.apiserver.formats import Format
from nftproxy_conformance.apiserver.journal import Journal, Request
from nftproxy_conformance.apiserver.listener import reset
from nftproxy_conformance.apiserver.settings import Settings
from nftproxy_conformance.apiserver.status import ApiError

CHUNKED = 2048
"""Bytes above which a body has no Content-Length (net/http's buffer)."""
SLOW_PIECES = 20
"""The pieces of the body of a slow answer."""
JSON = "application/json"
LEVEL = 1
"""The level of compression (k8s.io/apiserver, endpoints/handlers/responsewriters)."""
GZIP = zlib.MAX_WBITS | 16
"""The format gzip (zlib's deflateInit2)."""


class Exchange:
    """A request and its answer.

    Args:
        raw: the request.
        request: its record, which is kept up to date.
        journal: notified of progress.
        settings: the server's settings.
    """

    def __init__(self, raw: web.BaseRequest, request: Request, journal: Journal, settings: Settings) -> None:
        self.request = request
        self.form = Format.JSON
        """The format of a successful answer."""
        self.actions: list[Action] = []
        """The faults of the answer."""
        self.raw = raw
        self._journal = journal
        self._settings = settings

    @property
    def certificate_name(self) -> str:
        """The common name in the client's certificate, "" if it has shown none."""
        return common_name(self.raw.get_extra_info("peercert"))

    @property
    def wants_websocket(self) -> bool:
        """True if the client asks to upgrade the connection to a WebSocket."""
        return self.raw.headers.get("Upgrade", "").lower() == "websocket"

    @property
    def content_type(self) -> str:
        """The media type of the request's body."""
        return self.raw.headers.get("Content-Type", "").partition(";")[0].strip()

    @property
    def manager(self) -> str:
        """The name of the writer: the product at the start of the User-Agent."""
        return self.raw.headers.get("User-Agent", "unknown").partition("/")[0]

    async def body(self) -> bytes:
        """The request's body."""
        return await self.raw.read()

    async def answer(self, code: int, body: bytes, **headers: str) -> web.StreamResponse:
        """Send an answer, unless a fault says otherwise."""
        await self._obey_faults(body)
        compressor = self._compressor(body)
        if compressor:
            headers["Content-Encoding"] = "gzip"
        if compressor and self.actions:  # faults are of the bytes that are sent
            body, compressor = await asyncio.to_thread(gzip.compress, body, LEVEL), None
        cut = next((action for action in self.actions if isinstance(action, Truncate)), None)
        if cut is not None and cut.then is Parting.END:
            body = body[: int(len(body) * cut.fraction)]
        if code < 300 and self.form is Format.YAML:
            headers.setdefault("Content-Type", self.form.value)
        response = self._response(code, **headers)
        if compressor or len(body) > CHUNKED:
            response.enable_chunked_encoding()
        else:
            response.content_length = len(body)
        await response.prepare(self.raw)
        if cut is not None and cut.then is not Parting.END:
            await self._send_body(response, body[: int(len(body) * cut.fraction)])
            await self.part(cut.then)
        await self._send_body(response, body, compressor)
        await response.write_eof()
        return response

    async def _obey_faults(self, body: bytes) -> None:
        """Never return if a fault replaces the answer."""
        for action in self.actions:
            if isinstance(action, Reset):
                await self.part(Parting.RESET)
            elif isinstance(action, BlackHole):
                await self.part(Parting.HANG)
        if any(isinstance(action, Endless) for action in self.actions):
            await self._send_without_end(body)

    async def _send_without_end(self, body: bytes) -> NoReturn:
        """Send a body without end."""
        response = self._response(200)
        response.enable_chunked_encoding()
        await response.prepare(self.raw)
        part = body.rstrip()[:-1]
        while True:
            self.request.bytes += len(part)
            await response.write(part)
            # A write to a lost connection returns at once until the event loop has noticed the loss.
            await asyncio.sleep(0)
            part = b" " * self._settings.piece

    async def refuse(self, error: ApiError) -> web.StreamResponse:
        """Answer with an error, as a Status."""
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return await self.answer(error.code, error.body, **headers)

    async def stream(self, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
        """Send the headers of a watch, and then its chunks.  The caller ends the stream."""
        response = self._response(200)
        response.enable_chunked_encoding()
        await response.prepare(self.raw)
        self._journal.notify()
        async for chunk in chunks:
            self.request.bytes += len(chunk)
            try:
                await response.write(chunk)
            except ConnectionResetError:  # the client has gone, and this is about to be cancelled
                await self.part(Parting.HANG)
            self._journal.notify()
        return response

    async def part(self, how: Parting) -> NoReturn:
        """End the connection in the middle of an answer.  Ends by cancellation, when the connection is gone."""
        transport = self.raw.transport
        if transport is not None and how is Parting.RESET:
            reset(transport)
        elif transport is not None and how is Parting.CLOSE:
            transport.close()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def _response(self, code: int, **headers: str) -> web.StreamResponse:
        self.request.status = code
        return web.StreamResponse(
            status=code, headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"} | headers
        )

    def _compressor(self, body: bytes) -> zlib._Compress | None:
        threshold = self._settings.gzip_threshold
        accepted = self.raw.headers.get("Accept-Encoding", "")
        is_compressed = threshold is not None and len(body) > threshold and "gzip" in accepted
        return zlib.compressobj(LEVEL, wbits=GZIP) if is_compressed else None

    async def _send_body(
        self, response: web.StreamResponse, body: bytes, compressor: zlib._Compress | None = None
    ) -> None:
        """Send a body in pieces, each compressed when its turn comes, as Go's servers do."""
        slow = sum(action.during for action in self.actions if isinstance(action, Slow))
        piece = max(1, len(body) // SLOW_PIECES) if slow else self._settings.piece
        for start in range(0, len(body), piece):
            part: bytes | memoryview = memoryview(body)[start : start + piece]
            if compressor:
                part = await asyncio.to_thread(compressor.compress, part)
            await self._write(response, part)
            await asyncio.sleep(slow / SLOW_PIECES)
        if compressor:
            await self._write(response, compressor.flush())

    async def _write(self, response: web.StreamResponse, part: bytes | memoryview) -> None:
        self.request.bytes += len(part)
        await response.write(part)


def record_of(raw: web.BaseRequest) -> Request:
    """A new record of a request."""
    peer: Any = raw.get_extra_info("peername") or ("", 0)
    return Request(
        method=raw.method,
        path=raw.path.rstrip("/") or "/",
        query={key: value for key, value in raw.query.items()},  # noqa: C416  # the last of repeated keys
        headers={key.lower(): value for key, value in raw.headers.items()},
        peer=str(peer[0]),
        port=peer[1],
    )
