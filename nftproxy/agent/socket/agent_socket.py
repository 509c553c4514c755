"""The agent's Unix socket, where `nftproxy status`, `list` and similar commands query the agent.

HTTP over the socket, with answers as lines of JSON.  It is for root and for the agent's own user, since `kubectl exec`
runs commands in a pod as the user of its container.  The socket has mode 0600, and the user of each connection is
checked as well (SO_PEERCRED), in case the file's mode changes.

* The socket of a dead agent is replaced.  A socket on which a process listens is left alone.
* If the socket can't be made, the agent goes on without it: no packet needs it.
* Requests are GETs without a body.  Connections are bounded (connection_limits.py), and so is the time for an answer.
* An answer comes in pieces, between which the loop does other things, so that no answer holds up a change.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path

from nftproxy.agent.http.connection_limits import BoundedConnections, ConnectionLimits
from nftproxy.agent.http.reserve import NO_RESERVE, Reserve
from nftproxy.agent.http.server import HttpRequest, HttpResponse, HttpServer
from nftproxy.agent.socket.answers import NAMESPACE
from nftproxy.kernel.unix_sockets import ROOT, listen, network_namespace, peer
from nftproxy.logs import warn
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, NftproxyError

CONNECTIONS = ConnectionLimits(of_a_client=16, of_a_listener=16, connections=16, listeners=1)
"""Enough for people and a few scripts.  A further connection closes the oldest."""
_JSON_LINES = {"Content-Type": "application/x-ndjson"}
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}

QueryHandler = Callable[[Mapping[str, str]], AsyncIterator[bytes]]
"""Answers a request with some parameters, piece by piece, or raises NftproxyError."""


class AgentSocket:
    """The socket on which the agent answers.  Leaving the asynchronous context closes it."""

    def __init__(
        self, path: str, questions: Callable[[], Mapping[str, QueryHandler]], reserve: Reserve = NO_RESERVE
    ) -> None:
        """Nothing is opened yet.

        Args:
            path: the path of the socket, "" for no socket.
            questions: returns the handlers, by the paths of requests, or raises NftproxyError.  The first request calls
                it, in a thread, as the handlers' modules must be imported first.
            reserve: lends descriptors for connections when the process has no others.
        """
        self._path = path
        self._connections = BoundedConnections(CONNECTIONS, reserve)
        self._find_questions = questions
        self._questions: Mapping[str, QueryHandler] | None = None
        self._strangers: set[int] = set()
        self._identity: tuple[int, int] | None = None
        self._server: HttpServer | None = None

    async def __aenter__(self) -> AgentSocket:
        """Open the socket, unless another agent has it: `open` tries again."""
        with contextlib.suppress(OSError):
            await self._try()
        return self

    async def open(self) -> None:
        """Open the socket, if it isn't open yet.  If it can't be made, log that."""
        try:
            await self._try()
        except OSError as error:
            text = "can't make the socket %(path)s, so `nftproxy status` and `list` get no answer: %(reason)s"
            warn(Code.AGENT_SOCKET_FAILED, text, path=self._path, reason=error.strerror or error)

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._remove()
            await self._server.close()

    async def _try(self) -> None:
        if self._server or not self._path:
            return
        path = Path(self._path)
        listening = listen(path, CONNECTIONS.connections)
        self._identity = _identity(path)
        self._server = HttpServer(path, self._connections, self._handle)
        await self._server.open(listening, CONNECTIONS.connections)

    def _remove(self) -> None:
        """Remove the socket, unless another agent has replaced it."""
        with contextlib.suppress(OSError):
            if _identity(Path(self._path)) == self._identity:
                Path(self._path).unlink()

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        if not self._may_ask(request.connection):
            return _text(403, "only root and the agent's own user may ask")
        if self._questions is None:
            try:
                self._questions = await asyncio.to_thread(self._find_questions)
            except NftproxyError as error:
                return _text(503, str(error))
        question = self._questions.get(request.path)
        if question is None:
            return _text(404, "unknown request")
        if request.method != "GET":
            return _text(405, "only GET is supported")
        return await _answer(question(request.query))

    def _may_ask(self, connection: socket.socket) -> bool:
        user = peer(connection).user
        if user in (ROOT, os.geteuid()):
            return True
        if user not in self._strangers:
            text = "user %(user)s may not ask over %(path)s, and gets no answer"
            warn(Code.AGENT_SOCKET_STRANGER, text, of="", user=user, path=self._path)
            self._strangers.add(user)
        return False


async def _answer(pieces: AsyncIterator[bytes]) -> HttpResponse:
    """Start an answer.  Its first piece shows whether the query succeeds."""
    try:
        first = await anext(pieces, b"")
    except BadInput as error:
        return _text(400, str(error))
    except NftproxyError as error:
        return _text(503, str(error))

    async def whole() -> AsyncGenerator[bytes]:
        yield first
        try:
            async for piece in pieces:
                yield piece
        except NftproxyError as error:
            warn(error.code, "an answer breaks off: %(reason)s", reason=error)
            raise ConnectionAbortedError from error  # without the end of the answer the asking command knows

    return HttpResponse(200, _JSON_LINES | {NAMESPACE: network_namespace()}, whole())


def _text(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, _TEXT, text.encode())


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
