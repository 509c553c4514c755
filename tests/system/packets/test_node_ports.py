"""On which of the node's addresses node ports are served."""

from __future__ import annotations

from typing import Any

import pytest
from nftproxy_conformance.lab import NODE, UNTOUCHED, Lab, Origin

from nftproxy.model.objects import Service
from tests.support.cluster import IP, IP6, Cluster, Ip, at, beside, everywhere, exposed_service, masqueraded, pods, seen
from tests.support.factories import host_addresses, node, service, slice_of

PORT = 30080
EVERY_ADDRESS = ["0.0.0.0/0", "::/0"]
ON_INTERFACES = [address for ip in (IP, IP6) for address in (ip.node, ip.own, ip.gateway, ip.loopback)]


def open_service(**tweaks: Any) -> Service:
    """A Service of both families with a node port of every protocol."""
    ports = [f"http:80:{PORT}/{protocol}" for protocol in ("tcp", "udp", "sctp")]
    return service(type="NodePort", cluster_ips=[IP.vip, IP6.vip], ports=ports, **tweaks)


def make_cluster(lab: Lab, **tweaks: Any) -> Cluster:
    """A cluster with such a Service, and in each family an endpoint."""
    ports = [f"http:8080/{protocol}" for protocol in ("tcp", "udp", "sctp")]
    slices = [slice_of(endpoints=[f"{ip.here}@node-a"], ports=ports, suffix=ip.nft) for ip in (IP, IP6)]
    return Cluster(lab, open_service(), *slices, host_addresses(*ON_INTERFACES), **tweaks)


def new_address(ip: Ip) -> str:
    """An address that the node doesn't have yet."""
    return beside(ip.node, 88)


def is_served(cluster: Cluster, ip: Ip, address: str) -> bool:
    """Whether the node port is served at an address of the node.  If not, the port must be the node's own."""
    outcomes = cluster.outcomes(Origin.OUTSIDE, address, PORT, times=2)
    assert outcomes in ({NODE}, masqueraded(ip.here))
    return outcomes != {NODE}


# ---- primary -------------------------------------------------------------------------------------------------------


def test_node_ports_are_served_at_the_nodes_address(lab: Lab, ip: Ip, protocol: str) -> None:
    """By default a node port is served at the node's InternalIP, for everyone and every protocol."""
    cluster = make_cluster(lab)
    assert cluster.by_origin(ip.node, PORT, protocol) == everywhere(masqueraded(ip.here))


def test_node_ports_are_not_served_at_other_addresses(lab: Lab, ip: Ip) -> None:
    """By default other addresses on the node's interfaces serve no node port."""
    cluster = make_cluster(lab)
    assert cluster.by_origin(ip.own, PORT, times=2) == everywhere(NODE)
    assert cluster.by_origin(ip.gateway, PORT, times=2) == everywhere(NODE)


# The Node's addresses, and the addresses that serve.
PRIMARY: dict[str, tuple[dict[str, Any], set[str]]] = {
    "the first InternalIP": ({"internal_ips": [IP.own, IP.node]}, {IP.own}),
    "InternalIP before ExternalIP": ({"internal_ips": [IP.node], "external_ips": [IP.own]}, {IP.node}),
    "else the first ExternalIP": ({"internal_ips": [], "external_ips": [IP.own, IP.node]}, {IP.own}),
    "for each family": ({"internal_ips": [IP6.own, IP.own, IP.node, IP6.node]}, {IP.own, IP6.own}),
    "an ExternalIP for the family that has no InternalIP": (
        {"internal_ips": [IP6.node], "external_ips": [IP6.own, IP.own]},
        {IP6.node, IP.own},
    ),
}


@pytest.mark.parametrize(("addresses", "served"), PRIMARY.values(), ids=PRIMARY)
def test_the_primary_address_serves(lab: Lab, addresses: dict[str, Any], served: set[str]) -> None:
    """Of the Node's addresses a single address of each family serves: the first InternalIP, else the first
    ExternalIP.
    """
    cluster = make_cluster(lab, node=node(**addresses))
    assert {address for ip in (IP, IP6) for address in (ip.node, ip.own) if is_served(cluster, ip, address)} == served


