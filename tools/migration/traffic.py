"""Clients that connect all the time, and others that keep their connections; each try is noted with its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from nftproxy.lab import RealHost
from nftproxy.lab.echo import Conversation

PATIENCE = 5.0  # seconds for a connection and for an answer: a SYN is sent again after 1 and 3
LATE = 0.9  # seconds: who took longer has sent its first packet again, unless the machine was that busy
PAUSE = 0.002  # seconds between two tries of one client: traffic is not to be what keeps the machine busy


class Front(NamedTuple):
    """Who connects to what."""

    name: str
    client: RealHost
    address: str
    port: int
    protocol: str


class Try(NamedTuple):
    """A question over a connection, new or kept: when it began, how long it took, and why it has failed ("" if not)."""

    began: float
    seconds: float
    is_new: bool
    fault: str


class Client:
    """One thread's questions at a front: by turns over a new connection, and over one of those that it keeps.

    Args:
        front: whom it asks.
        kept: how many connections it opens at the start and keeps; of those that fail it lets go.
    """

    def __init__(self, front: Front, kept: int) -> None:
        self.front = front
        self.tries: list[Try] = []
        self._stop = threading.Event()
        self._kept = [self._open() for _ in range(kept)]
        self._thread = threading.Thread(target=self._run, name=front.name, daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more, and hang up."""
        self._stop.set()
        self._thread.join()
        for conversation in self._kept:
            conversation.close()

    def _open(self) -> Conversation:
        front = self.front
        return front.client.talk(front.address, front.port, front.protocol, timeout=PATIENCE)

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            self._ask_anew()
            if self._kept:
                self._ask_again()

    def _ask_anew(self) -> None:
        began, fault = time.monotonic(), ""
        try:
            with self._open() as conversation:
                conversation.ask()
        except OSError as error:
            fault = type(error).__name__
        self.tries.append(Try(began, time.monotonic() - began, is_new=True, fault=fault))

    def _ask_again(self) -> None:
        conversation, began, fault = self._kept.pop(0), time.monotonic(), ""
        try:
            conversation.ask()
            self._kept.append(conversation)
        except OSError as error:
            fault = type(error).__name__
            conversation.close()
        self.tries.append(Try(began, time.monotonic() - began, is_new=False, fault=fault))


class Traffic:
    """Clients at several fronts, while it is entered."""

    def __init__(self, fronts: Sequence[Front], kept: int) -> None:
        self.clients = [Client(front, kept) for front in fronts]

    def __enter__(self) -> Self:
        for client in self.clients:
            client.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.stop()

    def await_tries(self, number: int) -> None:
        """Wait until each client has made so many more tries."""
        wanted = [len(client.tries) + number for client in self.clients]
        while any(len(client.tries) < least for client, least in zip(self.clients, wanted, strict=True)):
            time.sleep(0.01)
