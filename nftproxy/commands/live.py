"""Asking the agent of this node, over its socket (agent/control.py).

Whoever asks does so in an incident, so nothing here waits for long: an agent that has died, that hangs, or whom we may
not ask is named at once, with its process where that is known, and what to do about it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode

import click
import msgspec

from nftproxy.agent.answers import AgentState, End, Line, NodeFacts, Row
from nftproxy.commands.options import options
from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.packets import Plan
from nftproxy.kernel.agent_lock import holder
from nftproxy.kernel.unix_sockets import peer
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, NftproxyError, Problem
from nftproxy.model.settings import AGENT_SOCKET

T = TypeVar("T")

PATIENCE = 3.0
"""Seconds to wait for the agent's next bytes: it has the first ready after some milliseconds."""

LIVE = options(
    click.option(
        "--agent-socket", default=AGENT_SOCKET, show_default=True, help="Where the agent answers.", metavar="PATH"
    ),
    click.option(
        "--timeout", type=click.FloatRange(0.01), default=PATIENCE, show_default=True, help="Seconds to wait for it."
    ),
)
"""The options of every command that asks the agent."""


class NoAnswer(NftproxyError):
    """The agent can't be asked; `process` is its number, 0 if it isn't known, and `advice` what to do."""

    code = Code.AGENT_SILENT

    def __init__(self, what: str, advice: str, process: int = 0) -> None:
        super().__init__(f"{what}\n  {advice}")
        self.what = what
        self.advice = advice
        self.process = process


class Agent(NamedTuple):
    """Where to ask, and how long to wait."""

    path: str = AGENT_SOCKET
    patience: float = PATIENCE

    def state(self) -> AgentState:
        """How it is.

        Raises:
            NoAnswer: it can't be asked.
        """
        return self._whole(AgentState, "/v1/status")

    def node_facts(self) -> NodeFacts:
        """What the rules of its node depend on beside Services and EndpointSlices.

        Raises:
            NoAnswer: it can't be asked.
        """
        return self._whole(NodeFacts, "/v1/node")

    def explain(self, to: str, source: str) -> Explanation:
        """What becomes of a connection, with what the kernel holds.

        Raises:
            NoAnswer: it can't be asked.
            BadInput: the question can't be read.
        """
        return self._whole(Explanation, "/v1/explain", {"to": to, "from": source})

    def plan(self, to: str, source: str) -> Plan:
        """The packets that show what becomes of a connection.

        Raises:
            NoAnswer: it can't be asked.
            BadInput: the question can't be read.
        """
        return self._whole(Plan, "/v1/packets", {"to": to, "from": source})

    def rows(self, what: str, **query: str) -> Iterator[Row | End]:
        """A listing, as it comes; the last is the `End`.

        Raises:
            NoAnswer: it can't be asked, or stops in the middle.
            BadInput: it can't be asked that.
        """
        decoder = msgspec.json.Decoder(Line)
        for line in self.ask(f"/v1/{what}", query):
            yield decoder.decode(line)

    def _whole(self, kind: type[T], path: str, query: Mapping[str, str] | None = None) -> T:
        """An answer that is one value."""
        return msgspec.json.decode(b"".join(self.ask(path, query)), type=kind)

    def ask(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """The lines of an answer.

        Raises:
            NoAnswer: it can't be asked, or stops in the middle.
            BadInput: it can't be asked that.
        """
        given = {name: text for name, text in (query or {}).items() if text}
        with contextlib.closing(_Connection(self.path, self.patience)) as connection, self._failures(connection):
            connection.request("GET", f"{path}?{urlencode(given)}" if given else path)
            response = connection.getresponse()
            if response.status != 200:
                raise self._error(response.status, response.read().decode(errors="replace"), connection.process)
            yield from response

    @contextlib.contextmanager
    def _failures(self, connection: _Connection) -> Iterator[None]:
        """Raise NoAnswer for whatever a connection fails by."""
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
        """What an answer means that isn't what was asked for."""
        if status == 403:
            return self._denial(why)
        if status == 400:
            return BadInput([Problem("", "", "", why, Code.SELECTION_UNREADABLE)])
        what = f"the agent{_number(process)} can't answer: {why}"
        return NoAnswer(what, "is it of the same version as this command?", process)

    def _denial(self, why: str) -> NoAnswer:
        what = f"user {os.geteuid()} may not ask the agent at {self.path}: {why}"
        return NoAnswer(what, "run this as root, or as the agent's own user (in a pod: kubectl exec)")

    def _silence(self, process: int) -> NoAnswer:
        running = holder() if not process else None
        process = process or (running.process if running else 0)
        state = _state_of(process)
        what = f"the agent at {self.path}{_number(process)} doesn't answer within {self.patience:g} s"
        if state in ("T", "t"):
            return NoAnswer(f"{what}: it is stopped", f"let it go on: kill -CONT {process}", process)
        return NoAnswer(
            what,
            "the rules stay in force and follow no changes; see its log, and whether /livez on port 10256 answers; "
            "after a restart it loads its rules anew, which disturbs no connection",
            process,
        )

    def _absence(self, error: OSError) -> NoAnswer:
        """No agent listens: either none runs, or one without this socket."""
        running = holder()
        why = "there is no socket" if isinstance(error, FileNotFoundError | NotADirectoryError) else "nobody listens"
        what = f"no agent answers at {self.path}: {why}"
        if running is None:
            advice = "no nftproxy runs in this network namespace: start it; until then the rules stay as they are"
            elsewhere = "from another machine: kubectl exec -n kube-system ds/nftproxy -- nftproxy COMMAND"
            return NoAnswer(what, f"{advice} ({elsewhere})")
        return NoAnswer(
            f"{what}, but an agent runs{_number(running.process)}",
            "it has another socket (nftproxy.agentSocket; pass it by --agent-socket), or its log says why it has none",
            running.process,
        )


def _number(process: int) -> str:
    return f" (process {process})" if process else ""


def _state_of(process: int) -> str:
    """A process's state as the kernel names it: T if it is stopped; "" if that can't be seen."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, patience: float) -> None:
        super().__init__("agent", timeout=patience)
        self._path = path
        self.process = 0

    def connect(self) -> None:
        """Connect, and see who listens."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(float(self.timeout or 0)))
        try:
            self.sock.connect(self._path)
        except BlockingIOError as error:
            raise TimeoutError("as many wait as may") from error
        self.sock.settimeout(self.timeout)
        self.process = peer(self.sock).process


def _timeval(seconds: float) -> bytes:
    """A struct timeval: how long connecting to a socket may wait whose queue is full (unix(7))."""
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
