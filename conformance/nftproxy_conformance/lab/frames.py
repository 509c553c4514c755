"""IP packets as the lab writes and reads them: opening packets, answers, and rejections.

Every connection has a *token*, a number below 2**32 that any translation leaves alone, so that a packet seen anywhere
can be recognised as its own: TCP's sequence number, the payload of a datagram or ping, SCTP's initiate tag.  A
rejection carries it too: a reset acknowledges it, an ICMP error quotes it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from nftproxy.trace.frames import (
    ICMP,
    ICMPV6,
    INIT,
    OPENING_DATA,
    SCTP,
    SCTP_INIT,
    SYN,
    TCP,
    TCP_HEADER,
    TRANSPORTS,
    UDP,
    UDP_DATAGRAM,
    Transport,
    bare_packet,
    crc32c,
    icmp_rejection,
    internet_checksum,
    ip_header,
    pseudo_header,
)
from nftproxy_conformance.lab.outcome import PING

ECHO_REQUEST, ECHO_REQUEST6 = 8, 128  # ICMP types
ECHO_REPLY, ECHO_REPLY6 = 0, 129
ACK, PSH, RST = 0x10, 0x08, 0x04
ANSWER_DATA, LATER_DATA, INIT_ACK = b"answ", b"data", 2


class What(Enum):
    """The role of a packet in a connection."""

    OPENING = "opening"  # the first packet of a connection
    ANSWER = "answer"  # the other end's answer
    DATA = "data"  # a later packet, of either end
    RESET = "tcp-reset"
    UNREACHABLE = "icmp"  # destination unreachable, of either family
    UNSENT = "errno"  # the node's own kernel would not send it


class Packet(NamedTuple):
    """A packet of a connection.  For an ICMP error, this is the packet that it quotes.

    Addresses are 4 or 16 bytes in network order.  The client's port of a ping is its identifier, the other port is 0.
    `how` names a rejection as nft does and is "" otherwise.
    """

    what: What
    token: int
    source: bytes
    sport: int
    destination: bytes
    dport: int
    how: str = ""


_ECHO = struct.Struct("!BBHHH4sI")
"""A ping of the lab: type, code, checksum, identifier, sequence number and data."""


def _ping(number: int, kind: int) -> Transport:
    return Transport(number, 2, lambda sport, _dport, token: _ECHO.pack(kind, 0, 0, sport, 1, OPENING_DATA, token))


_PINGS = {4: _ping(ICMP, ECHO_REQUEST), 16: _ping(ICMPV6, ECHO_REQUEST6)}


def transport_of(protocol: str, address: bytes) -> Transport:
    """The transport of a connection to an address, or of a ping."""
    return _PINGS[len(address)] if protocol == PING else TRANSPORTS[protocol]


def _sums_to_zero(data: bytes) -> bool:
    return int.from_bytes(data if len(data) % 2 == 0 else data + b"\0", "big") % 0xFFFF == 0


ANSWERS: Mapping[str, Callable[[int, int, int], bytes]] = {
    "tcp": lambda sport, dport, token: TCP_HEADER.pack(
        sport, dport, token, (token + 1) & 0xFFFFFFFF, 0x5000 | SYN | ACK, 0xFFFF, 0, 0
    ),
    "udp": lambda sport, dport, token: UDP_DATAGRAM.pack(sport, dport, 16, 0, ANSWER_DATA, token),
    # A real INIT ACK ends with a state cookie parameter (type 7), here of four bytes.
    "sctp": lambda sport, dport, token: (
        SCTP_INIT.pack(sport, dport, token, 0, INIT_ACK, 0, 28, token, 0xFFFF, 1, 1, token)
        + struct.pack("!HHI", 7, 8, token)
    ),
}
"""The answer to each protocol's opening packet, without its checksum: from source port, destination port and token."""


def refusal(sport: int, dport: int, token: int) -> bytes:
    """A closed port's answer to TCP's opening packet (RFC 9293, 3.10.7.1), as in `ANSWERS`."""
    return TCP_HEADER.pack(sport, dport, 0, (token + 1) & 0xFFFFFFFF, 0x5000 | RST | ACK, 0, 0, 0)


def reset(sport: int, dport: int, token: int) -> bytes:
    """A host's answer to data of a connection that it doesn't know (RFC 9293, 3.10.7.1), as in `ANSWERS`."""
    return TCP_HEADER.pack(sport, dport, (token + 1) & 0xFFFFFFFF, 0, 0x5000 | RST, 0, 0, 0)


def acknowledgement(sport: int, dport: int, token: int) -> bytes:
    """The acknowledgement of TCP's answer, after which the connection is established, as in `ANSWERS`."""
    return _established(sport, dport, token, ACK)


def _established(sport: int, dport: int, token: int, flags: int) -> bytes:
    following = (token + 1) & 0xFFFFFFFF  # both ends begin with the token
    return TCP_HEADER.pack(sport, dport, following, following, 0x5000 | flags, 0xFFFF, 0, 0)


