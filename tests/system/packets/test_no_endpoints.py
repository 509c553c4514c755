"""Connections that no endpoint can take are refused at once, or dropped."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import (
    ANSWERED,
    DROPPED,
    NODE,
    PING,
    PORT_UNREACHABLE,
    TCP_RESET,
    UNTOUCHED,
    Lab,
    Origin,
    RealHost,
    RealNetwork,
    RealNode,
    obstacle,
)
from nftproxy_conformance.lab.topology import SERVICE_CIDR, SERVICE_CIDR6

from nftproxy.model.addresses import Family
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import ClusterObject, ServiceCIDR
from tests.support.cluster import IP, IP6, Cluster, Ip, at, everywhere, exposed_service, masqueraded, pods, seen
from tests.support.factories import node as node_object
from tests.support.factories import pipeline, service, service_cidr, slice_of
from tests.support.waiting import PATIENCE

REFUSED = {"tcp": TCP_RESET, "udp": PORT_UNREACHABLE, "sctp": PORT_UNREACHABLE}


# ---- no usable endpoint anywhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_a_service_without_endpoints_refuses(lab: Lab, ip: Ip, protocol: str, policy: str) -> None:
    """With no endpoint at all, every address rejects every origin at once, with either policy."""
    given = exposed_service(ip, protocol, internal_policy=policy, external_policy=policy)
    cluster = Cluster(lab, given)
    for address, port in ip.fronts:
        assert cluster.by_origin(address, port, protocol, times=2) == everywhere(REFUSED[protocol])


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_unusable_endpoints_refuse(lab: Lab, ip: Ip, policy: str) -> None:
    """Endpoints that are not ready, or terminating without serving, are as good as none."""
    given = exposed_service(ip, internal_policy=policy, external_policy=policy)
    cluster = Cluster(lab, given, pods(ip, "here unready", "away stopped"))
    for address, port in ip.fronts:
        assert cluster.by_origin(address, port, times=2) == everywhere(TCP_RESET)


@pytest.mark.parametrize("cidrs", [None, ["0.0.0.0/0", "::/0"]], ids=["alone", "node ports there too"])
def test_an_address_on_the_nodes_interface_refuses(lab: Lab, ip: Ip, protocol: str, cidrs: list[str] | None) -> None:
    """An external address that the node itself has been given refuses as well: its packets are input."""
    lab.add_address(ip.balanced)
    cluster = Cluster(lab, exposed_service(ip, protocol), node_port_addresses=cidrs)
    assert cluster.by_origin(ip.balanced, 80, protocol, times=2) == everywhere(REFUSED[protocol])


def test_refusal_ends_with_the_first_endpoint(lab: Lab, ip: Ip) -> None:
    """As soon as there is an endpoint connections reach it, and are refused again when it has gone."""
    cluster = Cluster(lab, exposed_service(ip))
    only = pods(ip, "here")
    cluster.put(only)
    for address, port in ip.fronts:
        assert cluster.outcomes(Origin.OUTSIDE, address, port) == masqueraded(ip.here)
    cluster.remove(only)
    for address, port in ip.fronts:
        assert cluster.outcomes(Origin.OUTSIDE, address, port) == {TCP_RESET}


# ---- policy Local, endpoints elsewhere -----------------------------------------------------------------------------


def test_internal_policy_local_drops_without_local_endpoints(lab: Lab, ip: Ip, protocol: str) -> None:
    """With all endpoints elsewhere, connections to a ClusterIP of policy Local are dropped, from everywhere."""
    given = exposed_service(ip, protocol, internal_policy="Local")
    cluster = Cluster(lab, given, pods(ip, "away", protocol=protocol))
    assert cluster.by_origin(ip.vip, 80, protocol, times=2) == everywhere(DROPPED)


def test_external_policy_local_drops_without_local_endpoints(lab: Lab, ip: Ip, protocol: str) -> None:
    """With all endpoints elsewhere, external addresses of policy Local drop the outside and serve pods and the node."""
    given = exposed_service(ip, protocol, external_policy="Local")
    cluster = Cluster(lab, given, pods(ip, "away", protocol=protocol))
    for address, port in ip.fronts[1:]:
        assert cluster.by_origin(address, port, protocol, times=2) == seen(
            at(ip.away), at(ip.away), node=masqueraded(ip.away), outside={DROPPED}
        )


def test_an_address_on_the_nodes_interface_drops(lab: Lab, ip: Ip) -> None:
    """An external address of policy Local that the node itself has been given drops the outside as well."""
    lab.add_address(ip.balanced)
    given = exposed_service(ip, external_policy="Local")
    cluster = Cluster(lab, given, pods(ip, "away"))
    assert cluster.outcomes(Origin.OUTSIDE, ip.balanced, times=2) == {DROPPED}


def test_one_policy_local_does_not_make_the_other_drop(lab: Lab, ip: Ip) -> None:
    """Where a single policy is Local, the addresses of the other policy reach the endpoint elsewhere."""
    there = pods(ip, "away")
    cluster = Cluster(lab, exposed_service(ip, internal_policy="Local"), there)
    assert cluster.outcomes(Origin.OUTSIDE, ip.external) == masqueraded(ip.away)
    cluster.put(exposed_service(ip, external_policy="Local"))
    assert cluster.outcomes(Origin.OUTSIDE, ip.vip) == masqueraded(ip.away)


# ---- unused ports and addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_endpoints", [True, False], ids=["with endpoints", "without"])
def test_unused_ports_of_a_cluster_ip_refuse(lab: Lab, ip: Ip, protocol: str, has_endpoints: bool) -> None:
    """A port, or a protocol, that a ClusterIP doesn't have is refused from everywhere."""
    cluster = Cluster(lab, exposed_service(ip), *([slice_of(endpoints=[ip.here])] if has_endpoints else []))
    assert cluster.by_origin(ip.vip, 81, protocol, times=2) == everywhere(REFUSED[protocol])


