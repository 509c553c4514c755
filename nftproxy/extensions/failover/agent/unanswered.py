"""Connections without a reply, and the endpoints that they were translated to.

The rules note each connection that retransmits before a reply (failover/table.nft.j2).  So while all endpoints answer,
the agent only reads an empty set: one request of 20 us for each family.  These alternatives were rejected:

* Connection tracking's events cost a message for each connection of the node. Its listing walks the whole table of all
  network namespaces (0.2 s for a million entries), with or without a filter. A request for one entry is a lookup.
* nflog could send the packets to the agent, but then a flood of packets to a dead endpoint would flood the agent too.

Notes about endpoints that are known to be silent are in a set of their own, so that they take no room from the search
for silent endpoints.  So are connections that got an ICMP error, which connection tracking keeps.

The sets have the original directions of connections.  Connection tracking has the endpoint of each, and whether there
was a reply meanwhile.  After a connection was deleted, its set still has it.  It counts again only after another
retransmission, as its next endpoint deserves the same patience.  Only zone 0 is ours (sweeps.py).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nftproxy.kernel.conntrack.sweeps import ANSWER_SIZE, delete_entry
from nftproxy.kernel.nfnetlink.sockets import bodies, open_socket
from nftproxy.model.addresses import Address, Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.objects import Place
from nftproxy.netlink import nf_conntrack as ct
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    ADDRESS_SIZE,
    DUMP,
    FAMILY_NUMBER,
    attribute,
    attribute_map,
    attributes_of,
    body_attributes,
    messages_of,
    nested,
    number_of,
    request,
)

UNANSWERED, STUCK, CROWDED, REFUSED = "unanswered", "stuck", "crowded", "refused"
"""The sets of failover/table.nft.j2: connections, connections that must go to another endpoint, namespaces over their
share, and endpoints that refused a connection."""
SIZE = 16384
"""The size of each of the first two sets."""
KEPT = 2.0
"""Seconds for which the first two sets keep an entry after a packet (their timeout)."""
TICKS = 0.1
"""Seconds by which the kernel's clock for sets may be late: it ticks every 1 to 10 ms, if no CPU is taken away.

A connection whose entry is gone is noted at its second packet, 0.2 s after the first (TCP_RTO_MIN) or later.
"""

_LOOK = {
    (family, name): nft.request(nft.GET_ELEMENTS, DUMP, number, nft.of_set(name))
    for family, number in FAMILY_NUMBER.items()
    for name in (UNANSWERED, STUCK, CROWDED, REFUSED)
}
"""The request for each of a family's sets."""


class Retransmission(NamedTuple):
    """A connection that retransmitted, or got an ICMP error: its original direction as the set has it.

    The key has the client's address and port, and the address and port that it asked for.
    """

    family: Family
    key: bytes
    waits: float
    """Seconds since its last packet."""
    is_stuck: bool
    """Whether the rules say that it must go to another endpoint."""


class UnansweredConnection(NamedTuple):
    """A connection without a reply, and its endpoint.  `tuple` and `id` are connection tracking's."""

    retransmission: Retransmission
    place: Place
    tuple: bytes
    id: bytes


