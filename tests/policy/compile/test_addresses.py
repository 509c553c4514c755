"""The addresses and ports at which a Service is served, and the losses to another Service."""

from __future__ import annotations

from typing import Any

import pytest
from nftproxy_conformance.strategies.objects import Given

from nftproxy.model.events import Removed
from nftproxy.model.objects import Service
from nftproxy.model.settings import PortRange
from nftproxy.policy.claims import Denial
from nftproxy.policy.restrictions import lost_claims
from tests.policy.compile.membership import NONE_LOCAL, ONE_LOCAL, VIP, memberships, rules
from tests.support.factories import IPV4, IPV6, elements, key, networks, node, pipeline, service, slice_of

PROTECTED = "the port is protected on the node's own addresses (nftproxy.protectedPorts)"

# ---- virtual addresses ---------------------------------------------------------------------------------------------


def test_a_cluster_ip_is_served() -> None:
    """A Service with two endpoints, one on this node, is seven elements."""
    assert rules(pipeline(service(), ONE_LOCAL)) == {
        "cluster-ips": {"10.96.0.10": ""},
        "services": {"10.96.0.10 . tcp . 80": "tcp-endpoints-of-2"},
        "fronts": {"10.96.0.10 . tcp . 80": ""},
        "tcp-endpoints": {
            "10.96.0.10 . 80 . 0.0.0.0": "10.1.0.4 . 8080",
            "10.96.0.10 . 80 . 0.0.0.1": "10.1.1.4 . 8080",
        },
        "hairpin": {"10.1.0.4 . 10.1.0.4 . tcp . 8080": ""},
    }


def test_each_family_has_its_own() -> None:
    """A dual-stack Service is in each table with the addresses and endpoints of that family."""
    dual = service(cluster_ips=["fd00:96::10", "10.96.0.10"], external_ips=[VIP, "2001:db8::7"])
    made = pipeline(dual, NONE_LOCAL, slice_of(endpoints=["fd00:1:0:1::4@node-b"], suffix="2"))
    assert rules(made, IPV6) == {
        "cluster-ips": {"fd00:96::10": ""},
        "services": {
            "fd00:96::10 . tcp . 80": "tcp-endpoints-of-1",
            "2001:db8::7 . tcp . 80": "tcp-endpoints-of-1",
        },
        "masqueraded": {"2001:db8::7 . tcp . 80": ""},
        "fronts": {"fd00:96::10 . tcp . 80": "", "2001:db8::7 . tcp . 80": ""},
        "tcp-endpoints": {
            "fd00:96::10 . 80 . ::": "fd00:1:0:1::4 . 8080",
            "2001:db8::7 . 80 . ::": "fd00:1:0:1::4 . 8080",
        },
    }
    assert elements(made, IPV4, "services").keys() == {"10.96.0.10 . tcp . 80", f"{VIP} . tcp . 80"}


def test_a_service_is_nothing_in_a_family_without_its_cluster_ip() -> None:
    """External IPs and node ports of a family in which a Service has no ClusterIP are not served."""
    made = pipeline(service(external_ips=["2001:db8::7"], ports=["http:80:30080"]), ONE_LOCAL)
    assert rules(made, IPV6) == {}


def test_one_number_may_have_three_protocols() -> None:
    """TCP, UDP and SCTP ports of the same number are independent."""
    made = pipeline(
        service(ports=["a:80/tcp", "b:80/udp", "c:80/sctp"]),
        slice_of(endpoints=["10.1.1.4@node-b"], ports=["a:8080/tcp", "c:8082/sctp"]),
        slice_of(endpoints=["10.1.1.5@node-b", "10.1.1.6@node-b"], ports=["b:8081/udp"], suffix="2"),
    )
    assert rules(made) == {
        "cluster-ips": {"10.96.0.10": ""},
        "services": {
            "10.96.0.10 . tcp . 80": "tcp-endpoints-of-1",
            "10.96.0.10 . udp . 80": "udp-endpoints-of-2",
            "10.96.0.10 . sctp . 80": "sctp-endpoints-of-1",
        },
        "fronts": {
            "10.96.0.10 . tcp . 80": "",
            "10.96.0.10 . udp . 80": "",
            "10.96.0.10 . sctp . 80": "",
        },
        "tcp-endpoints": {"10.96.0.10 . 80 . 0.0.0.0": "10.1.1.4 . 8080"},
        "udp-endpoints": {
            "10.96.0.10 . 80 . 0.0.0.0": "10.1.1.5 . 8081",
            "10.96.0.10 . 80 . 0.0.0.1": "10.1.1.6 . 8081",
        },
        "sctp-endpoints": {"10.96.0.10 . 80 . 0.0.0.0": "10.1.1.4 . 8082"},
    }


