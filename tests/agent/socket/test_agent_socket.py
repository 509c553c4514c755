"""The agent's socket by itself: its answers and its bounds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

import nftproxy.agent.http.server as http_server
from nftproxy.agent.socket.agent_socket import AgentSocket
from nftproxy.agent.socket.answers import Versions
from nftproxy.commands.agent_client import AgentClient, NoAnswer
from nftproxy.model.errors import BadInput, Unavailable


async def fine(query: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Echo the request, in two pieces with an empty piece between them."""
    yield b"1\n"
    yield b""
    yield f"{dict(query)}\n".encode()


async def bad(_query: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Raise the error of an invalid query."""
    if QUESTIONS:
        raise BadInput()
    yield b""


async def failing(_query: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The kernel doesn't answer."""
    if QUESTIONS:
        raise Unavailable("no permission")
    yield b""


async def endless(_query: Mapping[str, str]) -> AsyncIterator[bytes]:
    """An answer that goes on for as long as it is read."""
    while True:
        yield b"x" * 4096 + b"\n"


async def breaking_off(_query: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The kernel doesn't answer any more, after the first line."""
    yield b'{"kind": "Quarantined", "namespace": "shop", "service": "web", "family": "IPv4", "why": "refused"}\n'
    if QUESTIONS:
        raise Unavailable("no permission any more")


async def older(_query: Mapping[str, str]) -> AsyncIterator[bytes]:
    """An answer without the fields of this version."""
    yield b'{"kind": "end"}\n'


QUESTIONS = {
    "/fine": fine,
    "/bad": bad,
    "/failing": failing,
    "/endless": endless,
    "/v1/services": older,
    "/v1/quarantined": breaking_off,
}


def ask(path: Path, question: str, **query: str) -> asyncio.Task[list[bytes]]:
    """The lines of an answer, asked for in a thread."""
    return asyncio.create_task(asyncio.to_thread(lambda: list(AgentClient(str(path), 10).lines(question, query))))


def test_answers_come_in_pieces(tmp_path: Path) -> None:
    """A question gets its parameters, and all that it yields is the answer."""

    async def scenario() -> None:
        path = tmp_path / "agent.sock"
        async with AgentSocket(str(path), lambda: QUESTIONS):
            assert await ask(path, "/fine", a="b c") == [b"1\n", b"{'a': 'b c'}\n"]
            with pytest.raises(BadInput):
                await ask(path, "/bad")
            with pytest.raises(NoAnswer, match="can't answer: no permission"):
                await ask(path, "/failing")
            with pytest.raises(NoAnswer, match="unknown request"):
                await ask(path, "/other")
        assert not path.exists()

    asyncio.run(scenario())


def test_an_answer_of_another_version(tmp_path: Path) -> None:
    """An answer that lacks fields, or has unknown ones, is no answer, and the remedy is the same version."""

    async def scenario() -> None:
        path = tmp_path / "agent.sock"
        async with AgentSocket(str(path), lambda: QUESTIONS):
            agent = AgentClient(str(path), 10)
            for asking in (lambda: agent.get(Versions, "/v1/services"), lambda: agent.listing("services")):
                with pytest.raises(NoAnswer, match=r"can't be read: .*\n.*have the same version"):
                    await asyncio.to_thread(asking)

    asyncio.run(scenario())


def test_an_answer_that_breaks_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A listing without its end is no answer, though it broke off between two lines, and the log says the reason."""

    async def scenario() -> None:
        path = tmp_path / "agent.sock"
        async with AgentSocket(str(path), lambda: QUESTIONS):
            agent = AgentClient(str(path), 10)
            with pytest.raises(NoAnswer, match="has ended the connection"):
                await asyncio.to_thread(lambda: agent.listing("quarantined"))

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "an answer breaks off: no permission any more"
    ]


def test_only_queries_are_accepted(tmp_path: Path) -> None:
    """Other methods than GET are denied."""

    async def scenario() -> bytes:
        path = tmp_path / "agent.sock"
        async with AgentSocket(str(path), lambda: QUESTIONS):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"POST /fine HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            answer = await reader.readline()
            writer.close()
            return answer

    assert b" 405 " in asyncio.run(scenario())


def test_what_is_no_http(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Input that isn't HTTP is refused, and nothing is logged."""

    async def scenario() -> bytes:
        path = tmp_path / "agent.sock"
        async with AgentSocket(str(path), lambda: QUESTIONS):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"GET " + b"/" * 20_000 + b" HTTP/1.1\r\n\r\n")
            answer = await reader.readline()
            writer.close()
            return answer

    assert asyncio.run(scenario()).startswith(b"HTTP/1.1 4")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_agent_does_without_a_socket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the socket can't be made the log says why and the agent goes on, and without a path nothing is logged."""
    (tmp_path / "file").write_text("")

    async def scenario() -> None:
        for path in (str(tmp_path / "file" / "agent.sock"), ""):
            async with AgentSocket(path, lambda: QUESTIONS) as made:
                await made.open()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    (record,) = caplog.records
    assert record.getMessage().startswith(f"can't make the socket {tmp_path}/file/agent.sock")
    assert record.levelno == logging.WARNING


def test_another_agents_socket_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A second agent at the same path has no socket until the first has ended, and says so if it can't wait."""
    path = tmp_path / "agent.sock"

    async def scenario() -> None:
        async with AgentSocket(str(path), lambda: QUESTIONS) as first:
            async with AgentSocket(str(path), dict) as second:
                assert caplog.text == ""
                await second.open()
            assert "listens there" in caplog.text
            assert (await ask(path, "/fine"))[0] == b"1\n"
            async with AgentSocket(str(path), lambda: {"/new": fine}) as third:
                await first.__aexit__()
                await third.open()
                assert (await ask(path, "/new"))[0] == b"1\n"

    asyncio.run(scenario())


def test_a_slow_reader_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that the client doesn't read delays no other client, and ends at its deadline."""
    monkeypatch.setattr(http_server, "LONGEST_ANSWER", 0.3)

    async def scenario() -> None:
        path = tmp_path / "agent.sock"
        async with AgentSocket(str(path), lambda: QUESTIONS):
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as slow:
                slow.connect(str(path))
                slow.send(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
                assert (await ask(path, "/fine"))[0] == b"1\n"
                slow.settimeout(20)
                with contextlib.suppress(ConnectionResetError):
                    while await asyncio.to_thread(slow.recv, 1 << 20):
                        pass

    asyncio.run(scenario())
