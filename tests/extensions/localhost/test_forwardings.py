"""The endpoints that serve node ports at localhost: the same as in the rules, for TCP alone."""

from __future__ import annotations

from typing import Any

import pytest

from nftproxy.extensions.localhost.forwardings import Forwarding, LocalhostPorts, Pin, pinned
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import EndpointSlice, Place, Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import Denial
from nftproxy.policy.fronts import LostClaim
from nftproxy.policy.restrictions import lost_claims
from tests.support.factories import IPV4, addresses, claim, key, node, pipeline, service, slice_of

AT = Address("127.0.0.1")
HERE, AWAY = Place(Address("10.1.0.4"), 8080), Place(Address("10.1.1.4"), 8080)
BOTH_FAMILIES = addresses(["10.96.0.10", "fd00:96::10"])
OPEN = service(ports=["http:80:30080"])


def made(*objects: Any, asked: list[str] | None = None, **tweaks: Any) -> Pipeline:
    """A pipeline on node-a that serves node ports at its own address and at localhost."""
    return pipeline(*objects, node_port_addresses=asked or ["primary", "localhost"], **tweaks)


def served(it: Pipeline) -> dict[str, tuple[tuple[Address, int], ...]]:
    """The endpoints by the local port."""
    return {str(port): each.endpoints for port, each in it.view(LocalhostPorts).by_port.items()}


def test_a_node_port_is_served_by_the_cluster_list() -> None:
    """With policy Cluster every endpoint serves, for the Service that has the port."""
    found = made(OPEN, slice_of()).view(LocalhostPorts).by_port
    assert found == {Place(AT, 30080): Forwarding(key("shop/web"), (HERE, AWAY), None)}


def test_each_family_has_its_own_endpoints() -> None:
    """The Service's endpoints of a family serve at that family's localhost, and nothing serves where it has none."""
    both = service(ports=["http:80:30080"], cluster_ips=BOTH_FAMILIES)
    more = slice_of(endpoints=["fd00:1::4@node-a"], suffix="6")
    six = (Address("fd00:1::4"), 8080)
    assert served(made(both, slice_of(), more)) == {"127.0.0.1:30080": (HERE, AWAY), "[::1]:30080": (six,)}
    assert served(made(both, slice_of())) == {"127.0.0.1:30080": (HERE, AWAY)}
    assert served(made(both, more)) == {"[::1]:30080": (six,)}


@pytest.mark.parametrize(
    ("asked", "ports"),
    [
        (["localhost"], {"127.0.0.1:30080", "[::1]:30080"}),
        (["127.0.0.1/32"], {"127.0.0.1:30080"}),
        (["all", "::1/128"], {"[::1]:30080"}),
        (["primary"], set()),
        (["all"], set()),
        (["0.0.0.0/0", "::/0"], set()),
    ],
)
def test_where_it_is_asked_for(asked: list[str], ports: set[str]) -> None:
    """Localhost is served if configured by name or as a loopback CIDR, and not otherwise."""
    both = service(ports=["http:80:30080"], cluster_ips=BOTH_FAMILIES)
    it = made(both, slice_of(), slice_of(endpoints=["fd00:1::4@node-a"], suffix="6"), asked=asked)
    assert served(it).keys() == ports


@pytest.mark.parametrize(
    ("policy", "endpoints", "chosen"),
    [
        ("Local", ["10.1.0.4@node-a", "10.1.1.4@node-b"], (HERE,)),
        ("Local", ["10.1.1.4@node-b"], ()),
        ("Local", ["10.1.0.4@node-a draining", "10.1.1.4@node-b"], (HERE,)),
        ("Cluster", ["10.1.0.4@node-a draining", "10.1.1.4@node-b"], (AWAY,)),
        ("Cluster", ["10.1.0.4@node-a draining", "10.1.1.4@node-b unready"], (HERE,)),
        ("Cluster", ["10.1.0.4@node-a zone=zone-b", "10.1.1.4@node-b zone=zone-a"], (AWAY,)),
        ("Cluster", ["10.1.0.4@node-a unready"], ()),
        ("Cluster", [], ()),
    ],
)
def test_endpoints_are_chosen_as_for_rules(
    policy: str, endpoints: list[str], chosen: tuple[tuple[Address, int], ...]
) -> None:
    """Policy, terminating endpoints and topology decide as they do for rules, with the local list for policy Local."""
    open_service = service(ports=["http:80:30080"], external_policy=policy, internal_policy="Local")
    it = made(open_service, slice_of(endpoints=endpoints, family=IPV4), node=node(zone="zone-a"))
    assert served(it) == ({"127.0.0.1:30080": chosen} if chosen else {})


def test_only_tcp() -> None:
    """UDP and SCTP ports are listed as not served."""
    ports = ["a:53:30053/udp", "b:53:30053/tcp", "c:9:30009/sctp", "d:80/udp"]
    slice_ports = ["a:5353/udp", "b:5353/tcp", "c:9999/sctp", "d:8080/udp"]
    it = made(service(ports=ports), slice_of(ports=slice_ports, endpoints=["10.1.0.4"]), asked=["127.0.0.1/32"])
    assert served(it) == {"127.0.0.1:30053": ((HERE[0], 5353),)}
    assert list(it.view(LocalhostPorts).unserved(it.state)) == [
        (key("shop/web"), Place(AT, 30053), Protocol.UDP),
        (key("shop/web"), Place(AT, 30009), Protocol.SCTP),
    ]


def test_without_localhost_no_unserved_port_is_listed() -> None:
    """Without localhost no port is listed as not served there."""
    it = made(service(ports=["a:53:30053/udp"]), asked=["primary"])
    assert list(it.view(LocalhostPorts).unserved(it.state)) == []


