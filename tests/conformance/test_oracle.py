"""The oracle gives the outcomes that docs/semantics.md demands, by examples worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from nftproxy_conformance.lab import (
    ANSWERED,
    DROPPED,
    NODE,
    PING,
    PORT_UNREACHABLE,
    TCP_RESET,
    UNTOUCHED,
    Kind,
    Origin,
    Outcome,
    Probe,
    endpoint,
)
from nftproxy_conformance.lab import Address as LabAddress
from nftproxy_conformance.lab.topology import DEFAULT_SOURCES
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import Destination, World
from nftproxy_conformance.strategies.probes import NODE_ADDRESSES

from nftproxy.extensions.algorithms.annotations import ALGORITHM, Algorithm
from nftproxy.extensions.external_addresses.fields import ExternalAddresses, Ping
from nftproxy.extensions.failover.annotations import Failover
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.annotations import WEIGHTS, Options
from nftproxy.model.objects import EndpointSlice, Service, ServiceCIDR
from tests.support.factories import networks, node, service, service_cidr, settings, slice_of

HERE, AWAY = "10.1.0.4", "10.1.1.4"
Object = Service | EndpointSlice | ServiceCIDR
OUTSIDE = "198.51.100.200"


def world(*objects: Object, zone: str = "a", knows_interfaces: bool = True, **tweaks: Any) -> World:
    """The world of node-a with these objects.  `tweaks` are those of `factories.settings`."""
    config = settings(**tweaks).config
    return World.with_objects(
        node(zone=zone), config, objects, interfaces=NODE_ADDRESSES, knows_interfaces=knows_interfaces
    )


def become(
    there: World,
    origin: Origin,
    address: str,
    port: int = 80,
    protocol: str = "tcp",
    source: str | None = None,
) -> set[Outcome]:
    """The expected outcomes of a connection."""
    usual = "192.168.0.77" if origin is Origin.NODE else DEFAULT_SOURCES[origin][":" in address]
    return set(Oracle(there).expected(Probe(origin, address, port, protocol, source or usual)))


def at(*pods: str, masqueraded: bool = False, port: int = 8080) -> set[Outcome]:
    """The outcomes of connections that reach these pods."""
    return {endpoint(pod, port, masqueraded=masqueraded) for pod in pods}


BALANCED = service(type="LoadBalancer", load_balancer_ips=["203.0.113.7"], ports=["http:80:30080"])
LOCAL = service(
    type="LoadBalancer", load_balancer_ips=["203.0.113.7"], ports=["http:80:30080"], external_policy="Local"
)


@pytest.mark.parametrize(
    ("origin", "outcome"),
    [
        (Origin.POD, at(HERE, AWAY)),
        (Origin.REMOTE_POD, at(HERE, AWAY)),
        (Origin.NODE, at(HERE, AWAY, masqueraded=True)),
        (Origin.OUTSIDE, at(HERE, AWAY, masqueraded=True)),
    ],
)
def test_a_cluster_ip_leads_to_any_endpoint(origin: Origin, outcome: set[Outcome]) -> None:
    """A ClusterIP hides all sources except local sources."""
    assert become(world(service(), slice_of()), origin, "10.96.0.10") == outcome


def test_without_a_detector_nobody_is_masqueraded() -> None:
    """Without a range for the family no source is known to be local, or not to be."""
    assert become(world(service(), slice_of(), cluster_cidrs=()), Origin.OUTSIDE, "10.96.0.10") == at(HERE, AWAY)
    everyone = world(service(), slice_of(), cluster_cidrs=(), masquerade_all=True)
    assert become(everyone, Origin.POD, "10.96.0.10") == at(HERE, AWAY, masqueraded=True)


@pytest.mark.parametrize(("prefix", "is_local"), [("cni", True), ("veth", False)])
def test_interfaces_tell_local_sources(prefix: str, is_local: bool) -> None:
    """With InterfaceNamePrefix a source is local if its packet came in through such an interface."""
    there = world(service(), slice_of(), interface_name_prefix=prefix, detect_local_mode="InterfaceNamePrefix")
    assert become(there, Origin.POD, "10.96.0.10") == at(HERE, AWAY, masqueraded=not is_local)


@pytest.mark.parametrize(
    ("origin", "outcome"),
    [
        (Origin.POD, at(HERE, AWAY)),
        (Origin.NODE, at(HERE, AWAY, masqueraded=True)),
        (Origin.OUTSIDE, at(HERE)),
    ],
)
@pytest.mark.parametrize(("address", "port"), [("203.0.113.7", 80), ("192.168.0.2", 30080)])
def test_external_local_keeps_the_client(origin: Origin, outcome: set[Outcome], address: str, port: int) -> None:
    """With policy Local, clients outside reach this node's endpoints unchanged.  Other clients reach all."""
    assert become(world(LOCAL, slice_of()), origin, address, port) == outcome


