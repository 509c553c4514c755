"""Connections that go on after their first packets.

`Established` answers connections that the node forwards, and sends further packets of their clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from nftproxy.trace.frames import TRANSPORTS, packed, packet, unpacked
from nftproxy_conformance.lab.frames import ANSWERS, DATA, What, acknowledgement, reset
from nftproxy_conformance.lab.namespace import LabError
from nftproxy_conformance.lab.outcome import DROPPED, FIRST_PORT, TCP_RESET, Address, Outcome, endpoint
from nftproxy_conformance.lab.topology import INTERFACES, OWN, POD_CIDR, POD_CIDR6, PODS
from nftproxy_conformance.lab.wire import Aftermath, Sending, Sighting, Wire

Segments = Mapping[str, Callable[[int, int, int], bytes]]


class WentAstray(Exception):
    """Packets of an established connection took another way than its first packet did, or not the fast path."""


class _End(NamedTuple):
    """An end of a connection: where its packets enter the node, with which addresses, and where they come out."""

    interface: str
    source: Address
    destination: Address
    exit: str
    new_source: Address
    new_destination: Address

    def sending(self, protocol: str, segment: bytes) -> Sending:
        """A segment from this end."""
        source, destination = packed(self.source.ip), packed(self.destination.ip)
        return Sending(self.interface, packet(source, destination, TRANSPORTS[protocol], segment), destination)

    def is_right(self, sighting: Sighting) -> bool:
        """True if a packet came out as the packets of this end should."""
        seen = sighting.packet
        ends = Address(unpacked(seen.source), seen.sport), Address(unpacked(seen.destination), seen.dport)
        return (sighting.interface, *ends) == (self.exit, self.new_source, self.new_destination)


class Connection(NamedTuple):
    """A connection through the node, with what its packets need after the handshake."""

    protocol: str
    client: _End
    server: _End


def connection(outcome: Outcome) -> Connection | None:
    """The connection of an outcome, None if the node doesn't forward it, or it can't take the fast path.

    Answers to a client with an address of another interface leave the node there, so that nobody hears them.  If a test
    chooses the client's port, it sends the connection's later packets itself.
    """
    probe = outcome.probe
    entrance, exit_ = INTERFACES[probe.origin] if probe else OWN, outcome.interface
    if not probe or not probe.source or not outcome.source or OWN in (entrance, exit_) or probe.protocol not in DATA:
        return None
    if (probe.sport or 0) < FIRST_PORT:
        return None
    if (entrance == PODS) != any(ip_address(probe.source) in ip_network(each) for each in (POD_CIDR, POD_CIDR6)):
        return None
    client, front = Address(probe.source, probe.sport or 0), Address(probe.address, probe.port)
    server = outcome.endpoint or front
    return Connection(
        probe.protocol,
        _End(entrance, client, front, exit_, outcome.source, server),
        _End(exit_, server, outcome.source, entrance, front, client),
    )


Batch = Mapping[int, Connection]
"""Up to `wire.BATCH` connections by their tokens."""


class Established:
    """Establishes connections that the node forwards, and sends their later packets, by a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def establish(self, batch: Batch) -> None:
        """Answer connections, and acknowledge the answers of TCP.

        Raises:
            LabError: the machine lost packets.
            WentAstray: an answer didn't reach its client.
        """
        self.send(batch, What.ANSWER, ANSWERS, by_client=False)
        self._wire.exchange(
            [
                each.client.sending(
                    "tcp", acknowledgement(each.client.source.port, each.client.destination.port, token)
                )
                for token, each in batch.items()
                if each.protocol == "tcp"
            ]
        )

    def send(self, batch: Batch, what: What, segments: Segments, *, by_client: bool) -> None:
        """Send a packet on each connection, and check that it leaves the node as the connection's other packets do.

        Raises: as `establish` does.
        """
        ends = {token: each.client if by_client else each.server for token, each in batch.items()}
        sightings, is_complete = self._exchange(batch, ends, segments)
        came = {
            each.packet.token
            for each in sightings
            if each.packet.what is what and each.packet.token in ends and ends[each.packet.token].is_right(each)
        }
        if missing := ends.keys() - came:
            if not is_complete:
                raise LabError("the machine was too busy and lost frames: whether data got lost is unknown")
            seen = [each for each in sightings if each.packet.token in missing]
            raise WentAstray(f"{what}: of {[ends[token] for token in missing]} the node sent {seen}")

    def next_packets(self, batch: Batch) -> dict[int, Outcome]:
        """Send the next packet of each client of TCP, and return the outcomes of those that don't go on as before.

        Where such a packet reaches another endpoint, that resets the connection, which it doesn't know.

        Raises:
            LabError: the machine lost packets.
        """
        ends = {token: each.client for token, each in batch.items()}
        sightings, is_complete = self._exchange(batch, ends, DATA)
        seen = [each for each in sightings if each.packet.token in batch]
        arrived = {each.packet.token: each for each in seen if each.packet.what is What.DATA}
        going_on = {token for token, each in arrived.items() if ends[token].is_right(each)}
        elsewhere = [each for token, each in arrived.items() if token not in going_on and each.interface != OWN]
        after = self._wire.exchange(list(map(_reset_to, elsewhere)))
        outcomes = dict.fromkeys(batch.keys() - going_on, DROPPED)
        for token, each in arrived.items():
            if token not in going_on:
                outcomes[token] = endpoint(unpacked(each.packet.destination), each.packet.dport)
        for sighting in (*seen, *after.sightings):
            token = sighting.packet.token
            if sighting.packet.what is What.RESET and token in outcomes and batch[token].server.is_right(sighting):
                outcomes[token] = TCP_RESET
        if not (is_complete and after.is_complete) and outcomes:
            raise LabError("the machine was too busy and lost frames: whether connections go on is unknown")
        return outcomes

    def _exchange(self, batch: Batch, ends: Mapping[int, _End], segments: Segments) -> Aftermath:
        """Send a segment from an end of each connection."""
        return self._wire.exchange(
            [
                end.sending(
                    batch[token].protocol,
                    segments[batch[token].protocol](end.source.port, end.destination.port, token),
                )
                for token, end in ends.items()
            ]
        )


def _reset_to(sighting: Sighting) -> Sending:
    """The reset of a host that gets a packet of a connection which it doesn't know."""
    seen = sighting.packet
    segment = reset(seen.dport, seen.sport, seen.token)
    return Sending(sighting.interface, packet(seen.destination, seen.source, TRANSPORTS["tcp"], segment), seen.source)