def test_affinity_goes_along() -> None:
    """The timeout of session affinity is that of the Service."""
    sticky = service(ports=["http:80:30080"], affinity_timeout=30)
    (found,) = made(sticky, slice_of()).view(LocalhostPorts).by_port.values()
    assert found.affinity_timeout == 30


def test_the_owner_of_a_contested_port_serves() -> None:
    """The older Service with the node port serves, and the younger takes over when the older goes."""
    older = service("shop/older", created=1, ports=["http:80:30080"], cluster_ips=["10.96.0.1"])
    younger = service("shop/younger", created=2, ports=["http:80:30080"], cluster_ips=["10.96.0.2"])
    slices = [slice_of("shop/older", ["10.1.0.4"]), slice_of("shop/younger", ["10.1.1.4"])]
    it = made(younger, older, *slices)
    assert [(each.service, each.endpoints) for each in it.view(LocalhostPorts).by_port.values()] == [
        (key("shop/older"), (HERE,))
    ]
    it.ingest([Removed(Service, key("shop/older"))])
    assert [(each.service, each.endpoints) for each in it.view(LocalhostPorts).by_port.values()] == [
        (key("shop/younger"), (AWAY,))
    ]


def test_a_port_that_is_lost_at_localhost_alone_is_named() -> None:
    """If no other address serves node ports, a lost node port is still reported."""
    older = service("shop/older", created=1, ports=["http:80:30080"], cluster_ips=["10.96.0.1"])
    younger = service("shop/younger", created=2, ports=["http:80:30080"], cluster_ips=["10.96.0.2"])
    it = made(older, younger, asked=["localhost"])
    lost = lost_claims(it.state, it.settings, IPV4, younger)
    assert lost == [LostClaim(key("shop/younger"), "http", claim("30080/tcp"), "node:30080/TCP", Denial.TAKEN)]


def test_changes_are_followed() -> None:
    """The mapping follows endpoints and ports, and changes that don't concern node ports leave it as it is."""
    it = made(OPEN, slice_of())
    before = it.view(LocalhostPorts).by_port
    it.ingest([Put(service("shop/other", cluster_ips=["10.96.0.11"])), Put(slice_of("shop/other"))])
    assert it.view(LocalhostPorts).by_port is before
    it.ingest([Put(slice_of(endpoints=["10.1.1.4"]))])
    assert served(it) == {"127.0.0.1:30080": (AWAY,)}
    it.ingest([Put(service(ports=["http:80:30081"]))])
    assert served(it) == {"127.0.0.1:30081": (AWAY,)}
    it.ingest([Removed(EndpointSlice, key("shop/web-1"))])
    assert served(it) == {}


def test_services_that_change_together() -> None:
    """Each port of each changed Service follows, and ports of other Services stay."""
    names = ["shop/a", "shop/b", "shop/c"]
    services = [
        service(name, cluster_ips=[f"10.96.0.{n}"], ports=[f"x:80:{30000 + n}", f"y:81:{31000 + n}"])
        for n, name in enumerate(names, 1)
    ]
    ports = ["x:8080", "y:8081"]
    it = made(*services, *(slice_of(name, ["10.1.0.4"], ports=ports) for name in names), asked=["127.0.0.1/32"])
    everything = {f"127.0.0.1:{3000 + half * 100}{n}": ((HERE[0], 8080 + half),) for n in (1, 2, 3) for half in (0, 1)}
    assert served(it) == everything
    it.ingest([Put(slice_of(name, ["10.1.1.4"], ports=ports)) for name in names[:2]])
    moved = {f"127.0.0.1:{3000 + half * 100}{n}": ((AWAY[0], 8080 + half),) for n in (1, 2) for half in (0, 1)}
    assert served(it) == everything | moved
    it.ingest([Removed(Service, key(name)) for name in names[:2]])
    assert served(it) == {port: places for port, places in everything.items() if port.endswith("3")}


def test_what_nothing_serves_is_in_the_order_of_services() -> None:
    """Unserved ports are sorted by Service, in any order of events."""
    names = ["shop/b", "shop/a"]
    services = [
        service(name, cluster_ips=[f"10.96.0.{n}"], ports=[f"x:53:{30000 + n}/udp"]) for n, name in enumerate(names, 1)
    ]
    it = made(*services, asked=["::1/128"])
    assert [str(each) for each, _, _ in it.view(LocalhostPorts).unserved(it.state)] == ["shop/a", "shop/b"]


def test_a_service_without_rules_is_not_served() -> None:
    """A quarantined Service, whose rules the kernel refuses, is not served at localhost either."""
    it = made(OPEN, slice_of())
    it.withhold(Family.IPV4, [key("shop/web")])
    assert served(it) == {}
    it.admit(Family.IPV4, key("shop/web"))
    assert served(it) == {"127.0.0.1:30080": (HERE, AWAY)}


@pytest.mark.parametrize(
    ("pin", "timeout", "now", "endpoint"),
    [
        (Pin(key("shop/web"), HERE, 100.0), 30, 100.0, HERE),
        (Pin(key("shop/web"), HERE, 100.0), 30, 129.9, HERE),
        (Pin(key("shop/web"), HERE, 100.0), 30, 130.0, None),
        (Pin(key("shop/web"), HERE, 100.0), None, 100.0, None),
        (Pin(key("shop/web"), AWAY, 100.0), 30, 100.0, None),
        (Pin(key("shop/other"), HERE, 100.0), 30, 100.0, None),
        (None, 30, 100.0, None),
    ],
)
def test_affinity(pin: Pin | None, timeout: int | None, now: float, endpoint: Place | None) -> None:
    """The last endpoint is kept until the timeout, as long as it may be chosen and the Service is the same."""
    assert pinned(pin, Forwarding(key("shop/web"), (HERE,), timeout), now) == endpoint
