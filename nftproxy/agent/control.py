"""The agent's Unix socket: where `nftproxy status`, `list` and their likes ask what the agent knows.

HTTP over the socket, with answers as lines of JSON.  It is for root and for the agent's own user, since `kubectl exec`
runs commands in a pod as the user of its container: the socket is theirs alone (mode 0600), and each connection is
asked for its user (SO_PEERCRED), whatever becomes of the file's mode.

* The socket of an agent that has died is replaced.  One on which somebody listens is left alone.
* Where it can't be made, the agent does without: it serves no packet.
* Requests are GETs without a body.  Connections are bounded (connections.py), and so is the time for an answer.
* An answer comes in pieces, between which the loop does other things, so that no answer holds up a change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path

from nftproxy.agent.connections import Connections, Limits
from nftproxy.agent.http_server import Request, Response, Server
from nftproxy.kernel.unix_sockets import ROOT, listen, peer
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, NftproxyError

log = logging.getLogger(__name__)

CONNECTIONS = Limits(of_a_client=16, of_a_listener=16, connections=16, listeners=1)
"""People ask, and a few scripts: a connection more closes the oldest."""
_JSON_LINES = {"Content-Type": "application/x-ndjson"}
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}

Question = Callable[[Mapping[str, str]], AsyncIterator[bytes]]
"""Answers a request with some parameters, piece by piece; raises NftproxyError before the first one."""


class Control:
    """The socket; an asynchronous context, in which it is open, if it can be."""

    def __init__(self, path: str, questions: Mapping[str, Question]) -> None:
        """Nothing is opened yet.

        Args:
            path: where the socket is to be, "" for nowhere.
            questions: by the path of the request.
        """
        self._path = path
        self._questions = questions
        self._strangers: set[int] = set()
        self._identity: tuple[int, int] | None = None
        self._server: Server | None = None

    async def __aenter__(self) -> Control:
        if self._path:
            try:
                await self._open(Path(self._path))
            except OSError as error:
                text = "can't make the socket %(path)s, so `nftproxy status` and `list` get no answer: %(reason)s"
                what = {"path": self._path, "reason": error.strerror or error}
                log.warning(text, what, extra={"code": Code.AGENT_SOCKET_FAILED})
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._remove()
            await self._server.close()

    async def _open(self, path: Path) -> None:
        listening = listen(path, CONNECTIONS.connections)
        self._identity = _identity(path)
        self._server = Server(path, Connections(CONNECTIONS), self._handle)
        await self._server.open(listening, CONNECTIONS.connections)

    def _remove(self) -> None:
        """Remove the socket, unless another agent has put its own in this place."""
        with contextlib.suppress(OSError):
            if _identity(Path(self._path)) == self._identity:
                Path(self._path).unlink()

    async def _handle(self, request: Request) -> Response:
        if not self._may_ask(request.connection):
            return _text(403, "only root and the agent's own user may ask")
        question = self._questions.get(request.path)
        if question is None:
            return _text(404, "there is no such question")
        if request.method != "GET":
            return _text(405, "questions are asked by GET")
        return await _answer(question(request.query))

    def _may_ask(self, connection: socket.socket) -> bool:
        user = peer(connection).user
        if user in (ROOT, os.geteuid()):
            return True
        if user not in self._strangers:
            what = {"user": user, "path": self._path}
            text = "user %(user)s has asked over %(path)s, and gets no answer"
            log.warning(text, what, extra={"code": Code.AGENT_SOCKET_STRANGER})
            self._strangers.add(user)
        return False


async def _answer(pieces: AsyncIterator[bytes]) -> Response:
    """An answer from its first piece on, with which it turns out whether there is one."""
    try:
        first = await anext(pieces, b"")
    except BadInput as error:
        return _text(400, str(error))
    except NftproxyError as error:
        return _text(503, str(error))

    async def whole() -> AsyncGenerator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return Response(200, _JSON_LINES, whole())


def _text(status: int, text: str) -> Response:
    return Response(status, _TEXT, text.encode())


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
