"""Entries of conntrack, made and read with another library than ours, and sweeps."""

from __future__ import annotations

import itertools
import socket
import struct
from typing import Any, NamedTuple

from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, NFCTSocket

from nftproxy.kernel.conntrack import sweeps as conntrack
from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.model.addresses import Address
from nftproxy.netlink import nf_conntrack as ct
from nftproxy.netlink.codec import CREATE, EXCLUSIVE, attribute, nested, request
from nftproxy.policy.flows import AddressPort, Kept, Sweeps
from tests.support.factories import IPV4

FRONT = "10.96.0.10 53"


class Tracked(NamedTuple):
    """An entry of conntrack: from `source` to `destination`, answered by `endpoint`, all as "address port"."""

    source: str
    destination: str
    endpoint: str
    protocol: int = socket.IPPROTO_UDP
    zone: int = 0

    @property
    def family(self) -> int:
        """The entry's address family."""
        return socket.AF_INET6 if ":" in self.source else socket.AF_INET


def track(*entries: Tracked) -> None:
    """Add these entries to connection tracking."""
    for entry in entries:
        fields: dict[str, Any] = {"zone": entry.zone} if entry.zone else {}
        with NFCTSocket(nfgen_family=entry.family) as kernel:
            kernel.entry(
                "add",
                timeout=600,
                tuple_orig=_tuple(entry, entry.source, entry.destination),
                tuple_reply=_tuple(entry, entry.endpoint, entry.source),
                **fields,
            )


def _tuple(entry: Tracked, source: str, destination: str) -> Any:
    (saddr, sport), (daddr, dport) = source.split(), destination.split()
    return NFCTAttrTuple(
        family=entry.family, saddr=saddr, daddr=daddr, proto=entry.protocol, sport=int(sport), dport=int(dport)
    )


def tracked() -> set[Tracked]:
    """All entries of connection tracking in this network namespace."""
    found = set()
    with NFCTSocket(nfgen_family=socket.AF_UNSPEC) as kernel:
        for message in kernel.dump():
            version = 6 if message["nfgen_family"] == socket.AF_INET6 else 4
            original, reply = message.get_attr("CTA_TUPLE_ORIG"), message.get_attr("CTA_TUPLE_REPLY")
            source, destination = (_end_of(original, version, which) for which in ("SRC", "DST"))
            protocol = original.get_attr("CTA_TUPLE_PROTO").get_attr("CTA_PROTO_NUM")
            zone = message.get_attr("CTA_ZONE") or 0
            found.add(Tracked(source, destination, _end_of(reply, version, "SRC"), protocol, zone))
    return found


def _end_of(flow: Any, version: int, which: str) -> str:
    address = flow.get_attr("CTA_TUPLE_IP").get_attr(f"CTA_IP_V{version}_{which}")
    return f"{address} {flow.get_attr('CTA_TUPLE_PROTO').get_attr(f'CTA_PROTO_{which}_PORT')}"


def end(text: str) -> AddressPort:
    """An address and port from "address port"."""
    address, port = text.split()
    return AddressPort(Address(address), int(port))


def sweeps(**usable: str) -> Sweeps:
    """Sweeps as `sweeps(**{"10.96.0.10 53": "10.1.0.4 53, 10.1.0.5 53"})`. "" means no endpoint."""
    ends = {front: frozenset(map(end, filter(None, texts.split(", ")))) for front, texts in usable.items()}
    return {end(front): Kept(kept, kept) for front, kept in ends.items()}


def fill(count: int, protocol: bytes = conntrack.UDP) -> None:
    """Add `count` entries to another address to conntrack, a hundred for each message to the kernel."""
    server, numbers = conntrack._packed(*end("172.16.0.1 9999")), iter(range(count))
    with open_socket() as kernel:
        while some := list(itertools.islice(numbers, 100)):
            clients = (struct.pack("!IH", 0x0A000000 + number, 1000 + number % 60000) for number in some)
            kernel.send(b"".join(addition(client, server, server, protocol=protocol) for client in clients))


def addition(
    client: bytes,
    front: bytes,
    endpoint: bytes,
    zones: tuple[bytes, bytes] = (b"", b""),
    protocol: bytes = conntrack.UDP,
    *,
    seen_client: bytes = b"",
    is_answered: bool = True,
) -> bytes:
    """A request to add an entry, each direction of which may have its own zone.

    `seen_client` is the destination of the replies, if it isn't the client.
    """

    def flow(kind: int, source: bytes, destination: bytes, zone: bytes) -> bytes:
        addresses = attribute(ct.SOURCE[IPV4], source[:4]) + attribute(ct.DESTINATION[IPV4], destination[:4])
        ports = attribute(ct.SOURCE_PORT, source[4:6]) + attribute(ct.DESTINATION_PORT, destination[4:6])
        parts = nested(ct.TUPLE_ADDRESSES, addresses) + nested(
            ct.TUPLE_PROTOCOL, attribute(ct.PROTOCOL, protocol) + ports
        )
        return nested(kind, parts + (attribute(ct.TUPLE_ZONE, zone) if zone else b""))

    both = flow(ct.TUPLE_ORIGINAL, client, front, zones[0]) + flow(
        ct.TUPLE_REPLY, endpoint, seen_client or client, zones[1]
    )
    status = attribute(ct.STATUS, struct.pack("!I", 0xE if is_answered else 0x8))  # confirmed, and assured, seen
    timeout = attribute(ct.TIMEOUT, struct.pack("!I", 600))
    return request(ct.SUBSYSTEM, ct.NEW, CREATE | EXCLUSIVE, socket.AF_INET, both + timeout + status)
