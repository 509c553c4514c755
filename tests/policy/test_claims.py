"""Who owns a contested address and port: the oldest, whatever the order in which claimants come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.conformance.strategies import SERVICES, quick, services
from nftproxy.model.addresses import parse_address
from nftproxy.model.objects import ObjectKey, Service
from nftproxy.policy.claims import Claims, external_addresses
from tests.support.factories import claim, key, service

WEB, CART, API = key("shop/web"), key("shop/cart"), key("blog/api")


def claims(*services: Service, external_ips: bool = True) -> Claims:
    """Claims with these Services entered."""
    made = Claims(external_ips=external_ips)
    for each in services:
        made.add(each)
    return made


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
    """Of two that claim one address and port the older wins, then the lesser namespace and name; 0 is oldest."""
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
    """An older Service can't take another one's ClusterIP by an external IP."""
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
    """Without AllowServiceExternalIPs an external IP is no claim, a load balancer IP still is."""
    made = claims(service(external_ips=["203.0.113.7"], load_balancer_ips=["203.0.113.8"]), external_ips=False)
    assert made.winner(claim("203.0.113.7 80/tcp")) is None
    assert made.winner(claim("203.0.113.8 80/tcp")) == WEB


def test_a_service_claims_nothing_in_a_family_that_it_does_not_serve() -> None:
    """An older IPv4 Service with an IPv6 external IP leaves that address to one which can serve it."""
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
    assert external_addresses(both, external_ips=True) == ("203.0.113.7", "203.0.113.8")
    assert external_addresses(both, external_ips=False) == ("203.0.113.7",)


def test_every_external_address_is_claimed() -> None:
    """A Service owns each of its external addresses, not the first only."""
    made = claims(service(load_balancer_ips=["203.0.113.7"], external_ips=["203.0.113.8", "203.0.113.9"]))
    for last in (7, 8, 9):
        assert made.winner(claim(f"203.0.113.{last} 80/tcp")) == WEB


# Obstacles


def test_an_external_ip_never_captures_another_ones_cluster_ip() -> None:
    """It captures nothing on any port, and the obstacle names the Service that has the ClusterIP."""
    made = claims(service("shop/web"), service("blog/api"), service("shop/cart", cluster_ips=["10.96.0.20"]))
    assert made.obstacle(parse_address("10.96.0.10"), CART) == "it is the ClusterIP of blog/api"


@pytest.mark.parametrize(("mine", "named"), [(WEB, "blog/api"), (CART, "blog/api"), (API, "shop/cart")])
def test_the_first_of_several_other_holders_is_named(mine: ObjectKey, named: str) -> None:
    """Where several others claim the ClusterIP too, it is the first of them by namespace and name."""
    made = claims(service("shop/web"), service("blog/api"), service("shop/cart"))
    assert made.obstacle(parse_address("10.96.0.10"), mine) == f"it is the ClusterIP of {named}"


def test_an_external_ip_never_captures_an_address_of_the_node() -> None:
    """An address of the node itself is an obstacle for every Service, for as long as it is the node's."""
    made = claims(service())
    address = parse_address("192.168.0.2")
    made.set_node_addresses(frozenset([address]))
    assert made.obstacle(address, WEB) == "it is an address of the node itself"
    made.set_node_addresses(frozenset())
    assert made.obstacle(address, WEB) == ""


def test_a_services_own_cluster_ip_is_no_obstacle() -> None:
    """Only the ClusterIPs of others are in the way."""
    assert claims(service("shop/web")).obstacle(parse_address("10.96.0.10"), WEB) == ""


# What changes


def test_a_new_claim_touches_all_who_claim_the_same() -> None:
    """Whoever shares an address and port with a Service that comes or goes is touched, and nobody else."""
    made = claims(service("blog/api"), service("shop/cart", cluster_ips=["10.96.0.20"]))
    assert made.add(service("shop/web")) == {API}
    assert made.remove(service("shop/web")) == {API}


@pytest.mark.parametrize("ports", [["80/tcp"], ["8080/udp"]])
def test_a_cluster_ip_touches_those_who_use_it_as_an_external_ip(ports: list[str]) -> None:
    """A ClusterIP that comes or goes touches the Services with an equal external IP, whatever their ports."""
    made = claims(service("shop/cart", cluster_ips=["10.96.0.20"], external_ips=["10.96.0.10"], ports=ports))
    assert made.add(service("shop/web")) == {CART}
    assert made.remove(service("shop/web")) == {CART}


def test_all_who_share_anything_are_touched() -> None:
    """Each address counts: both ClusterIPs, every external IP; and each of several who claim the same."""
    made = claims(
        service("blog/api", cluster_ips=["10.96.0.20"], external_ips=["203.0.113.7"]),
        service("shop/cart", cluster_ips=["10.96.0.30"], external_ips=["203.0.113.7"]),
        service("shop/far", cluster_ips=["10.96.0.40"], external_ips=["203.0.113.8"]),
        service("shop/six", cluster_ips=["fd00:96::20"], external_ips=["fd00:96::10"], ports=["8080"]),
    )
    ours = service(
        cluster_ips=["10.96.0.10", "fd00:96::10"], external_ips=["203.0.113.7", "203.0.113.9"], ports=["80", "81"]
    )
    assert made.add(ours) == {API, CART, key("shop/six")}
    assert made.remove(ours) == {API, CART, key("shop/six")}


def test_each_external_ip_is_looked_for_among_new_cluster_ips() -> None:
    """A Service whose second external IP becomes another's ClusterIP is touched."""
    made = claims(service("shop/cart", cluster_ips=["10.96.0.20"], external_ips=["203.0.113.7", "10.96.0.10"]))
    assert made.add(service("shop/web", ports=["8080"])) == {CART}


def test_nothing_is_kept_of_what_has_gone() -> None:
    """A cluster whose Services come and go for years leaves no trace of those that are no more."""
    gone = service(cluster_ips=["10.96.0.10", "fd00:96::10"], external_ips=["203.0.113.7"], ports=["80:30080"])
    made = claims(gone)
    made.remove(gone)
    assert vars(made) == vars(claims())


def test_the_next_takes_over_when_the_winner_goes() -> None:
    """A loser owns the address the moment that all before it have let go; then nobody does."""
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
    """In whatever order Services came, and whoever was there in between, the same ones own the same."""
    one, other = orders
    straight, roundabout = claims(*one), claims()
    if visitor.key not in {each.key for each in one}:
        roundabout.add(visitor)
    for each in other:
        roundabout.add(each)
    if visitor.key not in {each.key for each in one}:
        roundabout.remove(visitor)
    assert _owned(straight) == _owned(roundabout)


def _owned(made: Claims) -> dict[str, object]:
    places = ["10.96.0.10", "10.96.0.20", "fd00:96::10", "203.0.113.7", "2001:db8::7"]
    texts = [f"{place} {port}" for place in places for port in ("80/tcp", "80/udp", "53/udp")]
    owners = {text: made.winner(claim(text)) for text in [*texts, "30080/tcp", "30080/udp", "32000/tcp"]}
    obstacles = {f"{place} {name}": made.obstacle(parse_address(place), name) for place in places for name in SERVICES}
    return {**owners, **obstacles}