class UnansweredReader:
    """Reads unanswered connections by a socket that stays open, in the namespace of the first calling thread."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._deleted: dict[tuple[Family, bytes], float] = {}

    def retransmissions(self, family: Family, name: str = UNANSWERED) -> list[Retransmission]:
        """Return the recent retransmissions: none while all endpoints answer, and none where nothing is watched.

        Entries noted before the connection was deleted are skipped: those packets went to the previous endpoint.

        Args:
            family: the family.
            name: the set, `UNANSWERED` or `STUCK`.

        Raises:
            Unavailable: the kernel does not answer.
        """
        now = time.monotonic()
        is_stuck = name == STUCK
        noted = self._elements(family, name)
        found = [Retransmission(family, key, max(0.0, KEPT - left), is_stuck) for key, left in noted]
        self._deleted = {key: moment for key, moment in self._deleted.items() if moment > now - KEPT - TICKS}
        return [each for each in found if now - each.waits > self._deleted.get((family, each.key), 0.0) + TICKS]

    def refused(self, family: Family) -> list[Place]:
        """Return the endpoints that lately refused a connection of a Service with failover `refused`.

        Raises:
            Unavailable: the kernel does not answer.
        """
        size = ADDRESS_SIZE[family]
        return [_place(family, key[:size], key[size : size + 2]) for key, _ in self._elements(family, REFUSED)]

    def crowded(self, family: Family) -> set[str]:
        """Return the numbers of the namespaces that lately had more connections to note than their share allows.

        Raises:
            Unavailable: the kernel does not answer.
        """
        return {socket.inet_ntop(FAMILY_NUMBER[family], key) for key, _ in self._elements(family, CROWDED)}

    def unanswered(self, retransmissions: Iterable[Retransmission]) -> list[UnansweredConnection]:
        """Return the connections that still have no reply.

        Raises:
            Unavailable: the kernel does not answer.
        """
        try:
            return [found for each in retransmissions if (found := self._look_up(each)) is not None]
        except OSError as error:
            raise self._failed(error) from error

    def delete(self, connections: Iterable[UnansweredConnection]) -> int:
        """Delete connections from connection tracking, so that the next packet is translated anew.  Return the number
        deleted.

        Raises:
            Unavailable: the kernel does not answer.
        """
        try:
            return sum(map(self._delete, connections))
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the socket, if there is one."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def _elements(self, family: Family, name: str) -> list[tuple[bytes, float]]:
        """Return the keys of a set, each with the seconds until it expires.  None if there is no such set."""
        try:
            answers = bodies(self._open(), _LOOK[family, name], may_change=True)
            return [each for body in answers for each in _elements(body)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(error) from error

    def _open(self) -> socket.socket:
        self._socket = self._socket or open_socket()
        return self._socket

    def _failed(self, error: OSError) -> Unavailable:
        self.close()  # as answers may be waiting
        return Unavailable(f"the kernel can't be asked for unanswered connections: {error.strerror or error}")

    def _look_up(self, sent: Retransmission) -> UnansweredConnection | None:
        """Return connection tracking's entry of a connection, or None if it is gone or had a reply."""
        kernel, original = self._open(), nested(ct.TUPLE_ORIGINAL, _tuple(sent))
        kernel.sendto(request(ct.SUBSYSTEM, ct.GET, 0, FAMILY_NUMBER[sent.family], original), (0, 0))
        try:
            (_, body), *_ = messages_of(kernel.recv(ANSWER_SIZE))
        except FileNotFoundError:
            return None
        held = body_attributes(body)
        if number_of(held[ct.STATUS]) & ct.SEEN_REPLY:
            return None
        place = _sender(sent.family, held[ct.TUPLE_REPLY])
        return UnansweredConnection(sent, place, held[ct.TUPLE_ORIGINAL], held[ct.ID])

    def _delete(self, connection: UnansweredConnection) -> bool:
        sent = connection.retransmission
        self._deleted[sent.family, sent.key] = time.monotonic()
        return delete_entry(self._open(), sent.family, connection.tuple, connection.id)


def _elements(body: bytes) -> Iterator[tuple[bytes, float]]:
    for _, item in attributes_of(body_attributes(body).get(nft.LIST_ELEMENTS, b"")):
        found = attribute_map(item)
        key = attribute_map(found[nft.ELEMENT_KEY])[nft.DATA_VALUE]
        yield key, number_of(found.get(nft.ELEMENT_EXPIRATION, b"")) / 1000


def _tuple(sent: Retransmission) -> bytes:
    """Return the attributes of a connection's original direction.  A port takes four bytes of the key."""
    family, key, size = sent.family, sent.key, ADDRESS_SIZE[sent.family]
    source, sport = key[:size], key[size : size + 2]
    destination, dport = key[size + 4 : 2 * size + 4], key[2 * size + 4 : 2 * size + 6]
    addresses = attribute(ct.SOURCE[family], source) + attribute(ct.DESTINATION[family], destination)
    protocol = attribute(ct.PROTOCOL, bytes([socket.IPPROTO_TCP]))
    ports = attribute(ct.SOURCE_PORT, sport) + attribute(ct.DESTINATION_PORT, dport)
    return nested(ct.TUPLE_ADDRESSES, addresses) + nested(ct.TUPLE_PROTOCOL, protocol + ports)


def _place(family: Family, address: bytes, port: bytes) -> Place:
    return Place(Address(socket.inet_ntop(FAMILY_NUMBER[family], address)), number_of(port))


def _sender(family: Family, reply: bytes) -> Place:
    """Return the endpoint, the sender of the reply."""
    parts = attribute_map(reply)
    address = attribute_map(parts[ct.TUPLE_ADDRESSES])[ct.SOURCE[family]]
    port = attribute_map(parts[ct.TUPLE_PROTOCOL])[ct.SOURCE_PORT]
    return _place(family, address, port)
