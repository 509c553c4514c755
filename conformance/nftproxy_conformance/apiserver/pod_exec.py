"""`exec` into a container: a command's input and output over a WebSocket.

Each message begins with the number of its channel (k8s.io/apimachinery, pkg/util/remotecommand).  The last message is
a Status on the channel of errors, with the exit status of a command that fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from aiohttp import WSMsgType, web

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
OUTPUT_PIECE = 32 * 1024
"""Bytes in a message (io.Copy's buffer)."""


class ExecRequest(NamedTuple):
    """A command that a client runs in a container, with its standard input."""

    namespace: str
    pod: str
    container: str
    command: tuple[str, ...]
    stdin: bytes = b""


class ExecResult(NamedTuple):
    """The output of a command, and its exit status."""

    stdout: bytes = b""
    stderr: bytes = b""
    status: int = 0


class NoKubeletError(Exception):
    """The kubelet of the pod's node can't be reached: the text is the server's error."""


RunInPod = Callable[[ExecRequest], Awaitable[ExecResult]]
"""Runs a command as a container would."""


async def run_in_pod(raw: web.BaseRequest, namespace: str, pod: str, run: RunInPod) -> web.StreamResponse:
    """Answer a request for `exec`, by upgrading it to a WebSocket."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    await socket.prepare(raw)
    query = raw.query
    stdin = await _stdin(socket) if query.get("stdin") == "true" else b""
    command = tuple(query.getall("command", []))
    try:
        result = await run(ExecRequest(namespace, pod, query.get("container", ""), command, stdin))
    except NoKubeletError as error:
        return await _end(socket, _failure(str(error), "InternalError"))
    for channel, output in ((STDOUT, result.stdout), (STDERR, result.stderr)):
        for start in range(0, len(output), OUTPUT_PIECE):
            await socket.send_bytes(bytes([channel]) + output[start : start + OUTPUT_PIECE])
    return await _end(socket, _outcome(result.status))


async def _stdin(socket: web.WebSocketResponse) -> bytes:
    """Read standard input until the client closes it, which takes version 5 of the protocol."""
    read = bytearray()
    async for message in socket:
        if message.type is not WSMsgType.BINARY or message.data[0] == CLOSE:
            break
        read += message.data[1:]
    return bytes(read)


async def _end(socket: web.WebSocketResponse, status: Mapping[str, Any]) -> web.WebSocketResponse:
    await socket.send_bytes(bytes([ERROR]) + msgspec.json.encode(status))
    await asyncio.sleep(0)
    await socket.close()
    return socket


def _outcome(status: int) -> dict[str, Any]:
    if status == 0:
        return {"metadata": {}, "status": "Success"}
    message = f"command terminated with non-zero exit code: exit status {status}"
    causes = [{"reason": "ExitCode", "message": str(status)}]
    return _failure(message, "NonZeroExitCode") | {"details": {"causes": causes}}


def _failure(message: str, reason: str) -> dict[str, Any]:
    return {"metadata": {}, "status": "Failure", "message": message, "reason": reason}
