"""The flows of UDP and SCTP that stay at their endpoint after a change (docs/semantics.md, "When rules change")."""

from __future__ import annotations

from nftproxy.model.addresses import Protocol, family_of
from nftproxy.model.objects import TrafficPolicy
from nftproxy_conformance.lab.outcome import Outcome
from nftproxy_conformance.lab.topology import Origin
from nftproxy_conformance.specification.fronts import Front
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import Destination, place_of


def stays(oracle: Oracle, outcome: Outcome) -> bool:
    """True if the next packet of a flow to an endpoint goes the way of its first packet.

    Args:
        oracle: the oracle of the world after the change.
        outcome: of the flow's first packet, before it.
    """
    assert outcome.probe
    place = place_of(outcome.probe)
    front = oracle.front_of(place)
    if front is None or front.port is None or outcome.endpoint not in _kept(oracle, front, place):
        return False
    if place.protocol is Protocol.SCTP or front.policy is TrafficPolicy.CLUSTER:
        return True
    if outcome.endpoint in _kept(oracle, front, place, node=oracle.world.node.name):
        return True
    return front.is_external and (not outcome.masqueraded or outcome.probe.origin is Origin.NODE)


def _kept(oracle: Oracle, front: Front, place: Destination, node: str = "") -> set[tuple[str, int]]:
    """The endpoints that keep flows: for SCTP all in the slices, for UDP those that are usable."""
    assert front.port
    of_port = front.port.name, front.port.protocol
    return {
        (pod.address, port.port)
        for each in oracle.world.slices
        if (each.service, each.family) == (front.service.key, family_of(place.address))
        for port in each.ports
        if (port.name, port.protocol) == of_port
        for pod in each.endpoints
        if node in ("", pod.node_name)
        if place.protocol is Protocol.SCTP or pod.ready or (pod.serving and pod.terminating)
    }
