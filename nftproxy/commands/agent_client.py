"""A client of the agent on this node, over the agent's socket (agent/socket/agent_socket.py).

People use it during incidents, so nothing here waits for long.  If the agent has died, hangs or denies access, the
error says so at once, with the agent's process if that is known, and with a remedy.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode

import click
import msgspec

from nftproxy.agent.socket.answers import NAMESPACE, End, Line, ListingRow
from nftproxy.commands.options import options
from nftproxy.commands.output import age
from nftproxy.kernel.agent_lock import LockHolder, holder
from nftproxy.kernel.cgroups import cpu_limit
from nftproxy.kernel.killed import last_killed
from nftproxy.kernel.unix_sockets import network_namespace, peer
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, NftproxyError, Problem, Unavailable
from nftproxy.model.settings import AGENT_SOCKET

T = TypeVar("T")

SAME_VERSION = "check that agent and command have the same version"
"""The remedy if command and agent don't understand each other."""
PATIENCE = 3.0
"""Seconds to wait for the agent's next bytes: the first are ready after some milliseconds."""

LIVE = options(
    click.option("--agent-socket", default=AGENT_SOCKET, show_default=True, help="The agent's socket.", metavar="PATH"),
    click.option(
        "--timeout",
        type=click.FloatRange(0.01),
        default=PATIENCE,
        show_default=True,
        help="Seconds to wait for the agent.",
    ),
)
"""The options of every command that asks the agent."""


class NoAnswer(NftproxyError):
    """The agent gives no answer.  `process` is its number (0 if unknown), `advice` is the remedy."""

    code = Code.AGENT_SILENT

    def __init__(self, what: str, advice: str, process: int = 0) -> None:
        super().__init__(f"{what}\n  {advice}")
        self.what = what
        self.advice = advice
        self.process = process


class NotReady(NoAnswer):
    """The agent doesn't know the cluster yet."""

    code = Code.WAITING_FOR_LISTING


class NoAnswerInTime(NoAnswer):
    """The agent hangs, or is stopped."""


class ElsewhereAgent(NoAnswer):
    """The agent works in another network namespace, so its kernel's rules aren't this one's."""

    code = Code.NODE_ELSEWHERE


ELSEWHERE = (
    "its answers are about that namespace's kernel; on a node the agent needs hostNetwork: true, and commands run in "
    "the node's own namespace"
)


