"""What becomes of a connection from one client to one front, and why.

The memberships that say so are those of the rules (`PortFacts`), asked in the order in which the chains of
table.nft.j2 ask them; the reasons are those of the policy.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from nftproxy.explanation.answer import Admission, Admits, Case, Endpoint, Fate, List
from nftproxy.explanation.clients import Client, is_local, own_addresses
from nftproxy.explanation.fronts import Served, Spot
from nftproxy.explanation.question import Kind
from nftproxy.model.addresses import Address, Family, Network, Protocol, contains, family_of, is_loopback
from nftproxy.model.annotations import Algorithm
from nftproxy.model.objects import TrafficPolicy
from nftproxy.model.pods import Pods
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import NODE
from nftproxy.policy.compile import compile_service
from nftproxy.policy.endpoints import Verdict
from nftproxy.policy.facts import Front, Slots
from nftproxy.policy.fronts import denies_some, has_own_list, restricting_ranges
from nftproxy.policy.local_sources import local_sources

REJECTIONS = {
    Protocol.TCP: "tcp reset",
    Protocol.UDP: "icmp port-unreachable",
    Protocol.SCTP: "icmp port-unreachable",
}


HOW_CHOSEN = {
    Algorithm.RANDOM: "drawn at random",
    Algorithm.ROUND_ROBIN: "one after the other (round-robin)",
    Algorithm.SOURCE_HASH: "by a hash of the client's address (source-hash)",
    Algorithm.SOURCE_HASH_WITH_PORT: "by a hash of the client's address and port (source-hash-with-port)",
    Algorithm.CONSISTENT_HASH: "by a hash of the client's address that moves few clients (consistent-hash)",
    Algorithm.CONSISTENT_HASH_WITH_PORT: (
        "by a hash of the client's address and port that moves few clients (consistent-hash-with-port)"
    ),
}
"""What the annotation nftproxy.dev/algorithm comes to; affinity comes first, for clients that are remembered."""


class Choice(NamedTuple):
    """Which list a client draws from, and whether it is masqueraded; each with the reason."""

    list: List
    list_why: str
    is_masqueraded: bool
    source_why: str


def merged(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The cases with those put together that differ in their sources alone."""
    found: dict[Case, tuple[str, ...]] = {}
    for case in cases:
        same = msgspec.structs.replace(case, sources=())
        found[same] = (*found.get(same, ()), *case.sources)
    return tuple(msgspec.structs.replace(case, sources=sources) for case, sources in found.items())


def served_case(pipeline: Pipeline, spot: Spot, served: Served, client: Client, pods: Pods) -> Case:
    """What becomes of a connection to a front."""
    admission = _admission(pipeline, spot.family, served, client)
    sources = (str(client),)
    if admission and admission.admits is Admits.NO:
        return Case(sources, Fate.DROPPED, f"source ranges: {admission.why}", admission=admission)
    choice = _choice(pipeline, spot.family, served, client)
    endpoints = tuple(_endpoints(pipeline, served, choice, client, pods))
    count = sum(endpoint.share > 0 for endpoint in endpoints)
    algorithm = served.service.options.algorithm
    why = f"to one of {count} endpoints, {HOW_CHOSEN[algorithm]}" if count > 1 else "to the only endpoint"
    if count:
        screening = _screening(pipeline, spot.family, served, client)
        if screening and screening.admits is Admits.NO:
            return Case(sources, Fate.DROPPED, screening.why, admission=screening, is_screened=True)
        admission = admission or screening
        case = Case(
            sources,
            Fate.ENDPOINT,
            why,
            algorithm=algorithm.value,
            is_masqueraded=choice.is_masqueraded,
            source_why=choice.source_why,
        )
    else:
        case = _without_endpoints(pipeline, spot, served, client)
    return msgspec.structs.replace(
        case, list=choice.list, list_why=choice.list_why, endpoints=endpoints, admission=admission
    )


def unserved_case(pipeline: Pipeline, spot: Spot, client: Client) -> Case:
    """What becomes of a connection to a place that is no front."""
    state, sources, address = pipeline.state, (str(client),), spot.address
    is_own = address in own_addresses(state) or is_loopback(address)
    if is_own and client.kind is not Kind.NODE:
        return Case(sources, Fate.NODE, "it is the node's own address, and no Service has the port")
    holder = state.claims.cluster_ip_owner(address)
    if holder and holder not in pipeline.withheld[spot.family]:
        why = f"it is the ClusterIP of Service {holder}, which does not serve this port"
        return Case(sources, Fate.REJECTED, why, REJECTIONS[spot.protocol])
    cidr = next((cidr for cidr in state.service_cidrs if contains(cidr, address)), None)
    if cidr:
        return Case(sources, Fate.DROPPED, f"it is in the ServiceCIDR {cidr}, and no Service's ClusterIP")
    if is_own:
        return Case(sources, Fate.NODE, "it is the node's own address, and no Service has the port")
    return Case(sources, Fate.PASSED, "no Service has this address and port, so the packet is routed as any other")


