"""A connection under way: from a probe to the packet that opens it, from what was seen of it to its outcome."""

from __future__ import annotations

import socket
from typing import NamedTuple

from nftproxy.lab.frames import PROTOCOLS, Packet, What, packet
from nftproxy.lab.outcome import Address, Kind, Outcome, Probe
from nftproxy.lab.wire import OWN, Sending, Sighting


class Flight(NamedTuple):
    """A connection under way.

    Attributes:
        probe: what it is, with nothing left to defaults.
        token: what marks its packets (frames.py).
        interface: the node's interface that it goes in through, and rejections and answers come out of; or OWN.
        source: its source address.
        sport: its source port.
        destination: the address that it is for.
    """

    probe: Probe
    token: int
    interface: str
    source: bytes
    sport: int
    destination: bytes

    def opening(self) -> Sending:
        """The packet that opens it, and where to send it."""
        protocol = PROTOCOLS[self.probe.protocol]
        segment = protocol.opening(self.sport, self.probe.port, self.token)
        data = packet(self.source, self.destination, protocol, segment)
        return Sending(self.interface, data, self.destination)

    def judge(self, sighting: Sighting) -> Outcome | None:
        """What follows for the connection from a packet with its token; None: nothing."""
        if sighting.packet.what is What.OPENING:
            return self._arrived(sighting)
        if sighting.interface == self.interface and self._is_refusal(sighting.packet):
            return Outcome(Kind.REJECTED, how=sighting.packet.how, probe=self.probe, token=self.token)
        return None

    def _arrived(self, sighting: Sighting) -> Outcome:
        seen = sighting.packet
        source, destination = Address(text(seen.source), seen.sport), Address(text(seen.destination), seen.dport)
        if (seen.destination, seen.dport) != (self.destination, self.probe.port):
            kind = Kind.ENDPOINT
        else:
            kind = Kind.NODE if sighting.interface == OWN else Kind.UNTOUCHED
        return Outcome(
            kind,
            destination if kind is Kind.ENDPOINT else None,
            masqueraded=seen.source != self.source,
            interface=sighting.interface,
            source=source,
            probe=self.probe,
            token=self.token,
        )

    def _is_refusal(self, seen: Packet) -> bool:
        """Whether the client would take the packet for a rejection: it must fit the connection's own addresses."""
        here, there = (self.source, self.sport), (self.destination, self.probe.port)
        ends = (seen.source, seen.sport), (seen.destination, seen.dport)
        if seen.what is What.RESET:
            return ends == (there, here)
        return seen.what in (What.UNREACHABLE, What.UNSENT) and ends == (here, there)

    def lost(self) -> Outcome:
        """The outcome when nothing was seen of it."""
        return Outcome(Kind.DROPPED, probe=self.probe, token=self.token)


def packed(address: str) -> bytes:
    """An IP address as bytes.

    Raises:
        ValueError: it is none.
    """
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError as error:
        raise ValueError(f"no IP address: {address!r}") from error


def text(address: bytes) -> str:
    """An IP address as the kernel spells it."""
    return socket.inet_ntop(socket.AF_INET6 if len(address) == 16 else socket.AF_INET, address)
