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

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from aiohttp import web

from nftproxy.agent.connections import Connections, Limits, Server
from nftproxy.kernel.unix_sockets import ROOT, listen, peer
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, NftproxyError

log = logging.getLogger(__name__)

CONNECTIONS = Limits(of_a_client=16, of_a_listener=16, connections=16, listeners=1)
"""People ask, and a few scripts: a connection more closes the oldest."""
LONGEST_ANSWER = 60.0
"""Seconds that an answer may take: 100,000 endpoints take some seconds, and whoever reads slower is cut off."""
SHUTDOWN = 0.1
"""Seconds that an answer may still take when the agent ends."""
_JSON_LINES = {"Content-Type": "application/x-ndjson"}

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
        self._strangers: set[int | None] = set()
        self._identity: tuple[int, int] | None = None
        self._runner: web.ServerRunner | None = None

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
        if self._runner:
            self._remove()
            await self._runner.cleanup()

    async def _open(self, path: Path) -> None:
        listening = listen(path, CONNECTIONS.connections)
        self._identity = _identity(path)
        self._runner = web.ServerRunner(Server(path, Connections(CONNECTIONS), self._handle), shutdown_timeout=SHUTDOWN)
        await self._runner.setup()
        await web.SockSite(self._runner, listening, backlog=CONNECTIONS.connections).start()

    def _remove(self) -> None:
        """Remove the socket, unless another agent has put its own in this place."""
        with contextlib.suppress(OSError):
            if _identity(Path(self._path)) == self._identity:
                Path(self._path).unlink()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self._may_ask(request.transport):
            return web.Response(status=403, text="only root and the agent's own user may ask")
        question = self._questions.get(request.path)
        if question is None:
            return web.Response(status=404, text="there is no such question")
        if request.method != "GET":
            return web.Response(status=405, text="questions are asked by GET")
        try:
            async with asyncio.timeout(LONGEST_ANSWER):
                return await _answer(request, question)
        except TimeoutError:
            if request.transport:
                request.transport.abort()
        except ConnectionError:
            pass  # whoever asked has gone
        return web.Response(status=503, text="this took too long")

    def _may_ask(self, transport: asyncio.Transport | None) -> bool:
        user = peer(transport.get_extra_info("socket")).user if transport else None
        if user in (ROOT, os.geteuid()):
            return True
        if user not in self._strangers:
            what = {"user": user, "path": self._path}
            text = "user %(user)s has asked over %(path)s, and gets no answer"
            log.warning(text, what, extra={"code": Code.AGENT_SOCKET_STRANGER})
            self._strangers.add(user)
        return False


async def _answer(request: web.BaseRequest, question: Question) -> web.StreamResponse:
    async with contextlib.aclosing(question(request.query)) as pieces:  # type: ignore[type-var]
        try:
            first = await anext(pieces, b"")
        except BadInput as error:
            return web.Response(status=400, text=str(error))
        except NftproxyError as error:
            return web.Response(status=503, text=str(error))
        response = web.StreamResponse(headers=_JSON_LINES)
        response.force_close()
        await response.prepare(request)
        await response.write(first)
        async for piece in pieces:
            if piece:
                await response.write(piece)
            await asyncio.sleep(0)
        await response.write_eof()
        return response


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