def test_a_service_without_ports_refuses(lab: Lab, ip: Ip) -> None:
    """A ClusterIP that has no port at all is known all the same."""
    assert Cluster(lab, service(cluster_ips=[ip.vip], ports=[])).by_origin(ip.vip, times=2) == everywhere(TCP_RESET)


def test_unallocated_addresses_drop(lab: Lab, ip: Ip, protocol: str) -> None:
    """Packets to an address of a ServiceCIDR that no Service has are dropped, from everywhere."""
    cluster = Cluster(lab, service_cidr(), exposed_service(ip))
    assert cluster.by_origin(ip.unallocated, 80, protocol, times=2) == everywhere(DROPPED)


def test_service_cidrs_are_followed(lab: Lab, ip: Ip) -> None:
    """A ServiceCIDR counts as soon as it is added, and no longer once it is removed."""
    cluster = Cluster(lab, service_cidr("10.97.0.0/16", "fd00:97::/112"))
    more = service_cidr(ip.alone(ip.unallocated), name="more")
    assert cluster.outcomes(Origin.POD, ip.unallocated, times=2) == {UNTOUCHED}
    cluster.put(more)
    assert cluster.outcomes(Origin.POD, ip.unallocated, times=2) == {DROPPED}
    cluster.follow(Removed(ServiceCIDR, "more"))
    assert cluster.outcomes(Origin.POD, ip.unallocated, times=2) == {UNTOUCHED}


def test_each_service_cidr_counts(lab: Lab) -> None:
    """Of two ServiceCIDRs far apart, unused addresses of either are dropped, and addresses between are left alone."""
    Cluster(lab, service_cidr("10.96.0.0/16"), service_cidr("10.98.0.0/16", name="more"))
    found = [lab.connect(Origin.POD, address, 80) for address in ("10.96.7.7", "10.97.7.7", "10.98.7.7")]
    assert found == [DROPPED, UNTOUCHED, DROPPED]


def test_service_cidrs_may_overlap(lab: Lab) -> None:
    """Of two nested ServiceCIDRs each still counts when the other has gone."""
    cluster = Cluster(lab, service_cidr("10.96.0.0/16", name="wide"), service_cidr("10.96.7.0/24", name="narrow"))
    assert cluster.outcomes(Origin.POD, IP.unallocated, times=2) == {DROPPED}
    cluster.follow(Removed(ServiceCIDR, "wide"))
    assert cluster.outcomes(Origin.POD, IP.unallocated, times=2) == {DROPPED}
    assert cluster.outcomes(Origin.POD, "10.96.8.1", times=2) == {UNTOUCHED}


