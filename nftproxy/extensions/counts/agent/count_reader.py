"""The kernel's counts for each front, read from the sets that packets write (counts/table.nft.j2).

With 10,000 Services in use a set has as many entries, and reading must not block anything:

* The sets are read in a thread of the caller, by one socket that stays open. Closing a socket holds the lock of all
  commits.
* Listing a set takes no lock in the kernel. An answer has at most 32 KiB, and the thread rests after each.
* The listing may be inconsistent with a concurrent commit. An entry that is listed twice or missed is right the next
  time.
* A regular expression finds the entries in an answer.

The kernel answers for the network namespace of the thread that first reads.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from nftproxy.extensions.counts.counted_fronts import CONNECTIONS
from nftproxy.kernel.nfnetlink.nft_queries import exchange
from nftproxy.kernel.nfnetlink.sockets import BUFFER_SIZE, answers, open_socket
from nftproxy.model.addresses import TABLE, Address, Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.unserved_reasons import RESTRICTED, UnservedReason
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    ACKNOWLEDGE,
    ADDRESS_SIZE,
    DUMP,
    FAMILY_NUMBER,
    PROTOCOLS,
    attribute_pattern,
    named,
    nest_pattern,
)
from nftproxy.policy.claims import NODE, Claim

REST = 1.0
"""The thread rests after each answer for this many times as long as the answer took."""


class CountedSet(NamedTuple):
    """A set that packets write: its reason (None for connections), and whether its keys are node ports."""

    reason: UnservedReason | None
    is_nodeport: bool

    @property
    def name(self) -> str:
        """The name in counts/table.nft.j2."""
        prefix = "nodeport-" if self.is_nodeport else ""
        return f"{prefix}counted-{self.reason.value if self.reason else CONNECTIONS}"


COUNTED_SETS = tuple(
    CountedSet(reason, is_nodeport) for reason in (None, *UnservedReason) for is_nodeport in (False, True)
)

RESTRICTED_SETS = tuple(each for each in COUNTED_SETS if each.reason in {*RESTRICTED, UnservedReason.NOT_ADMITTED})
"""The sets that exist where only packets that annotations forbid are counted (client_limits/shared.nft.j2)."""

Counts = dict[CountedSet, dict[bytes, int]]
"""Packets by the keys of the sets' entries, as the kernel writes them (`claim_of`)."""


class FamilyCounts(NamedTuple):
    """The counts of one family's sets, all since the table with this handle was made."""

    table: bytes
    counts: Counts


def claim_of(family: Family, counted: CountedSet, key: bytes) -> Claim:
    """Return the front of a set's key.  Each part of a key is padded to a multiple of four bytes."""
    size = 0 if counted.is_nodeport else ADDRESS_SIZE[family]
    address = NODE if counted.is_nodeport else Address(socket.inet_ntop(FAMILY_NUMBER[family], key[:size]))
    return Claim(address, PROTOCOLS[key[size]], int.from_bytes(key[size + 4 : size + 6], "big"))


class CountReader:
    """Reads the counting sets over a single socket.  Use it in one thread only."""

    def __init__(self, sets: Sequence[CountedSet] = COUNTED_SETS) -> None:
        self._sets = sets
        self._socket: socket.socket | None = None

    def read(self, family: Family) -> FamilyCounts | None:
        """Return the counts of a family, or None if there is no table, or the table was replaced meanwhile.

        Raises:
            Unavailable: the kernel does not answer.
        """
        try:
            kernel = self._socket = self._socket or open_socket()
            table = _table(kernel, family)
            if table is None:
                return None
            counts = {each: _entries(kernel, family, each) for each in self._sets}
            return FamilyCounts(table, counts) if _table(kernel, family) == table else None
        except OSError as error:
            self.close()  # as answers may be waiting
            raise Unavailable(f"the kernel's counts can't be read: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the socket, if there is one."""
        if self._socket:
            self._socket.close()
            self._socket = None


def _table(kernel: socket.socket, family: Family) -> bytes | None:
    """Return the handle of our table, which no other table of this namespace ever has."""
    try:
        (table,) = exchange(kernel, nft.GET_TABLE, FAMILY_NUMBER[family], named(nft.OF_TABLE, TABLE), ACKNOWLEDGE)
    except FileNotFoundError:
        return None
    return table[nft.TABLE_HANDLE]


def _entries(kernel: socket.socket, family: Family, counted: CountedSet) -> dict[bytes, int]:
    """Return the entries of a set, none if the set doesn't exist."""
    find = _PATTERNS[(0 if counted.is_nodeport else ADDRESS_SIZE[family]) + 8].findall
    asked = nft.request(nft.GET_ELEMENTS, DUMP, FAMILY_NUMBER[family], nft.of_set(counted.name))
    found: dict[bytes, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for answer in answers(kernel, asked, BUFFER_SIZE):
            began = time.monotonic()
            found.update((key, int.from_bytes(packets, "big")) for key, packets in find(answer))
            time.sleep(REST * (time.monotonic() - began))
    return found


def _pattern(size: int) -> re.Pattern[bytes]:
    """Return a pattern that finds the key and the packets of an entry with a key of `size` bytes."""
    head, nest = attribute_pattern, nest_pattern
    pad = b"(?:" + head(0, nft.COUNTER_PAD) + b")?"
    return re.compile(
        b"".join(
            [
                nest(nft.ELEMENT_KEY) + head(size, nft.DATA_VALUE) + b"(.{%d})" % size,
                nest(nft.ELEMENT_EXPRESSION) + head(8, nft.EXPRESSION_NAME) + b"counter\0" + nest(nft.EXPRESSION_DATA),
                pad + head(8, nft.COUNTER_BYTES) + b".{8}" + pad + head(8, nft.COUNTER_PACKETS) + b"(.{8})",
            ]
        ),
        re.DOTALL,
    )


_PATTERNS = {size: _pattern(size) for size in (8, 8 + 4, 8 + 16)}
