"""The connections that conntrack has translated, counted by original destination and endpoint.

With a million entries, memory and pauses must stay small.  The kernel's answers are small, a regular expression finds
the few relevant fields, and the reader rests after each answer.  Only translated entries in zone 0 match, and of TCP
only entries that are neither closed nor in TIME_WAIT.

The kernel answers for the network namespace of the thread that asks, and only to CAP_NET_ADMIN.
"""

from __future__ import annotations

import functools
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from nftproxy.kernel.conntrack.sweeps import ANSWER_SIZE
from nftproxy.kernel.nfnetlink.modules import reason
from nftproxy.kernel.nfnetlink.sockets import answers, open_socket
from nftproxy.model.addresses import Address, Family, Protocol, family_of
from nftproxy.model.errors import Unavailable
from nftproxy.model.objects import Place
from nftproxy.netlink import nf_conntrack as ct
from nftproxy.netlink.codec import (
    ADDRESS_SIZE,
    DUMP,
    FAMILY_NUMBER,
    PROTOCOLS,
    attribute_pattern,
    nest_pattern,
    request,
)

_Packed = tuple[Family, bytes, bytes, bytes, bytes, bytes]
"""A translation as the kernel has it."""

MOST_TRANSLATIONS = 200_000
"""Translations that are counted separately: 20,000 fronts with 10 endpoints each, some 100 MB.  For the rest, only the
sum is known.
"""
REST = 1.0
"""The reader rests after each answer for this many times as long as the answer took."""


class Translation(NamedTuple):
    """The original destination of connections, and their endpoint."""

    protocol: Protocol
    address: Address
    port: int
    endpoint: Address
    endpoint_port: int


class ConnectionCounts(NamedTuple):
    """The number of active connections of each translation, and of the rest beyond `MOST_TRANSLATIONS`.

    `unanswered` counts the connections of each translation that have had no packet from the endpoint.
    """

    by_translation: Counter[Translation]
    others: int
    unanswered: Counter[Translation] = Counter()  # noqa: RUF012  # only read


def active_connections(rest: Callable[[float], object] = time.sleep, most: int = MOST_TRANSLATIONS) -> ConnectionCounts:
    """Count all translated connections of this network namespace.

    Args:
        rest: called after each answer of the kernel with the seconds to rest.
        most: translations that are counted separately.

    Raises:
        Unavailable: the kernel does not answer, as without CAP_NET_ADMIN.
    """
    packed, unanswered = Counter[_Packed](), Counter[_Packed]()
    others = 0
    try:
        for answer in _answers(rest):
            for family, find in _FINDERS.items():
                for address, number, port, endpoint, endpoint_port, status, state in find(answer):
                    if state and state[0] in (ct.TIME_WAIT, ct.CLOSED):
                        continue
                    key = family, address, number, port, endpoint, endpoint_port
                    if key in packed or len(packed) < most:
                        packed[key] += 1
                        if not status[0] & ct.SEEN_REPLY:
                            unanswered[key] += 1
                    else:
                        others += 1
    except OSError as error:
        raise _unreadable(error) from error
    return ConnectionCounts(_translated(packed), others, _translated(unanswered))


def established_connections(places: Iterable[Place], rest: Callable[[float], object] = time.sleep) -> Counter[Place]:
    """Count the established TCP connections that were translated to each of these endpoints.

    Connections without a whole handshake don't count, so that forged first packets have no effect.  Errors as above.
    """
    wanted = {_packed_place(place): place for place in places}
    finders = [_ESTABLISHED[family] for family in {family_of(place.address) for place in wanted.values()}]
    found = Counter[bytes]()
    try:
        for answer in _answers(rest):
            for find in finders:
                found.update(key for address, port in find(answer) if (key := address + port) in wanted)
    except OSError as error:
        raise _unreadable(error) from error
    return Counter({wanted[key]: count for key, count in found.items()})


@functools.lru_cache(maxsize=1 << 16)
def _packed_place(place: Place) -> bytes:
    return socket.inet_pton(FAMILY_NUMBER[family_of(place.address)], place.address) + place.port.to_bytes(2, "big")


def offloaded_connections() -> int:
    """Count the connections of this network namespace that a flowtable forwards.  Errors as above."""
    try:
        return sum(len(_OFFLOADED.findall(answer)) for answer in _answers(time.sleep))
    except OSError as error:
        raise _unreadable(error) from error


_IS_OFFLOADED = b"[\x40-\x7f\xc0-\xff]"
"""The second lowest byte of an entry's status, with IPS_OFFLOAD."""
_OFFLOADED = re.compile(attribute_pattern(4, ct.STATUS) + b".." + _IS_OFFLOADED + b".", re.DOTALL)