class AgentClient(NamedTuple):
    """The agent's socket, and the seconds to wait for an answer."""

    path: str = AGENT_SOCKET
    patience: float = PATIENCE
    only_here: bool = False
    """Whether an agent of another network namespace counts as no answer."""

    def get(self, kind: type[T], path: str, **query: str) -> T:
        """Return an answer that is a single value.  Raises the errors of `lines`."""
        return self._decoded(msgspec.json.Decoder(kind), b"".join(self.lines(path, query)))

    def listing(self, what: str, **query: str) -> tuple[list[ListingRow], End]:
        """Return the rows of a listing, and its `End`.  Raises the errors of `lines`."""
        decoder, rows, end = msgspec.json.Decoder(Line), list[ListingRow](), End()
        for line in self.lines(f"/v1/{what}", query):
            match self._decoded(decoder, line):
                case End() as end:
                    pass
                case row:
                    rows.append(row)
        return rows, end

    def _decoded(self, decoder: msgspec.json.Decoder[T], text: bytes) -> T:
        try:
            return decoder.decode(text)
        except msgspec.DecodeError as error:
            raise NoAnswer(f"the answer of the agent at {self.path} can't be read: {error}", SAME_VERSION) from error

    def lines(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the lines of an answer.

        Raises:
            NoAnswer: the agent doesn't answer, or stops in the middle.
            BadInput: the query can't be read.
        """
        given = {name: text for name, text in query.items() if text}
        with contextlib.closing(_AgentConnection(self.path, self.patience)) as connection, self._failures(connection):
            connection.request("GET", f"{path}?{urlencode(given)}" if given else path)
            response = connection.getresponse()
            if response.status != 200:
                raise self._error(response.status, response.read().decode(errors="replace"), connection.process)
            self._compare_namespaces(response.getheader(NAMESPACE) or "")
            yield from io.BufferedReader(response)  # an HTTPResponse itself takes a broken-off answer for complete

    def _compare_namespaces(self, agents: str) -> None:
        """Say so if the agent works in another network namespace than this command."""
        own = network_namespace()
        if not (agents and own) or agents == own:
            return
        what = f"the agent at {self.path} works in another network namespace ({agents}) than this command ({own})"
        if self.only_here:
            raise ElsewhereAgent(what, ELSEWHERE)
        click.echo(f"caveat: {Code.NODE_ELSEWHERE}: {what}: {ELSEWHERE}", err=True)

    @contextlib.contextmanager
    def _failures(self, connection: _AgentConnection) -> Iterator[None]:
        """Raise NoAnswer for any failure of a connection."""
        try:
            yield
        except TimeoutError as error:
            raise self._silence(connection.process) from error
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
            raise self._absence(error) from error
        except PermissionError as error:
            raise self._denial(error.strerror or "") from error
        except (OSError, http.client.HTTPException) as error:
            what = f"the agent at {self.path}{_number(connection.process)} has ended the connection: {error}"
            raise NoAnswer(what, "see its log, and ask again", connection.process) from error

    def _error(self, status: int, why: str, process: int) -> NoAnswer | BadInput:
        """The error for an answer with a status other than 200."""
        if status == 403:
            return self._denial(why)
        if status == 400:
            return BadInput(Problem("", "", "", why, Code.SELECTION_UNREADABLE))
        reason, _, advice = why.partition("\n")
        what = f"the agent{_number(process)} can't answer: {reason}"
        if advice:
            return NotReady(what, advice, process)
        return NoAnswer(what, SAME_VERSION, process)

    def _denial(self, why: str) -> NoAnswer:
        what = f"user {os.geteuid()} may not ask the agent at {self.path}: {why}"
        return NoAnswer(what, "run this as root, or as the agent's own user (in a pod: kubectl exec)")

    def _silence(self, process: int) -> NoAnswerInTime:
        running = _holder() if not process else None
        process = process or (running.process if running else 0)
        state = _state_of(process)
        what = f"the agent at {self.path}{_number(process)} doesn't answer within {self.patience:g} s"
        if state in ("T", "t"):
            return NoAnswerInTime(f"{what}: it is stopped", f"let it go on: kill -CONT {process}", process)
        return NoAnswerInTime(
            what + _cpu_limit(process),
            "the rules stay in force and follow no changes; see its log, and whether /livez on port 10256 answers; "
            "after a restart it reloads its rules, which disturbs no connection",
            process,
        )

    def _absence(self, error: OSError) -> NoAnswer:
        """The error where no agent listens: none runs, or the running agent has another socket."""
        running = _holder()
        why = (
            "there is no socket" if isinstance(error, FileNotFoundError | NotADirectoryError) else "no process listens"
        )
        what = f"no agent answers at {self.path}: {why}"
        if running is None:
            advice = "no nftproxy runs in this network namespace: start it; until then the rules stay as they are"
            elsewhere = "from another machine: kubectl nftproxy COMMAND"
            return NoAnswer(what + _last_killed(), f"{advice} ({elsewhere})")
        return NoAnswer(
            f"{what}, but an agent runs{_number(running.process)}",
            "it has another socket (nftproxy.agentSocket; pass it by --agent-socket), or its log says why it has none",
            running.process,
        )


def _holder() -> LockHolder | None:
    """The holder of the agents' lock, None also if this user may not read it."""
    try:
        return holder()
    except Unavailable:
        return None


def _number(process: int) -> str:
    return f" (process {process})" if process else ""


def _state_of(process: int) -> str:
    """A process's state as the kernel names it: T if it is stopped, "" if unknown."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _cpu_limit(process: int) -> str:
    """Say that a CPU limit stops a process, if it has one."""
    limit = cpu_limit(process) if process else None
    if limit is None or not limit.stopped:
        return ""
    times = f"{limit.stopped} of {limit.periods} periods"
    return f": its cgroup allows it {limit.cpus:g} CPUs, and has stopped it in {times} ({Code.CPU_LIMITED})"


def _last_killed() -> str:
    """Say that the kernel has killed an agent for want of memory, if its log says so."""
    killed = last_killed()
    if killed is None:
        return ""
    limit = "beyond the memory limit of its cgroup" if killed.by_cgroup else "as the machine had no memory left"
    whose = f"process {killed.process}{f' of the cgroup {killed.cgroup}' if killed.cgroup else ''}"
    return f"; {age(killed.age)} ago the kernel killed an agent ({whose}), {limit}"


class _AgentConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, patience: float) -> None:
        super().__init__("agent", timeout=patience)
        self._path = path
        self.process = 0

    def connect(self) -> None:
        """Connect, and note the listener's process."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(float(self.timeout or 0)))
        try:
            self.sock.connect(self._path)
        except BlockingIOError as error:
            raise TimeoutError("the agent's backlog is full") from error
        self.sock.settimeout(self.timeout)
        self.process = peer(self.sock).process


def _timeval(seconds: float) -> bytes:
    """A struct timeval for SO_SNDTIMEO, which limits connecting while the listener's backlog is full (unix(7))."""
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
