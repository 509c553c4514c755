"""Health-check node ports answer for the Service that owns them, as kube-proxy's do, field for field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nftproxy.model.addresses import ANY, Family
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import Service
from nftproxy.policy.extension import Settings
from nftproxy.policy.health_checks import (
    HealthCheck,
    health_check,
    health_check_addresses,
    local_demand,
    without_local_endpoints,
)
from nftproxy.policy.state import ClusterState
from tests.support.factories import (
    IPV4,
    IPV6,
    addresses,
    host_addresses,
    key,
    pipeline,
    service,
    settings,
    slice_of,
)


@pytest.mark.parametrize(
    ("local_endpoints", "is_healthy", "code"), [(2, True, 200), (1, False, 503), (0, True, 503), (0, False, 503)]
)
def test_a_health_check(local_endpoints: int, is_healthy: bool, code: int) -> None:
    """The code is 200 if an endpoint is local and the proxy healthy, else 503, and the weight is their number."""
    answer = health_check(check("shop/web", local_endpoints), IPV4, is_healthy=is_healthy)
    assert answer.status == code
    assert answer.headers == {
        "Content-Type": "application/json",
        "X-Content-Type-Options": "nosniff",
        "X-Load-Balancing-Endpoint-Weight": str(local_endpoints),
    }
    assert json.loads(answer.body) == {
        "service": {"namespace": "shop", "name": "web"},
        "localEndpoints": local_endpoints,
        "serviceProxyHealthy": is_healthy,
    }


def test_the_text_of_a_health_check() -> None:
    """The body is laid out as kube-proxy's is, to the character."""
    assert health_check(check("shop/web", 2), IPV4, is_healthy=True).body == (
        b'{\n\t"service": {\n\t\t"namespace": "shop",\n\t\t"name": "web"\n\t},\n'
        b'\t"localEndpoints": 2,\n\t"serviceProxyHealthy": true\n}'
    )


def gaps(state: ClusterState, family: Family) -> dict[str, int]:
    """The number of ports without a local endpoint, by policy."""
    demands = (local_demand(state, each, family) for each in state.services.values())
    return without_local_endpoints(each for each in demands if each)


def check(name: str, local_endpoints: int) -> HealthCheck:
    """The answer for a Service that has ClusterIPs of IPv4 only."""
    return HealthCheck(key(name), {IPV4: local_endpoints})


def balanced(name: str = "shop/web", port: int = 32000, **tweaks: Any) -> Service:
    """A LoadBalancer Service with a health-check node port."""
    fields: dict[str, Any] = {"type": "LoadBalancer", "external_policy": "Local"} | tweaks
    return service(name, health_check_node_port=port, **fields)


def state_of(*objects: Any) -> ClusterState:
    """The state of a cluster, as node-a sees it."""
    return pipeline(*objects).state


def test_no_health_checks() -> None:
    """Services without a health-check node port ask for none."""
    assert pipeline(service(), slice_of()).health_checks.by_port == {}


@pytest.mark.parametrize(
    ("endpoints", "count"),
    [
        ([], 0),
        (["10.1.0.4@node-a", "10.1.0.5@node-a", "10.1.1.4@node-b", "10.1.0.6"], 2),
        (["10.1.0.4@node-a draining"], 0),
        (["10.1.0.4@node-a unready", "10.1.0.5@node-a serving", "10.1.0.6@node-a stopped"], 0),
        (["10.1.0.4@node-a published-draining"], 1),
        (["10.1.0.4@node-a zone=b"], 1),
        (["10.1.0.4@node-a", "10.1.0.4@node-a draining"], 1),
    ],
    ids=["none", "others' don't count", "terminating", "not ready", "published", "hints don't count", "ghost"],
)
def test_local_endpoints(endpoints: list[str], count: int) -> None:
    """Ready endpoints on this node count, and endpoints that only serve while they terminate don't."""
    checks = pipeline(balanced(), slice_of(endpoints=endpoints)).health_checks.by_port
    assert checks == {32000: check("shop/web", count)}


def test_drained_endpoints_do_not_count() -> None:
    """A pod of weight 0 isn't counted, as it takes no new connections that load balancers might send."""
    drained = slice_of(endpoints=["10.1.0.4@node-a", "10.1.0.6@node-a"], weight=0)
    other = slice_of(endpoints=["10.1.0.5@node-a"], suffix="2")
    assert pipeline(balanced(), drained).health_checks.by_port == {32000: check("shop/web", 0)}
    assert pipeline(balanced(), drained, other).health_checks.by_port == {32000: check("shop/web", 1)}


