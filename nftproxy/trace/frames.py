"""IP packets as bytes: opening packets of connections, and headers of packets.

Checksums are computed as remainders.  The ones' complement sum of 16-bit words (RFC 1071) is the number that they form,
modulo 65535, and Python divides a long number faster than it loops.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

TCP, UDP, SCTP, ICMP, ICMPV6 = 6, 17, 132, 1, 58
SYN, INIT = 0x02, 1
OPENING_DATA = b"open"
"""The first bytes of a datagram that opens a connection."""

TCP_HEADER = struct.Struct("!HHIIHHHH")
UDP_DATAGRAM = struct.Struct("!HHHH4sI")
SCTP_INIT = struct.Struct("!HHIIBBHIIHHI")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_IPV6 = struct.Struct("!IHBB16s16s")


def packed(address: str) -> bytes:
    """An IP address as 4 or 16 bytes.

    Raises:
        ValueError: it isn't an IP address.
    """
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError as error:
        raise ValueError(f"not an IP address: {address!r}") from error


def unpacked(address: bytes) -> str:
    """An IP address as the kernel spells it."""
    return socket.inet_ntop(socket.AF_INET6 if len(address) == 16 else socket.AF_INET, address)


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
    """The checksum for `data`, which has an even length and zeros in its place.  Never 0, as UDP requires."""
    return 0xFFFF - int.from_bytes(data, "big") % 0xFFFF


def pseudo_header(source: bytes, destination: bytes, number: int, segment: bytes) -> bytes:
    """The bytes that a transport checksum covers in addition to the segment.

    IPv6 has wider fields than IPv4 (RFC 8200, 8.1 and RFC 9293, 3.1), but their sum is the same.
    """
    return source + destination + struct.pack("!II", len(segment), number)


class Transport(NamedTuple):
    """A transport protocol: its number, and how its first segment is written with the checksum left out.

    `opening` takes source port, destination port and a token, a number below 2**32 that no translation changes.
    """

    number: int
    checksum_at: int
    opening: Callable[[int, int, int], bytes]


TRANSPORTS: Mapping[str, Transport] = {
    "tcp": Transport(
        TCP, 16, lambda sport, dport, token: TCP_HEADER.pack(sport, dport, token, 0, 0x5000 | SYN, 0xFFFF, 0, 0)
    ),
    "udp": Transport(UDP, 6, lambda sport, dport, token: UDP_DATAGRAM.pack(sport, dport, 16, 0, OPENING_DATA, token)),
    "sctp": Transport(
        SCTP,
        8,
        lambda sport, dport, token: SCTP_INIT.pack(sport, dport, 0, 0, INIT, 0, 20, token, 0xFFFF, 1, 1, token),
    ),
}


def packet(source: bytes, destination: bytes, transport: Transport, segment: bytes) -> bytes:
    """An IP packet with its checksums, of the family that the addresses are of."""
    value = _checksum(transport, source, destination, segment)
    segment = segment[: transport.checksum_at] + value + segment[transport.checksum_at + len(value) :]
    return bare_packet(source, destination, transport.number, segment)


def _checksum(transport: Transport, source: bytes, destination: bytes, segment: bytes) -> bytes:
    if transport.number == SCTP:  # little endian, unlike all other fields (RFC 9260, appendix A)
        return crc32c(segment).to_bytes(4, "little")
    pseudo = b"" if transport.number == ICMP else pseudo_header(source, destination, transport.number, segment)
    return internet_checksum(pseudo + segment).to_bytes(2, "big")


def bare_packet(source: bytes, destination: bytes, number: int, segment: bytes) -> bytes:
    """An IP packet of protocol `number` that carries a segment unchanged."""
    if len(source) == 16:
        return _IPV6.pack(0x60000000, len(segment), number, 64, source, destination) + segment
    blank = _IPV4.pack(0x45, 0, 20 + len(segment), 0, 0x4000, 64, number, 0, source, destination)
    return blank[:10] + internet_checksum(blank).to_bytes(2, "big") + blank[12:] + segment


class IpHeader(NamedTuple):
    """The header of an IP packet: its length in bytes, the protocol's number, and both addresses."""

    length: int
    number: int
    source: bytes
    destination: bytes


def ip_header(data: bytes) -> IpHeader:
    """The header that an IP packet begins with."""
    if data[0] >> 4 == 6:
        return IpHeader(40, data[6], data[8:24], data[24:40])
    return IpHeader((data[0] & 0x0F) * 4, data[9], data[12:16], data[16:20])


_UNREACHABLE: Mapping[int, tuple[int, Mapping[int, str]]] = {
    ICMP: (
        3,
        {
            0: "net-unreachable",
            1: "host-unreachable",
            2: "prot-unreachable",
            3: "port-unreachable",
            9: "net-prohibited",
            10: "host-prohibited",
            13: "admin-prohibited",
        },
    ),
    ICMPV6: (
        1,
        {
            0: "no-route",
            1: "admin-prohibited",
            3: "addr-unreachable",
            4: "port-unreachable",
            5: "policy-fail",
            6: "reject-route",
        },
    ),
}
"""The type "destination unreachable" of each ICMP, and its codes by nft's names."""


def icmp_rejection(number: int, segment: bytes) -> str:
    """The name of an ICMP rejection, such as "icmp port-unreachable", or "" for any other packet."""
    kind, codes = _UNREACHABLE.get(number, (None, {}))
    return f"icmp {codes.get(segment[1], f'code {segment[1]}')}" if segment[0] == kind else ""
