"""The kernel's notifications of every commit to the ruleset, whoever makes it.

The kernel sends a commit's messages, then the number of the generation that it made, to everyone who has joined a
multicast group (NFNLGRP_NFTABLES).  Two things of these are used: the number, and whether a message names our tables.

While somebody listens, the kernel makes messages of all elements before a commit is done: a set of 200,000 that was
emptied and filled in one transaction took 3 GB and 5 s more (6.18).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import NamedTuple

from nftproxy.kernel.netlink import (
    ADD_MEMBERSHIP,
    DROP_MEMBERSHIP,
    FAMILY_OF_NUMBER,
    GENERAL,
    HEADER,
    SOL_NETLINK,
    attributes_of,
    messages_of,
    open_listener,
)
from nftproxy.kernel.nftables_netlink import BUFFER_SIZE, SUBSYSTEM
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable

NEW_GENERATION = SUBSYSTEM << 8 | 15  # NFT_MSG_NEWGEN
GENERATION_ID, GENERATION_NAME = 1, 3  # NFTA_GEN_ID, NFTA_GEN_PROC_NAME
TABLE_NAME = 1  # NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_SET_ELEM_LIST_TABLE and so on: the same for all messages
GROUP = 7  # NFNLGRP_NFTABLES
QUEUE_SIZE = 4 << 20
"""Bytes that may wait to be read: commits of some 20,000 elements at once."""


class Notice(NamedTuple):
    """A generation of the ruleset: which of our tables its commit touched, and the name of the process that made it."""

    generation: int
    families: frozenset[Family]
    who: str = ""


class Notifications:
    """The kernel's notifications of commits in the network namespace of the thread that makes this.

    Raises:
        Unavailable: the kernel has no nftables, or there is no permission.
    """

    def __init__(self) -> None:
        self._families = set[Family]()
        try:
            self._socket = open_listener(QUEUE_SIZE)
            self.resume()
        except OSError as error:
            raise Unavailable(f"the kernel doesn't notify of changes to nftables: {error.strerror}") from error

    def fileno(self) -> int:
        """For who waits for notifications."""
        return self._socket.fileno()

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def pause(self) -> None:
        """Leave the group; raises Unavailable."""
        self._set(DROP_MEMBERSHIP)

    def resume(self) -> None:
        """Join the group; raises Unavailable."""
        self._set(ADD_MEMBERSHIP)

    def _set(self, membership: int) -> None:
        try:
            self._socket.setsockopt(SOL_NETLINK, membership, GROUP)
        except OSError as error:
            raise Unavailable(f"the kernel doesn't notify of changes to nftables: {error.strerror}") from error

    def read(self) -> list[Notice] | None:
        """The notifications since; None if some were lost."""
        found: list[Notice] = []
        is_whole = True
        while True:
            try:
                data = self._socket.recv(BUFFER_SIZE)
            except BlockingIOError:
                return found if is_whole else None
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # then there is more to read
                    return None
                is_whole = False
            else:
                found += self._notices(data)

    def _notices(self, data: bytes) -> Iterator[Notice]:
        """The generations that end in these bytes; a commit's other messages may have come with earlier ones."""
        if not _may_be_about_us(data):
            return
        for kind, body in messages_of(data):
            if kind == NEW_GENERATION:
                held = dict(attributes_of(body, GENERAL.size))
                who = held.get(GENERATION_NAME, b"").rstrip(b"\0").decode(errors="replace")
                number = int.from_bytes(held[GENERATION_ID], "big")
                yield Notice(number, frozenset(self._families), who if who.isprintable() else repr(who))
                self._families.clear()
                continue
            family = FAMILY_OF_NUMBER.get(body[0])
            if family is None or family in self._families:  # of a commit of ours the first message is enough
                continue
            if next(attributes_of(body, GENERAL.size), None) == _OUR_TABLE:
                self._families.add(family)


_OUR_TABLE = TABLE_NAME, TABLE.encode() + b"\0"


def _may_be_about_us(data: bytes) -> bool:
    """Whether these bytes have to be read: they name our table, or begin with a generation."""
    return _OUR_TABLE[1] in data or HEADER.unpack_from(data)[1] == NEW_GENERATION
