"""External addresses that are the node's own: VIPs on their holder, and load balancers that name nodes."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import DROPPED, NODE, PORT_UNREACHABLE, TCP_RESET, Kind, Lab, Origin, Outcome

from nftproxy.model.settings import PortRange
from tests.support.cluster import IP, IP6, Cluster, Ip, at, beside, everywhere, masqueraded, pods, seen
from tests.support.factories import node, service, slice_of
from tests.system.packets.rivals import one, slices, two

each_kind = pytest.mark.parametrize("kind", ["external_ips", "load_balancer_ips"])


@each_kind
def test_the_nodes_address_is_captured(lab: Lab, ip: Ip, kind: str) -> None:
    """From everywhere, the node itself included, it leads to the endpoints, and the node's other ports stay its own."""
    cluster = Cluster(lab, one(ip, **{kind: [ip.node]}), *slices(ip))
    assert cluster.by_origin(ip.node) == everywhere(masqueraded(ip.here))
    assert cluster.by_origin(ip.node, 81, times=2) == everywhere(NODE)
    assert cluster.by_origin(ip.own, times=2) == everywhere(NODE)


def test_local_policy_keeps_the_client(lab: Lab, ip: Ip) -> None:
    """With policy Local clients outside reach this node's endpoint, which sees them, and pods and the node reach
    all.
    """
    balanced = one(ip, load_balancer_ips=[ip.node], external_policy="Local")
    cluster = Cluster(lab, balanced, pods(ip, "here", "away", name="shop/one"))
    both = at(ip.here, ip.away)
    assert cluster.by_origin(ip.node) == seen(
        pod=both, remote_pod=both, node=masqueraded(ip.here, ip.away), outside=at(ip.here)
    )


def test_local_policy_without_an_endpoint_here_drops(lab: Lab, ip: Ip) -> None:
    """Where the holder of the address has no endpoint, clients outside are dropped and never served by the node."""
    balanced = one(ip, load_balancer_ips=[ip.node], external_policy="Local")
    cluster = Cluster(lab, balanced, pods(ip, "away", name="shop/one"))
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, times=2) == {DROPPED}


@pytest.mark.parametrize(("protocol", "refused"), [("tcp", TCP_RESET), ("udp", PORT_UNREACHABLE)])
def test_without_endpoints_it_is_refused(lab: Lab, ip: Ip, protocol: str, refused: Outcome) -> None:
    """Connections to the node's own address come by the input hook, and are refused there."""
    cluster = Cluster(lab, one(ip, load_balancer_ips=[ip.node], ports=[f"x:80/{protocol}"]))
    assert cluster.by_origin(ip.node, 80, protocol, times=2) == everywhere(refused)


def test_source_ranges_guard_it(lab: Lab, ip: Ip) -> None:
    """Clients out of the ranges are dropped at the node's own address, and clients in them are served."""
    outside = "198.51.100.0/24" if ip is IP else "2001:db8:100::/64"
    cluster = Cluster(lab, one(ip, load_balancer_ips=[ip.node], source_ranges=[outside]), *slices(ip))
    assert cluster.outcomes(Origin.OUTSIDE, ip.node) == masqueraded(ip.here)
    assert cluster.outcomes(Origin.POD, ip.node, times=2) == {DROPPED}


def test_a_server_at_the_external_address_is_reached(lab: Lab, ip: Ip) -> None:
    """Packets to an endpoint that has the very external address and port pass as they are, wherever it is."""
    cluster = Cluster(lab, one(ip, external_ips=[ip.away]), slice_of("shop/one", [ip.away], ports=["http:80"]))
    assert cluster.by_origin(ip.away) == everywhere(Outcome(Kind.UNTOUCHED, masqueraded=True))


