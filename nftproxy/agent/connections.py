"""How many connections the HTTP servers keep: bounded for a client, for a listener, and for the process.

Anyone who reaches a health port may open connections to it and send nothing.  If there are too many, each new one
closes an old one: the oldest of the client that has most.  So a client that opens many closes its own, and an
occasional probe always gets an answer.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable, Hashable
from typing import NamedTuple

Handler = Hashable


class Limits(NamedTuple):
    """The most connections of a client to a listener, of a listener, and of all; and the most listeners."""

    of_a_client: int
    of_a_listener: int
    connections: int
    listeners: int


MOST = Limits(16, 128, 1024, 16_384)
"""More than probes and scrapes need: these take one connection each, for some milliseconds."""


def affordable(files: int) -> Limits:
    """The limits with so many file descriptors: a sixteenth of them for connections, an eighth for listeners.

    Of the rest, forwarding at localhost may take three quarters of all (forwarder.py); what remains is for the kernel
    and the API.
    """
    connections = max(1, min(MOST.connections, files // 16))
    per_listener = min(MOST.of_a_listener, connections)
    return Limits(min(MOST.of_a_client, per_listener), per_listener, connections, min(MOST.listeners, files // 8))


class _Open(NamedTuple):
    listener: Hashable
    client: str
    transport: asyncio.WriteTransport


class Connections:
    """The connections of all listeners, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: dict[Handler, _Open] = {}
        self._listeners = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._open)

    def take_listener(self) -> None:
        """One listener more; it is to be given back in any case.

        Raises:
            OSError: there are too many.
        """
        self._listeners += 1
        if self._listeners > self.limits.listeners:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def give_listener_back(self) -> None:
        """One less, whether or not it could be taken."""
        self._listeners -= 1

    def made(self, handler: Handler, listener: Hashable, transport: asyncio.WriteTransport) -> None:
        """One has come; too many of them lead to the end of an older one."""
        peer = transport.get_extra_info("peername")
        made = _Open(listener, peer[0] if peer else "", transport)
        self._open[handler] = made
        self._bound(self.limits.of_a_client, lambda each: each[:2] == made[:2])
        self._bound(self.limits.of_a_listener, lambda each: each.listener == listener)
        self._bound(self.limits.connections, lambda _: True)

    def lost(self, handler: Handler) -> None:
        """One has gone."""
        self._open.pop(handler, None)

    def _bound(self, most: int, belongs: Callable[[_Open], bool]) -> None:
        """Of those that belong together keep so many: the oldest of the client that has most goes."""
        found = {handler: each for handler, each in self._open.items() if belongs(each)}
        if len(found) > most:
            ((client, _),) = Counter(each.client for each in found.values()).most_common(1)
            oldest = next(handler for handler, each in found.items() if each.client == client)
            self._open.pop(oldest).transport.abort()