def test_local_endpoints_are_pods() -> None:
    """A pod counts once, however many ports and slices it is in, and not for ports that the Service doesn't have."""
    web = balanced(ports=["http:80", "dns:53/udp"])
    slices = [
        slice_of(endpoints=["10.1.0.4@node-a"], ports=["http:8080", "dns:53/udp"]),
        slice_of(endpoints=["10.1.0.4@node-a", "10.1.0.5@node-a"], ports=["http:8080"], suffix="2"),
        slice_of(endpoints=["10.1.0.6@node-a"], ports=["other:9"], suffix="3"),
        slice_of(endpoints=["10.1.0.7@node-a"], ports=["dns:53/udp"], suffix="4"),
    ]
    assert pipeline(web, *slices).health_checks.by_port == {32000: check("shop/web", 3)}


def test_local_endpoints_of_two_families() -> None:
    """Each family of a dual-stack Service has its own endpoints."""
    slices = [
        slice_of(endpoints=["10.1.0.4@node-a"]),
        slice_of(endpoints=["fd00:1::4@node-a", "fd00:1::5@node-a"], suffix="2"),
    ]
    web = balanced(cluster_ips=["10.96.0.10", "fd00:96::10"])
    assert pipeline(web, *slices).health_checks.by_port == {32000: HealthCheck(web.key, {IPV4: 1, IPV6: 2})}
    only = pipeline(web, *slices, families=[IPV4]).health_checks.by_port
    assert only == {32000: check("shop/web", 1)}, "a family that isn't served doesn't count"


def test_local_endpoints_of_a_family_that_the_service_is_not_of() -> None:
    """Nothing is translated to them, so a load balancer must not send connections here."""
    strangers = slice_of(endpoints=["fd00:1::4@node-a", "fd00:1::5@node-a"], suffix="2")
    assert pipeline(balanced(), strangers).health_checks.by_port == {32000: check("shop/web", 0)}


def test_a_contested_health_check_port() -> None:
    """The older of two Services with one port has it, and the younger takes over when the older goes."""
    old, new = balanced("shop/old", created=1), balanced("shop/new", created=2, cluster_ips=["10.96.0.11"])
    assert pipeline(new, old, slice_of("shop/new")).health_checks.by_port == {32000: check("shop/old", 0)}
    assert pipeline(new, slice_of("shop/new")).health_checks.by_port == {32000: check("shop/new", 1)}


def test_health_checks_follow_what_happens() -> None:
    """A port passes from Service to Service, and an earlier mapping stays unchanged."""
    old, new = balanced("shop/old", created=1), balanced("shop/new", created=2, cluster_ips=["10.96.0.11"])
    made = pipeline(old, new, slice_of("shop/new"))
    before = made.health_checks.by_port
    made.ingest([Removed(Service, old.key)])
    assert made.health_checks.by_port == {32000: check(str(new.key), 1)}
    made.ingest([Put(slice_of("shop/new", [])), Put(old)])
    assert made.health_checks.by_port == {32000: check(str(old.key), 0)}
    made.ingest([Removed(Service, old.key), Removed(Service, new.key)])
    assert (before, made.health_checks.by_port) == ({32000: check(str(old.key), 0)}, {})


def test_health_checks_of_several_services() -> None:
    """Each port comes, changes and goes by itself, however many do at once."""
    names = ("shop/a", "shop/b", "shop/c", "shop/d")
    several = [balanced(name, 32000 + i, cluster_ips=[f"10.96.0.{20 + i}"]) for i, name in enumerate(names)]
    made = pipeline(*several)
    none = {32000 + i: check(name, 0) for i, name in enumerate(names)}
    assert made.health_checks.by_port == none
    made.ingest([Put(slice_of("shop/a"))])
    assert made.health_checks.by_port == none | {32000: check("shop/a", 1)}
    made.ingest([Removed(Service, key("shop/a"))])
    assert made.health_checks.by_port == {port: none[port] for port in (32001, 32002, 32003)}
    made.ingest([Removed(Service, key("shop/b")), Removed(Service, key("shop/c"))])
    assert made.health_checks.by_port == {32003: none[32003]}


def test_a_change_elsewhere_leaves_health_checks_alone() -> None:
    """Health checks stay the same object while nothing in them changes, so that no caller has to compare them."""
    made = pipeline(balanced(), slice_of())
    before = made.health_checks.by_port
    made.ingest([Put(service("shop/cart", cluster_ips=["10.96.0.11"])), Put(balanced(affinity_timeout=60))])
    assert made.health_checks.by_port is before


