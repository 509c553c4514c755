"""The outcome of a connection from a client to a front, with the reasons.

The memberships that decide are the memberships of the rules (`PortFacts`), in the order in which the chains of
table.nft.j2 look them up.  The reasons come from the policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from nftproxy.explanation.answer import Admission, Admits, Case, EndpointShare, Fate, List
from nftproxy.explanation.clients import Client, is_local
from nftproxy.explanation.explained_extension import words_of
from nftproxy.explanation.ownership import (
    Served,
    health_check_at,
    node_port_addresses,
    node_port_owner,
    serves_node_ports,
    unaddressed_at,
)
from nftproxy.explanation.question import SourceKind, ToAddress
from nftproxy.explanation.words import Chosen
from nftproxy.model.addresses import Address, Family, Network, Protocol, contains, family_of, is_loopback
from nftproxy.model.objects import ObjectKey, Place, Service, TrafficPolicy
from nftproxy.model.pods import Pods
from nftproxy.pipeline import Pipeline
from nftproxy.policy.choosing.choice import why_no_candidate
from nftproxy.policy.choosing.verdicts import Choice
from nftproxy.policy.claims import NODE
from nftproxy.policy.compile import compile_service
from nftproxy.policy.drawing import is_hashed
from nftproxy.policy.facts import Front, Slots
from nftproxy.policy.fronts import (
    has_own_list,
    restricting_ranges,
)
from nftproxy.policy.local_sources import local_sources
from nftproxy.policy.ranges import networks_of
from nftproxy.policy.state import ClusterState
from nftproxy.policy.unserved import no_address, none_local

REJECTIONS = {
    Protocol.TCP: "tcp reset",
    Protocol.UDP: "icmp port-unreachable",
    Protocol.SCTP: "icmp port-unreachable",
}


BY_CHANCE = Chosen("random", "drawn at random")
BY_CLIENT = Chosen("source-hash", "by a hash of the client's address (source-hash)")
"""How endpoints are chosen where no extension chooses.  Session affinity comes first, for remembered clients."""


class PolicyEffect(NamedTuple):
    """The list that a client draws from, and whether its source is masqueraded, each with the reason."""

    list: List
    list_why: str
    is_masqueraded: bool
    source_why: str


def merged(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Merge cases that differ only in their sources."""
    found: dict[Case, tuple[str, ...]] = {}
    for case in cases:
        same = msgspec.structs.replace(case, sources=())
        found[same] = (*found.get(same, ()), *case.sources)
    return tuple(msgspec.structs.replace(case, sources=sources) for case, sources in found.items())


def _how_chosen(pipeline: Pipeline, spot: ToAddress, service: Service, endpoints: int) -> Chosen:
    """How one of this number of endpoints is drawn."""
    found = (each.how_chosen(pipeline, spot, service, endpoints) for each in words_of(pipeline))
    default = BY_CLIENT if is_hashed(spot.family, service, pipeline.settings) else BY_CHANCE
    return next(filter(None, found), default)


def served_case(pipeline: Pipeline, spot: ToAddress, served: Served, client: Client, pods: Pods) -> Case:
    """The outcome of a connection to a front."""
    admission = _admission(pipeline, spot.family, served, client)
    sources = (str(client),)
    if admission and admission.admits is Admits.NO:
        return Case(sources, Fate.DROPPED, f"source ranges: {admission.why}", admission=admission)
    choice = _choice(pipeline, spot.family, served, client)
    endpoints = tuple(_endpoints(pipeline, served, choice, client, pods))
    count = sum(endpoint.share > 0 for endpoint in endpoints)
    chosen = _how_chosen(pipeline, spot, served.service, count)
    why = f"to one of {count} endpoints, {chosen.how}" if count > 1 else "to the only endpoint"
    if count:
        restricting = _restricting(pipeline, spot, served, client)
        if restricting and restricting.admits is Admits.NO:
            return Case(sources, Fate.DROPPED, restricting.why, admission=restricting, is_restricted=True)
        admission = admission or restricting
        case = Case(
            sources,
            Fate.ENDPOINT,
            why,
            drawn=chosen.name,
            is_masqueraded=choice.is_masqueraded,
            source_why=choice.source_why,
        )
    else:
        case = _without_endpoints(pipeline, spot, served, client)
    return msgspec.structs.replace(
        case, list=choice.list, list_why=choice.list_why, endpoints=endpoints, admission=admission
    )


