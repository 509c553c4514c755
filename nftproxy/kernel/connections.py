"""The connections that conntrack has translated, counted by where they were meant to go and where they went.

Among a million entries what matters is that nothing is kept of an entry and that nobody waits: the kernel's answers are
small, and read by a pattern that finds the few parts that matter; the reader rests after each.  Only translated entries
match, in zone 0, and of TCP only those that are neither closed nor waiting for late packets.

Attributes are those of linux/netfilter/nfnetlink_conntrack.h.  The kernel answers for the network namespace of the
thread that asks, and only to CAP_NET_ADMIN.
"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nftproxy.kernel.conntrack import ANSWER_SIZE, DESTINATION, GET, SOURCE, SUBSYSTEM
from nftproxy.kernel.netlink import (
    ADDRESS_SIZE,
    DUMP,
    FAMILY_NUMBER,
    PROTOCOLS,
    answers,
    open_socket,
    request,
)
from nftproxy.kernel.netlink_patterns import head, nest
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.errors import Unavailable

TUPLE_ORIGINAL, TUPLE_REPLY, STATUS, PROTOCOL_INFO = 1, 2, 3, 4  # CTA_*
TUPLE_ADDRESSES, TUPLE_PROTOCOL = 1, 2  # CTA_TUPLE_*
PROTOCOL_NUMBER, SOURCE_PORT, DESTINATION_PORT = 1, 2, 3  # CTA_PROTO_*
INFO_TCP, TCP_STATE = 1, 1  # CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE
ENDED = {7, 8}  # TCP_CONNTRACK_TIME_WAIT, TCP_CONNTRACK_CLOSE

MOST_WAYS = 200_000
"""Ways that are counted apart: 20,000 fronts with 10 endpoints each, some 100 MB.  Of more, the sum is known."""
REST = 1.0
"""How long to rest after each answer: so many times as long as that took."""


class Way(NamedTuple):
    """Where connections were meant to go, and where they went."""

    protocol: Protocol
    address: Address
    port: int
    endpoint: Address
    endpoint_port: int


class Connections(NamedTuple):
    """How many active connections each way has, and how many have others, beyond `MOST_WAYS`."""

    by_way: Counter[Way]
    others: int


def active_connections(rest: Callable[[float], object] = time.sleep, most: int = MOST_WAYS) -> Connections:
    """Count all translated connections of this network namespace.

    Args:
        rest: called after each answer of the kernel with how many seconds to rest.
        most: ways that are counted apart.

    Raises:
        Unavailable: the kernel does not answer, as without CAP_NET_ADMIN.
    """
    packed: Counter[tuple[Family, bytes, bytes, bytes, bytes, bytes]] = Counter()
    others = 0
    try:
        for answer in _answers(rest):
            for family, find in _FINDERS.items():
                for *way, state in find(answer):
                    if state and state[0] in ENDED:
                        continue
                    key = (family, *way)
                    if key in packed or len(packed) < most:
                        packed[key] += 1
                    else:
                        others += 1
    except OSError as error:
        raise Unavailable(f"conntrack can't be read: {error.strerror or error}") from error
    return Connections(Counter({_way(*key): count for key, count in packed.items()}), others)


def _answers(rest: Callable[[float], object]) -> Iterator[bytes]:
    with open_socket() as kernel:
        began = time.monotonic()
        for answer in answers(kernel, request(SUBSYSTEM, GET, DUMP, socket.AF_UNSPEC), ANSWER_SIZE, may_change=True):
            yield answer
            rest(REST * (time.monotonic() - began))
            began = time.monotonic()


def _way(family: Family, address: bytes, number: bytes, port: bytes, endpoint: bytes, endpoint_port: bytes) -> Way:
    def text(packed: bytes) -> Address:
        return Address(socket.inet_ntop(FAMILY_NUMBER[family], packed))

    ports = (int.from_bytes(each, "big") for each in (port, endpoint_port))
    return Way(PROTOCOLS[number[0]], text(address), next(ports), text(endpoint), next(ports))


def _pattern(family: Family) -> re.Pattern[bytes]:
    """What finds destination, protocol and port, endpoint and its port, and TCP's state in a translated entry."""
    size = ADDRESS_SIZE[family]
    source, destination = head(size, SOURCE[family]), head(size, DESTINATION[family])
    numbers = b"[" + b"".join(re.escape(bytes([number])) for number in PROTOCOLS) + b"]"
    protocol = nest(TUPLE_PROTOCOL) + head(1, PROTOCOL_NUMBER)
    from_port, to_port = head(2, SOURCE_PORT), head(2, DESTINATION_PORT)
    address, port = b"(.{%d})" % size, b"(..).."
    any_address, any_port = b".{%d}" % size, b"...."
    translated = b"[\x20-\x3f\x60-\x7f\xa0-\xbf\xe0-\xff]"  # the lowest byte, with IPS_DST_NAT
    state = nest(PROTOCOL_INFO) + nest(INFO_TCP) + head(1, TCP_STATE) + b"(.)"
    return re.compile(
        b"".join(
            [
                nest(TUPLE_ORIGINAL) + nest(TUPLE_ADDRESSES) + source + any_address + destination + address,
                protocol + b"(" + numbers + b")..." + from_port + any_port + to_port + port,
                nest(TUPLE_REPLY) + nest(TUPLE_ADDRESSES) + source + address + destination + any_address,
                protocol + b"...." + from_port + port + to_port + any_port,
                head(4, STATUS) + b"..." + translated,
                b"(?:.{0,96}?" + state + b")?",  # between them: timeout, and if configured, counters and times
            ]
        ),
        re.DOTALL,
    )


_FINDERS = {family: _pattern(family).findall for family in Family}
