"""Credentials from a program, which a kubeconfig's exec section names (client.authentication.k8s.io, KEP-541).

The program isn't ours: it may hang, start other programs that hang, write without end, or fail each time.  So its time
is bounded, and then it is killed with its whole process group.  Its output is bounded.  After a failure it is not run
again for a while.  Its credentials are cached, for all connections, until they expire or the API denies them.  Nothing
of them is written to a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import signal
from collections.abc import Mapping
from typing import IO, Annotated, Literal, NamedTuple

import msgspec

from nftproxy.api.decode import show

log = logging.getLogger(__name__)

LARGEST_OUTPUT = 1024 * 1024
"""Bytes that a program may write to each stream: tokens have a few kilobytes, certificates some more."""

EARLY = 10.0
"""Seconds before they expire, from which credentials are renewed."""

_REAPING = 0.5
"""Seconds until a process that was killed is gone, unless it hangs in the kernel, which is not waited for."""


EXEC_EXTENSION = "client.authentication.k8s.io/exec"
"""The extension of a cluster in a kubeconfig that is for the program, as its `config`."""


class Variable(msgspec.Struct, frozen=True):
    """A variable of the program's environment."""

    name: str
    value: str = ""


class Plugin(msgspec.Struct, frozen=True, rename="camel"):
    """A user's exec section (client-go, tools/clientcmd/api/v1 ExecConfig)."""

    command: Annotated[str, msgspec.Meta(min_length=1)]
    api_version: Literal["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"]
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    provide_cluster_info: bool = False
    interactive_mode: Literal["", "Never", "IfAvailable"] = ""
    cluster: Mapping[str, object] = {}
    """The cluster as the program is to know it (client.authentication.k8s.io/v1 Cluster), {} if it doesn't ask."""


class PluginCredentials(NamedTuple):
    """The credentials that a program has printed: a token, or a certificate with its key (PEM), or both."""

    token: str
    certificate: bytes
    key: bytes
    expires: float  # seconds since the epoch, infinite without an expiration