def unserved_case(pipeline: Pipeline, spot: ToAddress, client: Client) -> Case:
    """The outcome of a connection to a place that is no front."""
    state, sources, address = pipeline.state, (str(client),), spot.address
    is_own = address in state.own_addresses or is_loopback(address)
    if is_own and client.kind is not SourceKind.NODE:
        return Case(sources, Fate.NODE, _why_nodes_own(pipeline, spot))
    holder = state.claims.cluster_ip_owner(address)
    if holder and holder not in pipeline.withheld[spot.family]:
        why = f"it is the ClusterIP of Service {holder}, which does not serve this port"
        return Case(sources, Fate.REJECTED, why, REJECTIONS[spot.protocol])
    if not is_own and (closing := _closing(pipeline, spot)):
        why = f"it is an external address of Service {closing}, and no Service has this port"
        return Case(sources, Fate.REJECTED, why, REJECTIONS[spot.protocol])
    cidr = next((cidr for cidr in state.service_cidrs if contains(cidr, address)), None)
    if cidr:
        return Case(sources, Fate.DROPPED, f"it is in the ServiceCIDR {cidr}, and {_whose(pipeline, address)}")
    if is_own:
        return Case(sources, Fate.NODE, _why_nodes_own(pipeline, spot))
    if whose := another_proxys(pipeline.state, address):
        return Case(sources, Fate.PASSED, f"{whose}, so the packet is routed as any other")
    why = _why_no_node_port(pipeline, spot) or _proxied(state, address) or "no Service is served there"
    return Case(sources, Fate.PASSED, f"{why}, so the packet is routed as any other")


def _closing(pipeline: Pipeline, spot: ToAddress) -> ObjectKey | None:
    """The Service by which an extension closes the ports of an external address, None if they aren't closed."""
    return next(filter(None, (each.closes(pipeline, spot) for each in words_of(pipeline))), None)


def _proxied(state: ClusterState, address: Address) -> str:
    """Name the Service whose load balancer takes packets to an address by itself, or return "".  This looks at all."""
    found = (each.key for each in state.services.values() if address in each.proxied_ips)
    return next((f"it is a load balancer IP of Service {key} with ipMode Proxy" for key in found), "")


def another_proxys(state: ClusterState, address: Address) -> str:
    """Name the ignored Service that has a ClusterIP, with the reason, or return "".  This looks at all of them."""
    found = (each for each in state.ignored.values() if address in each.cluster_ips)
    return next((f"Service {each.key} has it, which this proxy doesn't serve: {each.reason}" for each in found), "")


def _whose(pipeline: Pipeline, address: Address) -> str:
    return another_proxys(pipeline.state, address) or "no Service is served there"


def _why_nodes_own(pipeline: Pipeline, spot: ToAddress) -> str:
    """Why a packet to one of the node's own addresses isn't translated."""
    service = health_check_at(pipeline, spot) if serves_node_ports(pipeline, spot.address) else None
    who = "another program" if spot.port in pipeline.health_checks.taken else "the agent"
    checked = f"{who} answers health checks of Service {service.key} there" if service else ""
    why = checked or _why_no_node_port(pipeline, spot) or "no Service is served at the port"
    return f"it is the node's own address, and {why}"


def _why_no_node_port(pipeline: Pipeline, spot: ToAddress) -> str:
    """Name the Service whose node port isn't served at this address, with the reason, or return ""."""
    owner = node_port_owner(pipeline, spot)
    if owner is None:
        return _why_no_address(pipeline, spot)
    what = f"the port is a node port of Service {owner}"
    addresses = node_port_addresses(pipeline, spot.family, spot.protocol)
    if spot.address in addresses:  # localhost, where the agent listens for ports with endpoints
        service = pipeline.state.services[ObjectKey(owner.namespace, owner.name)]
        where = (
            "this node (externalTrafficPolicy Local)" if service.external_policy is TrafficPolicy.LOCAL else "any node"
        )
        return f"{what}, but no usable endpoint is on {where}"
    served = ", ".join(map(str, addresses)) or "no address of this family"
    return f"{what}, but node ports are served only at {served} (nodePortAddresses)"


def _why_no_address(pipeline: Pipeline, spot: ToAddress) -> str:
    """Name the Service whose node port no address of this node serves, with the reason, or return ""."""
    service = unaddressed_at(pipeline, spot)
    if service is None:
        return ""
    why = no_address(pipeline.state, pipeline.settings.config, spot.family)
    return f"the port is a node port of Service {service.key}, but {why}"