def test_external_cluster_hides_everyone() -> None:
    """With policy Cluster, external addresses hide the source, a pod's too."""
    assert become(world(BALANCED, slice_of()), Origin.POD, "203.0.113.7") == at(HERE, AWAY, masqueraded=True)


@pytest.mark.parametrize(
    ("endpoints", "outcome"),
    [
        ([], {TCP_RESET}),
        (["10.1.0.4@node-a unready", "10.1.1.4@node-b serving"], {TCP_RESET}),
        (["10.1.1.4@node-b"], {DROPPED}),
        (["10.1.1.4@node-b draining"], {DROPPED}),
        (["10.1.0.4@node-a draining", "10.1.1.4@node-b"], at(HERE)),
        (["10.1.0.4@node-a draining", "10.1.0.5@node-a"], at("10.1.0.5")),
        (["10.1.0.4@node-a stopped", "10.1.1.4@node-b published"], {DROPPED}),
    ],
)
def test_no_endpoint_here(endpoints: list[str], outcome: set[Outcome]) -> None:
    """Policy Local rejects if no endpoint serves anywhere, and drops if other nodes have endpoints."""
    assert become(world(LOCAL, slice_of(endpoints=endpoints)), Origin.OUTSIDE, "203.0.113.7") == outcome


def test_udp_is_refused_by_icmp() -> None:
    """Protocols other than TCP are rejected by an ICMP error."""
    assert become(world(service(ports=["dns:53/udp"])), Origin.POD, "10.96.0.10", 53, "udp") == {PORT_UNREACHABLE}


@pytest.mark.parametrize(
    ("endpoints", "outcome"),
    [
        (["10.1.0.4 zone=a", "10.1.1.4 zone=b"], at(HERE)),
        (["10.1.0.4 zone=a", "10.1.1.4"], at(HERE, AWAY)),
        (["10.1.0.4 zone=b", "10.1.1.4 zone=b"], at(HERE, AWAY)),
        (["10.1.0.4 zone=a,b node=node-b", "10.1.1.4 zone=b node=node-a"], at(AWAY)),
        (["10.1.0.4 zone=a", "10.1.1.4 draining"], at(HERE)),
        (["10.1.0.4 zone=b draining", "10.1.1.4 zone=b draining"], at(HERE, AWAY)),
    ],
)
def test_topology(endpoints: list[str], outcome: set[Outcome]) -> None:
    """Hints count if every ready endpoint has them and any fits, hints for nodes before hints for zones."""
    assert become(world(service(), slice_of(endpoints=endpoints)), Origin.POD, "10.96.0.10") == outcome


def test_of_two_entries_the_better_one_counts() -> None:
    """An entry that isn't terminating wins over a terminating entry, in any slice."""
    ghosts = slice_of(endpoints=["10.1.0.4@node-a stopped"]), slice_of(endpoints=["10.1.0.4@node-a"], suffix="2")
    assert become(world(service(), *ghosts), Origin.POD, "10.96.0.10") == at(HERE)
    assert become(world(service(), *reversed(ghosts)), Origin.POD, "10.96.0.10") == at(HERE)


