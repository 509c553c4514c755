"""The oldest claimant owns a contested address and port, in any order of arrivals and removals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies import quick
from nftproxy_conformance.strategies.objects import services
from nftproxy_conformance.strategies.values import SERVICES

from nftproxy.model.addresses import Address, parse_address
from nftproxy.model.objects import ObjectKey, Service
from nftproxy.model.settings import Config
from nftproxy.policy.claims import ClaimKind, Claims, denied_external_ips, external_addresses, port_claims
from tests.support.factories import claim, key, networks, service

WEB, CART, API = key("shop/web"), key("shop/cart"), key("blog/api")


def claims(*services: Service, **config: Any) -> Claims:
    """Claims with these Services entered, and their touched Services already taken."""
    made = Claims(Config(**config))
    for each in services:
        made.add(each)
    made.pop_affected()
    return made


def touched_by(made: Claims, change: Callable[[Service], None], of: Service) -> set[ObjectKey]:
    """The Services that adding or removing a Service touches."""
    change(of)
    return made.pop_affected()


def denied(made: Claims, place: str, who: ObjectKey) -> str:
    """The reason why a Service doesn't get an external address and port, "" if it gets them."""
    denial = made.denial(claim(place), ClaimKind.EXTERNAL_IP, who)
    return denial.sentence(made.holder(claim(place), denial)) if denial else ""


@pytest.mark.parametrize(
    ("one", "other", "winner"),
    [
        (service("shop/web", created=1), service("blog/api", created=2), WEB),
        (service("shop/web", created=2), service("blog/api", created=1), API),
        (service("shop/web", created=1), service("shop/cart", created=1), CART),
        (service("shop/web"), service("blog/api", created=1), WEB),
        (service("b/a"), service("a/b"), key("a/b")),
    ],
)
def test_the_older_service_wins(one: Service, other: Service, winner: ObjectKey) -> None:
    """The older claimant of an address and port wins, then the lesser namespace and name, and 0 is oldest."""
    for order in ((one, other), (other, one)):
        assert claims(*order).winner(claim("10.96.0.10 80/tcp")) == winner


@pytest.mark.parametrize(
    ("text", "winner"),
    [
        ("10.96.0.10 80/tcp", WEB),
        ("10.96.0.10 80/udp", CART),
        ("10.96.0.10 80/sctp", None),
        ("10.96.0.10 81/tcp", None),
        ("10.96.0.11 80/tcp", None),
        ("fd00:96::10 80/tcp", WEB),
        ("30080/tcp", WEB),
        ("30080/udp", None),
    ],
)
def test_a_claim_is_to_one_address_protocol_and_port(text: str, winner: ObjectKey | None) -> None:
    """Services conflict only where address, protocol and port are all the same."""
    web = service("shop/web", cluster_ips=["10.96.0.10", "fd00:96::10"], ports=["80:30080/tcp"])
    cart = service("shop/cart", ports=["80/udp"])
    assert claims(web, cart).winner(claim(text)) == winner


def test_a_cluster_ip_comes_before_an_external_ip() -> None:
    """An older Service's external IP can't take another Service's ClusterIP."""
    made = claims(
        service("shop/cart", cluster_ips=["10.96.0.20"], external_ips=["10.96.0.10"], created=1),
        service("shop/web", cluster_ips=["10.96.0.10"], created=2),
    )
    assert made.winner(claim("10.96.0.10 80/tcp")) == WEB


def test_external_and_load_balancer_ips_are_equals() -> None:
    """Between external IPs and load balancer IPs age decides."""
    made = claims(
        service("shop/web", load_balancer_ips=["203.0.113.7"], created=2),
        service("shop/cart", external_ips=["203.0.113.7"], created=1),
    )
    assert made.winner(claim("203.0.113.7 80/tcp")) == CART


@pytest.mark.parametrize("port", ["health", "node"])
def test_a_health_check_port_is_a_tcp_port_of_the_node(port: str) -> None:
    """A health-check port and a node port conflict like two node ports, and age decides."""
    checked = service("shop/web", health_check_node_port=30080, created=1 if port == "health" else 3)
    other = service("shop/cart", ports=["a:80:30080/tcp", "b:80:30080/udp"], created=2)
    made = claims(checked, other)
    assert made.winner(claim("30080/tcp")) == (WEB if port == "health" else CART)
    assert made.winner(claim("30080/udp")) == CART