def test_a_service_without_ports_is_known_by_its_address() -> None:
    """The ClusterIP of a Service without ports is known, so that packets to it are refused."""
    assert rules(pipeline(service(ports=[]))) == {"cluster-ips": {"10.96.0.10": ""}}


def test_services_share_what_they_have_in_common() -> None:
    """A pod behind two Services is a single hairpin element, which stays until both have gone."""
    other = service("shop/cart", cluster_ips=["10.96.0.20"])
    made = pipeline(service(), ONE_LOCAL, other, slice_of("shop/cart", ["10.1.0.4@node-a"]))
    assert elements(made, IPV4, "hairpin") == {"10.1.0.4 . 10.1.0.4 . tcp . 8080": ""}


# ---- conflicts -----------------------------------------------------------------------------------------------------


def contested(**tweaks: Any) -> list[Given]:
    """Two Services with an endpoint each, of which shop/web is the older."""
    return [
        service("shop/web", created=1, ports=["http:80:30080"], **tweaks),
        service("blog/api", created=2, ports=["http:80:30080"], external_ips=["203.0.113.8"], **tweaks),
        slice_of(endpoints=["10.1.1.4@node-b"]),
        slice_of("blog/api", ["10.1.1.5@node-b", "10.1.1.6@node-b"]),
    ]


def test_the_older_service_keeps_a_contested_address() -> None:
    """The winner is served as if it were alone, and the loser keeps its uncontested addresses."""
    made = pipeline(*contested())
    assert rules(made)["services"] == {
        "10.96.0.10 . tcp . 80": "tcp-endpoints-of-1",
        "203.0.113.8 . tcp . 80": "tcp-endpoints-of-2",
    }
    assert elements(made, IPV4, "nodeport-tcp-endpoints") == {"30080 . 0.0.0.0": "10.1.1.4 . 8080"}


def test_a_service_that_owns_nothing_has_its_cluster_ip_only() -> None:
    """A Service that owns nothing contributes no endpoints, chains or hairpins, only its ClusterIP."""
    loser = service("blog/api", created=2)
    made = pipeline(service(created=1), loser, slice_of("blog/api", ["10.1.0.4@node-a"]))
    assert rules(made) == rules(pipeline(service(created=1)))


def test_the_loser_takes_over_when_the_winner_lets_go() -> None:
    """As soon as the older Service is gone, the younger is served everywhere."""
    made = pipeline(*contested())
    made.ingest([Removed(Service, key("shop/web"))])
    assert elements(made, IPV4, "services")["10.96.0.10 . tcp . 80"] == "0.0.0.2"
    assert elements(made, IPV4, "nodeport-services") == {"tcp . 30080": "0.0.0.2"}


def test_the_losers_source_ranges_do_not_count() -> None:
    """Only the owner's source ranges hold for a contested load balancer IP."""
    made = pipeline(
        service("shop/web", created=1, load_balancer_ips=[VIP]),
        service(
            "blog/api",
            created=2,
            cluster_ips=["10.96.0.20"],
            load_balancer_ips=[VIP, "203.0.113.8"],
            source_ranges=["198.51.100.0/24"],
        ),
    )
    assert elements(made, IPV4, "guarded") == {"203.0.113.8 . tcp . 80": "10.96.0.20"}


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("10.96.0.10 80", "it is the ClusterIP of Service shop/web"),
        ("10.96.0.10 81", "it is the ClusterIP of Service shop/web"),
        ("192.168.0.2 22", PROTECTED),
        ("203.0.113.2 2380", PROTECTED),
        ("192.168.0.2 10256", PROTECTED),
        ("192.168.0.2 30080", "on the node's own addresses the port is a node port of Service shop/web"),
    ],
)
@pytest.mark.parametrize("kind", ["external_ips", "load_balancer_ips"])
def test_an_external_address_captures_nothing_from_others(kind: str, place: str, why: str) -> None:
    """Even the oldest Service captures no ClusterIP of another Service, nor a protected or a node port."""
    address, port = place.split()
    claimed: dict[str, Any] = {kind: [address]}
    thief = service("blog/api", created=1, cluster_ips=["10.96.0.20"], ports=[f"x:{port}"], **claimed)
    victim = service(created=2, ports=["http:80:30080"])
    made = pipeline(victim, thief, node=node(external_ips=["203.0.113.2"]))
    own = memberships(pipeline(victim, node=node(external_ips=["203.0.113.2"])), f"{address} . tcp . {port}")
    assert memberships(made, f"{address} . tcp . {port}") == own
    lost = lost_claims(made.state, made.settings, IPV4, thief)
    assert [(each.what, each.why(made.state.claims)) for each in lost] == [(f"{address}:{port}/TCP", why)]


