"""The kernel's notifications of every commit to the ruleset, by any program.

The kernel sends the messages of a commit, and then the number of the generation that it made, to all members of a
multicast group (NFNLGRP_NFTABLES).  Two facts are used: the number, and whether a message names our tables.

While a listener has joined, the kernel makes messages of all elements before a commit is done.  A set of 200,000 that
was emptied and filled in one transaction took 3 GB and 5 s more (6.18).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import NamedTuple

from nftproxy.kernel.nfnetlink.sockets import ADD_MEMBERSHIP, BUFFER_SIZE, DROP_MEMBERSHIP, SOL_NETLINK, open_listener
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import HEADER, Attributes, attribute_map, attribute_pattern, number_of, text_of
from nftproxy.netlink.netfilter import FAMILY_OF_NUMBER, GENERAL

NEW_GENERATION = nft.SUBSYSTEM << 8 | nft.NEW_GENERATION
GROUP = 7  # NFNLGRP_NFTABLES
QUEUE_SIZE = 4 << 20
"""Bytes that may wait to be read: commits of some 20,000 elements at once."""


class CommitNotice(NamedTuple):
    """A generation of the ruleset: the families of our tables that its commit touched, and the program behind it.

    `program` is its name and its process number on this machine, "" if unknown.
    """

    generation: int
    families: frozenset[Family]
    program: str = ""


class CommitListener:
    """Reads the kernel's notifications of commits in the network namespace of the thread that makes this.

    Raises:
        Unavailable: the kernel has no nftables, or permission is missing.
    """

    def __init__(self) -> None:
        self._families = set[Family]()
        try:
            self._socket = open_listener(QUEUE_SIZE)
            self.resume()
        except OSError as error:
            raise Unavailable(f"the kernel doesn't notify of changes to nftables: {error.strerror}") from error

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def pause(self) -> None:
        """Leave the group.  Raises Unavailable."""
        self._set(DROP_MEMBERSHIP)

    def resume(self) -> None:
        """Join the group.  Raises Unavailable."""
        self._set(ADD_MEMBERSHIP)

    def _set(self, membership: int) -> None:
        try:
            self._socket.setsockopt(SOL_NETLINK, membership, GROUP)
        except OSError as error:
            raise Unavailable(f"the kernel doesn't notify of changes to nftables: {error.strerror}") from error

    def read(self) -> list[CommitNotice] | None:
        """Return the notifications since the last call, or None if notifications were lost."""
        found: list[CommitNotice] = []
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

    def _notices(self, data: bytes) -> Iterator[CommitNotice]:
        """Yield the generation that these bytes are about.  Earlier bytes may have other messages of the same commit.

        The kernel sends the message of a generation by itself (nf_tables_gen_notify), after all others of its commit.
        """
        _, kind, *_ = HEADER.unpack_from(data)
        if kind == NEW_GENERATION:
            held = attribute_map(data, HEADER.size + GENERAL.size)
            yield CommitNotice(number_of(held[nft.GENERATION_ID]), frozenset(self._families), _program(held))
            self._families.clear()
        elif _NAME in data:  # else the pattern takes ten times as long
            self._families.update(FAMILY_OF_NUMBER[number] for (number,) in set(_ABOUT_OUR_TABLE.findall(data)))


def _program(held: Attributes) -> str:
    name = text_of(held.get(nft.GENERATION_PROGRAM, b""))
    if not name:
        return ""
    process = number_of(held.get(nft.GENERATION_PROCESS, b""))
    return f"{name if name.isprintable() else repr(name)}{f' (process {process})' if process else ''}"


_NAME = TABLE.encode() + b"\0"
_ABOUT_OUR_TABLE = re.compile(
    b"([" + bytes(FAMILY_OF_NUMBER) + rb"])\0.." + attribute_pattern(len(_NAME), nft.OF_TABLE) + _NAME, re.DOTALL
)
"""The beginning of the body of a message about a table of ours: `GENERAL`, and the name as its first attribute."""
