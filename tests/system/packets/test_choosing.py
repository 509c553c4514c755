"""Which endpoints are chosen: the cluster list, the local list, topology, and the draw."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from nftproxy_conformance.lab import DROPPED, TCP_RESET, Lab, Origin, is_even

from nftproxy.model.objects import EndpointSlice
from nftproxy.policy.numbers import as_address
from tests.support.cluster import IP, Cluster, Ip, Outcomes, at, beside, everywhere, exposed_service, masqueraded, pods
from tests.support.factories import node, service, slice_of

POD, OUTSIDE = Origin.POD, Origin.OUTSIDE


# ---- the two lists -------------------------------------------------------------------------------------------------

# Endpoints, the cluster list, the local list.
LISTS = {
    "all are ready": ("here, here2, away", "here here2 away", "here here2"),
    "some are not ready": ("here unready, here2, away unready, away2", "here2 away2", "here2"),
    "serving alone is not enough": ("here serving, here2, away", "here2 away", "here2"),
    "serving alone is no last resort": ("here serving, away draining", "away", ""),
    "terminating ones give way to ready ones": ("here draining, here2, away", "here2 away", "here2"),
    "all are terminating": ("here draining, here2 draining, away draining", "here here2 away", "here here2"),
    "stopped ones are no last resort": ("here draining, here2 stopped, away stopped", "here", "here"),
    "locally terminating, ready elsewhere": ("here draining, here2 unready, away", "away", "here"),
    "locally ready, terminating elsewhere": ("here, away draining", "here", "here"),
    "published though not ready": ("here published, here2 unready, away", "here away", "here"),
    "published though terminating": ("here published-draining, here2 draining, away", "here away", "here"),
    "published though stopped": ("here published-stopped, here2 draining, away draining", "here", "here"),
}


def target(endpoints: str, name: str = "shop/web") -> EndpointSlice:
    """A slice of these endpoints."""
    return pods(IP, *endpoints.split(", "), name=name)


def reach(names: str) -> Outcomes:
    """The outcomes of connections that reach each of these endpoints."""
    return at(*(getattr(IP, name) for name in names.split()))


@pytest.mark.parametrize(("endpoints", "cluster_list", "local_list"), LISTS.values(), ids=LISTS)
def test_lists(lab: Lab, endpoints: str, cluster_list: str, local_list: str) -> None:
    """Policy Cluster reaches exactly the cluster list, policy Local exactly the local list, if there is any."""
    local = service("shop/local", cluster_ips=[IP.vip2], internal_policy="Local")
    cluster = Cluster(lab, service(), local, target(endpoints), target(endpoints, "shop/local"))
    assert cluster.outcomes(POD, IP.vip) == reach(cluster_list)
    assert cluster.outcomes(POD, IP.vip2) == (reach(local_list) or {DROPPED})


def test_the_last_ready_endpoint_hands_over_to_terminating_ones(lab: Lab, ip: Ip) -> None:
    """As endpoints become ready and terminate, connections follow at once, through every stage of a rollout."""
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]))
    for endpoints, wanted in [
        (["here unready"], []),
        (["here"], [ip.here]),
        (["here", "away"], [ip.here, ip.away]),
        (["here draining", "away"], [ip.away]),
        (["here draining", "away draining"], [ip.here, ip.away]),
        (["here stopped", "away draining"], [ip.away]),
        (["away stopped"], []),
    ]:
        cluster.put(pods(ip, *endpoints))
        assert cluster.outcomes(POD, ip.vip) == (at(*wanted) or {TCP_RESET})


# ---- topology ------------------------------------------------------------------------------------------------------

# The node is node-a in zone a: endpoints, and which of them are chosen.
TOPOLOGY = {
    "node hints for this node": ("here node=node-a, away node=node-b", "here"),
    "node hints, wherever the endpoint is": ("here node=node-b, away node=node-a", "away"),
    "a node hint that names several": ("here node=node-a,node-b, away node=node-b", "here"),
    "node hints, none for this node": ("here node=node-b, away node=node-b", "here away"),
    "one without a node hint": ("here node=node-a, away", "here away"),
    "zone hints for this zone": ("here zone=b, away zone=a", "away"),
    "a zone hint that names several": ("here zone=b, away zone=b,a", "away"),
    "zone hints, none for this zone": ("here zone=b, away zone=b", "here away"),
    "one without a zone hint": ("here, away zone=a", "here away"),
    "node hints before zone hints": ("here zone=b node=node-a, away zone=a node=node-b", "here"),
    "zone hints when node hints name others": ("here zone=a node=node-b, away zone=b node=node-b", "here"),
    "zone hints when one has no node hint": ("here zone=a node=node-a, away zone=b", "here"),
    "only ready ones are judged": ("here zone=b, away zone=a, away2 draining", "away"),
    "one that is not ready makes no mode": ("here zone=b, away zone=a draining", "here"),
    "not applied to terminating ones": ("here zone=b draining, away zone=a draining", "here away"),
    "applied to published ones": ("here zone=b, away zone=a published-draining", "away"),
}


@pytest.mark.parametrize(("endpoints", "chosen"), TOPOLOGY.values(), ids=TOPOLOGY)
def test_topology(lab: Lab, endpoints: str, chosen: str) -> None:
    """If all ready endpoints have hints, the cluster list is the endpoints meant for this node, or else for this
    zone.
    """
    assert Cluster(lab, service(), target(endpoints)).outcomes(POD, IP.vip) == reach(chosen)


def test_topology_does_not_apply_to_the_local_list(lab: Lab) -> None:
    """Policy Local reaches a local endpoint that is meant for another zone."""
    cluster = Cluster(lab, service(internal_policy="Local"), target("here zone=b, here2 zone=a, away zone=a"))
    assert cluster.outcomes(POD, IP.vip) == reach("here here2")


def test_topology_applies_to_external_addresses(lab: Lab) -> None:
    """The cluster list that an external address has is limited by hints like any other."""
    cluster = Cluster(lab, service(external_ips=[IP.external]), target("here zone=b, away zone=a"))
    assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(IP.away)


def test_without_a_zone_there_is_no_zone_mode(lab: Lab) -> None:
    """A node without a zone label uses all endpoints, even if they are meant for a zone."""
    cluster = Cluster(lab, service(), target("here zone=a, away zone=b"), node=node(zone=""))
    assert cluster.outcomes(POD, IP.vip) == reach("here away")


def test_a_new_zone_takes_effect(lab: Lab) -> None:
    """When the Node's zone label changes, connections go to the new zone's endpoints from then on."""
    cluster = Cluster(lab, service(), target("here zone=a, away zone=b"))
    assert cluster.outcomes(POD, IP.vip) == reach("here")
    cluster.put(node(zone="b"))
    assert cluster.outcomes(POD, IP.vip) == reach("away")


# ---- the draw ------------------------------------------------------------------------------------------------------


def addresses(count: int, ip: Ip = IP) -> list[str]:
    """Addresses of this many pods."""
    return [beside(ip.away, number + 10) for number in range(count)]


def assert_even(cluster: Cluster, ip: Ip, endpoints: Sequence[str], protocol: str = "tcp") -> None:
    """Assert that connections spread over these evenly: a hundred for each show whether a draw is even."""
    outcomes = cluster.connect(POD, ip.vip, 80, protocol, times=100 * len(endpoints))
    assert is_even(outcomes, [(address, 8080) for address in endpoints])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_choice_is_uniform(lab: Lab, ip: Ip, protocol: str, count: int) -> None:
    """Connections of a client spread evenly over the endpoints, each drawn anew."""
    given = service(cluster_ips=[ip.vip], ports=[f"http:80/{protocol}"])
    many = slice_of(endpoints=addresses(count, ip), ports=[f"http:8080/{protocol}"])
    assert_even(Cluster(lab, given, many), ip, addresses(count, ip), protocol)


def test_the_choice_is_uniform_among_many(lab: Lab) -> None:
    """Two hundred endpoints, in as many slices as the API makes of them, are drawn evenly."""
    slices = [slice_of(endpoints=addresses(200)[start : start + 100], suffix=str(start)) for start in (0, 100)]
    outcomes = Cluster(lab, service(), *slices).connect(POD, IP.vip, times=4000)
    assert is_even(outcomes, [(address, 8080) for address in addresses(200)])


def test_several_ports_of_one_pod_are_several_endpoints(lab: Lab) -> None:
    """Slices that have a port name at different numbers, as in a rollout, are drawn from evenly per endpoint."""
    old = slice_of(endpoints=[IP.here, IP.away], ports=["http:8080"], suffix="old")
    new = slice_of(endpoints=[IP.here], ports=["http:9090"], suffix="new")
    outcomes = Cluster(lab, service(), old, new).connect(POD, IP.vip, times=900)
    assert is_even(outcomes, [(IP.here, 8080), (IP.away, 8080), (IP.here, 9090)])


def test_the_local_list_is_drawn_from_evenly(lab: Lab) -> None:
    """An outside client of policy Local is spread over this node's endpoints evenly."""
    given = service(external_ips=[IP.external], external_policy="Local")
    outcomes = Cluster(lab, given, target("here, here2, away")).connect(OUTSIDE, IP.external, times=600)
    assert is_even(outcomes, [(IP.here, 8080), (IP.here2, 8080)])


