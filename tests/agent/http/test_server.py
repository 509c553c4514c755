"""The HTTP server: its answers to any input, and its bounds on every client."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from typing import Any

import pytest

import nftproxy.agent.http.server as http_server
from nftproxy.agent.http.connection_limits import BURST, MOST, RATE, BoundedConnections, Handler
from nftproxy.agent.http.server import LARGEST_HEAD, HttpRequest, HttpResponse, HttpServer, Respond

LARGE = b"x" * 2**24
"""More bytes than the kernel buffers for a client that doesn't read."""


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of its own, within a minute."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), 60))

    return run


async def echo(request: HttpRequest) -> HttpResponse:
    """Echo the request, with a body of each kind, and raise a defect on demand."""
    if request.path == "/large":
        return HttpResponse(200, {}, LARGE)
    if request.path == "/defect":
        raise KeyError(request.path)
    return HttpResponse(200, {"X-Own": "yes"}, f"{request.method} {request.path} {dict(request.query)}\n".encode())


class Client:
    """A connection over which a test sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def said(self, words: bytes) -> bytes:
        """Send these bytes, and return everything that comes until the server closes."""
        self.writer.write(words)
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""


@contextlib.asynccontextmanager
async def serving(respond: Respond = echo) -> AsyncIterator[Callable[[], Coroutine[Any, Any, Client]]]:
    """A server, and a function that connects to it."""
    listening = socket.create_server(("127.0.0.1", 0))
    place = listening.getsockname()
    connections = BoundedConnections(MOST)
    server = HttpServer("it", connections, respond)
    await server.open(listening, 8)
    writers = []

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection(*place)
        writers.append(writer)
        return Client(reader, writer)

    yield connect
    await server.close()
    assert len(connections) == 0
    for writer in writers:
        writer.close()


@on_a_loop
async def test_requests_of_one_connection() -> None:
    """Requests of one connection are answered in order, with path and query decoded, and the last answer closes it."""
    async with serving() as connect:
        words = [b"GET /%61%20b?c=d%20e&f HTTP/1.1\r\nHost: x\r\n\r\n"] * 50
        answer = await (await connect()).said(b"".join(words) + b"HEAD /z HTTP/1.0\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200 OK\r\nX-Own: yes\r\nDate: ") == 51
        assert answer.count(b"\r\n\r\nGET /a b {'c': 'd e'}\n") == 50
        assert answer.endswith(b"\r\n\r\n")  # HEAD has no body


@on_a_loop
async def test_a_client_that_opens_too_many_is_refused_the_rest() -> None:
    """A client with a thousand waiting connections gets as many served as its rate allows, and another client is
    served behind them.
    """

    class Counted(BoundedConnections):
        served = 0

        def add(self, handler: Handler, listener: Hashable, transport: asyncio.WriteTransport) -> None:
            Counted.served += 1
            super().add(handler, listener, transport)

    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer("it", Counted(MOST), echo)
    await server.open(listening, 4096)
    began = time.monotonic()
    crowd = [socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(1000)]
    for each in crowd:
        each.connect_ex(listening.getsockname())
    reader, writer = await asyncio.open_connection(*listening.getsockname(), local_addr=("127.0.0.9", 0))
    assert (await Client(reader, writer).said(b"HEAD / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    assert BURST < Counted.served <= 1 + http_server.AT_ONCE + BURST + RATE * (time.monotonic() - began)
    writer.close()
    for each in crowd:
        each.close()
    await server.close()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400 Bad Request"),
        (b"HELP\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400 Bad Request"),  # without Host Go's server denies it as well
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * LARGEST_HEAD, b"431 Request Header Fields Too Large"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", b"200 OK"),
    ],
)
def test_malformed_requests_are_answered_and_cut_off(
    words: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Malformed requests get an answer and the end of the connection, and nothing is logged."""

    async def scenario() -> bytes:
        async with serving() as connect:
            return await (await connect()).said(words)

    assert asyncio.run(scenario()).startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@on_a_loop
async def test_half_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that comes byte by byte is cut off at its deadline, however often a byte comes."""
    monkeypatch.setattr(http_server, "IDLE", 0.3)
    async with serving() as connect:
        client = await connect()
        ended = asyncio.create_task(client.reader.read())
        while not ended.done():
            with contextlib.suppress(ConnectionError):
                client.writer.write(b"x")
            await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            assert ended.result() == b""


@on_a_loop
async def test_an_unread_answer_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that the client doesn't read is cut off at its deadline, while other clients are answered."""
    monkeypatch.setattr(http_server, "LONGEST_ANSWER", 0.5)
    async with serving() as connect:
        slow, quick = await connect(), await connect()
        slow.writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await quick.said(b"GET /q HTTP/1.0\r\n\r\n")).endswith(b"GET /q {}\n")
        await asyncio.sleep(1.0)  # in which only so much of the answer leaves as fits into buffers
        assert 0 < len(await slow.said(b"")) < len(LARGE)


@on_a_loop
async def test_many_requests_of_a_client_leave_turns_to_other_tasks() -> None:
    """A client that sends many requests at once gets one answer in each turn of the loop."""
    turns: list[str] = []

    async def respond(request: HttpRequest) -> HttpResponse:
        turns.append(request.path)
        return HttpResponse(200, {}, b"")

    async with serving(respond) as connect:
        greedy, modest = await connect(), await connect()
        greedy.writer.write(b"GET /greedy HTTP/1.1\r\nHost: x\r\n\r\n" * 300)
        modest.writer.write(b"GET /modest HTTP/1.1\r\nHost: x\r\n\r\n")
        while turns.count("/greedy") < 300:  # noqa: ASYNC110 -- each turn of the loop counts
            await asyncio.sleep(0)
    assert turns.index("/modest") < 150


@on_a_loop
async def test_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    """A defect ends the connection that has met it, and is logged."""
    async with serving() as connect:
        assert await (await connect()).said(b"GET /defect HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        assert (await (await connect()).said(b"GET /q HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    (record,) = caplog.records
    assert record.getMessage() == "unexpected error while answering an HTTP request"