def test_external_ips_claim_nothing_where_they_are_not_served() -> None:
    """Without AllowServiceExternalIPs an external IP is no claim, but a load balancer IP is."""
    made = claims(
        service(external_ips=["203.0.113.7"], load_balancer_ips=["203.0.113.8"]), allow_service_external_ips=False
    )
    assert made.winner(claim("203.0.113.7 80/tcp")) is None
    assert made.winner(claim("203.0.113.8 80/tcp")) == WEB


def test_a_service_claims_nothing_in_a_family_that_it_does_not_serve() -> None:
    """An older IPv4 Service with an IPv6 external IP leaves that address to a Service that serves IPv6."""
    made = claims(
        service("shop/web", cluster_ips=["10.96.0.10"], external_ips=["2001:db8::7"], created=1),
        service("shop/cart", cluster_ips=["fd00:96::20"], external_ips=["2001:db8::7"], created=2),
    )
    assert made.winner(claim("2001:db8::7 80/tcp")) == CART


def test_each_external_address_counts_once() -> None:
    """Load balancer IPs come first, repetitions and the Service's own ClusterIP are left out."""
    both = service(
        load_balancer_ips=["203.0.113.7", "10.96.0.10"], external_ips=["203.0.113.8", "203.0.113.7", "203.0.113.8"]
    )
    assert external_addresses(both, Config()) == ("203.0.113.7", "203.0.113.8")
    assert external_addresses(both, Config(allow_service_external_ips=False)) == ("203.0.113.7",)


def test_every_external_address_is_claimed() -> None:
    """A Service owns each of its external addresses, not only the first."""
    made = claims(service(load_balancer_ips=["203.0.113.7"], external_ips=["203.0.113.8", "203.0.113.9"]))
    for last in (7, 8, 9):
        assert made.winner(claim(f"203.0.113.{last} 80/tcp")) == WEB


# Rules above age


@pytest.mark.parametrize("port", ["80/tcp", "81/tcp", "80/udp"])
def test_an_external_ip_never_captures_another_ones_cluster_ip(port: str) -> None:
    """It captures no port, and the reason names the first Service by namespace and name that has the ClusterIP."""
    thief = service("shop/cart", cluster_ips=["10.96.0.20"], external_ips=["10.96.0.10"], ports=[port])
    made = claims(service("shop/web"), service("blog/api"), thief)
    assert denied(made, f"10.96.0.10 {port}", CART) == "it is the ClusterIP of Service blog/api"


NODE_IP = parse_address("192.168.0.2")


def on_node(*services: Service, **config: Any) -> Claims:
    """Claims with these Services entered, on a node with the address `NODE_IP`."""
    made = claims(*services, **config)
    made.set_node_addresses(frozenset([NODE_IP]))
    return made


def external(name: str, *ports: str, created: int = 0) -> Service:
    """A Service that has the node's address for an external IP."""
    ip = {"shop/web": "10.96.0.10", "shop/cart": "10.96.0.20", "blog/api": "10.96.0.30"}[name]
    return service(name, cluster_ips=[ip], external_ips=[NODE_IP], ports=ports, created=created)


@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
@pytest.mark.parametrize("port", [22, 2379, 2380, 6443, 10249, 10250, 10256])
def test_protected_ports_of_the_node_are_not_captured(port: int, protocol: str) -> None:
    """By default an external IP captures no protected port, but only on an address of the node."""
    made = on_node(external("shop/web", f"{port}/{protocol}", f"80/{protocol}"))
    assert "protected" in denied(made, f"192.168.0.2 {port}/{protocol}", WEB)
    assert denied(made, f"192.168.0.2 80/{protocol}", WEB) == ""
    made.set_node_addresses(frozenset())
    assert denied(made, f"192.168.0.2 {port}/{protocol}", WEB) == ""


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_no_external_address_captures_the_api_server(protocol: str) -> None:
    """No Service gets the API server's address and port, and Services that claim them are touched."""
    made = claims(service(ports=[f"6443/{protocol}", f"80/{protocol}"], external_ips=["192.0.2.1"]))
    made.set_api_servers(frozenset({(Address("192.0.2.1"), 6443)}))
    assert made.pop_affected() == {WEB}
    assert denied(made, f"192.0.2.1 6443/{protocol}", WEB) == "this node reaches the API server there"
    assert denied(made, f"192.0.2.1 80/{protocol}", WEB) == ""
    made.set_api_servers(frozenset())
    assert made.pop_affected() == {WEB}
    assert denied(made, f"192.0.2.1 6443/{protocol}", WEB) == ""