def test_a_service_without_rules_has_no_local_endpoints() -> None:
    """A quarantined Service has no local endpoints for load balancers, until it has rules again."""
    made = pipeline(balanced(), slice_of(endpoints=["10.1.0.4@node-a"]))
    web = key("shop/web")
    made.withhold(IPV4, [web])
    assert [check.local_endpoints[IPV4] for check in made.health_checks.by_port.values()] == [0]
    made.admit(IPV4, web)
    assert [check.local_endpoints[IPV4] for check in made.health_checks.by_port.values()] == [1]


def test_a_health_check_port_that_is_a_node_port() -> None:
    """A node port that an older Service has is not to be had for health checks."""
    old = service("shop/old", type="NodePort", ports=["http:80:32000"], created=1)
    assert pipeline(old, balanced(created=2, cluster_ips=["10.96.0.11"])).health_checks.by_port == {}


@pytest.mark.parametrize(
    ("tweaks", "expected"),
    [
        ({}, ["192.168.0.2", "fd00:c0a8::2"]),
        ({"node_port_addresses": ["192.168.0.0/16"]}, ["192.168.0.2", "192.168.0.3"]),
        ({"node_port_addresses": ["0.0.0.0/0"]}, [ANY[IPV4]]),
        ({"node_port_addresses": ["::/0", "192.168.0.3/32"]}, ["192.168.0.3", ANY[IPV6]]),
        ({"node_port_addresses": ["127.0.0.0/8"]}, []),
    ],
)
def test_where_health_checks_are_served(tweaks: dict[str, Any], expected: list[str]) -> None:
    """Health checks are served where node ports are, and a CIDR that matches all means its family's addresses."""
    made: Settings = settings(**tweaks)
    state = pipeline(host_addresses("192.168.0.2", "192.168.0.3", "fd00:c0a8::2"), settings=made).state
    assert health_check_addresses(state, made.config) == addresses(expected)


# ---- Services without local endpoints --------------------------------------------------------------------------------

AWAY = ["10.1.1.4@node-b"]


@pytest.mark.parametrize(
    ("tweaks", "endpoints", "expected"),
    [
        ({"internal_policy": "Local"}, AWAY, (1, 0)),
        ({"type": "NodePort", "external_policy": "Local"}, AWAY, (0, 1)),
        ({"external_ips": ["203.0.113.7"], "external_policy": "Local"}, AWAY, (0, 1)),
        ({"type": "LoadBalancer", "internal_policy": "Local", "external_policy": "Local"}, AWAY, (1, 1)),
        ({"internal_policy": "Local", "ports": ["http:80", "http:80/udp"]}, AWAY, (1, 0)),
        ({"internal_policy": "Local"}, ["10.1.0.4@node-a"], (0, 0)),
        ({"internal_policy": "Local"}, ["10.1.0.4@node-a draining", *AWAY], (0, 0)),
        ({"internal_policy": "Local"}, [], (0, 0)),
        ({"external_policy": "Local"}, AWAY, (0, 0)),
        ({"type": "LoadBalancer"}, AWAY, (0, 0)),
        ({}, AWAY, (0, 0)),
    ],
)
def test_without_local_endpoints(tweaks: dict[str, Any], endpoints: list[str], expected: tuple[int, int]) -> None:
    """Service ports with endpoints, but no local endpoint, count for each policy that requires a local endpoint."""
    state = state_of(service(**tweaks), slice_of(endpoints=endpoints))
    internal, external = expected
    assert gaps(state, IPV4) == {"internal": internal, "external": external}
    assert gaps(state, IPV6) == {"internal": 0, "external": 0}


def test_every_port_of_every_service_counts() -> None:
    """Two Services with two ports each lack a local endpoint for four Service ports."""
    names, ports = ("shop/web", "shop/cart"), ["a:80", "b:81"]
    services = [
        service(name, cluster_ips=[f"10.96.0.{number}"], ports=ports, internal_policy="Local")
        for number, name in enumerate(names, 10)
    ]
    state = state_of(*services, *(slice_of(name, AWAY, ports=ports) for name in names))
    assert gaps(state, IPV4) == {"internal": 4, "external": 0}


def test_a_service_lacks_nothing_in_a_family_that_it_does_not_serve() -> None:
    """Endpoints of a family without a ClusterIP don't count for any family."""
    state = state_of(service(internal_policy="Local"), slice_of(endpoints=["fd00:1:0:1::4@node-b"]))
    assert gaps(state, IPV6) == {"internal": 0, "external": 0}
