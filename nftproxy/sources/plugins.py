"""Credentials from a program, as a kubeconfig's exec section names it (client.authentication.k8s.io, KEP-541).

The program is somebody else's, so it may hang, start others that do, write without end, or fail each time.  It has a
bounded time, and is killed then with its whole process group; what it writes is bounded; after it has failed it is not
run again for a while.  What it says is kept, for all connections, until it expires or the API denies it.  Nothing of it
is written to a file.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import logging
import os
import signal
from typing import Any, Literal, NamedTuple

import msgspec

from nftproxy.api.decode import show

log = logging.getLogger(__name__)

LARGEST_OUTPUT = 1024 * 1024
"""Bytes that a program may write, of each sort: tokens have a few kilobytes, certificates some more."""

EARLY = 10.0
"""Seconds before they expire from which credentials are asked for again."""

_REAPING = 0.5
"""Seconds in which a process that was killed is gone, unless it hangs in the kernel; nobody waits for that."""


class Variable(msgspec.Struct, frozen=True):
    """A variable of the program's environment."""

    name: str
    value: str


class Plugin(msgspec.Struct, frozen=True, rename="camel"):
    """A user's exec section (client-go, tools/clientcmd/api/v1 ExecConfig)."""

    command: str
    api_version: Literal["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"]
    args: tuple[str, ...] | None = None
    env: tuple[Variable, ...] | None = None
    provide_cluster_info: bool = False
    interactive_mode: Literal["Never", "IfAvailable"] = "IfAvailable"


class Given(NamedTuple):
    """What a program has given: a token, or a certificate with its key (PEM), or both.

    `expires` is in seconds since the epoch, infinite if nothing was said.
    """

    token: str
    certificate: bytes
    key: bytes
    expires: float


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: Literal["ExecCredential"]
    status: _Status


class Plugins:
    """Runs the program when its credentials are needed: once for all who ask at the same time.

    Args:
        longest: seconds that it may take.
        again: seconds after a run before the next one, unless what it gave is denied.
    """

    def __init__(self, longest: float, again: float) -> None:
        self._longest = longest
        self._again = again
        self._for: tuple[Plugin, str] | None = None
        self._running: asyncio.Task[Given] | None = None
        self._ended = 0.0

    async def ask(self, plugin: Plugin, server: str, authority: bytes) -> Given:
        """What the program gives, or gave if that is good still.

        Args:
            plugin: which program.
            server: the URL of the API server, for a program that wants to know.
            authority: and its certificate authority, PEM.

        Raises:
            ConnectionError: it fails, or failed a short while ago, or took too long.
        """
        if self._for != (plugin, server) or self._is_over():
            self.forget()
            self._for = plugin, server
            self._running = asyncio.create_task(self._run(plugin, exec_info(plugin, server, authority)))
        assert self._running is not None
        return await asyncio.shield(self._running)

    def gave(self, token: str, certificate: bytes) -> bool:
        """Whether these are the credentials that the program gave last."""
        if self._running is None or not self._running.done() or self._running.cancelled() or self._running.exception():
            return False
        return self._running.result()[:2] == (token, certificate)

    def forget(self) -> None:
        """Run the program again when it is needed next: what it gave was denied."""
        if self._running and not self._running.done():
            self._running.cancel()
        self._for = None

    def _is_over(self) -> bool:
        """Whether what the program gave last has expired, or its failure is long ago."""
        if self._running is None or not self._running.done():
            return self._running is None
        if asyncio.get_running_loop().time() - self._ended < self._again:
            return False
        has_failed = self._running.cancelled() or self._running.exception() is not None
        return has_failed or _now() >= self._running.result().expires - EARLY

    async def _run(self, plugin: Plugin, info: bytes) -> Given:
        name = show(plugin.command)
        try:
            given = read_credential(await run(plugin, info, self._longest), plugin)
        except (OSError, ValueError) as error:  # ValueError: NUL in an argument
            raise ConnectionError(f"the credential plugin {name} failed: {error}") from error
        finally:
            self._ended = asyncio.get_running_loop().time()
        what = {"plugin": name, "lifetime": _lifetime(given)}
        log.info("the credential plugin %(plugin)s has given credentials for %(lifetime)s", what)
        return given


def _now() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


