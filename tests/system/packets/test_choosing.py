"""Who of the endpoints is chosen: the cluster list, the local list, topology, and the draw."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nftproxy.lab import DROPPED, Kind, Lab, Origin, is_even
from nftproxy.model.addresses import Family
from nftproxy.policy.numbers import as_address
from tests.support.factories import node, service, slice_of
from tests.system.packets.cluster import IP, Cluster, Ip, at, each_ip, each_protocol, everywhere

POD, OUTSIDE = Origin.POD, Origin.OUTSIDE


# ---- the two lists -------------------------------------------------------------------------------------------------

HERE, HERE2, AWAY, AWAY2 = (
    f"{IP.here}@node-a",
    f"{IP.here2}@node-a",
    f"{IP.away}@node-b",
    f"{IP.away2}@node-c",
)

# endpoints, the cluster list, the local list
LISTS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "all are ready": ([HERE, HERE2, AWAY], [IP.here, IP.here2, IP.away], [IP.here, IP.here2]),
    "some are not ready": ([f"{HERE} unready", HERE2, f"{AWAY} unready", AWAY2], [IP.here2, IP.away2], [IP.here2]),
    "serving alone is not enough": ([f"{HERE} serving", HERE2, AWAY], [IP.here2, IP.away], [IP.here2]),
    "serving alone is no last resort": ([f"{HERE} serving", f"{AWAY} draining"], [IP.away], []),
    "terminating ones give way to ready ones": ([f"{HERE} draining", HERE2, AWAY], [IP.here2, IP.away], [IP.here2]),
    "all are terminating": (
        [f"{HERE} draining", f"{HERE2} draining", f"{AWAY} draining"],
        [IP.here, IP.here2, IP.away],
        [IP.here, IP.here2],
    ),
    "stopped ones are no last resort": (
        [f"{HERE} draining", f"{HERE2} stopped", f"{AWAY} stopped"],
        [IP.here],
        [IP.here],
    ),
    "locally terminating, ready elsewhere": ([f"{HERE} draining", f"{HERE2} unready", AWAY], [IP.away], [IP.here]),
    "locally ready, terminating elsewhere": ([HERE, f"{AWAY} draining"], [IP.here], [IP.here]),
    "published though not ready": ([f"{HERE} published", f"{HERE2} unready", AWAY], [IP.here, IP.away], [IP.here]),
    "published though terminating": (
        [f"{HERE} published-draining", f"{HERE2} draining", AWAY],
        [IP.here, IP.away],
        [IP.here],
    ),
    "published though stopped": (
        [f"{HERE} published-stopped", f"{HERE2} draining", f"{AWAY} draining"],
        [IP.here],
        [IP.here],
    ),
}


@pytest.mark.parametrize(("endpoints", "cluster_list", "local_list"), LISTS.values(), ids=LISTS)
def test_lists(lab: Lab, endpoints: list[str], cluster_list: list[str], local_list: list[str]) -> None:
    """Policy Cluster reaches exactly the cluster list, policy Local exactly the local list, if there is any."""
    cluster = Cluster(
        lab,
        service("shop/all", cluster_ips=[IP.vip]),
        service("shop/local", cluster_ips=[IP.vip2], internal_policy="Local"),
        slice_of("shop/all", endpoints),
        slice_of("shop/local", endpoints),
    )
    assert cluster.outcomes(POD, IP.vip) == at(*cluster_list)
    if local_list:
        assert cluster.outcomes(POD, IP.vip2) == at(*local_list)
    else:
        assert {outcome.kind for outcome in cluster.outcomes(POD, IP.vip2)} == {Kind.DROPPED}


@each_ip
def test_the_last_ready_endpoint_hands_over_to_terminating_ones(lab: Lab, ip: Ip) -> None:
    """As endpoints become ready and terminate, connections follow at once, through every stage of a rollout."""
    here, away = f"{ip.here}@node-a", f"{ip.away}@node-b"
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]))
    for endpoints, wanted in [
        ([f"{here} unready"], []),
        ([here], [ip.here]),
        ([here, away], [ip.here, ip.away]),
        ([f"{here} draining", away], [ip.away]),
        ([f"{here} draining", f"{away} draining"], [ip.here, ip.away]),
        ([f"{here} stopped", f"{away} draining"], [ip.away]),
        ([f"{away} stopped"], []),
    ]:
        cluster.put(slice_of(endpoints=endpoints))
        outcomes = cluster.outcomes(POD, ip.vip)
        if wanted:
            assert outcomes == at(*wanted)
        else:
            assert {outcome.kind for outcome in outcomes} == {Kind.REJECTED}


# ---- topology ------------------------------------------------------------------------------------------------------

NODE_A, NODE_B, ZONE_A, ZONE_B = "node=node-a", "node=node-b", "zone=a", "zone=b"

# The node is node-a in zone a: endpoints, and who of them is chosen
TOPOLOGY: dict[str, tuple[list[str], list[str]]] = {
    "node hints for this node": ([f"{HERE} {NODE_A}", f"{AWAY} {NODE_B}"], [IP.here]),
    "node hints, wherever the endpoint is": ([f"{HERE} {NODE_B}", f"{AWAY} {NODE_A}"], [IP.away]),
    "a node hint that names several": ([f"{HERE} {NODE_A},node-b", f"{AWAY} {NODE_B}"], [IP.here]),
    "node hints, none for this node": ([f"{HERE} {NODE_B}", f"{AWAY} {NODE_B}"], [IP.here, IP.away]),
    "one without a node hint": ([f"{HERE} {NODE_A}", AWAY], [IP.here, IP.away]),
    "zone hints for this zone": ([f"{HERE} {ZONE_B}", f"{AWAY} {ZONE_A}"], [IP.away]),
    "a zone hint that names several": ([f"{HERE} {ZONE_B}", f"{AWAY} {ZONE_B},a"], [IP.away]),
    "zone hints, none for this zone": ([f"{HERE} {ZONE_B}", f"{AWAY} {ZONE_B}"], [IP.here, IP.away]),
    "one without a zone hint": ([HERE, f"{AWAY} {ZONE_A}"], [IP.here, IP.away]),
    "node hints before zone hints": ([f"{HERE} {ZONE_B} {NODE_A}", f"{AWAY} {ZONE_A} {NODE_B}"], [IP.here]),
    "zone hints when node hints name others": ([f"{HERE} {ZONE_A} {NODE_B}", f"{AWAY} {ZONE_B} {NODE_B}"], [IP.here]),
    "zone hints when one has no node hint": ([f"{HERE} {ZONE_A} {NODE_A}", f"{AWAY} {ZONE_B}"], [IP.here]),
    "only ready ones are judged": ([f"{HERE} {ZONE_B}", f"{AWAY} {ZONE_A}", f"{AWAY2} draining"], [IP.away]),
    "one that is not ready makes no mode": ([f"{HERE} {ZONE_B}", f"{AWAY} {ZONE_A} draining"], [IP.here]),
    "not applied to terminating ones": ([f"{HERE} {ZONE_B} draining", f"{AWAY} {ZONE_A} draining"], [IP.here, IP.away]),
    "applied to published ones": ([f"{HERE} {ZONE_B}", f"{AWAY} {ZONE_A} published-draining"], [IP.away]),
}


@pytest.mark.parametrize(("endpoints", "chosen"), TOPOLOGY.values(), ids=TOPOLOGY)
def test_topology(lab: Lab, endpoints: list[str], chosen: list[str]) -> None:
    """If all ready endpoints have hints, the cluster list is those meant for this node, or else for this zone."""
    assert Cluster(lab, service(), slice_of(endpoints=endpoints)).outcomes(POD, IP.vip) == at(*chosen)


def test_topology_does_not_apply_to_the_local_list(lab: Lab) -> None:
    """Policy Local reaches a local endpoint that is meant for another zone."""
    endpoints = [f"{HERE} {ZONE_B}", f"{HERE2} {ZONE_A}", f"{AWAY} {ZONE_A}"]
    cluster = Cluster(lab, service(internal_policy="Local"), slice_of(endpoints=endpoints))
    assert cluster.outcomes(POD, IP.vip) == at(IP.here, IP.here2)


def test_topology_applies_to_external_addresses(lab: Lab) -> None:
    """The cluster list that an external address has is limited by hints like any other."""
    endpoints = [f"{HERE} {ZONE_B}", f"{AWAY} {ZONE_A}"]
    cluster = Cluster(lab, service(external_ips=[IP.external]), slice_of(endpoints=endpoints))
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.away, masqueraded=True)


def test_without_a_zone_there_is_no_zone_mode(lab: Lab) -> None:
    """A node without a zone label uses all endpoints, whatever zones they are meant for."""
    endpoints = slice_of(endpoints=[f"{HERE} {ZONE_A}", f"{AWAY} {ZONE_B}"])
    assert Cluster(lab, service(), endpoints, node=node(zone="")).outcomes(POD, IP.vip) == at(IP.here, IP.away)


def test_a_new_zone_takes_effect(lab: Lab) -> None:
    """When the Node's zone label changes, connections go to the new zone's endpoints from then on."""
    cluster = Cluster(lab, service(), slice_of(endpoints=[f"{HERE} {ZONE_A}", f"{AWAY} {ZONE_B}"]))
    assert cluster.outcomes(POD, IP.vip) == at(IP.here)
    cluster.put(node(zone="b"))
    assert cluster.outcomes(POD, IP.vip) == at(IP.away)


# ---- the draw ------------------------------------------------------------------------------------------------------


def pods(count: int, ip: Ip) -> list[str]:
    """Addresses of this many pods."""
    return [f"{ip.away.removesuffix('4')}{number + 10}" for number in range(count)]


def spread(count: int) -> int:
    """How many connections tell an even draw among this many endpoints from an uneven one."""
    return 100 * count


@each_ip
@each_protocol
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_choice_is_uniform(lab: Lab, ip: Ip, protocol: str, count: int) -> None:
    """Connections of one client spread evenly over the endpoints, each drawn anew."""
    addresses = pods(count, ip)
    cluster = Cluster(
        lab,
        service(cluster_ips=[ip.vip], ports=[f"http:80/{protocol}"]),
        slice_of(endpoints=addresses, ports=[f"http:8080/{protocol}"]),
    )
    outcomes = cluster.connect(POD, ip.vip, 80, protocol, times=spread(count))
    assert is_even(outcomes, [(address, 8080) for address in addresses])


def test_the_choice_is_uniform_among_many(lab: Lab) -> None:
    """Two hundred endpoints, in as many slices as the API makes of them, are drawn evenly."""
    addresses = pods(200, IP)
    slices = [slice_of(endpoints=addresses[at_ : at_ + 100], suffix=str(at_)) for at_ in (0, 100)]
    outcomes = Cluster(lab, service(), *slices).connect(POD, IP.vip, times=4000)
    assert is_even(outcomes, [(address, 8080) for address in addresses])


def test_several_ports_of_one_pod_are_several_endpoints(lab: Lab) -> None:
    """Slices that have a port name at different numbers, as in a rollout, are drawn from evenly per endpoint."""
    old = slice_of(endpoints=[IP.here, IP.away], ports=["http:8080"], suffix="old")
    new = slice_of(endpoints=[IP.here], ports=["http:9090"], suffix="new")
    outcomes = Cluster(lab, service(), old, new).connect(POD, IP.vip, times=900)
    assert is_even(outcomes, [(IP.here, 8080), (IP.away, 8080), (IP.here, 9090)])


def test_the_local_list_is_drawn_from_evenly(lab: Lab) -> None:
    """An outside client of policy Local is spread over this node's endpoints evenly."""
    given = service(external_ips=[IP.external], external_policy="Local")
    outcomes = Cluster(lab, given, slice_of(endpoints=[HERE, HERE2, AWAY])).connect(OUTSIDE, IP.external, times=600)
    assert is_even(outcomes, [(IP.here, 8080), (IP.here2, 8080)])


