"""IP packets as the lab writes and reads them: the first of a connection, the answer to it, and rejections.

Every connection has a *token*, a number below 2**32 that any translation leaves alone, so that a packet seen
anywhere can be recognised as its own: TCP's sequence number, a datagram's payload, SCTP's initiate tag.  A rejection
carries it too: a reset acknowledges it, an ICMP error quotes it.

What a protocol is, is a row of PROTOCOLS.  Checksums are computed as remainders: the ones' complement sum of 16-bit
words (RFC 1071) is the number they form, modulo 65535, and Python divides a long number faster than it loops.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

TCP, UDP, SCTP, ICMP, ICMPV6 = 6, 17, 132, 1, 58
ECHO_REQUEST, ECHO_REQUEST6 = 8, 128  # ICMP types

_TCP = struct.Struct("!HHIIHHHH")
_UDP = struct.Struct("!HHHH4sI")
_SCTP = struct.Struct("!HHIIBBHIIHHI")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_IPV6 = struct.Struct("!IHBB16s16s")

SYN, SYN_ACK, RST = 0x02, 0x12, 0x04
OPENING_DATA, ANSWER_DATA = b"open", b"answ"
INIT, INIT_ACK = 1, 2


class What(Enum):
    """What a packet is to the lab."""

    OPENING = "opening"  # the first packet of a connection
    ANSWER = "answer"  # what the other end sends back
    RESET = "tcp-reset"
    UNREACHABLE = "icmp"  # destination unreachable, of either family
    UNSENT = "errno"  # the node's own kernel would not send it


class Packet(NamedTuple):
    """A packet that belongs to a connection; of an ICMP error, the packet that it quotes.

    Addresses are 4 or 16 bytes in network order.  `how` names a rejection as nft does and is "" otherwise.
    """

    what: What
    token: int
    source: bytes
    sport: int
    destination: bytes
    dport: int
    how: str = ""


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC32C = _crc32c_table()


def crc32c(data: bytes) -> int:
    """The Castagnoli CRC of `data`, as in RFC 9260, appendix A."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC32C[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def internet_checksum(data: bytes) -> int:
    """The checksum to store in `data` (of even length), zero being in its place; never 0, as UDP wants it."""
    return 0xFFFF - int.from_bytes(data, "big") % 0xFFFF


def echo_request(*, is_ipv6: bool, number: int = 1) -> bytes:
    """An ICMP echo request without the IP header; IPv6 sockets fill the checksum in (RFC 3542, 3.1)."""
    message = struct.pack("!BBHHH", ECHO_REQUEST6 if is_ipv6 else ECHO_REQUEST, 0, 0, 1, number)
    return message[:2] + internet_checksum(message).to_bytes(2, "big") + message[4:]


def _sums_to_zero(data: bytes) -> bool:
    return int.from_bytes(data if len(data) % 2 == 0 else data + b"\0", "big") % 0xFFFF == 0


def _pseudo_header(source: bytes, destination: bytes, number: int, segment: bytes) -> bytes:
    # IPv6 has wider fields than IPv4 (RFC 8200, 8.1 and RFC 9293, 3.1), whose sum is the same
    return source + destination + struct.pack("!II", len(segment), number)


class Protocol(NamedTuple):
    """A transport protocol: its number, and how its segments are written with the checksum left out."""

    number: int
    checksum_at: int
    opening: Callable[[int, int, int], bytes]  # from source port, destination port and token
    answer: Callable[[int, int, int], bytes]


PROTOCOLS: Mapping[str, Protocol] = {
    "tcp": Protocol(
        TCP,
        16,
        lambda sport, dport, token: _TCP.pack(sport, dport, token, 0, 0x5000 | SYN, 0xFFFF, 0, 0),
        lambda sport, dport, token: _TCP.pack(
            sport, dport, token, (token + 1) & 0xFFFFFFFF, 0x5000 | SYN_ACK, 0xFFFF, 0, 0
        ),
    ),
    "udp": Protocol(
        UDP,
        6,
        lambda sport, dport, token: _UDP.pack(sport, dport, 16, 0, OPENING_DATA, token),
        lambda sport, dport, token: _UDP.pack(sport, dport, 16, 0, ANSWER_DATA, token),
    ),
    # A real INIT ACK ends with a state cookie parameter (type 7), here of four bytes.
    "sctp": Protocol(
        SCTP,
        8,
        lambda sport, dport, token: _SCTP.pack(sport, dport, 0, 0, INIT, 0, 20, token, 0xFFFF, 1, 1, token),
        lambda sport, dport, token: (
            _SCTP.pack(sport, dport, token, 0, INIT_ACK, 0, 28, token, 0xFFFF, 1, 1, token)
            + struct.pack("!HHI", 7, 8, token)
        ),
    ),
}
NAMES: Mapping[int, str] = {row.number: name for name, row in PROTOCOLS.items()}