def test_the_nodes_address_is_followed(lab: Lab, ip: Ip) -> None:
    """When the Node's address changes, node ports move from the old address to the new."""
    cluster = make_cluster(lab)
    cluster.put(node(internal_ips=[ip.own]))
    assert is_served(cluster, ip, ip.own)
    assert not is_served(cluster, ip, ip.node)


def test_a_family_without_an_address_of_the_node_serves_no_node_ports(lab: Lab, ip: Ip) -> None:
    """A Node that has only an address of the other family serves node ports in that family only."""
    other = IP6 if ip is IP else IP
    cluster = make_cluster(lab, node=node(internal_ips=[other.node]))
    assert not is_served(cluster, ip, ip.node)
    assert is_served(cluster, other, other.node)


def test_before_the_node_is_known_no_node_ports_are_served(lab: Lab) -> None:
    """Without the Node there is no address to serve at, and none is guessed."""
    cluster = make_cluster(lab, node=None)
    assert not is_served(cluster, IP, IP.node)
    assert not is_served(cluster, IP6, IP6.node)


# ---- by CIDR -------------------------------------------------------------------------------------------------------

# nodePortAddresses, and which of the addresses on the node's interfaces serve.
CIDRS: dict[str, tuple[list[str], set[str]]] = {
    "one address": ([f"{IP.own}/32"], {IP.own}),
    "a network": (["192.168.0.0/24"], {IP.node, IP.own}),
    "another interface's": (["10.1.0.0/16"], {IP.gateway}),
    "several": ([f"{IP.node}/32", "10.1.0.0/16"], {IP.node, IP.gateway}),
    "overlapping ones": (["192.168.0.0/24", "192.168.0.64/26", "192.168.0.0/16"], {IP.node, IP.own}),
    "of both families": ([f"{IP.own}/32", f"{IP6.gateway}/128"], {IP.own, IP6.gateway}),
    "an IPv6 network": (["fd00:c0a8::/64"], {IP6.node, IP6.own}),
    "a network that the node isn't in": (["172.16.0.0/12"], set()),
    "half of all": (["0.0.0.0/1", "128.0.0.0/1"], {IP.node, IP.own, IP.gateway}),
}


@pytest.mark.parametrize(("cidrs", "served"), CIDRS.values(), ids=CIDRS)
def test_cidrs_select_among_the_nodes_addresses(lab: Lab, cidrs: list[str], served: set[str]) -> None:
    """Exactly the addresses on the node's interfaces that are in a CIDR serve node ports."""
    cluster = make_cluster(lab, node_port_addresses=cidrs)
    own = [(ip, address) for ip in (IP, IP6) for address in (ip.node, ip.own, ip.gateway)]
    assert {address for ip, address in own if is_served(cluster, ip, address)} == served


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_selected_addresses_serve_everyone(lab: Lab, ip: Ip, protocol: str, policy: str) -> None:
    """At an address selected by CIDR, node ports are like anywhere else, for all origins, protocols and policies."""
    cluster = make_cluster(lab, node_port_addresses=[ip.alone(ip.gateway)])
    cluster.put(open_service(external_policy=policy))
    plain = at(ip.here, masqueraded=policy == "Cluster")
    assert cluster.by_origin(ip.gateway, PORT, protocol) == seen(plain, plain, masqueraded(ip.here), plain)


def test_selected_addresses_come_and_go(lab: Lab, ip: Ip) -> None:
    """An address in a CIDR serves node ports once the node has it, and no more when the node has lost it."""
    new = new_address(ip)
    cluster = make_cluster(lab, node_port_addresses=["192.168.0.0/24", "fd00:c0a8::/64"])
    assert cluster.outcomes(Origin.OUTSIDE, new, PORT, times=2) == {UNTOUCHED}
    lab.add_address(new)
    cluster.put(host_addresses(*ON_INTERFACES, new))
    assert is_served(cluster, ip, new)
    cluster.put(host_addresses(*ON_INTERFACES))
    assert not is_served(cluster, ip, new)