def test_an_address_that_is_allocated_is_served(lab: Lab, ip: Ip) -> None:
    """An address of a ServiceCIDR turns from dropped to served with its Service, and back."""
    cluster = Cluster(lab, service_cidr(), slice_of(endpoints=[ip.here]))
    given = service(cluster_ips=[ip.unallocated])
    assert cluster.outcomes(Origin.POD, ip.unallocated, times=2) == {DROPPED}
    cluster.put(given)
    assert cluster.outcomes(Origin.POD, ip.unallocated, times=2) == at(ip.here)
    cluster.remove(given)
    assert cluster.outcomes(Origin.POD, ip.unallocated, times=2) == {DROPPED}


@pytest.mark.parametrize("front", ["vip", "unallocated"])
def test_what_is_delivered_to_the_node_is_let_in(lab: Lab, ip: Ip, front: str) -> None:
    """Unused ports and addresses that the node has been given itself are neither refused nor dropped in input."""
    address = getattr(ip, front)
    lab.add_address(address)
    cluster = Cluster(lab, service_cidr(), exposed_service(ip))
    for origin in (Origin.POD, Origin.REMOTE_POD, Origin.OUTSIDE):
        assert cluster.outcomes(origin, address, 81, times=2) == {NODE}


# ---- connections that are not concerned ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["elsewhere", "on the node"])
def test_an_endpoint_may_be_anothers_address_without_endpoints(lab: Lab, ip: Ip, protocol: str, kind: str) -> None:
    """A connection translated to an address and port that are another Service's too reaches the endpoint."""
    name = "away" if kind == "elsewhere" else "own"
    address, port = getattr(ip, name), f"http:80/{protocol}"
    given = service(cluster_ips=[ip.vip], ports=[port])
    other = service("shop/other", cluster_ips=[ip.vip2], external_ips=[address], ports=[port])
    cluster = Cluster(lab, given, pods(ip, name, port=80, protocol=protocol), other)
    assert cluster.outcomes(Origin.OUTSIDE, address, 80, protocol, times=2) == {REFUSED[protocol]}
    reached = cluster.by_origin(ip.vip, 80, protocol, times=2)
    assert {outcome.endpoint for outcomes in reached.values() for outcome in outcomes} == {(address, 80)}


def test_an_endpoint_may_be_anothers_node_port_without_endpoints(lab: Lab, ip: Ip, protocol: str) -> None:
    """A connection translated to a port of the node that is another Service's node port too reaches the server
    there.
    """
    given = service(cluster_ips=[ip.vip], ports=[f"http:80/{protocol}"])
    other = service("shop/other", type="NodePort", cluster_ips=[ip.vip2], ports=[f"http:80:30080/{protocol}"])
    cluster = Cluster(lab, given, pods(ip, "node", port=30080, protocol=protocol), other)
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 30080, protocol, times=2) == {REFUSED[protocol]}
    assert cluster.outcomes(Origin.POD, ip.vip, 80, protocol) == at(ip.node, port=30080)


def claims(ip: Ip, address: str, how: str) -> ClusterObject:
    """An object that makes new connections to port 80 of an address fail."""
    if how == "external IP":
        return service(cluster_ips=[ip.vip], external_ips=[address])
    if how == "node port":
        return service(type="NodePort", cluster_ips=[ip.vip], ports=["http:90:80"])
    return service(cluster_ips=[address], ports=["http:90"]) if how == "ClusterIP" else service_cidr(ip.alone(address))


@pytest.mark.parametrize("client", ["pod", "node"])
@pytest.mark.parametrize("how", ["external IP", "ClusterIP", "ServiceCIDR"])
def test_a_server_whose_address_is_claimed_keeps_its_connections(
    network: RealNetwork, ip: Ip, client: str, how: str
) -> None:
    """A connected client stays so when the address becomes a Service's, or unused, and a new connection fails."""
    node, server = network.node(), network.host("server", "198.51.100.9", "2001:db8:100::9")
    server.serve(80)
    host = node.pod("client", IP.here, IP6.here) if client == "pod" else node
    address = ip.of(server)
    keeps_its_connections(node, host, address, claims(ip, address, how))


@pytest.mark.parametrize("how", ["external IP", "node port"])
def test_a_server_of_the_node_whose_port_is_claimed_keeps_its_connections(
    network: RealNetwork, ip: Ip, how: str
) -> None:
    """So it is if the server is the node's own: at an address that the Node doesn't name, or at a node port."""
    node, client = network.node(), network.host("client", IP.client, IP6.client)
    node.serve(80)
    address = ip.of(node)
    named = node_object(internal_ips=[address] if how == "node port" else [ip.gateway])
    keeps_its_connections(node, client, address, claims(ip, address, how), named)