def test_weights_and_algorithms() -> None:
    """Drained endpoints get nothing, the lightest other endpoint gets its share, and a hash keeps clients in place."""
    drained, light, heavy = (
        slice_of(endpoints=[f"10.1.1.{number} in=a"], suffix=str(number), weight=weight)
        for number, weight in ((1, 0), (2, 25), (3, 100))
    )
    options = Options.of({ALGORITHM: Algorithm.SOURCE_HASH, WEIGHTS: (("a", 3),)})
    probe = Probe(Origin.POD, "10.96.0.10", 80, source="10.1.0.77")
    oracle = Oracle(world(service(options=options), drained, light, heavy))
    assert oracle.expected(probe) == at("10.1.1.2", "10.1.1.3")
    assert oracle.least_share(probe, oracle.expected(probe)) == 0.2
    assert oracle.remembers(probe)
    assert not Oracle(world(service(), light)).remembers(probe)
    assert Oracle(world(service(), drained)).expected(probe) == {TCP_RESET}


def test_a_pod_that_reaches_itself_is_masqueraded() -> None:
    """Only the pod of this node that is its own server gets another source."""
    assert become(world(service(), slice_of()), Origin.POD, "10.96.0.10", source=HERE) == (
        at(HERE, masqueraded=True) | at(AWAY)
    )


def test_what_is_delivered_here_keeps_its_source() -> None:
    """A server in the node's own network is sent nothing, so nothing is masqueraded."""
    there = world(BALANCED, slice_of(endpoints=["192.168.0.2@node-a"]))
    assert become(there, Origin.OUTSIDE, "203.0.113.7") == at("192.168.0.2")
    assert become(there, Origin.NODE, "203.0.113.7") == at("192.168.0.2", masqueraded=True)


@pytest.mark.parametrize(
    ("ranges", "source", "is_admitted"),
    [
        (["198.51.100.0/24"], OUTSIDE, True),
        (["198.51.100.0/25"], OUTSIDE, False),
        (["198.51.100.0/25", "0.0.0.0/0"], OUTSIDE, True),
        (["2001:db8::/33"], OUTSIDE, True),
        (["192.168.0.0/24"], "203.0.113.7", True),
        (["192.168.1.0/24"], "203.0.113.7", False),
    ],
)
def test_source_ranges(ranges: list[str], source: str, is_admitted: bool) -> None:
    """Ranges of the family restrict clients.  A range that contains the node admits the Service's own addresses."""
    guarded = service(
        type="LoadBalancer", load_balancer_ips=["203.0.113.7"], external_ips=["203.0.113.9"], source_ranges=ranges
    )
    there = world(guarded, slice_of())
    reached = at(HERE, AWAY, masqueraded=True)
    assert become(there, Origin.OUTSIDE, "203.0.113.7", source=source) == (reached if is_admitted else {DROPPED})
    assert become(there, Origin.OUTSIDE, "203.0.113.9", source=source) == reached
    unserved = become(world(guarded), Origin.OUTSIDE, "203.0.113.7", source=source)
    assert unserved == ({TCP_RESET} if is_admitted else {DROPPED})