@pytest.mark.parametrize("counts", [(1, 4, 2, 3, 1), (5, 1, 5, 2)], ids=str)
def test_the_choice_stays_uniform_as_endpoints_come_and_go(lab: Lab, counts: Sequence[int]) -> None:
    """After every change exactly the present endpoints are drawn, and evenly."""
    cluster = Cluster(lab, service())
    for count in counts:
        cluster.put(slice_of(endpoints=addresses(count)))
        assert_even(cluster, IP, addresses(count))


# ---- a commit between two lookups of a packet ----------------------------------------------------------------------


def test_a_slot_that_has_gone_is_drawn_again(lab: Lab, ip: Ip, protocol: str) -> None:
    """A packet that still draws from two endpoints, when a single one is left, gets that each time."""
    given = service(cluster_ips=[ip.vip], ports=[f"http:80/{protocol}"])
    cluster = Cluster(lab, given, pods(ip, "here", "away", protocol=protocol))
    first, second = sorted([ip.here, ip.away])
    slot = f"{ip.vip} . 80 . {as_address(1, ip.family)} : {second} . 8080"
    lab.load(f"delete element {ip.nft} nftproxy {protocol}-endpoints {{ {slot} }}")
    assert cluster.outcomes(POD, ip.vip, 80, protocol) == at(first)