def test_until_interfaces_are_known_the_nodes_own_addresses_are_selected(lab: Lab) -> None:
    """A CIDR selects among the addresses of the Node object as long as the interfaces are unknown."""
    cluster = Cluster(lab, open_service(), slice_of(), node_port_addresses=["192.168.0.0/24"])
    assert cluster.outcomes(Origin.OUTSIDE, IP.node, PORT) == masqueraded(IP.here, IP.away)
    assert cluster.outcomes(Origin.OUTSIDE, IP.own, PORT) == {NODE}


def test_addresses_of_others_are_not_selected(lab: Lab, ip: Ip) -> None:
    """An address in a CIDR that another machine has is left to that machine."""
    neighbour = "192.168.0.3" if ip is IP else "fd00:c0a8::3"
    for cidrs in (["192.168.0.0/24", "fd00:c0a8::/64"], EVERY_ADDRESS):
        cluster = make_cluster(lab, node_port_addresses=cidrs)
        assert cluster.by_origin(neighbour, PORT, times=2) == everywhere(UNTOUCHED)
        lab.load("flush ruleset")


# ---- every address -------------------------------------------------------------------------------------------------


def test_a_match_all_cidr_serves_every_local_address(lab: Lab, ip: Ip, protocol: str) -> None:
    """With a match-all CIDR node ports are served at any address that the node has."""
    cluster = make_cluster(lab, node_port_addresses=EVERY_ADDRESS)
    for address in (ip.node, ip.own, ip.gateway):
        assert cluster.by_origin(address, PORT, protocol) == everywhere(masqueraded(ip.here))


def test_a_match_all_cidr_serves_addresses_that_come(lab: Lab, ip: Ip) -> None:
    """An address that the node is given while the rules are in force serves at once, and no more when it is taken."""
    new = new_address(ip)
    cluster = make_cluster(lab, node_port_addresses=EVERY_ADDRESS)
    lab.add_address(new)
    assert is_served(cluster, ip, new)
    lab.remove_address(new)
    assert cluster.outcomes(Origin.OUTSIDE, new, PORT, times=2) == {UNTOUCHED}


def test_a_virtual_address_goes_before_a_node_port(lab: Lab, ip: Ip) -> None:
    """Where the node has been given a Service's external IP, its port there is its own, not another's node port."""
    lab.add_address(ip.external)
    cluster = make_cluster(lab, node_port_addresses=EVERY_ADDRESS)
    other = service("shop/other", cluster_ips=[ip.vip2], external_ips=[ip.external], ports=[f"http:{PORT}"])
    cluster.put(other, slice_of("shop/other", [ip.away]))
    assert cluster.by_origin(ip.external, PORT) == everywhere(masqueraded(ip.away))
    assert cluster.by_origin(ip.node, PORT) == everywhere(masqueraded(ip.here))


@pytest.mark.parametrize(("cidr", "served"), [("0.0.0.0/0", IP), ("::/0", IP6)], ids=["ip", "ip6"])
def test_a_match_all_cidr_is_for_its_own_family(lab: Lab, cidr: str, served: Ip) -> None:
    """A family without a CIDR serves no node ports."""
    cluster = make_cluster(lab, node_port_addresses=[cidr])
    assert [is_served(cluster, ip, ip.node) for ip in (IP, IP6)] == [served is IP, served is IP6]