@pytest.mark.parametrize(
    ("cidrs", "served"),
    [
        (None, {"192.168.0.2"}),
        (("0.0.0.0/0",), {"192.168.0.2", "192.168.0.77", "10.1.0.1", "203.0.113.8"}),
        (("10.0.0.0/8",), {"10.1.0.1"}),
        (("::/0",), set()),
        (("primary", "localhost"), {"192.168.0.2"}),
        (("localhost",), set()),
        (("10.0.0.0/8", "primary"), {"10.1.0.1", "192.168.0.2"}),
        (("all", "localhost"), {"192.168.0.2", "192.168.0.77", "10.1.0.1", "203.0.113.8"}),
    ],
)
def test_node_port_addresses(cidrs: tuple[str, ...] | None, served: set[str]) -> None:
    """Node ports are served on the node's main address, or on addresses in CIDRs.  Elsewhere the port is the node's."""
    there = world(BALANCED, slice_of(), node_port_addresses=cidrs)
    asked = {address: become(there, Origin.OUTSIDE, address, 30080) for address in NODE_ADDRESSES if ":" not in address}
    reached = at(HERE, AWAY, masqueraded=True)
    assert {address for address, outcome in asked.items() if outcome == reached} == served
    assert all(outcome in (reached, {NODE}) for outcome in asked.values())


@pytest.mark.parametrize("asked", [None, ("localhost",), ("127.0.0.0/8", "all")])
def test_rules_never_serve_loopback(asked: tuple[str, ...] | None) -> None:
    """A connection to loopback always stays the node's own, as a listener serves node ports there."""
    there = world(BALANCED, slice_of(), node_port_addresses=asked)
    assert become(there, Origin.NODE, "127.0.0.1", 30080) == {NODE}


def test_cidrs_select_among_the_nodes_addresses_where_interfaces_are_unknown() -> None:
    """As for `render`, which has no interfaces."""
    there = world(BALANCED, slice_of(), node_port_addresses=("10.0.0.0/8",), knows_interfaces=False)
    assert become(there, Origin.OUTSIDE, "10.1.0.1", 30080) == {NODE}


OLD = service("shop/old", created=1, cluster_ips=["10.96.0.20"], external_ips=["203.0.113.9"])
NEW = service("shop/a-new", created=2, cluster_ips=["10.96.0.30"], external_ips=["203.0.113.9", "10.96.0.20"])


def test_the_older_service_has_a_contested_address() -> None:
    """Age decides before the name.  An external IP never takes a ClusterIP on any port."""
    there = world(NEW, OLD, slice_of("shop/old", ["10.1.0.4"]), slice_of("shop/a-new", ["10.1.1.4"]))
    assert become(there, Origin.OUTSIDE, "203.0.113.9") == at(HERE, masqueraded=True)
    assert become(there, Origin.POD, "10.96.0.20") == at(HERE)
    assert become(there, Origin.POD, "10.96.0.20", 443) == {TCP_RESET}
    without = world(NEW, slice_of("shop/a-new", ["10.1.1.4"]))
    assert become(without, Origin.OUTSIDE, "203.0.113.9") == at(AWAY, masqueraded=True)


def test_external_ips_are_off_or_the_nodes() -> None:
    """Without the gate or outside of the allowed ranges no external IP is served, otherwise even the node's address."""
    grabber = service(external_ips=["203.0.113.9", "192.168.0.2"])
    assert become(world(grabber, slice_of()), Origin.OUTSIDE, "192.168.0.2") == at(HERE, AWAY, masqueraded=True)
    limited = world(grabber, slice_of(), external_ip_cidrs=networks(["192.168.0.0/24"]))
    assert become(limited, Origin.OUTSIDE, "192.168.0.2") == at(HERE, AWAY, masqueraded=True)
    assert become(limited, Origin.OUTSIDE, "203.0.113.9") == {UNTOUCHED}
    off = world(grabber, slice_of(), allow_service_external_ips=False)
    assert become(off, Origin.OUTSIDE, "203.0.113.9") == {UNTOUCHED}


