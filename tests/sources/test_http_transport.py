"""The transport of requests to the API."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

import httpx
import pytest

from nftproxy.sources import http_transport
from nftproxy.sources.http_transport import HttpTransport

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(*answers: bytes, answer: Answer | None = None) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that gives these answers on each connection, and then ends it.

    Yield its URL, and the number of requests of each connection.
    """
    counts: list[int] = []
    tasks: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        counts.append(0)
        place = len(counts) - 1
        try:
            for text in answers:
                await reader.readuntil(b"\r\n\r\n")
                counts[place] += 1
                writer.write(text)
            if answer:
                await reader.readuntil(b"\r\n\r\n")
                await answer(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client, or the test, has ended
        finally:
            writer.close()

    started = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with started:
        try:
            yield f"http://127.0.0.1:{started.sockets[0].getsockname()[1]}/", counts
        finally:
            for task in filter(None, tasks):
                task.cancel()
            await asyncio.sleep(0.01)


def chunk(data: bytes) -> bytes:
    """Return a chunk of an answer."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def test_a_connection_serves_one_request_after_the_other() -> None:
    """A connection serves the next request after a complete answer, until the server ends it."""
    async with server(WHOLE, WHOLE) as (url, counts), httpx.AsyncClient(transport=HttpTransport(None)) as client:
        for _ in range(3):
            assert (await client.get(url)).text == "hi"
            await asyncio.sleep(0.01)
    assert counts == [2, 1]


async def test_requests_at_once_have_connections_of_their_own() -> None:
    """A request doesn't wait for another's answer."""
    async with (
        server(HEAD + chunk(b"a")) as (url, counts),
        httpx.AsyncClient(transport=HttpTransport(None)) as client,
        client.stream("GET", url),
        client.stream("GET", url),
    ):
        assert counts == [1, 1]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"nonsense\r\n\r\n", httpx.RemoteProtocolError),
        (HEAD + b"5\r\nab", httpx.RemoteProtocolError),
        (HEAD + b"zz\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, httpx.RemoteProtocolError),
    ],
    ids=["nothing", "no HTTP", "cut short", "bad chunk", "endless head"],
)
async def test_bad_answers(text: bytes, error: type[Exception]) -> None:
    """An answer that isn't HTTP, or ends too early, raises the error of httpx' own transport."""
    async with server(text) as (url, _), httpx.AsyncClient(transport=HttpTransport(None)) as client:
        with pytest.raises(error):
            await client.get(url)


async def test_answers_of_100_are_passed_over() -> None:
    """The answer is the first that isn't preliminary."""
    text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + WHOLE
    async with server(text) as (url, _), httpx.AsyncClient(transport=HttpTransport(None)) as client:
        assert (await client.get(url)).text == "hi"


async def test_a_silent_server_times_out() -> None:
    """An answer that doesn't come within the time is an error."""

    async def never(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await asyncio.Event().wait()

    async with server(answer=never) as (url, _), httpx.AsyncClient(transport=HttpTransport(None)) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get(url, timeout=httpx.Timeout(60, read=0.05))


async def test_all_waits_share_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait sets no timer of its own, and the alarm that rings before the present wait's time is set again."""
    alarms: list[tuple[float, Callable[[], None]]] = []
    loop, own = asyncio.get_running_loop(), asyncio.get_running_loop().call_at

    def call_at(when: float, callback: Callable[..., None], *rest: object, **named: object) -> asyncio.TimerHandle:
        if when > loop.time() + 1_000:
            alarms.append((when, callback))
        return own(when, callback, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", call_at)
    async with chunks_one_by_one(HttpTransport(None), 5) as read:
        for _ in range(5):
            await read()
        pending = asyncio.create_task(read())
        await asyncio.sleep(0)
        assert len(alarms) == 1
        alarms[0][1]()
        assert len(alarms) == 2
        assert alarms[1][0] > alarms[0][0]
        await pending


async def test_a_long_answer_waits_for_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that nobody reads stay with the server, and all come in the end."""
    monkeypatch.setattr(http_transport, "MOST_BUFFERED", 2**16)
    body = bytes(range(256)) * 2**16
    text = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with (
        server(text) as (url, _),
        httpx.AsyncClient(transport=HttpTransport(None)) as client,
        client.stream("GET", url) as response,
    ):
        transport = response.extensions["network_stream"]
        while transport.is_reading():  # noqa: ASYNC110  # the transport tells nobody
            await asyncio.sleep(0)
        assert await response.aread() == body


async def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first address of a name refuses, the second gets the request."""
    async with server(WHOLE) as (url, _):
        port = httpx.URL(url).port
        assert port is not None
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.9", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_: found[: 1 if host == "127.0.0.9" else 2])
        async with httpx.AsyncClient(transport=HttpTransport(None)) as client:
            assert (await client.get(f"http://api.example:{port}/")).text == "hi"
        async with httpx.AsyncClient(transport=HttpTransport(None)) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://127.0.0.9:{port}/")


async def test_an_event_of_a_watch_costs_half_of_the_calls_of_httpx() -> None:
    """A chunk takes at most half of the Python calls that it takes in httpx' own transport, the reason for this one."""
    ours, theirs = await calls_of_chunks(HttpTransport(None)), await calls_of_chunks(httpx.AsyncHTTPTransport())
    assert ours <= theirs / 2, (ours, theirs)


async def calls_of_chunks(transport: httpx.AsyncBaseTransport, count: int = 20) -> int:
    """Return the Python calls while a client reads so many chunks, and the server sends them."""
    calls = [0]

    def note(_frame: object, event: str, _: object) -> None:
        calls[0] += event == "call"

    async with chunks_one_by_one(transport, count) as read:
        sys.setprofile(note)
        try:
            for _each in range(count):
                await read()
        finally:
            sys.setprofile(None)
    return calls[0]


@contextlib.asynccontextmanager
async def chunks_one_by_one(
    transport: httpx.AsyncBaseTransport, count: int
) -> AsyncIterator[Callable[[], Coroutine[None, None, bytes]]]:
    """Yield a function that reads a chunk of a watch.  Each comes alone, and there are more than `count`."""
    asked = asyncio.Event()

    async def one_by_one(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for _each in range(count + 1):
            await asked.wait()
            asked.clear()
            writer.write(chunk(b"x" * 3_000))

    async with (
        server(answer=one_by_one) as (url, _),
        httpx.AsyncClient(transport=transport) as client,
        client.stream("GET", url, timeout=httpx.Timeout(5, read=3_600)) as response,
    ):
        content = aiter(response.aiter_raw())

        async def read() -> bytes:
            asked.set()
            return await anext(content)

        yield read