def test_a_node_port_goes_before_an_external_ip_of_the_node() -> None:
    """On the node's address an older Service's external IP leaves a node port, or a health-check port, alone."""
    older = external("shop/web", "30080/tcp", "32000/tcp", "80/tcp", created=1)
    checked = service("shop/cart", cluster_ips=["10.96.0.20"], ports=["a:80:30080/tcp"], health_check_node_port=32000)
    made = on_node(older, checked)
    for port in (30080, 32000):
        wanted = "on the node's own addresses the port is a node port of Service shop/cart"
        assert denied(made, f"192.168.0.2 {port}/tcp", WEB) == wanted
    assert denied(made, "192.168.0.2 80/tcp", WEB) == ""


def test_a_services_own_node_port_is_no_obstacle() -> None:
    """The owner of a node port may have the node's address and port, before older Services that may not."""
    older, owner = external("shop/web", "30080/tcp", created=1), external("shop/cart", "30080:30080/tcp", created=2)
    made = on_node(older, owner)
    assert made.winner(claim("192.168.0.2 30080/tcp")) == CART
    assert denied(made, "192.168.0.2 30080/tcp", CART) == ""
    made.remove(owner)
    assert made.winner(claim("192.168.0.2 30080/tcp")) == WEB


def test_a_services_own_cluster_ip_is_no_external_address() -> None:
    """A Service doesn't claim its own ClusterIP again as an external IP."""
    both = service(external_ips=["10.96.0.10", "203.0.113.7"])
    assert external_addresses(both, Config()) == ("203.0.113.7",)


def test_external_ips_outside_of_the_allowed_ranges_are_no_claims() -> None:
    """External IPs outside of the ranges are no claims, and load balancer IPs aren't checked."""
    config = Config(external_ip_cidrs=networks(["203.0.113.0/29"]))
    external_ips = ["203.0.113.7", "203.0.113.8", "203.0.113.9", "203.0.113.10", "203.0.113.8"]
    ours = service(external_ips=external_ips, load_balancer_ips=["203.0.113.9"])
    assert external_addresses(ours, config) == ("203.0.113.9", "203.0.113.7")
    assert denied_external_ips(ours, config) == ("203.0.113.8", "203.0.113.10")
    assert denied_external_ips(ours, Config()) == ()


# What changes


def test_the_winner_and_the_loser_of_a_change_are_touched() -> None:
    """A Service that comes or goes touches exactly the Services that win or lose an address and port by it."""
    made = claims(service("blog/api", created=2), service("shop/far", created=3))
    assert touched_by(made, made.add, service("shop/web", created=1)) == {API}
    assert touched_by(made, made.add, service("shop/cart", created=4)) == set()
    assert touched_by(made, made.remove, service("shop/cart", created=4)) == set()
    assert touched_by(made, made.remove, service("shop/web", created=1)) == {API}


def test_however_many_claim_the_same_few_are_touched() -> None:
    """Each of 2,000 Services that claim one address, in the worst order, touches one other Service."""
    crowd = [service(f"shop/s{age:04}", created=age) for age in range(2000, 0, -1)]
    made = claims()
    assert [len(touched_by(made, made.add, each)) for each in crowd] == [0, *[1] * 1999]


@pytest.mark.parametrize("ports", [["80/tcp"], ["8080/udp"]])
def test_a_cluster_ip_touches_those_who_use_it_as_an_external_ip(ports: list[str]) -> None:
    """A ClusterIP that is added or removed touches the Services with an equal external IP, on any port."""
    made = claims(service("shop/cart", cluster_ips=["10.96.0.20"], external_ips=["10.96.0.10"], ports=ports))
    assert touched_by(made, made.add, service("shop/web")) == {CART}
    assert touched_by(made, made.add, service("blog/api", created=1)) == set()
    assert touched_by(made, made.remove, service("blog/api", created=1)) == set()
    assert touched_by(made, made.remove, service("shop/web")) == {CART}


def test_a_node_port_touches_those_who_use_it_on_the_nodes_address() -> None:
    """A node port that is added or removed touches every Service with that port of the node's address."""
    made = on_node(external("shop/cart", "30080/tcp"), external("shop/web", "30080/tcp", created=1))
    other = service("blog/api", cluster_ips=["10.96.0.30"], ports=["80:30080/tcp"])
    assert touched_by(made, made.add, other) == {CART, WEB}
    assert touched_by(made, made.remove, other) == {CART, WEB}


