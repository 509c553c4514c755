"""The owner of an address and port, the Services that lost it, and the places that a question is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nftproxy.explanation.answer import Loser, Owner
from nftproxy.explanation.question import ToAddress, ToNode, ToService
from nftproxy.model.addresses import LOCALHOST, Address, Family, Protocol, family_of, is_loopback, of_family
from nftproxy.model.objects import ObjectKey, Service, ServicePort
from nftproxy.pipeline import Pipeline
from nftproxy.policy import fronts
from nftproxy.policy.choosing.verdicts import Choice, choose
from nftproxy.policy.claims import NODE, Claim, Denial
from nftproxy.policy.compile import compile_service
from nftproxy.policy.facts import PortFacts
from nftproxy.policy.fronts import (
    ClaimedFront,
    claimed_fronts,
    health_check_port,
    nodeport_addresses,
    serves_every_address,
)
from nftproxy.policy.state import ClusterState


class Served(NamedTuple):
    """A Service port that has a front, with the values that its rules are made from."""

    service: Service
    port: ServicePort
    reach: ClaimedFront
    facts: PortFacts
    choice: Choice

    @property
    def owner(self) -> Owner:
        """The Service port by its name."""
        return owner(self.service.key, self.port.name)


def owner(key: ObjectKey, port: str) -> Owner:
    """A Service port by its name."""
    return Owner(key.namespace, key.name, port)


def serves_node_ports(pipeline: Pipeline, address: Address) -> bool:
    """True if rules serve node ports at an address."""
    state, config, family = pipeline.state, pipeline.settings.config, family_of(address)
    if is_loopback(address):
        return False
    if serves_every_address(config, family):
        return address in state.own_addresses
    return address in nodeport_addresses(state, config, family)


def served_at(pipeline: Pipeline, spot: ToAddress) -> Served | None:
    """The Service port that owns a place.  An address precedes a node port, and quarantined Services own nothing."""
    found = _holder_of(pipeline, spot.claim, spot.family)
    if found is None and serves_node_ports(pipeline, spot.address):
        found = _holder_of(pipeline, spot.node_claim, spot.family)
    if found is None or found[0].key in pipeline.withheld[spot.family]:
        return None
    return _served(pipeline, spot.family, *found)


def node_port_owner(pipeline: Pipeline, spot: ToAddress) -> Owner | None:
    """The Service port with a node port that this address doesn't serve, to explain why it isn't reached there.

    None if the address serves node ports, if no Service has the port, or if the Service is withheld.
    """
    found = None if serves_node_ports(pipeline, spot.address) else _holder_of(pipeline, spot.node_claim, spot.family)
    if found is None or found[0].key in pipeline.withheld[spot.family]:
        return None
    return owner(found[0].key, found[1].name)


def unaddressed_at(pipeline: Pipeline, spot: ToAddress) -> Service | None:
    """Return the Service that has a node port of a family which no address of this node serves, None if one does."""
    state = pipeline.state
    if fronts.serves_node_ports(state, pipeline.settings.config, spot.family):
        return None
    service = service_with_node_port(state, spot.protocol, spot.port)
    return service if service and of_family(service.cluster_ips, spot.family) else None


def service_with_node_port(state: ClusterState, protocol: Protocol, port: int) -> Service | None:
    """Return the Service that has a node port, whether any address serves it or not."""
    key = state.claims.winner(Claim(NODE, protocol, port))
    service = state.services.get(key) if key else None
    has_port = service and any((each.protocol, each.node_port) == (protocol, port) for each in service.ports)
    return service if has_port else None


def _holder_of(pipeline: Pipeline, claim: Claim, family: Family) -> tuple[Service, ServicePort, ClaimedFront] | None:
    state = pipeline.state
    key = state.claims.winner(claim)
    service = state.services.get(key) if key else None
    for port, claimed in claimed_fronts(state, pipeline.settings.config, family, service) if service else ():
        for reach in claimed:
            if reach.claim == claim and not reach.denial:
                assert service
                return service, port, reach
    return None


def _served(pipeline: Pipeline, family: Family, service: Service, port: ServicePort, reach: ClaimedFront) -> Served:
    state = pipeline.state
    ((_, facts),) = compile_service(state, pipeline.settings, family, service, only=port)
    return Served(service, port, reach, facts, choose(state.endpoints_of(service, family), port))


def health_check_at(pipeline: Pipeline, spot: ToAddress) -> Service | None:
    """The Service with this health-check node port, if it is of the address's family."""
    state = pipeline.state
    key = state.claims.winner(spot.node_claim) if spot.protocol is Protocol.TCP else None
    service = state.services.get(key) if key else None
    check = health_check_port(state, service) if service else None
    is_had = check and check.claim == spot.node_claim and not check.denial
    return service if is_had and service and spot.family in map(family_of, service.cluster_ips) else None


def kind_of_front(served: Served) -> str:
    """The kind of a front, in the API's words."""
    address = served.reach.claim.address
    if address == NODE:
        return "node port"
    if not served.reach.is_external:
        return "ClusterIP"
    return "load balancer IP" if address in served.service.load_balancer_ips else "external IP"


def losers_at(pipeline: Pipeline, spot: ToAddress) -> Iterator[Loser]:
    """The Service ports that claim a place and don't get it, with the reason that the log and the Events give."""
    claims = {spot.claim}
    if serves_node_ports(pipeline, spot.address) or spot.address in LOCALHOST.values():
        claims.add(spot.node_claim)
    for lost in pipeline.losses.all():
        if lost.claim in claims and lost.denial is not Denial.CLOSED:
            yield Loser(owner(lost.service, lost.port_name), lost.why(pipeline.state.claims), lost.denial.code)


# The places that a question is about


def spots_of_service(pipeline: Pipeline, service: Service, to: ToService) -> Iterator[ToAddress]:
    """All places of a Service's ports, or of a single port."""
    for family in pipeline.generations:
        for port, claimed in claimed_fronts(pipeline.state, pipeline.settings.config, family, service):
            if to.port in ("", port.name, str(port.port)) and to.protocol in (None, port.protocol):
                for reach in claimed:
                    for address in _addresses(pipeline, family, reach.claim):
                        yield ToAddress(address, port.protocol, reach.claim.port)


def _addresses(pipeline: Pipeline, family: Family, claim: Claim) -> tuple[Address, ...]:
    return node_port_addresses(pipeline, family, claim.protocol) if claim.address == NODE else (claim.address,)


def spots_of_node(pipeline: Pipeline, to: ToNode) -> Iterator[ToAddress]:
    """A port of the node at all addresses that serve node ports, or at the node's own address if there are none."""
    for family in pipeline.generations:
        own = of_family(pipeline.state.node.addresses, family)[:1]
        for address in node_port_addresses(pipeline, family, to.protocol) or own:
            yield ToAddress(address, to.protocol, to.port)


def node_port_addresses(pipeline: Pipeline, family: Family, protocol: Protocol) -> tuple[Address, ...]:
    """The addresses that serve node ports of a protocol, including localhost."""
    state, config = pipeline.state, pipeline.settings.config
    if serves_every_address(config, family):
        own = sorted(state.own_addresses)
        found = tuple(a for a in of_family(own, family) if not is_loopback(a))
    else:
        found = nodeport_addresses(state, config, family)
    forwards = protocol is Protocol.TCP and family in config.node_port_addresses.localhost
    return (*found, LOCALHOST[family]) if forwards else found