# Source ranges


def _admission(pipeline: Pipeline, family: Family, served: Served, client: Client) -> Admission | None:
    """The verdict of the source ranges, None if the front has none."""
    return by_ranges(pipeline, family, served, client, served.facts.guarded, served.facts.allowed)


def _restricting(pipeline: Pipeline, spot: ToAddress, served: Served, client: Client) -> Admission | None:
    """The verdict of extensions on a client, None if they say nothing."""
    verdicts = (each.admission(pipeline, spot, served, client) for each in words_of(pipeline))
    return next(filter(None, verdicts), None)


def by_ranges(
    pipeline: Pipeline,
    family: Family,
    served: Served,
    client: Client,
    guarded: Iterable[tuple[Front, Address]],
    on_list: Iterable[tuple[Address, str]],
) -> Admission | None:
    """The verdict of source ranges on a client, None if a front has none.

    Args:
        pipeline: has seen the cluster.
        family: the front's family.
        served: the front.
        client: the source of the connection.
        guarded: rows of (front, the name of its list).
        on_list: rows of (list, key of a range).
    """
    lists = [name for front, name in guarded if front == served.reach.front]
    if not lists:
        return None
    if not has_own_list(pipeline.state, served.service, family):
        why = "they admit nobody: another Service has the same ClusterIP, which is the name of the list"
        return Admission(Admits.NO, "", why)
    allowed = networks_of(source for name, source in on_list if name == lists[0])
    ranges = restricting_ranges(served.service, family)
    if client.networks and all(holder_of(allowed, each) for each in client.networks):
        return _admitted(ranges, client)
    if client.networks and not any(each.overlaps(network) for each in allowed for network in client.networks):
        return Admission(Admits.NO, "", f"{client} is in none of {listed(ranges)}")
    return Admission(Admits.DEPENDS, "", f"admits only sources in {listed(allowed)}; others are dropped")


def _admitted(ranges: Iterable[Network], client: Client) -> Admission:
    by = holder_of(ranges, client.networks[0])
    if by:
        return Admission(Admits.YES, str(by), f"{by} admits {client}")
    why = "a range contains the node's address, so the load balancer addresses of the Service are admitted, too"
    return Admission(Admits.YES, "", why)


def holder_of(networks: Iterable[Network], inner: Network) -> Network | None:
    """The first of these networks that contains another."""
    return next((each for each in networks if inner.subnet_of(each)), None)  # type: ignore[arg-type]  # one family


def listed(networks: Iterable[Network]) -> str:
    """Networks in words."""
    return ", ".join(map(str, networks))


# Which list, and whether the source is kept


def _choice(pipeline: Pipeline, family: Family, served: Served, client: Client) -> PolicyEffect:
    facts, front, config = served.facts, served.reach.front, pipeline.settings.config
    local = is_local(client, pipeline.state, config, family)
    detector = local_sources(pipeline.state.node, config, family)
    if front in facts.masqueraded:
        policy = "externalTrafficPolicy Cluster"
        return PolicyEffect(List.CLUSTER, policy, True, f"{policy} hides the client's address")
    if front in facts.local_policy:
        return _by_external_local(client, is_local=bool(local), detector=str(detector))
    is_local_list = served.reach.policy is TrafficPolicy.LOCAL
    list_why = f"internalTrafficPolicy {served.reach.policy.value}"
    name = List.LOCAL if is_local_list else List.CLUSTER
    if config.masquerade_all:
        return PolicyEffect(name, list_why, True, "masqueradeAll hides all sources from the endpoints of ClusterIPs")
    if local is None:
        why = "no range says which sources are local (clusterCIDR, the Node's podCIDR), so none is masqueraded"
        return PolicyEffect(name, list_why, False, why)
    if local:
        return PolicyEffect(name, list_why, False, f"it is a local source ({detector})")
    return PolicyEffect(name, list_why, True, f"it is not a local source ({detector})")


def _by_external_local(client: Client, *, is_local: bool, detector: str) -> PolicyEffect:
    """The effect of externalTrafficPolicy Local: local sources and the node take the short circuit."""
    policy = "externalTrafficPolicy Local"
    if is_local:
        why = f"{policy}, from which local sources ({detector}) are exempt"
        return PolicyEffect(List.CLUSTER, why, False, f"it is a local source ({detector})")
    if client.kind is SourceKind.NODE:
        why = f"{policy}, from which the node itself is exempt"
        return PolicyEffect(List.CLUSTER, why, True, "the node's own connections are masqueraded")
    return PolicyEffect(List.LOCAL, policy, False, f"{policy} keeps the client's address")