@pytest.mark.parametrize(
    "tweaks",
    [
        {},
        {"node_port_addresses": EVERY_ADDRESS},
        {"node_port_addresses": ["127.0.0.0/8", "::1/128"]},
        {"node_port_addresses": ["0.0.0.0/1", "::/1"]},
        {"node_port_addresses": ["primary", "localhost", "all"]},
        {"node": node(internal_ips=[IP.loopback, IP6.loopback])},
    ],
    ids=["primary", "every address", "loopback itself", "a network with loopback", "all words", "InternalIP"],
)
def test_loopback_never_serves(lab: Lab, ip: Ip, tweaks: dict[str, Any]) -> None:
    """No rule serves a node port at a loopback address, with any setting: the packet is the node's own."""
    cluster = make_cluster(lab, **tweaks)
    assert cluster.outcomes(Origin.NODE, ip.loopback, PORT, source=ip.loopback, times=2) == {NODE}


def test_no_loopback_address_serves_by_the_match_all_cidr(lab: Lab) -> None:
    """All of 127.0.0.0/8 is loopback, not only the address that the interface has."""
    cluster = make_cluster(lab, node_port_addresses=EVERY_ADDRESS)
    assert cluster.outcomes(Origin.NODE, "127.1.2.3", PORT, source=IP.loopback, times=2) == {NODE}


@pytest.mark.parametrize("cidrs", [None, EVERY_ADDRESS, ["192.168.0.0/24", "fd00:c0a8::/64"]], ids=str)
def test_a_node_port_without_endpoints_refuses_where_it_is_served(lab: Lab, ip: Ip, cidrs: list[str] | None) -> None:
    """Without endpoints a node port is refused at the addresses that serve it, and is the node's own elsewhere."""
    cluster = Cluster(lab, open_service(), node_port_addresses=cidrs)
    refused = cluster.by_origin(ip.node, PORT, times=2)
    assert all(outcome.how == "tcp-reset" for outcomes in refused.values() for outcome in outcomes)
    served = [ip.gateway] if cidrs == EVERY_ADDRESS else []
    for address in (ip.gateway, ip.loopback):
        outcomes = cluster.outcomes(Origin.NODE, address, PORT, source=address, times=2)
        assert (outcomes == {NODE}) is (address not in served)


def test_a_node_port_may_be_its_endpoints_own_port(lab: Lab, ip: Ip, protocol: str) -> None:
    """A server in the node's own network that listens at the very node port is reached, and so are further
    endpoints.
    """
    cluster = Cluster(lab, exposed_service(ip, protocol), pods(ip, "node", protocol=protocol, port=PORT))
    for origin in (Origin.OUTSIDE, Origin.POD):
        assert cluster.outcomes(origin, ip.node, PORT, protocol) == {NODE}
    assert cluster.outcomes(Origin.NODE, ip.node, PORT, protocol, source=ip.node) == {NODE}
    cluster.put(pods(ip, "node", "away", protocol=protocol, port=PORT))
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, PORT, protocol) == {NODE, *masqueraded(ip.away, port=PORT)}


def test_a_server_in_the_nodes_network_needs_no_node_name(lab: Lab, ip: Ip, protocol: str) -> None:
    """A server that listens at the very node port is reached too if its EndpointSlice doesn't name its node."""
    nameless = slice_of(endpoints=[ip.node], ports=[f"http:{PORT}/{protocol}"])
    cluster = Cluster(lab, exposed_service(ip, protocol), nameless)
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, PORT, protocol) == {NODE}


def test_a_node_address_on_no_interface_serves_but_does_not_refuse(lab: Lab, ip: Ip) -> None:
    """A cloud's external address leads to endpoints.  Without any, packets go their way as for any foreign address."""
    given = exposed_service(ip, external_policy="Local", external_ips=[])
    cluster = Cluster(lab, given, pods(ip, "here"), node=node(internal_ips=[], external_ips=[ip.external]))
    assert cluster.outcomes(Origin.OUTSIDE, ip.external, PORT) == at(ip.here)
    cluster.put(pods(ip, "here unready"))
    assert cluster.outcomes(Origin.OUTSIDE, ip.external, PORT) == {UNTOUCHED}