def test_a_packet_that_finds_no_endpoint_is_not_let_through(lab: Lab, ip: Ip, protocol: str) -> None:
    """A packet that still draws when all is gone, the Service too before it is filtered, is dropped."""
    cluster = Cluster(lab, exposed_service(ip, protocol), pods(ip, "here", protocol=protocol))
    for container in (f"map {ip.nft} nftproxy {protocol}-endpoints", f"set {ip.nft} nftproxy fronts"):
        lab.load(f"flush {container}")
    assert cluster.by_origin(ip.external, 80, protocol, times=2) == everywhere(DROPPED)


def test_a_packet_that_finds_no_chain_for_the_number_is_not_let_through(lab: Lab, ip: Ip, protocol: str) -> None:
    """A packet that has learnt how many endpoints there are when the chain for so many goes is dropped."""
    cluster = Cluster(lab, exposed_service(ip, protocol), pods(ip, "here", protocol=protocol))
    for prefix in ("", "nodeport-"):
        lab.load(f"flush map {ip.nft} nftproxy {prefix}draws")
    assert cluster.by_origin(ip.vip, 80, protocol, times=2) == everywhere(DROPPED)
    assert cluster.outcomes(OUTSIDE, ip.node, 30080, protocol, times=2) == {DROPPED}


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_a_packet_that_misses_a_node_port_is_not_let_through(lab: Lab, ip: Ip, protocol: str, policy: str) -> None:
    """A packet to a node port that is there when it is filtered, and wasn't before, is dropped: not the node's."""
    given = exposed_service(ip, protocol, external_policy=policy)
    cluster = Cluster(lab, given, pods(ip, "here", protocol=protocol))
    for container in ("nodeport-services", "nodeport-short-circuit"):
        lab.load(f"flush map {ip.nft} nftproxy {container}")
    assert cluster.by_origin(ip.node, 30080, protocol, times=2) == everywhere(DROPPED)
