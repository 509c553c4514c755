"""Receives every commit in a network namespace, with the time at which a program could know of it.

The kernel notifies the group NFNLGRP_NFTABLES of everything that a commit has done, and last of the new generation
(nf_tables_commit in net/netfilter/nf_tables_api.c).  It writes these messages only while somebody listens, so there
should be no listener while everything is loaded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple, Self

from nftproxy_conformance.lab import Namespace

from nftproxy.kernel.drift import GROUP
from nftproxy.kernel.nfnetlink.sockets import ADD_MEMBERSHIP, SOL_NETLINK, open_listener
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import messages_of

DELETE_RULE = 8  # linux/netfilter/nf_tables.h
BUFFER = 256 << 20  # bytes: more than the messages about the burst


class Commit(NamedTuple):
    """A commit: when its last message came, by the monotonic clock, the elements and rules in it, and its messages."""

    time: float
    elements: int
    rules: int
    given: bytes


class Listener:
    """Listens in a namespace while it is entered."""

    def __init__(self, namespace: Namespace) -> None:
        self._socket = namespace.call(open_listener, BUFFER)
        self._socket.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP)
        self._socket.settimeout(0.2)  # to see that it is to end
        self._commits: deque[Commit] = deque()
        self._heard = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="commits", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._thread.join()
        self._socket.close()

    def take(self) -> list[Commit]:
        """The commits that came since the last look."""
        with self._heard:
            taken = list(self._commits)
            self._commits.clear()
        return taken

    def wait(self, needles: tuple[bytes, ...] = (), timeout: float = 60.0) -> list[Commit]:
        """Wait for a commit whose messages have all these bytes.

        Returns:
            That commit, after the commits that came before it and since the last look.

        Raises:
            TimeoutError: there is none within `timeout` seconds.
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
        given, kinds = bytearray(), list[int]()
        while not self._is_closed:
            try:
                data = self._socket.recv(1 << 17)
            except TimeoutError:
                continue
            now = time.monotonic()
            given += data
            kinds += (arrived := [kind & 0xFF for kind, _ in messages_of(data)])
            if nft.NEW_GENERATION in arrived:
                elements = kinds.count(nft.NEW_ELEMENTS) + kinds.count(nft.DELETE_ELEMENTS)
                rules = kinds.count(nft.NEW_RULE) + kinds.count(DELETE_RULE)
                with self._heard:
                    self._commits.append(Commit(now, elements, rules, bytes(given)))
                    self._heard.notify_all()
                given.clear()
                kinds.clear()