def test_all_who_lose_anything_are_touched() -> None:
    """Every address counts: both ClusterIPs, every external IP."""
    made = claims(
        service("blog/api", cluster_ips=["10.96.0.20"], external_ips=["203.0.113.7"], created=2),
        service("shop/cart", cluster_ips=["10.96.0.30"], external_ips=["203.0.113.9"], created=2),
        service("shop/far", cluster_ips=["10.96.0.40"], external_ips=["203.0.113.8"]),
        service("shop/six", cluster_ips=["fd00:96::20"], external_ips=["fd00:96::10"], ports=["8080"]),
    )
    ours = service(
        cluster_ips=["10.96.0.10", "fd00:96::10"],
        external_ips=["203.0.113.7", "203.0.113.9"],
        ports=["80", "81"],
        created=1,
    )
    assert touched_by(made, made.add, ours) == {API, CART, key("shop/six")}
    assert touched_by(made, made.remove, ours) == {API, CART, key("shop/six")}


def test_each_external_ip_is_looked_for_among_new_cluster_ips() -> None:
    """A Service is touched when its second external IP becomes another Service's ClusterIP."""
    made = claims(service("shop/cart", cluster_ips=["10.96.0.20"], external_ips=["203.0.113.7", "10.96.0.10"]))
    assert touched_by(made, made.add, service("shop/web", ports=["8080"])) == {CART}


def test_nothing_is_kept_of_what_has_gone() -> None:
    """In a cluster whose Services come and go for years, no trace of removed Services is left."""
    gone = service(cluster_ips=["10.96.0.10", "fd00:96::10"], external_ips=["203.0.113.7"], ports=["80:30080"])
    made = claims(gone)
    made.remove(gone)
    made.pop_affected()
    assert vars(made) == vars(claims())


def test_the_next_takes_over_when_the_winner_goes() -> None:
    """A loser owns the address as soon as all older claimants have gone, and then nobody does."""
    line = [service(name, created=age) for age, name in enumerate(["shop/web", "shop/cart", "blog/api"])]
    made = claims(*line)
    owners = []
    for each in line:
        owners.append(made.winner(claim("10.96.0.10 80/tcp")))
        made.remove(each)
    assert owners == [WEB, CART, API]
    assert made.winner(claim("10.96.0.10 80/tcp")) is None


_each_once = st.lists(services, max_size=3, unique_by=lambda each: each.key)


@quick()
@given(_each_once.flatmap(lambda all_: st.tuples(st.permutations(all_), st.permutations(all_))), services)
def test_owners_do_not_depend_on_history(orders: tuple[list[Service], list[Service]], visitor: Service) -> None:
    """The owners depend only on the present Services, not on the order in which they came or on removed Services."""
    one, other = orders
    straight, roundabout = claims(*one), claims()
    if visitor.key not in {each.key for each in one}:
        roundabout.add(visitor)
    for each in other:
        roundabout.add(each)
    if visitor.key not in {each.key for each in one}:
        roundabout.remove(visitor)
    assert _owned(straight) == _owned(roundabout)


@quick()
@given(_each_once)
def test_a_service_that_gets_all_loses_nothing(some: list[Service]) -> None:
    """`gets_all` is true only of Services that own each of their claims."""
    made = claims(*some)
    for each in filter(made.gets_all, some):
        owned = [place for port in each.ports for place, _ in port_claims(port, each.cluster_ips, ())]
        assert {made.winner(place) for place in owned} <= {each.key}


@pytest.mark.parametrize(
    ("fields", "gets_all"),
    [
        ({}, True),
        ({"cluster_ips": ["10.96.0.10", "fd00:96::10"], "ports": ["http:80", "dns:53/udp"]}, True),
        ({"external_ips": ["203.0.113.7"]}, False),
        ({"ports": ["http:80:30080"]}, False),
        ({"cluster_ips": ["10.96.0.20"]}, False),
    ],
)
def test_plain_services_get_all(fields: dict[str, Any], gets_all: bool) -> None:
    """A Service with ClusterIPs alone gets all that it claims, unless another Service has one of them."""
    one = service("shop/web", **fields)
    assert claims(one, service("blog/api", cluster_ips=["10.96.0.20"])).gets_all(one) is gets_all


def _owned(made: Claims) -> dict[str, object]:
    places = ["10.96.0.10", "10.96.0.20", "fd00:96::10", "203.0.113.7", "2001:db8::7"]
    texts = [f"{place} {port}" for place in places for port in ("80/tcp", "80/udp", "53/udp")]
    owners = {text: made.winner(claim(text)) for text in [*texts, "30080/tcp", "30080/udp", "32000/tcp"]}
    denials = {f"{text} {name}": denied(made, text, name) for text in texts for name in SERVICES}
    return {**owners, **denials}