def _lifetime(given: Given) -> str:
    return "as long as they are taken" if given.expires == float("inf") else f"{given.expires - _now():.0f} s"


def exec_info(plugin: Plugin, server: str, authority: bytes) -> bytes:
    """What the program is to know, as JSON (KUBERNETES_EXEC_INFO)."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        data = base64.b64encode(authority).decode()
        spec["cluster"] = {"server": server} | ({"certificate-authority-data": data} if data else {})
    return msgspec.json.encode({"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec})


def read_credential(output: bytes, plugin: Plugin) -> Given:
    """What the program's output says.

    Raises:
        ConnectionError: it is no ExecCredential of the version that was asked for, or there is nothing in it.
    """
    try:
        found = msgspec.json.decode(output, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ConnectionError(f"its output is no ExecCredential: {error}") from error
    status = found.status
    if found.api_version != plugin.api_version:
        raise ConnectionError(f"it gives {show(found.api_version)}, and {plugin.api_version} is configured")
    if not status.token and not (status.client_certificate_data and status.client_key_data):
        raise ConnectionError("it gives neither a token nor a certificate with its key")
    expires = status.expiration_timestamp
    return Given(
        (status.token or "").strip(),
        (status.client_certificate_data or "").encode(),
        (status.client_key_data or "").encode(),
        expires.astimezone(datetime.UTC).timestamp() if expires else float("inf"),
    )


_leaders: set[int] = set()
"""The leaders of the process groups that run now."""


def kill_all() -> None:
    """Kill every program that runs, with its children: for a process that ends at once.  From any thread."""
    for leader in tuple(_leaders):
        _kill_group(leader)


async def run(plugin: Plugin, info: bytes, seconds: float) -> bytes:
    """Run the program in a process group of its own; its output.

    Whatever becomes of it, nothing of the group is left when this ends, except what hangs in the kernel.

    Raises:
        ConnectionError: it fails, or takes longer than these seconds.
        OSError: it can't be started.
        ValueError: an argument can't be one.
    """
    environment = os.environ | {each.name: each.value for each in plugin.env or ()}
    async with contextlib.AsyncExitStack() as stack:
        output, errors = (stack.enter_context(_Pipe()) for _ in range(2))
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *(plugin.args or ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output.writing,
            stderr=errors.writing,
            env=environment | {"KUBERNETES_EXEC_INFO": info.decode()},
            start_new_session=True,
        )
        _leaders.add(process.pid)
        stack.push_async_callback(_kill, process)
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                writing = [group.create_task(pipe.read()) for pipe in (output, errors)]
                ending = group.create_task(_end(process))
        except TimeoutError as error:
            raise ConnectionError(f"it took longer than {seconds:.0f} s, and was killed with its children") from error
        except ExceptionGroup as group_of_errors:
            raise group_of_errors.exceptions[0] from None
    written, said = (each.result() for each in writing)
    if ending.result():
        last = f": {show(said[-200:].decode(errors='replace').strip())}" if said else ""
        raise ConnectionError(f"it ended with status {ending.result()}{last}")
    return written


class _Pipe:
    """A pipe from a program, of which no more is read than its bound."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe2(os.O_CLOEXEC)

    def __enter__(self) -> _Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_writing()
        os.close(self._reading)

    def _close_writing(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    async def read(self) -> bytes:
        """All that is written, until nobody has the pipe open."""
        self._close_writing()
        found = bytearray()
        while data := await self._some():
            found += data
            if len(found) > LARGEST_OUTPUT:
                raise ConnectionError(f"it wrote more than {LARGEST_OUTPUT} bytes, and was killed with its children")
        return bytes(found)

    async def _some(self) -> bytes:
        readable = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._reading, readable.set)
        try:
            await readable.wait()
        finally:
            asyncio.get_running_loop().remove_reader(self._reading)
        return os.read(self._reading, 65536)


async def _end(process: asyncio.subprocess.Process) -> int:
    """Wait until the program ends, and end what it has left in its group: that may hold its output open."""
    status = await process.wait()
    _kill_group(process.pid)
    return status


async def _kill(process: asyncio.subprocess.Process) -> None:
    _leaders.discard(process.pid)
    if process.returncode is not None:
        return
    _kill_group(process.pid)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _REAPING)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
