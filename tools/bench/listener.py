"""Hears every commit in a network namespace, with the time at which a program could know of it.

The kernel notifies the group NFNLGRP_NFTABLES of everything that a commit has done, and last of the new generation
(nf_tables_commit in net/netfilter/nf_tables_api.c).  A listener costs it the writing of these messages, so while
everything is loaded none should be there.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from types import TracebackType
from typing import NamedTuple, Self

from nftproxy.lab import Namespace

NETLINK_NETFILTER, NFNLGRP_NFTABLES = 12, 7  # linux/netlink.h, linux/netfilter/nfnetlink.h
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP = 270, 1  # linux/netlink.h
SO_RCVBUFFORCE = 33
NEW_RULE, DELETE_RULE, NEW_ELEMENT, DELETE_ELEMENT, NEW_GENERATION = 6, 8, 12, 14, 15  # linux/netfilter/nf_tables.h
BUFFER = 256 << 20  # bytes: more than the messages about the burst
HEADER = struct.Struct("=IHHII")


class Commit(NamedTuple):
    """One commit: when it was heard of, by the monotonic clock, and the messages about it."""

    time: float
    elements: int
    rules: int
    given: bytes


class Listener:
    """Listens until it is closed.

    Args:
        namespace: where.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._socket = namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        self._socket.bind((0, 0))  # what has no number of its own gets no message
        self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES)
        self._socket.settimeout(0.2)  # to see that it is to end
        self._commits: deque[Commit] = deque()
        self._heard = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="commits", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more."""
        self._is_closed = True
        self._thread.join()
        self._socket.close()

    def take(self) -> list[Commit]:
        """All commits that were heard and not asked for yet."""
        with self._heard:
            taken = list(self._commits)
            self._commits.clear()
        return taken

    def wait(self, needles: tuple[bytes, ...] = (), timeout: float = 60.0) -> list[Commit]:
        """Wait for a commit whose messages have all these bytes.

        Returns:
            It, after those that were heard before it and not asked for yet.

        Raises:
            TimeoutError: there is none in so many seconds.
        """
        passed: list[Commit] = []
        deadline = time.monotonic() + timeout
        with self._heard:
            while True:
                while self._commits:
                    passed.append(self._commits.popleft())
                    if all(needle in passed[-1].given for needle in needles):
                        return passed
                if not self._heard.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"no such commit within {timeout} s, of {len(passed)}")

    def _listen(self) -> None:
        given: list[bytes] = []
        while not self._is_closed:
            try:
                data = self._socket.recv(1 << 17)
            except TimeoutError:
                continue
            now = time.monotonic()
            given.append(data)
            if _ends_commit(data):
                commit = _commit(now, b"".join(given))
                given.clear()
                with self._heard:
                    self._commits.append(commit)
                    self._heard.notify_all()


def _ends_commit(data: bytes) -> bool:
    return any(kind == NEW_GENERATION for kind in _kinds(data))


def _commit(now: float, given: bytes) -> Commit:
    kinds = list(_kinds(given))
    elements, rules = ((NEW_ELEMENT, DELETE_ELEMENT), (NEW_RULE, DELETE_RULE))
    return Commit(now, sum(kind in elements for kind in kinds), sum(kind in rules for kind in kinds), given)


def _kinds(data: bytes) -> list[int]:
    kinds = []
    start = 0
    while start < len(data):
        length, kind, *_ = HEADER.unpack_from(data, start)
        kinds.append(kind & 0xFF)
        start += (length + 3) & ~3
    return kinds