# Endpoints


def _endpoints(
    pipeline: Pipeline, served: Served, choice: PolicyEffect, client: Client, pods: Pods
) -> Iterator[EndpointShare]:
    """The endpoints of a front, as a client reaches them."""
    rows = Counter(Place(address, port) for slots in _slots(served, choice.list) for _, address, port in slots.rows)
    return shares(
        pipeline.state.pod_names(served.service.key),
        pods,
        served.choice,
        choice.list,
        rows,
        is_masqueraded=lambda place: place in rows and _is_masqueraded(pipeline, served, choice, client, *place),
    )


def shares(
    names: Mapping[Address, str],
    pods: Pods,
    choice: Choice,
    name: List,
    rows: Counter[Place],
    *,
    is_masqueraded: Callable[[Place], bool],
) -> Iterator[EndpointShare]:
    """Every endpoint of a Service port, with its share of the rows of a list, or the reason for its absence."""
    whole = rows.total() or 1
    for verdict in choice.verdicts:
        place = verdict.candidate.place
        yield EndpointShare(
            *place,
            pods.name_at(place.address) or names.get(place.address, ""),
            verdict.candidate.is_local,
            100 * rows[place] / whole,
            (verdict.local if name is List.LOCAL else verdict.cluster).value,
            is_masqueraded(place),
        )


def _slots(served: Served, name: List) -> Iterator[Slots]:
    """The rows of the front's list of this name."""
    facts, front = served.facts, served.reach.front
    is_other = front in facts.local_policy and name is List.CLUSTER
    numbers = {number for each, number in (facts.short_circuits if is_other else facts.services) if each == front}
    lists = {each.list for each in facts.draws if each.of_port in numbers and each.prefix == front.prefix}
    return (slots for slots in facts.endpoints if slots.front == front and slots.list in lists)


def _is_masqueraded(
    pipeline: Pipeline, served: Served, choice: PolicyEffect, client: Client, address: Address, port: int
) -> bool:
    """True if an endpoint sees another source.  Packets for the node itself keep theirs: they leave no interface."""
    if client.kind is not SourceKind.NODE and address in pipeline.state.own_addresses:
        return False
    if choice.is_masqueraded or client.address != address:
        return choice.is_masqueraded
    return _is_hairpin(pipeline, served, address, port)


def _is_hairpin(pipeline: Pipeline, served: Served, address: Address, port: int) -> bool:
    """True if connections of an endpoint to itself are masqueraded.  Any Service may have put it into the set."""
    state, family, place = pipeline.state, family_of(address), (address, port)
    keys = {key for key, _ in state.endpoints_at(address)} - pipeline.withheld[family].keys()
    return any(
        place in facts.hairpins and facts.protocol == served.facts.protocol
        for service in filter(None, map(state.services.get, sorted(keys)))
        for _, facts in compile_service(state, pipeline.settings, family, service)
    )


def _without_endpoints(pipeline: Pipeline, spot: ToAddress, served: Served, client: Client) -> Case:
    facts, front, sources = served.facts, served.reach.front, (str(client),)
    is_node_port = served.reach.claim.address == NODE
    if is_node_port and spot.address not in pipeline.state.own_addresses:
        why = "there is no endpoint, and the node can't reject packets to an address that none of its interfaces has"
        why += _why_none(pipeline, spot.family, served)
        return msgspec.structs.replace(unserved_case(pipeline, spot, client), why=why)
    if front in facts.no_endpoints:
        why = f"the Service port has no usable endpoint on any node{_why_none(pipeline, spot.family, served)}"
        return Case(sources, Fate.REJECTED, why, REJECTIONS[spot.protocol])
    if front in facts.fronts:
        return Case(sources, Fate.DROPPED, none_local(served.choice))
    return unserved_case(pipeline, spot, client)


def _why_none(pipeline: Pipeline, family: Family, served: Served) -> str:
    """Say why a Service port has no candidates, or return "" if it has some: each of them has its own reason."""
    if served.choice.verdicts:
        return ""
    return f": {why_no_candidate(pipeline.state.slices_of(served.service.key), family, served.port)}"