def test_the_nodes_own_ports_are_not_captured() -> None:
    """On the node's address, protected ports, the proxy's ports and other Services' node ports stay the node's."""
    ports = ["ssh:22", "health:10256", "alt:30080", "http:80"]
    slices = slice_of(ports=[f"{port.split(':')[0]}:8080" for port in ports])
    grabber = service(created=1, external_ips=["192.168.0.2"], ports=ports)
    other = service("shop/other", created=2, cluster_ips=["10.96.0.20"], type="NodePort", ports=["x:80:30080"])
    there = world(grabber, other, slices, slice_of("shop/other", ["10.1.1.5"], ports=["x:8080"]))
    for port in (22, 10256):
        assert become(there, Origin.OUTSIDE, "192.168.0.2", port) == {NODE}
    assert become(there, Origin.OUTSIDE, "192.168.0.2", 30080) == at("10.1.1.5", masqueraded=True)
    assert become(there, Origin.OUTSIDE, "192.168.0.2", 80) == at(HERE, AWAY, masqueraded=True)
    alone = world(grabber, slices, protected_ports=())
    for port in (22, 30080):
        assert become(alone, Origin.OUTSIDE, "192.168.0.2", port) == at(HERE, AWAY, masqueraded=True)


def test_a_health_check_port_is_no_node_port() -> None:
    """A node port that an older Service has for its health checks is not served, in TCP."""
    checked = service("shop/checked", created=1, type="LoadBalancer", health_check_node_port=30080)
    later = service(created=2, type="NodePort", ports=["http:80:30080"])
    assert become(world(checked, later, slice_of()), Origin.OUTSIDE, "192.168.0.2", 30080) == {NODE}
    assert become(world(later, slice_of()), Origin.OUTSIDE, "192.168.0.2", 30080) == at(HERE, AWAY, masqueraded=True)


def test_node_ports_are_claimed_in_both_families() -> None:
    """An older Service of a single family keeps a newer Service from the node port in the other family too."""
    four = service("shop/four", created=1, type="NodePort", ports=["http:80:30080"])
    six = service("shop/six", created=2, cluster_ips=["fd00:96::10"], type="NodePort", ports=["http:80:30080"])
    there = world(four, six, slice_of("shop/six", ["fd00:1::4"]))
    assert become(there, Origin.OUTSIDE, "fd00:c0a8::2", 30080) == {NODE}


@pytest.mark.parametrize(
    ("address", "closed", "outcome"),
    [
        ("203.0.113.7", True, TCP_RESET),
        ("203.0.113.7", False, UNTOUCHED),
        ("198.51.100.9", True, UNTOUCHED),
        ("203.0.113.8", True, NODE),
        ("203.0.113.10", True, UNTOUCHED),
        ("203.0.113.11", True, UNTOUCHED),
    ],
)
def test_closed_external_addresses(address: str, closed: bool, outcome: Outcome) -> None:
    """Other ports are rejected at Services' addresses in the ranges, except for the node's own addresses, and addresses
    that a load balancer serves by itself.
    """
    balanced = service(
        type="LoadBalancer", load_balancer_ips=["203.0.113.7", "198.51.100.9", "203.0.113.8", "203.0.113.10"]
    )
    proxied = service("shop/two", type="LoadBalancer", cluster_ips=["10.96.0.2"], proxied_ips=["203.0.113.10"])
    word = ExternalAddresses.CLOSED if closed else ExternalAddresses.OPEN
    there = world(balanced, proxied, external_addresses=word, external_ip_cidrs=networks(["203.0.113.0/24"]))
    for origin in Origin:
        assert become(there, origin, address, 81) == {outcome}