class _CredentialStatus(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: Literal["ExecCredential"]
    status: _CredentialStatus


class PluginRunner:
    """Runs the program when its credentials are needed: once for all concurrent requests.

    Args:
        longest: the time limit of a run, in seconds.
        again: seconds from the end of a run to the next run, unless the credentials are denied.
    """

    def __init__(self, longest: float, again: float) -> None:
        self._longest = longest
        self._again = again
        self._for: Plugin | None = None
        self._running: asyncio.Task[PluginCredentials] | None = None
        self._ended = 0.0

    async def credentials(self, plugin: Plugin) -> PluginCredentials:
        """Return the program's credentials, from the cache if they are still valid.

        Raises:
            ConnectionError: the program fails, or failed a short while ago, or took too long, or was stopped because
                another program was configured, or another cluster for a program that asks for it.
        """
        if self._for != plugin or self._is_over():
            self.invalidate()
            self._for = plugin
            self._running = asyncio.create_task(self._run(plugin))
        running = self._running
        assert running is not None
        await asyncio.wait([running])  # unlike shield, this isn't cancelled with the run
        if running.cancelled():
            name = show(plugin.command)
            raise ConnectionError(f"the credential plugin {name} was stopped: its configuration changed")
        return running.result()

    def has_printed(self, token: str, certificate: bytes) -> bool:
        """Whether these are the program's last credentials."""
        if self._running is None or not self._running.done() or self._running.cancelled() or self._running.exception():
            return False
        return self._running.result()[:2] == (token, certificate)

    def invalidate(self) -> None:
        """Evict the credentials, which were denied.  The next request runs the program again."""
        if self._running and not self._running.done():
            self._running.cancel()
        self._for = None

    def _is_over(self) -> bool:
        """Whether the last credentials have expired, or the last failure is long ago."""
        if self._running is None or not self._running.done():
            return self._running is None
        if asyncio.get_running_loop().time() - self._ended < self._again:
            return False
        has_failed = self._running.cancelled() or self._running.exception() is not None
        return has_failed or _now() >= self._running.result().expires - EARLY

    async def _run(self, plugin: Plugin) -> PluginCredentials:
        name = show(plugin.command)
        try:
            given = read_credential(await run(plugin, self._longest), plugin)
        except (OSError, ValueError) as error:  # ValueError: NUL in an argument
            raise ConnectionError(f"the credential plugin {name} failed: {error}") from error
        finally:
            self._ended = asyncio.get_running_loop().time()
        what = {"plugin": name, "lifetime": _lifetime(given)}
        log.info("the credential plugin %(plugin)s returned credentials, valid %(lifetime)s", what)
        return given


def _now() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


def _lifetime(given: PluginCredentials) -> str:
    return "until the API denies them" if given.expires == float("inf") else f"for {given.expires - _now():.0f} s"


def exec_info(plugin: Plugin) -> bytes:
    """Return the program's input as JSON (KUBERNETES_EXEC_INFO)."""
    spec: dict[str, object] = {"interactive": False} | ({"cluster": plugin.cluster} if plugin.cluster else {})
    return msgspec.json.encode({"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec})


def read_credential(output: bytes, plugin: Plugin) -> PluginCredentials:
    """Parse the program's output.

    Raises:
        ConnectionError: it is no ExecCredential of the configured version, or has no credentials.
    """
    try:
        found = msgspec.json.decode(output, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ConnectionError(f"its output is not an ExecCredential: {error}") from error
    status = found.status
    if found.api_version != plugin.api_version:
        raise ConnectionError(f"it returned {show(found.api_version)}, and {plugin.api_version} is configured")
    if not status.token and not (status.client_certificate_data and status.client_key_data):
        raise ConnectionError("it returned neither a token nor a certificate with its key")
    expires = status.expiration_timestamp
    return PluginCredentials(
        (status.token or "").strip(),
        (status.client_certificate_data or "").encode(),
        (status.client_key_data or "").encode(),
        expires.astimezone(datetime.UTC).timestamp() if expires else float("inf"),
    )


_leaders: set[int] = set()
"""The leaders of the running process groups."""


def kill_all() -> None:
    """Kill all running programs with their children, for a process that ends at once.  Any thread may call it."""
    for leader in tuple(_leaders):
        _kill_group(leader)


async def run(plugin: Plugin, seconds: float) -> bytes:
    """Run the program in its own process group, and return its output.

    In any case, nothing of the group is left when this returns, except processes that hang in the kernel.

    Raises:
        ConnectionError: the program fails, or takes longer than these seconds.
        OSError: it can't be started.
        ValueError: an argument is invalid.
    """
    environment = os.environ | {each.name: each.value for each in plugin.env}
    async with contextlib.AsyncExitStack() as stack:
        output, errors = pipes = [
            [stack.enter_context(os.fdopen(end, mode, 0)) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)]
            for _ in range(2)
        ]
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output[1],
            stderr=errors[1],
            env=environment | {"KUBERNETES_EXEC_INFO": exec_info(plugin).decode()},
            start_new_session=True,
        )
        _leaders.add(process.pid)
        stack.push_async_callback(_kill, process)
        for _, writing in pipes:
            writing.close()
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                reads = [group.create_task(_read(reading)) for reading, _ in pipes]
                ending = group.create_task(_end(process))
        except TimeoutError as error:
            raise ConnectionError(f"it took longer than {seconds:.0f} s, and was killed with its children") from error
        except ExceptionGroup as group_of_errors:
            raise group_of_errors.exceptions[0] from None
    written, said = (each.result() for each in reads)
    if ending.result():
        last = f": {show(said[-200:].decode(errors='replace').strip())}" if said else ""
        raise ConnectionError(f"it ended with status {ending.result()}{last}")
    return written


async def _read(pipe: IO[bytes]) -> bytes:
    """Read what the program writes, until no process has the pipe open any more."""
    reader = asyncio.StreamReader()
    connected = asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    transport, _ = await connected
    try:
        await reader.readexactly(LARGEST_OUTPUT + 1)
    except asyncio.IncompleteReadError as error:
        return error.partial
    finally:
        transport.close()
    raise ConnectionError(f"it wrote more than {LARGEST_OUTPUT} bytes, and was killed with its children")


async def _end(process: asyncio.subprocess.Process) -> int:
    """Wait until the program ends, and kill the rest of its group, which may hold its output open."""
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
