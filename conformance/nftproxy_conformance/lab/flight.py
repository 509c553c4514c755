"""A connection under way: its opening packet, and its outcome from the packets that were seen."""

from __future__ import annotations

from typing import NamedTuple

from nftproxy.trace.frames import packet, unpacked
from nftproxy_conformance.lab.frames import Packet, What, transport_of
from nftproxy_conformance.lab.outcome import PING, Address, Kind, Outcome, Probe
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
        transport = transport_of(self.probe.protocol, self.destination)
        segment = transport.opening(self.sport, self.probe.port, self.token)
        data = packet(self.source, self.destination, transport, segment)
        return Sending(self.interface, data, self.destination)

    def judge(self, sighting: Sighting) -> Outcome | None:
        """The outcome that follows from a packet with the connection's token, or None."""
        if sighting.packet.what is What.OPENING:
            return self._arrived(sighting)
        if sighting.interface != self.interface:
            return None
        if self._is_answer(sighting.packet):
            return Outcome(Kind.ANSWERED, probe=self.probe, token=self.token)
        if self._is_refusal(sighting.packet):
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

    def _is_answer(self, seen: Packet) -> bool:
        """True if the client would take the packet for the answer to its ping: addresses and identifier must match."""
        return self.probe.protocol == PING and seen.what is What.ANSWER and self._ends(seen) == self._back

    def _is_refusal(self, seen: Packet) -> bool:
        """True if the client would take the packet for a rejection: its addresses must match the connection."""
        if seen.what is What.RESET:
            return self._ends(seen) == self._back
        return seen.what in (What.UNREACHABLE, What.UNSENT) and self._ends(seen) == self._back[::-1]

    @staticmethod
    def _ends(seen: Packet) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
        return (seen.source, seen.sport), (seen.destination, seen.dport)

    @property
    def _back(self) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
        """Source and destination of the packets to the client."""
        return (self.destination, self.probe.port), (self.source, self.sport)

    def lost(self) -> Outcome:
        """The outcome if no packet was seen."""
        return Outcome(Kind.DROPPED, probe=self.probe, token=self.token)