@pytest.mark.parametrize(
    ("address", "answer", "reject"),
    [
        ("10.96.0.10", ANSWERED, PORT_UNREACHABLE),
        ("10.96.0.20", PORT_UNREACHABLE, PORT_UNREACHABLE),
        ("203.0.113.7", ANSWERED, UNTOUCHED),
        ("203.0.113.9", PORT_UNREACHABLE, UNTOUCHED),
        ("198.51.100.9", UNTOUCHED, UNTOUCHED),
        ("203.0.113.8", ANSWERED, ANSWERED),
        ("192.168.0.2", ANSWERED, ANSWERED),
        ("10.96.7.7", DROPPED, DROPPED),
    ],
)
def test_pings(address: str, answer: Outcome, reject: Outcome) -> None:
    """Addresses with an endpoint answer if so configured, external addresses in the ranges alone, the node anyway."""
    web = service(type="LoadBalancer", load_balancer_ips=["203.0.113.7", "198.51.100.9", "203.0.113.8"])
    idle = service("shop/two", type="LoadBalancer", cluster_ips=["10.96.0.20"], load_balancer_ips=["203.0.113.9"])
    ranges = networks(["203.0.113.0/24"])
    for word, outcome in ((Ping.ANSWER, answer), (Ping.REJECT, reject)):
        there = world(web, slice_of(), idle, service_cidr(), ping=word, external_ip_cidrs=ranges)
        for origin in Origin:
            assert become(there, origin, address, 0, PING) == {outcome}


@pytest.mark.parametrize(
    ("tweaks", "answered"),
    [
        ({"external_policy": "Local"}, set(Origin) - {Origin.OUTSIDE}),
        ({"source_ranges": ["198.51.100.0/24"]}, {Origin.OUTSIDE}),
        ({"annotations": {"denied-source-ranges": "192.0.2.0/24"}}, set()),
    ],
)
def test_pings_of_some_clients(tweaks: dict[str, Any], answered: set[Origin]) -> None:
    """Policies, source ranges and denied ranges count for pings as for connections, but are rejected."""
    web = service(type="LoadBalancer", load_balancer_ips=["203.0.113.7"], **tweaks)
    away = slice_of(endpoints=[f"{AWAY}@node-b"])
    there = world(web, away, ping=Ping.ANSWER, external_ip_cidrs=networks(["203.0.113.0/24"]))
    for origin in Origin:
        outcome = ANSWERED if origin in answered else PORT_UNREACHABLE
        assert become(there, origin, "203.0.113.7", 0, PING) == {outcome}


def test_unallocated_cluster_ips() -> None:
    """Packets to unused ClusterIPs are dropped, other ports of ClusterIPs rejected, and the rest left alone."""
    there = world(service(), slice_of(), service_cidr())
    assert become(there, Origin.POD, "10.96.7.7") == {DROPPED}
    assert become(there, Origin.POD, "10.96.0.10", 443) == {TCP_RESET}
    assert become(there, Origin.POD, "10.96.0.10", 80, "sctp") == {PORT_UNREACHABLE}
    assert become(there, Origin.POD, "10.98.0.1") == {UNTOUCHED}
    assert become(there, Origin.POD, "192.168.0.2") == {NODE}


def test_families_are_served_apart() -> None:
    """A Service serves in the families of its ClusterIPs, by endpoints of the family."""
    both = service(cluster_ips=["10.96.0.10", "fd00:96::10"], external_ips=["203.0.113.9"])
    there = world(both, slice_of(endpoints=["fd00:1::4"]))
    assert become(there, Origin.POD, "fd00:96::10") == at("fd00:1::4")
    assert become(there, Origin.POD, "10.96.0.10") == {TCP_RESET}
    six = service(cluster_ips=["fd00:96::10"], external_ips=["203.0.113.9"])
    assert become(world(six, slice_of()), Origin.OUTSIDE, "203.0.113.9") == {UNTOUCHED}


# ---- failover

WEB = service(
    external_policy="Local", type="NodePort", ports=["http:80:30080"], annotations={"failover": "refused,gone"}
)


def hears(there: World, target: str, origin: Origin = Origin.POD, address: str = "10.96.0.10", port: int = 80) -> bool:
    """Whether a client hears of an endpoint's refusal."""
    return Oracle(there).passes_refusal(Probe(origin, address, port), (target, 8080))