@pytest.mark.parametrize("counts", [(1, 4, 2, 3, 1), (5, 1, 5, 2)], ids=str)
def test_the_choice_stays_uniform_as_endpoints_come_and_go(lab: Lab, counts: Sequence[int]) -> None:
    """After every change exactly the present endpoints are drawn, and evenly."""
    cluster = Cluster(lab, service())
    for count in counts:
        addresses = pods(count, IP)
        cluster.put(slice_of(endpoints=addresses))
        outcomes = cluster.connect(POD, IP.vip, times=spread(count))
        assert is_even(outcomes, [(address, 8080) for address in addresses])


# ---- what has gone between two lookups -----------------------------------------------------------------------------


@each_ip
@each_protocol
def test_a_slot_that_has_gone_is_drawn_again(lab: Lab, ip: Ip, protocol: str) -> None:
    """Who is still sent to draw one of two, when there is but one, gets that one each time."""
    pods = slice_of(endpoints=[ip.here, ip.away], ports=[f"http:8080/{protocol}"])
    cluster = Cluster(lab, service(cluster_ips=[ip.vip], ports=[f"http:80/{protocol}"]), pods)
    first, second = sorted([ip.here, ip.away])
    slot = f"{ip.vip} . 80 . {as_address(1, Family(ip.nft))} : {second} . 8080"
    lab.load(f"delete element {ip.nft} nftproxy {protocol}-endpoints {{ {slot} }}")
    assert cluster.outcomes(POD, ip.vip, 80, protocol) == at(first)