def keeps_its_connections(
    node: RealNode, client: RealHost, address: str, claim: ClusterObject, *objects: ClusterObject
) -> None:
    """Talk to port 80 of an address while it is claimed, and then try to do so anew."""
    made = pipeline(*objects)
    node.load(made.full_transaction({}).text)
    with client.talk(address, 80) as conversation:
        before = conversation.ask()
        node.load(made.ingest([Put(claim)]).text)
        assert conversation.ask() == before
    with pytest.raises((ConnectionRefusedError, PermissionError, TimeoutError)):
        client.ask(address, 80, timeout=0.5)


# ---- other protocols, with real hosts ------------------------------------------------------------------------------

ICMP = {4: socket.IPPROTO_ICMP, 16: socket.IPPROTO_ICMPV6}
UNREACHABLE = {4: (3, 3), 16: (1, 4)}  # type and code of "port unreachable", by the length of addresses
ESP = 50  # a protocol without ports, and without a checksum that the kernel would want to see right


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[Origin, RealHost]]:
    """A pod, the node and a host outside.  The node has the rules for a Service without endpoints."""
    if why := obstacle():
        pytest.skip(why)
    with RealNetwork() as network:
        node = network.node()
        for cidr in (SERVICE_CIDR, SERVICE_CIDR6):
            network.route(cidr, node)
        pod = node.pod("pod", "10.1.0.200", "fd00:1::c8")
        outside = network.host("outside", "198.51.100.200", "2001:db8:100::c8")
        given = pipeline(service(cluster_ips=["10.96.0.10", "fd00:96::10"]), service_cidr())
        node.load(given.full_transaction(dict.fromkeys(Family)).text)
        yield {Origin.POD: pod, Origin.NODE: node, Origin.OUTSIDE: outside}


def first_refused(host: RealHost, *addresses: str) -> str:
    """Send a packet of ESP to each address, in this order, and return the first address that is refused."""
    length = len(_packed(addresses[0]))
    family = socket.AF_INET if length == 4 else socket.AF_INET6
    skipped = 20 if length == 4 else 0  # the IP header, which IPv6 sockets don't show
    quoted = 16 if length == 4 else 24  # where the destination is in the header that is quoted
    with (
        host.namespace.socket(family, socket.SOCK_RAW, ICMP[length]) as listener,
        host.namespace.socket(family, socket.SOCK_RAW, ESP) as sender,
    ):
        listener.settimeout(PATIENCE)
        for address in addresses:
            with contextlib.suppress(PermissionError):  # the node's own output hook stops it, with or without notice
                sender.sendto(bytes(8), (address, 0))
        while True:
            message = listener.recv(2048)[skipped:]
            if tuple(message[:2]) == UNREACHABLE[length]:
                start = 8 + quoted
                return socket.inet_ntop(family, message[start : start + length])


def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


@pytest.mark.parametrize("origin", [Origin.POD, Origin.NODE, Origin.OUTSIDE], ids=lambda origin: origin.name)
def test_any_protocol_is_refused_by_a_cluster_ip(hosts: dict[Origin, RealHost], ip: Ip, origin: Origin) -> None:
    """A protocol without ports is refused by a ClusterIP, and not by an unallocated address."""
    assert first_refused(hosts[origin], ip.unallocated, ip.vip) == ip.vip


def test_pings_without_the_word_for_answers(lab: Lab, ip: Ip) -> None:
    """A ClusterIP rejects pings, with endpoints too.  External addresses pass them on, and the node answers its own."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here"), service_cidr())
    for address, outcome in {
        ip.vip: PORT_UNREACHABLE,
        ip.unallocated: DROPPED,
        ip.balanced: UNTOUCHED,
        ip.node: ANSWERED,
    }.items():
        assert cluster.by_origin(address, 0, PING, times=2) == everywhere(outcome)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize("origin", [Origin.POD, Origin.NODE, Origin.OUTSIDE], ids=lambda origin: origin.name)
def test_real_clients_are_refused_at_once(hosts: dict[Origin, RealHost], ip: Ip, protocol: str, origin: Origin) -> None:
    """A client's own socket says that the connection was refused, without waiting for a timeout."""
    # Of datagrams that the node itself sends the kernel says that sending them is not permitted.
    is_own_datagram = origin is Origin.NODE and protocol == "udp"
    with pytest.raises(PermissionError if is_own_datagram else ConnectionRefusedError):
        hosts[origin].ask(ip.vip, 80, protocol, timeout=PATIENCE)