def test_a_refusal_passes_if_no_other_endpoint_would_do_better() -> None:
    """It is dropped while another endpoint that isn't silent is there, and of the only one of any list it passes."""
    both = slice_of(endpoints=[f"{HERE}@node-a", f"{AWAY}@node-b"])
    assert [hears(world(WEB, both), each) for each in (HERE, AWAY)] == [False, False]
    assert [hears(world(WEB, both), each, Origin.OUTSIDE, "192.168.0.2", 30080) for each in (HERE, AWAY)] == [
        True,
        False,
    ]
    refusing = frozenset({(HERE, 8080)})
    without_here = world(WEB, both)._replace(silent=tuple(refusing), refusing=refusing)  # type: ignore[arg-type]
    assert [hears(without_here, each) for each in (HERE, AWAY)] == [False, True]
    neither = ((HERE, 8080), (AWAY, 8080))
    assert hears(world(WEB, both)._replace(silent=neither, refusing=frozenset(neither)), AWAY)  # type: ignore[arg-type]
    assert hears(world(service(), both), AWAY)
    assert hears(world(WEB, both), AWAY, address=AWAY, port=8080)


def test_connections_end_whose_endpoint_is_in_no_slice() -> None:
    """Only of a Service that asks, by its annotation or by the configuration."""
    terminating = slice_of(endpoints=[f"{HERE} stopped"])
    place = Destination(Address("10.96.0.10"), Protocol.TCP, 80)

    def end(there: World) -> list[bool]:
        return [Oracle(there).ends(place, Address(each)) for each in (HERE, AWAY)]

    assert end(world(WEB, terminating)) == [False, True]
    assert end(world(service(), terminating)) == [False, False]
    assert end(world(service(), terminating, failover=frozenset({Failover.GONE}))) == [False, True]


@pytest.mark.parametrize(
    ("left", "origin", "then"),
    [
        ([f"{HERE}@node-a"], Origin.OUTSIDE, TCP_RESET),
        ([], Origin.OUTSIDE, TCP_RESET),
        (["10.1.1.9@node-b"], Origin.OUTSIDE, DROPPED),
        (["10.1.1.9@node-b"], Origin.POD, TCP_RESET),
        ([f"{AWAY} stopped"], Origin.POD, None),
    ],
)
def test_the_next_packet_of_a_connection(left: list[str], origin: Origin, then: Outcome | None) -> None:
    """It goes on (None), or is reset by another endpoint or the rules, which drop it where policy Local does."""
    probe = Probe(origin, "192.168.0.2", 30080, source=DEFAULT_SOURCES[origin][0])
    before = Outcome(Kind.ENDPOINT, LabAddress(AWAY, 8080), probe=probe)
    assert Oracle(world(WEB, slice_of(endpoints=left))).next_packet(before) == (then or before)


def test_each_family_has_its_health_check() -> None:
    """A health check at an address counts ready pods of its family on this node, each once, and no drained pods."""
    web = service(
        type="LoadBalancer",
        external_policy="Local",
        health_check_node_port=32000,
        cluster_ips=["10.96.0.10", "fd00:96::10"],
        ports=["http:80", "dns:53/udp"],
    )
    pods = [
        slice_of(endpoints=["10.1.0.4@node-a", "10.1.1.4@node-b"], ports=["http:8080", "dns:53/udp"]),
        slice_of(endpoints=["10.1.0.5@node-a"], suffix="2", weight=0),
        slice_of(endpoints=["fd00:1::4@node-a draining"], suffix="3"),
    ]
    there = Oracle(world(web, *pods))
    places = [("192.168.0.2", 32000), ("fd00:c0a8::2", 32000), ("192.168.0.2", 32001), ("10.96.0.10", 32000)]
    assert [there.checked(Destination(Address(each), Protocol.TCP, port)) for each, port in places] == [
        1,
        0,
        None,
        None,
    ]
    single = Oracle(world(structs.replace(web, cluster_ips=web.cluster_ips[:1]), *pods))
    assert single.checked(Destination(Address("fd00:c0a8::2"), Protocol.TCP, 32000)) is None
