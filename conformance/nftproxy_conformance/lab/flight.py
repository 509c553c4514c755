"""A connection under way: its opening packet, and its outcome from the packets that were seen."""

from __future__ import annotations

from typing import NamedTuple

from nftproxy.trace.frames import TRANSPORTS, packet, unpacked
from nftproxy_conformance.lab.frames import Packet, What
from nftproxy_conformance.lab.outcome import Address, Kind, Outcome, Probe
from nftproxy_conformance.lab.topology import OWN
from nftproxy_conformance.lab.wire import Sending, Sighting


class Flight(NamedTuple):
    """A connection under way.

    Attributes:
        probe: the probe, with all defaults filled in.
        token: the mark of its packets (frames.py).
        interface: the node's interface through which it enters, and rejections and answers leave, or OWN.
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
        """The opening packet, and where to send it."""
        transport = TRANSPORTS[self.probe.protocol]
        segment = transport.opening(self.sport, self.probe.port, self.token)
        data = packet(self.source, self.destination, transport, segment)
        return Sending(self.interface, data, self.destination)

    def judge(self, sighting: Sighting) -> Outcome | None:
        """The outcome that follows from a packet with the connection's token, or None."""
        if sighting.packet.what is What.OPENING:
            return self._arrived(sighting)
        if sighting.interface == self.interface and self._is_refusal(sighting.packet):
            return Outcome(Kind.REJECTED, how=sighting.packet.how, probe=self.probe, token=self.token)
        return None

    def _arrived(self, sighting: Sighting) -> Outcome:
        seen = sighting.packet
        destination = Address(unpacked(seen.destination), seen.dport)
        if (seen.destination, seen.dport) != (self.destination, self.probe.port):
            kind = Kind.ENDPOINT
        else:
            kind = Kind.NODE if sighting.interface == OWN else Kind.UNTOUCHED
        return Outcome(
            kind,
            destination if kind is Kind.ENDPOINT else None,
            masqueraded=seen.source != self.source,
            interface=sighting.interface,
            source=Address(unpacked(seen.source), seen.sport),
            probe=self.probe,
            token=self.token,
        )

    def _is_refusal(self, seen: Packet) -> bool:
        """True if the client would take the packet for a rejection: its addresses must match the connection."""
        here, there = (self.source, self.sport), (self.destination, self.probe.port)
        ends = (seen.source, seen.sport), (seen.destination, seen.dport)
        if seen.what is What.RESET:
            return ends == (there, here)
        return seen.what in (What.UNREACHABLE, What.UNSENT) and ends == (here, there)

    def lost(self) -> Outcome:
        """The outcome if no packet was seen."""
        return Outcome(Kind.DROPPED, probe=self.probe, token=self.token)
