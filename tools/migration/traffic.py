"""Clients that connect all the time and keep other connections.  Each try is noted with its time."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple, Protocol

from nftproxy_conformance.lab import RealHost
from nftproxy_conformance.lab.echo import Conversation

from tests.support.background import repeating

PATIENCE = 5.0  # seconds for a connection and for an answer: a SYN is sent again after 1 and 3
LATE = 0.9  # seconds: a client that took longer has sent its first packet again, unless the machine was that busy
PAUSE = 0.002  # seconds between two tries of one client: traffic itself must not keep the machine busy


class Front(NamedTuple):
    """A client, and the place that it connects to."""

    name: str
    client: RealHost
    address: str
    port: int
    protocol: str

    def talk(self) -> Conversation:
        """Open a connection."""
        return self.client.talk(self.address, self.port, self.protocol, timeout=PATIENCE)


class Try(NamedTuple):
    """A question over a connection, new or kept: when it began, how long it took, and why it has failed ("" if not)."""

    began: float
    seconds: float
    is_new: bool
    fault: str


class Talk(Protocol):
    """A connection to a server that answers questions.  All methods raise OSError, as any client."""

    def ask(self) -> object:
        """Ask, and wait for the answer."""

    def close(self) -> None:
        """Hang up."""


class Talker(Protocol):
    """A client, and the place that it connects to."""

    def talk(self) -> Talk:
        """Open a connection."""


class Client:
    """Asks at a front, by turns over a new connection and over a kept connection.

    Args:
        front: where it asks.
        kept: how many connections it opens at the start and keeps.  It closes failed connections.
    """

    def __init__(self, front: Talker, kept: int) -> None:
        self.tries: list[Try] = []
        self.thread: threading.Thread | None = None
        """The thread that asks, if any."""
        self._front = front
        self._kept = [front.talk() for _ in range(kept)]

    def ask(self) -> None:
        """Ask over a new connection, and over a kept connection, if any is left."""
        self._try(self._ask_anew, is_new=True)
        if self._kept:
            self._try(self._ask_again, is_new=False)

    def _ask_anew(self) -> None:
        with closing(self._front.talk()) as conversation:
            conversation.ask()

    def _ask_again(self) -> None:
        conversation = self._kept.pop(0)
        try:
            conversation.ask()
        except OSError:
            conversation.close()
            raise
        self._kept.append(conversation)

    def _try(self, question: Callable[[], object], *, is_new: bool) -> None:
        began, fault = time.monotonic(), ""
        try:
            question()
        except OSError as error:
            fault = errno.errorcode.get(error.errno or 0, type(error).__name__)
        self.tries.append(Try(began, time.monotonic() - began, is_new, fault))

    def close(self) -> None:
        """Close the kept connections."""
        for conversation in self._kept:
            conversation.close()


@contextmanager
def asking(fronts: Sequence[Talker], kept: int) -> Iterator[list[Client]]:
    """Clients that send questions to these fronts all the time."""
    clients = [Client(front, kept) for front in fronts]
    with ExitStack() as stack:
        for client in clients:
            stack.callback(client.close)
            client.thread = stack.enter_context(repeating(client.ask, PAUSE))
        yield clients


def await_tries(clients: Sequence[Client], number: int) -> None:
    """Wait until each client has made `number` more tries.

    Raises:
        RuntimeError: a client's thread has ended, by an error that `asking` raises at its end.
    """
    wanted = [len(client.tries) + number for client in clients]
    while any(len(client.tries) < least for client, least in zip(clients, wanted, strict=True)):
        if not all(client.thread and client.thread.is_alive() for client in clients):
            raise RuntimeError("a client has ended")
        time.sleep(0.01)
