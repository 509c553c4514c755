"""Connections that go on after their first packets, on a node with a fast path.

Each TCP or UDP connection that the node forwards is answered and established, and enters the flowtable.  Then both ends
send data.  The data must reach the other end with the same translation, and no chain of the forward hook may see it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from nftproxy.model.addresses import FAST_PATH_TABLE
from nftproxy.policy.facts import FastPathFacts
from nftproxy.rules.renderer import Renderer
from nftproxy.trace.frames import TRANSPORTS, packed, packet, unpacked
from nftproxy_conformance.lab.frames import ANSWERS, DATA, What, acknowledgement
from nftproxy_conformance.lab.namespace import LabError
from nftproxy_conformance.lab.node import Node
from nftproxy_conformance.lab.outcome import FIRST_PORT, Address, Outcome
from nftproxy_conformance.lab.topology import INTERFACES, OWN, POD_CIDR, POD_CIDR6, PODS, UPLINK
from nftproxy_conformance.lab.wire import Sending, Sighting, Wire

_TABLE = f"inet {FAST_PATH_TABLE}-trial"
"""Beside the table of an agent, if one runs on the node."""
_RULES = f"""
add flowtable {_TABLE} established {{ hook ingress priority 0; devices = {{ {UPLINK}, {PODS} }}; }}
add rule {_TABLE} forward meta l4proto udp ct state established flow add @established
add chain {_TABLE} seen {{ type filter hook forward priority 2000; }}
add rule {_TABLE} seen meta l4proto {{ tcp, udp }} ct state established counter
"""
"""The lab's own interfaces, and a rule without the two seconds after which a UDP flow is assured.  The counter comes
after all other chains."""
Segments = Mapping[str, Callable[[int, int, int], bytes]]

MOST = 32
"""Connections of a batch that go on.  Further connections would say the same."""
_BEFORE = {"tcp": 2, "udp": 1}
"""Packets of an established connection that the forward hook sees until it is on the fast path: the answer, and of TCP
the acknowledgement of the answer."""


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


class _Connection(NamedTuple):
    """A forwarded connection."""

    protocol: str
    client: _End
    server: _End


def _connection(outcome: Outcome) -> _Connection | None:
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
    return _Connection(
        probe.protocol,
        _End(entrance, client, front, exit_, outcome.source, server),
        _End(exit_, server, outcome.source, entrance, front, client),
    )


class FastPathTrial:
    """Establishes connections, and tries them on the fast path.

    Args:
        renderer: of the fast path's template.
        node: the lab's node.
        wire: the lab's wire.

    Attributes:
        connections: the number of connections that were seen on the fast path.
    """

    def __init__(self, renderer: Renderer, node: Node, wire: Wire) -> None:
        self.connections = 0
        self._rules = renderer.fast_path(FastPathFacts(_TABLE, "ct status assured", packets=1)).text + _RULES
        self._node, self._wire = node, wire

    def load(self) -> None:
        """Load the table.

        Raises:
            LabError: the kernel has no flowtables.
        """
        self._node.load(self._rules)

    def go_on(self, outcomes: Iterable[Outcome]) -> None:
        """Establish the connections among these that the node forwards, and try each on the fast path.

        Raises:
            LabError: the machine lost packets.
            WentAstray: a connection took another way.
        """
        forwarded = ((each.token, found) for each in outcomes if (found := _connection(each)))
        if chosen := dict(itertools.islice(forwarded, MOST)):
            self._try(chosen)

    def _try(self, batch: Mapping[int, _Connection]) -> None:
        seen = self._seen()
        self._send(batch, What.ANSWER, ANSWERS, by_client=False)
        self._wire.exchange(
            [
                each.client.sending(
                    "tcp", acknowledgement(each.client.source.port, each.client.destination.port, token)
                )
                for token, each in batch.items()
                if each.protocol == "tcp"
            ]
        )
        wanted = sum(_BEFORE[each.protocol] for each in batch.values())
        self._send(batch, What.DATA, DATA, by_client=True)
        self._send(batch, What.DATA, DATA, by_client=False)
        if (found := self._seen() - seen) != wanted:
            raise WentAstray(f"the forward hook saw {found} packets, not {wanted}, of {list(batch.values())}")
        self.connections += len(batch)

    def _send(self, batch: Mapping[int, _Connection], what: What, segments: Segments, *, by_client: bool) -> None:
        ends = {token: each.client if by_client else each.server for token, each in batch.items()}
        sightings, is_complete = self._wire.exchange(
            [
                end.sending(
                    batch[token].protocol,
                    segments[batch[token].protocol](end.source.port, end.destination.port, token),
                )
                for token, end in ends.items()
            ]
        )
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

    def _seen(self) -> int:
        """The packets of established connections that the forward hook has seen.  A test may have removed all rules."""
        try:
            text = self._node.load(f"list chain {_TABLE} seen")
        except LabError:
            self.load()
            text = self._node.load(f"list chain {_TABLE} seen")
        found = re.search(r"counter packets (\d+)", text)
        assert found
        return int(found[1])
