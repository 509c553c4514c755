"""Ports that no Service has are closed at external addresses, where nothing but Services uses these
(nftproxy.externalAddresses).
"""

from __future__ import annotations

from typing import Any

import pytest
from nftproxy_conformance.lab import NODE, PORT_UNREACHABLE, TCP_RESET, UNTOUCHED, Lab, Origin

from nftproxy.extensions.external_addresses.fields import ExternalAddresses
from nftproxy.model.addresses import Address
from nftproxy.model.events import ApiServers, Put
from nftproxy.model.objects import ClusterObject, Place, Service
from tests.support.cluster import Cluster, Ip, everywhere, exposed_service, masqueraded, pods
from tests.support.factories import networks, node, service
from tests.system.packets.rivals import two


def closed(lab: Lab, *objects: ClusterObject, ranges: tuple[str, ...] = ("0.0.0.0/0", "::/0")) -> Cluster:
    """A cluster with closed external addresses in some ranges."""
    return Cluster(lab, *objects, external_addresses=ExternalAddresses.CLOSED, external_ip_cidrs=networks(list(ranges)))


@pytest.mark.parametrize("name", ["external", "balanced"])
def test_other_ports_are_rejected(lab: Lab, ip: Ip, name: str) -> None:
    """From everywhere other ports are rejected by each protocol, and the Service's own port is served."""
    address = getattr(ip, name)
    cluster = closed(lab, exposed_service(ip), pods(ip, "here"))
    assert cluster.outcomes(Origin.OUTSIDE, address) == masqueraded(ip.here)
    assert cluster.by_origin(address, 81, times=2) == everywhere(TCP_RESET)
    for protocol in ("udp", "sctp"):
        assert cluster.by_origin(address, 80, protocol, times=2) == everywhere(PORT_UNREACHABLE)


def test_an_address_is_closed_as_long_as_a_service_has_a_port_there(lab: Lab, ip: Ip) -> None:
    """Two Services may share an address.  It is closed until the last of them is gone."""
    first, second = exposed_service(ip), two(ip, load_balancer_ips=[ip.balanced], ports=["http:82"])
    cluster = closed(lab, first, second, pods(ip, "here"), pods(ip, "away", name="shop/two"))
    assert cluster.outcomes(Origin.OUTSIDE, ip.balanced, 82) == masqueraded(ip.away)
    for gone, seen in ((first, TCP_RESET), (second, UNTOUCHED)):
        cluster.remove(gone)
        assert cluster.by_origin(ip.balanced, 81, times=2) == everywhere(seen)


def test_an_address_out_of_the_ranges_stays_open(lab: Lab, ip: Ip) -> None:
    """A Service that names a neighbour's or a gateway's address as its own closes no port of it."""
    cluster = closed(lab, exposed_service(ip), pods(ip, "here"), ranges=(ip.alone(ip.external),))
    assert cluster.by_origin(ip.balanced, 81, times=2) == everywhere(UNTOUCHED)
    assert cluster.by_origin(ip.external, 81, times=2) == everywhere(TCP_RESET)


@pytest.mark.parametrize("kind", ["external_ips", "load_balancer_ips"])
def test_addresses_on_the_nodes_interfaces_stay_open(lab: Lab, ip: Ip, kind: str) -> None:
    """The node's own addresses keep their ports, in the Node's status or not."""
    given: dict[str, Any] = {kind: [ip.node, ip.own]}
    cluster = closed(lab, exposed_service(ip, **given), pods(ip, "here"))
    for address in (ip.node, ip.own):
        assert cluster.by_origin(address, 81, times=2) == everywhere(NODE)


def test_an_address_of_the_node_that_is_on_no_interface_stays_open(lab: Lab, ip: Ip) -> None:
    """A cloud's external address leads back to the node.  It is closed once the node has it no more."""
    web = exposed_service(ip), pods(ip, "here")
    cluster = closed(lab, *web, node(internal_ips=[ip.node], external_ips=[ip.balanced]))
    assert cluster.by_origin(ip.balanced, 81, times=2) == everywhere(UNTOUCHED)
    cluster.put(node(internal_ips=[ip.node]))
    assert cluster.by_origin(ip.balanced, 81, times=2) == everywhere(TCP_RESET)


def test_the_api_servers_address_stays_open(lab: Lab, ip: Ip) -> None:
    """A Service that names the API server's address closes no port of it."""
    cluster = closed(lab, exposed_service(ip), pods(ip, "here"))
    assert cluster.outcomes(Origin.POD, ip.external, 81, times=2) == {TCP_RESET}
    cluster.follow(Put(ApiServers(frozenset({Place(Address(ip.external), 6443)}))))
    assert cluster.by_origin(ip.external, 81, times=2) == everywhere(UNTOUCHED)
    assert cluster.outcomes(Origin.POD, ip.balanced, 81, times=2) == {TCP_RESET}


def test_an_address_of_a_load_balancer_that_proxies_stays_open(lab: Lab, ip: Ip) -> None:
    """An address with ipMode Proxy in another Service is left to its load balancer."""
    proxied: Service = service("shop/two", type="LoadBalancer", cluster_ips=[ip.vip2], proxied_ips=[ip.balanced])
    cluster = closed(lab, exposed_service(ip), pods(ip, "here"))
    cluster.put(proxied)
    assert cluster.by_origin(ip.balanced, 81, times=2) == everywhere(UNTOUCHED)
    cluster.remove(proxied)
    assert cluster.by_origin(ip.balanced, 81, times=2) == everywhere(TCP_RESET)


def test_a_service_that_has_no_port_there_closes_nothing(lab: Lab, ip: Ip) -> None:
    """An address of which another Service has all claimed ports isn't closed by the loser."""
    cluster = closed(lab, exposed_service(ip, ports=[]), pods(ip, "here"))
    assert cluster.by_origin(ip.balanced, 81, times=2) == everywhere(UNTOUCHED)
