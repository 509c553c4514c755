"""Connections that get no answer: which there are, and to which endpoint each of them was translated.

The rules note whatever is sent again before there was a reply (watch.nft.j2), so a look at an empty set, one question
of 20 us for each family, is all that there is to do while everybody answers.  What else was thought of:

* Connection tracking's events cost a message for each connection of the node, and its listing a walk over the whole
  table of all network namespaces (0.2 s for a million entries), with or without a filter.  A question for one entry is
  a lookup.
* Packets could be sent up by nflog: but then whoever floods a dead endpoint floods the agent, too.

What the set has are the original directions of connections.  Connection tracking knows where each has gone, and whether
there was a reply meanwhile.  The set still has a connection that was forgotten; so it counts again only when it has
sent again since, as whom it goes to then deserves the same patience as any other.  Only zone 0 is ours (conntrack.py).
Attributes and flags are those of linux/netfilter/nf_tables.h, nfnetlink_conntrack.h and nf_conntrack_common.h.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nftproxy.kernel.conntrack import (
    ANSWER_SIZE,
    DESTINATION,
    DESTINATION_PORT,
    GET,
    ID,
    PROTOCOL,
    SOURCE,
    SOURCE_PORT,
    TUPLE_ADDRESSES,
    TUPLE_ORIGINAL,
    TUPLE_PROTOCOL,
    TUPLE_REPLY,
    delete_entry,
)
from nftproxy.kernel.conntrack import SUBSYSTEM as CONNTRACK
from nftproxy.kernel.netlink import (
    ADDRESS_SIZE,
    DUMP,
    FAMILY_NUMBER,
    GENERAL,
    attribute,
    attributes_of,
    bodies,
    messages_of,
    named,
    nested,
    number_of,
    open_socket,
    request,
)
from nftproxy.kernel.nftables_netlink import (
    BUFFER_SIZE,
    DATA_VALUE,
    ELEMENT_EXPIRATION,
    ELEMENT_KEY,
    GET_ELEMENTS,
    LIST_ELEMENTS,
    LIST_SET,
    LIST_TABLE,
    SUBSYSTEM,
)
from nftproxy.model.addresses import TABLE, Address, Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.objects import Place

SET = "unanswered"
"""The set of watch.nft.j2."""
KEPT = 2.0
"""Seconds for which it has an entry after a packet (its timeout)."""
TICKS = 0.1
"""Seconds by which the kernel's clock for sets may be late: it ticks every 1 to 10 ms, if no CPU is taken away.

A connection whose entry is gone is noted at its second packet, 0.2 s after the first (TCP_RTO_MIN) or later.
"""
STATUS, SEEN_REPLY = 3, 0x02  # CTA_STATUS, IPS_SEEN_REPLY


_LOOK = {
    family: request(SUBSYSTEM, GET_ELEMENTS, DUMP, number, named(LIST_TABLE, TABLE) + named(LIST_SET, SET))
    for family, number in FAMILY_NUMBER.items()
}
"""What is asked for a look at a family's set."""


class Noted(NamedTuple):
    """A connection that was noted: its original direction as the set has it, and how long ago it last sent, in seconds.

    The key has the client's address and port, and the address and port that it asked for.
    """

    family: Family
    key: bytes
    waits: float


class Unanswered(NamedTuple):
    """A connection without a reply, and the endpoint that it goes to; `tuple` and `id` are connection tracking's."""

    noted: Noted
    place: Place
    tuple: bytes
    id: bytes