def _unreadable(error: OSError) -> Unavailable:
    return Unavailable(f"conntrack can't be read: {reason(error, 'nf_conntrack_netlink')}")


def _translated(packed: Mapping[_Packed, int]) -> Counter[Translation]:
    return Counter({_translation(*key): count for key, count in packed.items()})


def _answers(rest: Callable[[float], object]) -> Iterator[bytes]:
    with open_socket() as kernel:
        began = time.monotonic()
        for answer in answers(kernel, request(ct.SUBSYSTEM, ct.GET, DUMP, socket.AF_UNSPEC), ANSWER_SIZE):
            yield answer
            rest(REST * (time.monotonic() - began))
            began = time.monotonic()


def _translation(
    family: Family, address: bytes, number: bytes, port: bytes, endpoint: bytes, endpoint_port: bytes
) -> Translation:
    def text(packed: bytes) -> Address:
        return Address(socket.inet_ntop(FAMILY_NUMBER[family], packed))

    ports = (int.from_bytes(each, "big") for each in (port, endpoint_port))
    return Translation(PROTOCOLS[number[0]], text(address), next(ports), text(endpoint), next(ports))


_TRANSLATED = b"[\x20-\x3f\x60-\x7f\xa0-\xbf\xe0-\xff]"
"""The lowest byte of an entry's status, with IPS_DST_NAT."""


def _pattern(family: Family) -> re.Pattern[bytes]:
    """Return a pattern that finds destination, protocol and port, endpoint and its port, status, and TCP's state."""
    size = ADDRESS_SIZE[family]
    head, nest = attribute_pattern, nest_pattern
    source, destination = head(size, ct.SOURCE[family]), head(size, ct.DESTINATION[family])
    numbers = b"[" + b"".join(re.escape(bytes([number])) for number in PROTOCOLS) + b"]"
    protocol = nest(ct.TUPLE_PROTOCOL) + head(1, ct.PROTOCOL)
    from_port, to_port = head(2, ct.SOURCE_PORT), head(2, ct.DESTINATION_PORT)
    address, port = b"(.{%d})" % size, b"(..).."
    any_address, any_port = b".{%d}" % size, b"...."
    state = nest(ct.PROTOCOL_INFO) + nest(ct.INFO_TCP) + head(1, ct.TCP_STATE) + b"(.)"
    return re.compile(
        b"".join(
            [
                nest(ct.TUPLE_ORIGINAL) + nest(ct.TUPLE_ADDRESSES) + source + any_address + destination + address,
                protocol + b"(" + numbers + b")..." + from_port + any_port + to_port + port,
                nest(ct.TUPLE_REPLY) + nest(ct.TUPLE_ADDRESSES) + source + address + destination + any_address,
                protocol + b"...." + from_port + port + to_port + any_port,
                head(4, ct.STATUS) + b"...(" + _TRANSLATED + b")",
                b"(?:.{0,96}?" + state + b")?",  # between them: timeout, and if configured, counters and times
            ]
        ),
        re.DOTALL,
    )


def _established(family: Family) -> re.Pattern[bytes]:
    """Return a pattern that finds the endpoint, and its port, of an established TCP connection that was translated.

    The kernel doesn't report TCP's state of a connection that a flowtable forwards: it was established.

    The pattern begins with fixed bytes, for which `re` searches in a fraction of the time.  Both tuples have these, but
    only the reply's is right before the status.
    """
    size, head, nest = ADDRESS_SIZE[family], attribute_pattern, nest_pattern
    from_address = head(size, ct.SOURCE[family]) + b"(.{%d})" % size
    to_address = head(size, ct.DESTINATION[family]) + b".{%d}" % size
    tcp = nest(ct.TUPLE_PROTOCOL) + head(1, ct.PROTOCOL) + re.escape(bytes([socket.IPPROTO_TCP])) + b"..."
    ports = head(2, ct.SOURCE_PORT) + b"(..).." + head(2, ct.DESTINATION_PORT) + b"...."
    status = head(4, ct.STATUS) + b".."
    state = nest(ct.PROTOCOL_INFO) + nest(ct.INFO_TCP) + head(1, ct.TCP_STATE) + re.escape(bytes([ct.ESTABLISHED]))
    is_established = _IS_OFFLOADED + _TRANSLATED + b"|." + _TRANSLATED + b".{0,96}?" + state
    return re.compile(from_address + to_address + tcp + ports + status + b"(?:" + is_established + b")", re.DOTALL)


_FINDERS = {family: _pattern(family).findall for family in Family}
_ESTABLISHED = {family: _established(family).findall for family in Family}