# Source ranges


def _admission(pipeline: Pipeline, family: Family, served: Served, client: Client) -> Admission | None:
    """What the source ranges say, None if the front has none."""
    return _by_ranges(pipeline, family, served, client, served.facts.guarded)


def _screening(pipeline: Pipeline, family: Family, served: Served, client: Client) -> Admission | None:
    """What annotations say: denied ranges, and the source ranges of node ports; None if nothing."""
    screen = served.facts.screen
    if screen is None:
        return None
    denial = _denial(pipeline, family, served, client) if denies_some(served.service, family) else None
    if denial:
        return denial
    found = _by_ranges(pipeline, family, served, client, screen.guarded)
    is_closed = found is not None and found.admits is Admits.NO
    return msgspec.structs.replace(found, why=f"source ranges: {found.why}") if found and is_closed else found


def _denial(pipeline: Pipeline, family: Family, served: Served, client: Client) -> Admission | None:
    """What denied ranges say of a client; None if it is in none of them."""
    if not has_own_list(pipeline.state, served.service, family):
        why = "denied ranges hold for everybody: another Service has the same ClusterIP, which distinguishes lists"
        return Admission(Admits.NO, "", why)
    ranges = [each for each in served.service.options.denied_ranges if family_of(each) is family]
    by = _holder(ranges, client.networks[0]) if client.networks else None
    if by and all(_holder(ranges, each) for each in client.networks):
        return Admission(Admits.NO, str(by), f"{by} is denied, and holds {client}")
    if client.networks and not any(each.overlaps(network) for each in ranges for network in client.networks):
        return None
    return Admission(Admits.DEPENDS, "", f"denies sources in {_listed(ranges)}")


def _by_ranges(
    pipeline: Pipeline, family: Family, served: Served, client: Client, guarded: Iterable[tuple[Front, Address]]
) -> Admission | None:
    lists = [name for front, name in guarded if front == served.reach.front]
    if not lists:
        return None
    if not has_own_list(pipeline.state, served.service, family):
        why = "they admit nobody: another Service has the same ClusterIP, which distinguishes lists of ranges"
        return Admission(Admits.NO, "", why)
    allowed = [ipaddress.ip_network(source) for name, source in served.facts.allowed if name == lists[0]]
    ranges = restricting_ranges(served.service, family)
    if client.networks and all(_holder(allowed, each) for each in client.networks):
        return _admitted(ranges, client)
    if client.networks and not any(each.overlaps(network) for each in allowed for network in client.networks):
        return Admission(Admits.NO, "", f"{client} is in none of {_listed(ranges)}")
    return Admission(Admits.DEPENDS, "", f"admits only sources in {_listed(allowed)}; others are dropped")


def _admitted(ranges: Iterable[Network], client: Client) -> Admission:
    by = _holder(ranges, client.networks[0])
    if by:
        return Admission(Admits.YES, str(by), f"{by} admits {client}")
    why = "a range holds the node's address, which admits the Service's own load balancer addresses, too"
    return Admission(Admits.YES, "", why)


def _holder(networks: Iterable[Network], inner: Network) -> Network | None:
    return next((each for each in networks if inner.subnet_of(each)), None)  # type: ignore[arg-type]  # one family


def _listed(networks: Iterable[Network]) -> str:
    return ", ".join(map(str, networks))


# Which list, and whether the source is kept


def _choice(pipeline: Pipeline, family: Family, served: Served, client: Client) -> Choice:
    facts, front, config = served.facts, served.reach.front, pipeline.settings.config
    local = is_local(client, pipeline.state, config, family)
    detector = local_sources(pipeline.state.node, config, family)
    if front in facts.masqueraded:
        policy = "externalTrafficPolicy Cluster"
        return Choice(List.CLUSTER, policy, True, f"{policy} hides the client's address")
    if front in facts.local_policy:
        return _by_external_local(client, is_local=bool(local), detector=str(detector))
    is_local_list = served.reach.policy is TrafficPolicy.LOCAL
    list_why = f"internalTrafficPolicy {served.reach.policy.value}"
    name = List.LOCAL if is_local_list else List.CLUSTER
    if config.masquerade_all:
        return Choice(name, list_why, True, "masqueradeAll hides all sources from the endpoints of ClusterIPs")
    if local is None:
        why = "no range says which sources are local (clusterCIDR, the Node's podCIDR), so none is masqueraded"
        return Choice(name, list_why, False, why)
    if local:
        return Choice(name, list_why, False, f"it is a local source ({detector})")
    return Choice(name, list_why, True, f"it is not a local source ({detector})")