class UnansweredReader:
    """Asks the kernel, by two sockets that stay open, in the network namespace of the thread that first asks."""

    def __init__(self) -> None:
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._forgotten: dict[tuple[Family, bytes], float] = {}
        self.requests = 0

    def noted(self, family: Family) -> list[Noted]:
        """What the rules have noted lately: nothing while everybody answers, and where nothing is watched.

        What was noted of a connection before it was forgotten is nothing that its next endpoint could have answered.

        Raises:
            Unavailable: the kernel does not answer.
        """
        try:
            kernel, _ = self._open()
            now = time.monotonic()
            found = [each for body in self._ask(kernel, _LOOK[family]) for each in _noted(family, body)]
            self._forgotten = {key: moment for key, moment in self._forgotten.items() if moment > now - KEPT - TICKS}
            return [each for each in found if now - each.waits > self._forgotten.get((family, each.key), 0.0) + TICKS]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(error) from error

    def unanswered(self, noted: Iterable[Noted]) -> list[Unanswered]:
        """Those of them that are without a reply still.

        Raises:
            Unavailable: the kernel does not answer.
        """
        try:
            return [found for each in noted if (found := self._look_up(each)) is not None]
        except OSError as error:
            raise self._failed(error) from error

    def forget(self, connections: Iterable[Unanswered]) -> int:
        """Make connection tracking forget connections, so that their next packet is translated anew; how many it did.

        Raises:
            Unavailable: the kernel does not answer.
        """
        try:
            return sum(map(self._forget, connections))
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the sockets, if there are any."""
        for each in self._sockets or ():
            each.close()
        self._sockets = None

    def _open(self) -> tuple[socket.socket, socket.socket]:
        self._sockets = self._sockets or (open_socket(), open_socket())
        return self._sockets

    def _ask(self, kernel: socket.socket, asked: bytes) -> Iterator[bytes]:
        self.requests += 1
        return bodies(kernel, asked, BUFFER_SIZE, may_change=True)

    def _failed(self, error: OSError) -> Unavailable:
        self.close()  # as answers may be waiting
        return Unavailable(f"the kernel can't be asked for unanswered connections: {error.strerror or error}")

    def _look_up(self, noted: Noted) -> Unanswered | None:
        """What connection tracking has of one; None if there is nothing, or was a reply."""
        _, kernel = self._open()
        asked = request(CONNTRACK, GET, 0, FAMILY_NUMBER[noted.family], nested(TUPLE_ORIGINAL, _tuple(noted)))
        kernel.sendto(asked, (0, 0))
        self.requests += 1
        try:
            (_, body), *_ = messages_of(kernel.recv(ANSWER_SIZE))
        except FileNotFoundError:
            return None
        held = dict(attributes_of(body, GENERAL.size))
        if number_of(held[STATUS]) & SEEN_REPLY:
            return None
        return Unanswered(noted, _place(noted.family, held[TUPLE_REPLY]), held[TUPLE_ORIGINAL], held[ID])

    def _forget(self, connection: Unanswered) -> bool:
        _, kernel = self._open()
        self.requests += 1
        family = connection.noted.family
        self._forgotten[family, connection.noted.key] = time.monotonic()
        return delete_entry(kernel, family, connection.tuple, connection.id)


def _noted(family: Family, body: bytes) -> Iterator[Noted]:
    listed = dict(attributes_of(body, GENERAL.size)).get(LIST_ELEMENTS, b"")
    for _, item in attributes_of(listed):
        found = dict(attributes_of(item))
        key = dict(attributes_of(found[ELEMENT_KEY]))[DATA_VALUE]
        left = number_of(found.get(ELEMENT_EXPIRATION, b"")) / 1000
        yield Noted(family, key, max(0.0, KEPT - left))


def _tuple(noted: Noted) -> bytes:
    """The attributes that stand for a connection's original direction; a port takes four bytes of the key."""
    family, key, size = noted.family, noted.key, ADDRESS_SIZE[noted.family]
    source, sport = key[:size], key[size : size + 2]
    destination, dport = key[size + 4 : 2 * size + 4], key[2 * size + 4 : 2 * size + 6]
    addresses = attribute(SOURCE[family], source) + attribute(DESTINATION[family], destination)
    protocol = attribute(PROTOCOL, bytes([socket.IPPROTO_TCP]))
    ports = attribute(SOURCE_PORT, sport) + attribute(DESTINATION_PORT, dport)
    return nested(TUPLE_ADDRESSES, addresses) + nested(TUPLE_PROTOCOL, protocol + ports)


def _place(family: Family, reply: bytes) -> Place:
    """The endpoint: who would send the reply."""
    parts = dict(attributes_of(reply))
    address = dict(attributes_of(parts[TUPLE_ADDRESSES]))[SOURCE[family]]
    port = dict(attributes_of(parts[TUPLE_PROTOCOL]))[SOURCE_PORT]
    return Place(Address(socket.inet_ntop(FAMILY_NUMBER[family], address)), int.from_bytes(port, "big"))
