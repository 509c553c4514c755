"""The network below httpcore."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import httpx
import pytest

from nftproxy.sources import name_lookup
from nftproxy.sources.api_connection import Timeouts
from nftproxy.sources.credentials import Credentials
from nftproxy.sources.failure_texts import failure_text
from nftproxy.sources.http_client import http_client

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def client_of_asyncio() -> httpx.AsyncClient:
    """Return a client that connects by asyncio's streams."""
    return http_client(Credentials(""), "", None)


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
    async with server(WHOLE, WHOLE) as (url, counts), client_of_asyncio() as client:
        for _ in range(3):
            assert (await client.get(url)).text == "hi"
            await asyncio.sleep(0.01)
    assert counts == [2, 1]


async def test_requests_at_once_have_connections_of_their_own() -> None:
    """A request doesn't wait for another's answer."""
    async with (
        server(HEAD + chunk(b"a")) as (url, counts),
        client_of_asyncio() as client,
        client.stream("GET", url),
        client.stream("GET", url),
    ):
        assert counts == [1, 1]


async def test_a_silent_server_times_out() -> None:
    """An answer that doesn't come within the time is an error."""

    async def never(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await asyncio.Event().wait()

    async with server(answer=never) as (url, _), client_of_asyncio() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get(url, timeout=httpx.Timeout(60, read=0.05))


async def test_a_long_answer_waits_for_its_reader() -> None:
    """Bytes that nobody reads stay with the server, and all come in the end."""
    size, sent = 2**24, [0]

    async def long(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent[0] < size:
            writer.write(b"x" * 2**16)
            sent[0] += 2**16
            if writer.transport.get_write_buffer_size():
                is_held_up.set()
            await writer.drain()

    is_held_up = asyncio.Event()
    async with server(answer=long) as (url, _), client_of_asyncio() as client, client.stream("GET", url) as response:
        await is_held_up.wait()
        assert sent[0] < size
        assert len(await response.aread()) == size


async def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first address of a name refuses, the second gets the request."""
    async with server(WHOLE) as (url, _):
        port = httpx.URL(url).port
        assert port is not None
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.9", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_: found[: 1 if host == "127.0.0.9" else 2])
        async with client_of_asyncio() as client:
            assert (await client.get(f"http://api.example:{port}/")).text == "hi"
        async with client_of_asyncio() as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://127.0.0.9:{port}/")


def names_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], threading.Event]:
    """Have lookups of names wait for an event, and then find 127.0.0.1.  Return their counts, and the event."""
    asked, resolved, look_up = Counter[str](), threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, port: int, family: int, kind: int, protocol: int = 0, flags: int = 0) -> object:
        if flags & socket.AI_NUMERICHOST:
            return look_up(host, port, family, kind, protocol, flags)
        asked[host] += 1
        assert threading.current_thread().daemon, "the end of the process would wait for it"
        resolved.wait()
        return look_up("127.0.0.1", port, family, kind)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked, resolved


async def test_a_name_that_is_not_resolved_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup without an answer is an error in time, which names the name, and no thread of others waits for it."""
    asked, resolved = names_without_an_answer(monkeypatch)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with server(WHOLE, WHOLE) as (url, _), client_of_asyncio() as client:
        port = httpx.URL(url).port
        timeout = httpx.Timeout(60, connect=0.05)
        for name in ("a.example", "a.example", "b.example"):
            with pytest.raises(httpx.ConnectError) as caught:
                await client.get(f"http://{name}:{port}/", timeout=timeout)
            text = failure_text(caught.value, "x", Timeouts())
            assert text == f"no connection to x: the name {name} isn't resolved within 0.05 s"
        assert await asyncio.to_thread(lambda: True)
        assert (await client.get(url, timeout=60)).text == "hi"
        resolved.set()
        assert (await client.get(f"http://a.example:{port}/")).text == "hi"
    assert asked["b.example"] == 1


async def test_connections_share_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to a name at the same time need a single lookup, a connection after it a new one."""
    asked, resolved = names_without_an_answer(monkeypatch)
    monkeypatch.setattr(name_lookup, "SHARED", 3600.0)
    lookups = [asyncio.create_task(name_lookup.look_up("c.example", 80)) for _ in range(8)]
    await asyncio.sleep(0)
    lookups.pop().cancel()
    resolved.set()
    assert {str(each[0][4]) for each in await asyncio.gather(*lookups)} == {"('127.0.0.1', 80)"}
    assert asked == {"c.example": 1}
    await name_lookup.look_up("c.example", 80)
    assert asked == {"c.example": 2}


async def test_lookups_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no lookup of a name ends, connections begin others now and then, up to a number of threads."""
    asked, resolved = names_without_an_answer(monkeypatch)
    monkeypatch.setattr(name_lookup, "SHARED", 0.0)
    many = 3 * name_lookup.MOST_AT_ONCE
    lookups = [asyncio.create_task(name_lookup.look_up("e.example", 80)) for _ in range(many)]
    await asyncio.sleep(0)
    resolved.set()
    assert len(await asyncio.gather(*lookups)) == many
    assert asked == {"e.example": name_lookup.MOST_AT_ONCE}


async def test_a_lookup_without_a_thread_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, as at a limit of processes, a connection by name fails in words."""
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    async with client_of_asyncio() as client:
        with pytest.raises(httpx.ConnectError) as caught:
            await client.get("http://d.example/")
    text = failure_text(caught.value, "x", Timeouts())
    assert text == "no connection to x: no thread to look up the name d.example can be started: can't start new thread"


@pytest.mark.parametrize("zone", ["lo", "LO"])
async def test_an_address_is_reached_in_its_zone(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """A link-local address is looked up and connected to with its zone, which the server doesn't see."""
    opened: list[str] = []

    async def open_connection(host: str, port: int) -> None:
        opened.append(f"{host} {port}")
        raise ConnectionRefusedError

    def getaddrinfo(host: str, port: int, *_: object) -> list[object]:
        opened.append(f"{host} {port}")
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", port, 0, 7))]

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    async with http_client(Credentials(""), f"http://[FE80::1%25{zone}]:6443/x", None) as client:
        assert client.build_request("GET", "y").url == "http://[FE80::1]:6443/x/y"
        with pytest.raises(httpx.ConnectError):
            await client.get("y")
    assert opened == [f"fe80::1%{zone} 6443", "fe80::1%7 6443"]


async def test_an_event_of_a_watch_costs_fewer_calls_than_by_anyio() -> None:
    """A chunk takes at most three quarters of the Python calls that it takes with httpcore's own backend."""
    ours, theirs = await calls_of_chunks(client_of_asyncio()), await calls_of_chunks(httpx.AsyncClient())
    assert ours <= theirs * 0.75, (ours, theirs)


async def calls_of_chunks(client: httpx.AsyncClient, count: int = 20) -> int:
    """Return the Python calls while the server sends `count` chunks and a client reads them."""
    calls = [0]

    def note(_frame: object, event: str, _: object) -> None:
        calls[0] += event == "call"

    async with chunks_one_by_one(client, count) as read:
        sys.setprofile(note)
        try:
            for _each in range(count):
                await read()
        finally:
            sys.setprofile(None)
    return calls[0]


@contextlib.asynccontextmanager
async def chunks_one_by_one(
    client: httpx.AsyncClient, count: int
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
        client,
        client.stream("GET", url, timeout=httpx.Timeout(5, read=3_600)) as response,
    ):
        content = aiter(response.aiter_raw())

        async def read() -> bytes:
            asked.set()
            return await anext(content)

        yield read
