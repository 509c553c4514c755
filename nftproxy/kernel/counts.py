"""What the kernel has counted for each front, read from the sets that packets write (counts.nft.j2).

With 10,000 Services in use there are as many entries in a set, and nobody may wait for them:

* They are read in a thread of the caller's, by one socket that stays open: closing one holds the lock of all commits.
* Listing a set takes no lock in the kernel.  An answer has 32 KiB at the most; the thread rests after each.
* The listing may be out of step with a commit that comes meanwhile.  That is no harm: an entry that is listed twice, or
  not at all, has its count the next time.
* Entries are found in an answer by a pattern, and what was read before is recognised by its bytes.

Attributes are those of linux/netfilter/nf_tables.h.  The kernel answers for the network namespace of the thread that
first reads.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from nftproxy.kernel.netlink import (
    ACKNOWLEDGE,
    ADDRESS_SIZE,
    DUMP,
    FAMILY_NUMBER,
    PROTOCOLS,
    answers,
    named,
    open_socket,
    request,
)
from nftproxy.kernel.netlink_patterns import head, nest
from nftproxy.kernel.nftables_netlink import (
    BUFFER_SIZE,
    DATA_VALUE,
    ELEMENT_KEY,
    GET_ELEMENTS,
    GET_TABLE,
    LIST_SET,
    LIST_TABLE,
    SUBSYSTEM,
    TABLE_NAME,
    exchange,
)
from nftproxy.model.addresses import TABLE, Address, Family
from nftproxy.model.errors import Unavailable
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.counts import CONNECTIONS, SCREENED, Reason

TABLE_HANDLE = 4  # NFTA_TABLE_HANDLE
ELEMENT_EXPRESSION = 7  # NFTA_SET_ELEM_*
EXPRESSION_NAME, EXPRESSION_DATA = 1, 2  # NFTA_EXPR_*
COUNTER_BYTES, COUNTER_PACKETS, COUNTER_PAD = 1, 2, 3  # NFTA_COUNTER_*

REST = 1.0
"""How long the thread rests after each answer: so many times as long as that took."""


class CountedSet(NamedTuple):
    """A set that packets write: what it counts, None for connections, and whether by node port."""

    reason: Reason | None
    is_nodeport: bool

    @property
    def name(self) -> str:
        """As counts.nft.j2 declares it."""
        prefix = "nodeport-" if self.is_nodeport else ""
        return f"{prefix}counted-{self.reason.value if self.reason else CONNECTIONS}"


COUNTED_SETS = tuple(CountedSet(reason, is_nodeport) for reason in (None, *Reason) for is_nodeport in (False, True))

SCREENED_SETS = tuple(each for each in COUNTED_SETS if each.reason in {*SCREENED, Reason.NOT_ADMITTED})
"""Those that are there where nothing is counted but what annotations forbid (screen.nft.j2)."""

Counts = dict[CountedSet, dict[bytes, int]]
"""Packets by the keys of the sets' entries, as the kernel writes them (`claim_of`)."""


class Reading(NamedTuple):
    """What one family's sets have, all of them counted since the table with this number was made."""

    table: bytes
    counts: Counts


def claim_of(family: Family, counted: CountedSet, key: bytes) -> Claim:
    """The front that a set's key is: each part of a key takes a multiple of four bytes."""
    size = 0 if counted.is_nodeport else ADDRESS_SIZE[family]
    address = NODE if counted.is_nodeport else Address(socket.inet_ntop(FAMILY_NUMBER[family], key[:size]))
    return Claim(address, PROTOCOLS[key[size]], int.from_bytes(key[size + 4 : size + 6], "big"))


class CountReader:
    """Reads sets by one socket; for one thread."""

    def __init__(self, sets: Sequence[CountedSet] = COUNTED_SETS) -> None:
        self._sets = sets
        self._socket: socket.socket | None = None

    def read(self, family: Family) -> Reading | None:
        """What a family's sets have; None if there is no table, or another than when this began.

        Raises:
            Unavailable: the kernel does not answer.
        """
        try:
            kernel = self._socket = self._socket or open_socket()
            table = _table(kernel, family)
            if table is None:
                return None
            counts = {each: _entries(kernel, family, each) for each in self._sets}
            return Reading(table, counts) if _table(kernel, family) == table else None
        except OSError as error:
            self.close()  # as answers may be waiting
            raise Unavailable(f"what the kernel has counted can't be read: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the socket, if there is one."""
        if self._socket:
            self._socket.close()
            self._socket = None


def _table(kernel: socket.socket, family: Family) -> bytes | None:
    """The number of our table, which no other table of this namespace ever has."""
    try:
        (table,) = exchange(kernel, GET_TABLE, FAMILY_NUMBER[family], named(TABLE_NAME, TABLE), ACKNOWLEDGE)
    except FileNotFoundError:
        return None
    return table[TABLE_HANDLE]


def _entries(kernel: socket.socket, family: Family, counted: CountedSet) -> dict[bytes, int]:
    """What a set has; nothing if it is not there."""
    find = _PATTERNS[(0 if counted.is_nodeport else ADDRESS_SIZE[family]) + 8].findall
    which = named(LIST_TABLE, TABLE) + named(LIST_SET, counted.name)
    asked = request(SUBSYSTEM, GET_ELEMENTS, DUMP, FAMILY_NUMBER[family], which)
    found: dict[bytes, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for answer in answers(kernel, asked, BUFFER_SIZE, may_change=True):
            began = time.monotonic()
            found.update((key, int.from_bytes(packets, "big")) for key, packets in find(answer))
            time.sleep(REST * (time.monotonic() - began))
    return found


def _pattern(size: int) -> re.Pattern[bytes]:
    """What finds the key and the packets of an entry whose key has so many bytes."""
    pad = b"(?:" + head(0, COUNTER_PAD) + b")?"
    return re.compile(
        b"".join(
            [
                nest(ELEMENT_KEY) + head(size, DATA_VALUE) + b"(.{%d})" % size,
                nest(ELEMENT_EXPRESSION) + head(8, EXPRESSION_NAME) + b"counter\0" + nest(EXPRESSION_DATA),
                pad + head(8, COUNTER_BYTES) + b".{8}" + pad + head(8, COUNTER_PACKETS) + b"(.{8})",
            ]
        ),
        re.DOTALL,
    )


_PATTERNS = {size: _pattern(size) for size in (8, 8 + 4, 8 + 16)}