def _checksum(protocol: Protocol, source: bytes, destination: bytes, segment: bytes) -> bytes:
    if protocol.number == SCTP:  # the only one in little endian (RFC 9260, appendix A)
        return crc32c(segment).to_bytes(4, "little")
    pseudo = _pseudo_header(source, destination, protocol.number, segment)
    return internet_checksum(pseudo + segment).to_bytes(2, "big")


def packet(source: bytes, destination: bytes, protocol: Protocol, segment: bytes) -> bytes:
    """An IP packet with its checksums, of the family that the addresses are of."""
    value = _checksum(protocol, source, destination, segment)
    segment = segment[: protocol.checksum_at] + value + segment[protocol.checksum_at + len(value) :]
    if len(source) == 16:
        return _IPV6.pack(0x60000000, len(segment), protocol.number, 64, source, destination) + segment
    blank = _IPV4.pack(0x45, 0, 20 + len(segment), 0, 0x4000, 64, protocol.number, 0, source, destination)
    return blank[:10] + internet_checksum(blank).to_bytes(2, "big") + blank[12:] + segment


def is_intact(data: bytes) -> bool:
    """Whether all checksums of an IP packet of one of PROTOCOLS are right."""
    head, number, source, destination = _split(data)
    segment = data[head:]
    if head != 40 and not _sums_to_zero(data[:head]):
        return False
    if number == SCTP:
        blank = segment[:8] + bytes(4) + segment[12:]
        return segment[8:12] == crc32c(blank).to_bytes(4, "little")
    return _sums_to_zero(_pseudo_header(source, destination, number, segment) + segment)


def _split(data: bytes) -> tuple[int, int, bytes, bytes]:
    """Where the segment starts, the protocol's number, source and destination of an IP packet."""
    if data[0] >> 4 == 6:
        return 40, data[6], data[8:24], data[24:40]
    return (data[0] & 0x0F) * 4, data[9], data[12:16], data[16:20]


def parse(data: bytes) -> Packet | None:
    """What an IP packet means to the lab; None if nothing.  Padding of the frame must have been cut off."""
    head, number, source, destination = _split(data)
    return parse_segment(number, source, destination, data[head:])


def parse_segment(number: int, source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    """What a transport segment means to the lab, `number` being its protocol; None if nothing."""
    reader = _READERS.get(number)
    try:
        return reader(source, destination, segment) if reader else None
    except (struct.error, IndexError):  # too short to be one of ours
        return None


def _read_tcp(source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    sport, dport, sequence, acknowledged, flags, *_ = _TCP.unpack_from(segment)
    match flags & (SYN_ACK | RST):
        case 0x02:
            return Packet(What.OPENING, sequence, source, sport, destination, dport)
        case 0x12:
            return Packet(What.ANSWER, sequence, source, sport, destination, dport)
        case 0x04 | 0x14:
            token = (acknowledged - 1) & 0xFFFFFFFF
            return Packet(What.RESET, token, source, sport, destination, dport, What.RESET.value)
    return None


def _read_udp(source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    sport, dport, _length, _checksum, mark, token = _UDP.unpack_from(segment)
    if mark not in (OPENING_DATA, ANSWER_DATA):
        return None
    what = What.OPENING if mark == OPENING_DATA else What.ANSWER
    return Packet(what, token, source, sport, destination, dport)


def _read_sctp(source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    sport, dport, _tag, _checksum, chunk, _flags, _length, token, *_ = _SCTP.unpack_from(segment)
    if chunk not in (INIT, INIT_ACK):
        return None
    return Packet(What.OPENING if chunk == INIT else What.ANSWER, token, source, sport, destination, dport)


# Codes of "destination unreachable", by nft's names.
ICMP_CODES: Mapping[int, str] = {
    0: "net-unreachable",
    1: "host-unreachable",
    2: "prot-unreachable",
    3: "port-unreachable",
    9: "net-prohibited",
    10: "host-prohibited",
    13: "admin-prohibited",
}
ICMPV6_CODES: Mapping[int, str] = {
    0: "no-route",
    1: "admin-prohibited",
    3: "addr-unreachable",
    4: "port-unreachable",
    5: "policy-fail",
    6: "reject-route",
}


def _read_error(codes: Mapping[int, str], destination: bytes, segment: bytes) -> Packet | None:
    code, quoted = segment[1], parse(segment[8:])
    if quoted is None or quoted.source != destination:
        return None
    return quoted._replace(what=What.UNREACHABLE, how=f"icmp {codes.get(code, f'code {code}')}")


def _read_icmp(_source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    return _read_error(ICMP_CODES, destination, segment) if segment[0] == 3 else None


def _read_icmpv6(_source: bytes, destination: bytes, segment: bytes) -> Packet | None:
    return _read_error(ICMPV6_CODES, destination, segment) if segment[0] == 1 else None


_READERS: Mapping[int, Callable[[bytes, bytes, bytes], Packet | None]] = {
    TCP: _read_tcp,
    UDP: _read_udp,
    SCTP: _read_sctp,
    ICMP: _read_icmp,
    ICMPV6: _read_icmpv6,
}