def _by_external_local(client: Client, *, is_local: bool, detector: str) -> Choice:
    """An external front with externalTrafficPolicy Local: local sources and the node take the short circuit."""
    policy = "externalTrafficPolicy Local"
    if is_local:
        why = f"{policy}, from which local sources ({detector}) are exempt"
        return Choice(List.CLUSTER, why, False, f"it is a local source ({detector})")
    if client.kind is Kind.NODE:
        why = f"{policy}, from which the node itself is exempt"
        return Choice(List.CLUSTER, why, True, "the node's own connections are masqueraded")
    return Choice(List.LOCAL, policy, False, f"{policy} keeps the client's address")


# Endpoints


def _endpoints(pipeline: Pipeline, served: Served, choice: Choice, client: Client, pods: Pods) -> Iterator[Endpoint]:
    """Every endpoint of the Service port, with its share of the list that counts, or why it isn't on it."""
    rows = Counter((address, port) for slots in _slots(served, choice.list) for _, address, port in slots.rows)
    for verdict in served.choice.verdicts:
        candidate = verdict.candidate
        place = candidate.address, candidate.port
        yield Endpoint(
            *place,
            pods.name_at(candidate.address),
            candidate.is_local,
            100 * rows[place] / rows.total() if place in rows else 0.0,
            _reason(verdict, choice.list),
            place in rows and _is_masqueraded(pipeline, served, choice, client, *place),
        )


def _slots(served: Served, name: List) -> Iterator[Slots]:
    """The rows of the rules' list of this name at the front; none if it is empty."""
    facts, front = served.facts, served.reach.front
    is_other = front in facts.local_policy and name is List.CLUSTER
    numbers = {number for each, number in (facts.short_circuits if is_other else facts.services) if each == front}
    lists = {each.list for each in facts.draws if each.of_port in numbers and each.prefix == front.prefix}
    return (slots for slots in facts.endpoints if slots.front == front and slots.list in lists)


def _reason(verdict: Verdict, name: List) -> str:
    return (verdict.local if name is List.LOCAL else verdict.cluster).value


def _is_masqueraded(
    pipeline: Pipeline, served: Served, choice: Choice, client: Client, address: Address, port: int
) -> bool:
    """Whether an endpoint sees another source: never if the packet is for the node itself, as it is sent nowhere."""
    if client.kind is not Kind.NODE and address in own_addresses(pipeline.state):
        return False
    if choice.is_masqueraded or client.address != address:
        return choice.is_masqueraded
    return _is_hairpin(pipeline, served, address, port)


def _is_hairpin(pipeline: Pipeline, served: Served, address: Address, port: int) -> bool:
    """Whether what an endpoint sends to itself is masqueraded: if it is on this node, by whatever Service's word."""
    state, family, place = pipeline.state, family_of(address), (address, port)
    keys = {key for key, _ in state.endpoints_at(address)} - pipeline.withheld[family].keys()
    return any(
        place in facts.hairpins and facts.protocol == served.facts.protocol
        for service in filter(None, map(state.services.get, sorted(keys)))
        for _, facts in compile_service(state, pipeline.settings, family, service)
    )


def _without_endpoints(pipeline: Pipeline, spot: Spot, served: Served, client: Client) -> Case:
    facts, front, sources = served.facts, served.reach.front, (str(client),)
    is_node_port = served.reach.claim.address == NODE
    if is_node_port and spot.address not in own_addresses(pipeline.state):
        why = "there is no endpoint, and the node can't reject what is for an address that is on none of its interfaces"
        return msgspec.structs.replace(unserved_case(pipeline, spot, client), why=why)
    if front in facts.no_endpoints:
        why = "the Service port has no usable endpoint on any node"
        return Case(sources, Fate.REJECTED, why, REJECTIONS[spot.protocol])
    if front in facts.fronts:
        return Case(sources, Fate.DROPPED, "no usable endpoint is on this node, though other nodes have some")
    return unserved_case(pipeline, spot, client)