@pytest.mark.parametrize("kind", ["external_ips", "load_balancer_ips"])
@pytest.mark.parametrize("address", ["192.168.0.2", "203.0.113.2"])
def test_an_address_of_the_node_is_served_like_any_other(kind: str, address: str) -> None:
    """An external address of the node itself has the same rules as any other external address."""
    made, other = (
        pipeline(
            service(external_ips=[each]) if kind == "external_ips" else service(load_balancer_ips=[each]),
            ONE_LOCAL,
            node=node(external_ips=["203.0.113.2"]),
        )
        for each in (address, VIP)
    )
    assert memberships(made, f"{address} . tcp . 80") == memberships(other, f"{VIP} . tcp . 80") != {}


def test_protected_ports_are_configured() -> None:
    """A configured list replaces the default, and the proxy's own ports stay protected."""
    ports = ["ssh:22", "http:80", "health:10256", "other:1234"]
    made = pipeline(
        service(external_ips=["192.168.0.2"], ports=ports),
        protected_ports=(PortRange(80, 81),),
        healthz_bind_address="0.0.0.0:1234",
    )
    served = [front for front in elements(made, IPV4, "services") if front.startswith("192.168.0.2")]
    assert served == ["192.168.0.2 . tcp . 22", "192.168.0.2 . tcp . 10256"]


def test_external_ips_may_be_limited_to_ranges() -> None:
    """Only external IPs outside of the ranges are denied, and load balancer IPs aren't checked."""
    older = service(created=1, external_ips=["203.0.113.8", VIP], load_balancer_ips=["198.51.100.1"])
    younger = service("blog/api", created=2, cluster_ips=["10.96.0.20"], load_balancer_ips=[VIP])
    made = pipeline(older, younger, external_ip_cidrs=networks(["203.0.113.8/29", "2001:db8::/32"]))
    assert elements(made, IPV4, "services").keys() == {
        "10.96.0.10 . tcp . 80",
        "10.96.0.20 . tcp . 80",
        "203.0.113.8 . tcp . 80",
        "198.51.100.1 . tcp . 80",
        f"{VIP} . tcp . 80",
    }
    lost = lost_claims(made.state, made.settings, IPV4, older)
    assert [(each.what, each.denial) for each in lost] == [(f"{VIP}:80/TCP", Denial.NOT_ALLOWED)]
    assert lost_claims(made.state, made.settings, IPV4, younger) == []


def test_an_external_address_that_is_its_own_cluster_ip_is_the_cluster_ip() -> None:
    """A Service whose external IP is its ClusterIP is reached there by the internal policy, once."""
    made = pipeline(service(external_ips=["10.96.0.10"], external_policy="Local"), ONE_LOCAL)
    assert rules(made) == rules(pipeline(service(), ONE_LOCAL))


def test_external_ips_can_be_turned_off() -> None:
    """Without AllowServiceExternalIPs no external IP is served, and load balancer IPs still are."""
    both = service(external_ips=["203.0.113.8"], load_balancer_ips=[VIP])
    made = pipeline(both, ONE_LOCAL, allow_service_external_ips=False)
    assert elements(made, IPV4, "services").keys() == {"10.96.0.10 . tcp . 80", f"{VIP} . tcp . 80"}
    assert lost_claims(made.state, made.settings, IPV4, both) == []


def test_external_ips_that_are_turned_off_are_no_claims() -> None:
    """If external IPs are turned off, a younger Service's load balancer may have an older Service's external IP."""
    older = service("blog/api", cluster_ips=["10.96.0.20"], external_ips=[VIP], created=1)
    made = pipeline(older, service(load_balancer_ips=[VIP], created=2), ONE_LOCAL, allow_service_external_ips=False)
    assert elements(made, IPV4, "services")[f"{VIP} . tcp . 80"] == "0.0.0.2"


def test_a_health_check_port_takes_a_younger_node_port() -> None:
    """A node port that is an older Service's health-check port is not served."""
    made = pipeline(
        service(created=1, type="LoadBalancer", external_policy="Local", health_check_node_port=30080),
        service("blog/api", created=2, cluster_ips=["10.96.0.20"], ports=["http:80:30080"]),
    )
    assert not memberships(made, "tcp . 30080")