DATA: Mapping[str, Callable[[int, int, int], bytes]] = {
    "tcp": lambda sport, dport, token: _established(sport, dport, token, PSH | ACK) + LATER_DATA,
    "udp": lambda sport, dport, token: UDP_DATAGRAM.pack(sport, dport, 16, 0, LATER_DATA, token),
}
"""Data of an established connection, of either end, as in `ANSWERS`."""


def unreachable(source: bytes, destination: bytes, quoted: bytes) -> bytes:
    """An IP packet with an ICMP error, port unreachable, that quotes a packet."""
    number, kind, code = (ICMPV6, 1, 4) if len(source) == 16 else (ICMP, 3, 3)
    segment = struct.pack("!BBHI", kind, code, 0, 0) + quoted
    pseudo = pseudo_header(source, destination, number, segment) if number == ICMPV6 else b""
    value = internet_checksum(pseudo + segment).to_bytes(2, "big")
    return bare_packet(source, destination, number, segment[:2] + value + segment[4:])


def is_intact(data: bytes) -> bool:
    """Whether all checksums of an IP packet are right."""
    head, number, source, destination = ip_header(data)
    segment = data[head:]
    if head != 40 and not _sums_to_zero(data[:head]):
        return False
    if number == SCTP:
        blank = segment[:8] + bytes(4) + segment[12:]
        return segment[8:12] == crc32c(blank).to_bytes(4, "little")
    pseudo = b"" if number == ICMP else pseudo_header(source, destination, number, segment)
    return _sums_to_zero(pseudo + segment)


def parse(data: bytes) -> Packet | None:
    """Parse an IP packet without frame padding.  None if it isn't of a connection of the lab."""
    head, number, source, destination = ip_header(data)
    return parse_segment(number, source, destination, data[head:])


def parse_segment(number: int, source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    """Parse a transport segment of protocol `number`.  None if it isn't of a connection of the lab."""
    reader = _READERS.get(number)
    try:
        return reader(source, destination, segment) if reader else None
    except (struct.error, IndexError):  # too short for a packet of the lab
        return None


def _read_tcp(source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    sport, dport, sequence, acknowledged, flags, *_ = TCP_HEADER.unpack_from(segment)
    if flags & RST:  # without an acknowledgement it has the number that the other end expects (RFC 9293, 3.10.7.1)
        token = ((acknowledged if flags & ACK else sequence) - 1) & 0xFFFFFFFF
        return Packet(What.RESET, token, source, sport, destination, dport, What.RESET.value)
    if flags >> 12 != 5:  # with options: of a real program, such as a probe of the proxy on the node
        return None
    if flags & SYN:
        return Packet(What.ANSWER if flags & ACK else What.OPENING, sequence, source, sport, destination, dport)
    if flags & PSH:
        return Packet(What.DATA, (sequence - 1) & 0xFFFFFFFF, source, sport, destination, dport)
    return None


def _read_udp(source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    sport, dport, _length, _checksum, mark, token = UDP_DATAGRAM.unpack_from(segment)
    what = _DATAGRAMS.get(mark)
    return Packet(what, token, source, sport, destination, dport) if what else None


_DATAGRAMS = {OPENING_DATA: What.OPENING, ANSWER_DATA: What.ANSWER, LATER_DATA: What.DATA}
"""The roles of datagrams by their first bytes."""


def _read_sctp(source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    sport, dport, _tag, _checksum, chunk, _flags, _length, token, *_ = SCTP_INIT.unpack_from(segment)
    if chunk not in (INIT, INIT_ACK):
        return None
    return Packet(What.OPENING if chunk == INIT else What.ANSWER, token, source, sport, destination, dport)


def _read_icmp(number: int, source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    what = _ECHOES.get((number, segment[0]))
    if what is None:
        return _read_error(number, destination, segment)
    *_, identifier, _sequence, mark, token = _ECHO.unpack_from(segment)
    if mark != OPENING_DATA:
        return None
    sport, dport = (identifier, 0) if what is What.OPENING else (0, identifier)
    return Packet(what, token, source, sport, destination, dport)


_ECHOES = {
    (ICMP, ECHO_REQUEST): What.OPENING,
    (ICMP, ECHO_REPLY): What.ANSWER,
    (ICMPV6, ECHO_REQUEST6): What.OPENING,
    (ICMPV6, ECHO_REPLY6): What.ANSWER,
}
"""The roles of ICMP messages by protocol and type."""


def _read_error(number: int, destination: bytes, segment: bytes) -> Packet | None:
    if not (how := icmp_rejection(number, segment)):
        return None
    quoted = parse(segment[8:])
    return quoted._replace(what=What.UNREACHABLE, how=how) if quoted and quoted.source == destination else None


_READERS: Mapping[int, Callable[[bytes, bytes, bytes], Packet | None]] = {
    TCP: _read_tcp,
    UDP: _read_udp,
    SCTP: _read_sctp,
    ICMP: functools.partial(_read_icmp, ICMP),
    ICMPV6: functools.partial(_read_icmp, ICMPV6),
}