@each_ip
@each_protocol
def test_who_finds_no_endpoint_is_not_let_through(lab: Lab, ip: Ip, protocol: str) -> None:
    """Who is still sent to draw when all is gone, the Service too before it is filtered, is lost: not let through."""
    given = service(cluster_ips=[ip.vip], external_ips=[ip.external], ports=[f"http:80/{protocol}"])
    cluster = Cluster(lab, given, slice_of(endpoints=[ip.here], ports=[f"http:8080/{protocol}"]))
    for container in (f"map {ip.nft} nftproxy {protocol}-endpoints", f"set {ip.nft} nftproxy fronts"):
        lab.load(f"flush {container}")
    assert cluster.by_origin(ip.external, 80, protocol, times=2) == everywhere(DROPPED)


@each_ip
@each_protocol
def test_who_finds_no_chain_for_the_number_is_not_let_through(lab: Lab, ip: Ip, protocol: str) -> None:
    """Who has learnt how many endpoints there are when the chain for so many goes is lost: not sent to a number."""
    given = service(cluster_ips=[ip.vip], ports=[f"http:80:30080/{protocol}"], type="NodePort")
    cluster = Cluster(lab, given, slice_of(endpoints=[ip.here], ports=[f"http:8080/{protocol}"]))
    for prefix in ("", "nodeport-"):
        lab.load(f"flush map {ip.nft} nftproxy {prefix}draws")
    assert cluster.by_origin(ip.vip, 80, protocol, times=2) == everywhere(DROPPED)
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 30080, protocol, times=2) == {DROPPED}


@each_ip
@each_protocol
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_who_misses_a_node_port_is_not_let_through(lab: Lab, ip: Ip, protocol: str, policy: str) -> None:
    """Who comes to a node port that is there when it is filtered, and wasn't before, is lost: not left to the node."""
    given = service(type="NodePort", cluster_ips=[ip.vip], ports=[f"http:80:30080/{protocol}"], external_policy=policy)
    cluster = Cluster(lab, given, slice_of(endpoints=[f"{ip.here}@node-a"], ports=[f"http:8080/{protocol}"]))
    for container in ("nodeport-services", "nodeport-short-circuit"):
        lab.load(f"flush map {ip.nft} nftproxy {container}")
    assert cluster.by_origin(ip.node, 30080, protocol, times=2) == everywhere(DROPPED)