def test_affinity_holds_there(lab: Lab) -> None:
    """A client that comes back to the node's address reaches the same pod."""
    sticky = one(IP, external_ips=[IP.node], affinity_timeout=60)
    cluster = Cluster(lab, sticky, pods(IP, "here", "here2", "away", "away2", name="shop/one"))
    for last in range(1, 9):
        assert len(cluster.outcomes(Origin.OUTSIDE, IP.node, source=beside(IP.client, last), times=16)) == 1
    many = (beside(IP.client, last) for last in range(9, 109))
    assert len({cluster.connect(Origin.OUTSIDE, IP.node, source=source)[0].endpoint for source in many}) == 4


def test_node_ports_stay_on_the_same_address(lab: Lab, ip: Ip) -> None:
    """The address serves node ports beside the captured port, the capturing Service's own and other Services'."""
    first = one(ip, load_balancer_ips=[ip.node], ports=["http:80:30080"], created=50)
    second = two(ip, ports=["http:80:30081"])
    cluster = Cluster(lab, first, second, *slices(ip))
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 80) == masqueraded(ip.here)
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 30080) == masqueraded(ip.here)
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 30081) == masqueraded(ip.away)


@each_kind
def test_others_node_ports_are_safe(lab: Lab, ip: Ip, kind: str) -> None:
    """An older Service that names the node's address and another's node port doesn't get that."""
    thief = two(ip, **{kind: [ip.node]}, ports=["http:30080"], created=50)
    cluster = Cluster(lab, thief, one(ip, ports=["http:80:30080"]), *slices(ip))
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 30080) == masqueraded(ip.here)


def test_a_services_own_node_port_may_be_its_port(lab: Lab, ip: Ip) -> None:
    """A Service whose port has the number of its own other node port is reached there as at any external address."""
    both = one(ip, load_balancer_ips=[ip.node], ports=["a:80:30080", "b:30080:30081"])
    cluster = Cluster(lab, both, slice_of("shop/one", [ip.here], ports=["a:8080", "b:9090"]))
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 30080) == masqueraded(ip.here, port=9090)
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 30081) == masqueraded(ip.here, port=9090)
    cluster.put(slice_of("shop/one", [ip.here], ports=["a:8080"]))
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 30080) == {TCP_RESET}


@each_kind
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_protected_ports_stay_the_nodes(lab: Lab, ip: Ip, kind: str, protocol: str) -> None:
    """The ports that a node needs, and the health port of the proxy, are never captured."""
    guarded = (22, 6443, 2379, 10250, 10256)
    thief = two(ip, **{kind: [ip.node]}, ports=[f"p{port}:{port}/{protocol}" for port in guarded])
    target = slice_of("shop/two", [ip.away], ports=[f"p{port}:8080/{protocol}" for port in guarded])
    cluster = Cluster(lab, thief, target)
    for port in guarded:
        assert cluster.outcomes(Origin.OUTSIDE, ip.node, port, protocol, times=2) == {NODE}
    lab.reset()
    cluster = Cluster(lab, thief, target, protected_ports=(PortRange(6443, 6443),))
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 22, protocol) == masqueraded(ip.away)
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 6443, protocol, times=2) == {NODE}


def test_a_vip_is_captured_on_its_holder_and_elsewhere(lab: Lab, ip: Ip) -> None:
    """A VIP among this node's InternalIPs leads to the same endpoints as before it came to this node."""
    balanced = one(ip, load_balancer_ips=[ip.own])
    cluster = Cluster(lab, balanced, *slices(ip))
    before = cluster.by_origin(ip.own)
    cluster.put(node(internal_ips=[IP.node, IP6.node, ip.own]))
    assert cluster.by_origin(ip.own) == before == everywhere(masqueraded(ip.here))


def test_a_server_in_the_nodes_own_network_serves_its_address(lab: Lab, ip: Ip) -> None:
    """A Service whose endpoint is the very address and port that clients ask for is reached there."""
    own = service("shop/one", cluster_ips=[ip.vip], load_balancer_ips=[ip.node])
    cluster = Cluster(lab, own, pods(ip, "node", port=80, name="shop/one"))
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 80) == {NODE}
