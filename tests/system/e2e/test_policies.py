"""Traffic policies, distribution and health checks, on three nodes (test/e2e/network/service.go, loadbalancer.go).

The nodes are node-a, node-b and node-c.  `ip.here` is node-a's pod, and `ip.away` is node-b's pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from nftproxy_conformance.lab import DROPPED, TCP_RESET, Origin

from tests.support.cluster import IP, IP6, Ip, Outcomes, at, everywhere, seen
from tests.system.e2e.agent import World, eventually
from tests.system.e2e.objects import Object, node, service, slice_of

NOWHERE = frozenset({DROPPED})
HEALTH_PORT = 32100


def balancer(ip: Ip, policy: str = "Local", internal: str = "Cluster") -> Object:
    """A Service with every kind of external address."""
    health: Object = {"healthCheckNodePort": HEALTH_PORT} if policy == "Local" else {}
    return service(
        ports=["80:30080"],
        type="LoadBalancer",
        balanced=[ip.balanced],
        externalIPs=[ip.external],
        externalTrafficPolicy=policy,
        internalTrafficPolicy=internal,
        **health,
    )


def put(worlds: Mapping[str, World], *objects: Object) -> None:
    """Create or change objects in the API servers of all nodes."""
    for each in worlds.values():
        each.put(*objects)


def external(ip: Ip) -> list[tuple[str, int]]:
    """All external addresses of `balancer`."""
    return [(ip.balanced, 80), (ip.external, 80), (ip.node, 30080)]


def test_internal_policy_local(worlds: Mapping[str, World], ip: Ip) -> None:
    """On each node pods and the node reach that node's endpoints through the ClusterIP, or none if it has none."""
    put(
        worlds,
        service(internalTrafficPolicy="Local"),
        slice_of(f"{ip.here}@node-a", f"{ip.here2}@node-a", f"{ip.away}@node-b"),
    )
    expected: dict[str, tuple[str, ...]] = {"node-a": (ip.here, ip.here2), "node-b": (ip.away,)}
    for name, pods in expected.items():
        assert worlds[name].outcomes(Origin.POD, ip.vip) == at(*pods)
        assert worlds[name].outcomes(Origin.NODE, ip.vip) == at(*pods, masqueraded=True)
    assert worlds["node-c"].outcomes(Origin.POD, ip.vip, times=2) == NOWHERE
    assert worlds["node-c"].outcomes(Origin.NODE, ip.vip, times=2) == NOWHERE


def test_external_policy_local(worlds: Mapping[str, World], ip: Ip) -> None:
    """Clients outside reach the node's own endpoints, unmasqueraded, while pods and the node reach all endpoints."""
    put(worlds, balancer(ip), slice_of(f"{ip.here}@node-a", f"{ip.away}@node-b"))
    everyone = at(ip.here, ip.away)
    masked = at(ip.here, ip.away, masqueraded=True)
    locals_: dict[str, Outcomes] = {"node-a": at(ip.here), "node-b": at(ip.away), "node-c": set(NOWHERE)}
    for name, reached in locals_.items():
        for address, port in external(ip):
            assert worlds[name].by_origin(address, port) == seen(everyone, everyone, masked, reached)


def test_external_policy_changes(world: World, ip: Ip) -> None:
    """A change of the policy takes effect on all external addresses."""
    endpoints = slice_of(f"{ip.here}@node-a", f"{ip.away}@node-b")
    for _ in range(2):
        world.put(balancer(ip, "Cluster"), endpoints)
        for address, port in external(ip):
            assert world.by_origin(address, port) == everywhere(at(ip.here, ip.away, masqueraded=True))
        world.put(balancer(ip, "Local"))
        for address, port in external(ip):
            assert world.outcomes(Origin.OUTSIDE, address, port) == at(ip.here)


def health(world: World, ip: Ip = IP) -> tuple[int, int] | None:
    """The status and the number of endpoints from the health-check node port, or None if nobody listens."""
    host = f"[{ip.node}]" if ip.is_ipv6 else ip.node
    answer = world.http(f"http://{host}:{HEALTH_PORT}/")
    return answer and (answer.status, int(answer.headers["X-Load-Balancing-Endpoint-Weight"] or -1))


def test_health_check_follows_policy(world: World, ip: Ip) -> None:
    """The health-check node port listens while the policy is Local, and returns the node's number of endpoints."""
    world.put(balancer(ip), slice_of(f"{ip.here}@node-a", f"{ip.here2}@node-a", f"{ip.away}@node-b"))
    eventually(lambda: health(world, ip), (200, 2))
    world.put(balancer(ip, "Cluster"))
    eventually(lambda: health(world, ip), None)
    world.put(balancer(ip))
    eventually(lambda: health(world, ip), (200, 2))
    world.put(slice_of(f"{ip.away}@node-b"))
    eventually(lambda: health(world, ip), (503, 0))


def test_health_check_on_three_nodes(worlds: Mapping[str, World], ip: Ip) -> None:
    """Only the node that has an endpoint passes the health check, wherever the endpoint moves."""
    for name in worlds:
        put(worlds, balancer(ip), slice_of(f"{ip.here}@{name}"))
        for other, world in worlds.items():
            wanted = (200, 1) if other == name else (503, 0)
            eventually(lambda world=world: health(world, ip), wanted)  # type: ignore[misc]


def test_health_check_of_each_family(world: World, ip: Ip) -> None:
    """With an endpoint of one family alone, the health check passes at the node's address of that family alone."""
    (other,) = (each for each in (IP, IP6) if each is not ip)
    world.put(balancer(ip), slice_of(f"{ip.here}@node-a"), slice_of(f"{other.away}@node-b"))
    eventually(lambda: (health(world, ip), health(world, other)), ((200, 1), (503, 0)))
    assert world.outcomes(Origin.OUTSIDE, ip.node, 30080) == at(ip.here)
    assert world.outcomes(Origin.OUTSIDE, other.node, 30080, times=2) == NOWHERE


def test_health_check_tells_who_it_is_for(world: World) -> None:
    """The health check's answer has the fields of kube-proxy's answer, with the Service's name."""
    world.put(balancer(IP), slice_of(f"{IP.here}@node-a"))
    eventually(lambda: health(world), (200, 1))
    answer = world.http(f"http://{IP.node}:{HEALTH_PORT}/healthz")
    assert answer is not None
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(answer.body) == {
        "service": {"namespace": "shop", "name": "web"},
        "localEndpoints": 1,
        "serviceProxyHealthy": True,
    }


def test_health_check_with_only_terminating_endpoints(world: World, ip: Ip) -> None:
    """With only terminating endpoints the health check fails, but these endpoints still serve."""
    world.put(balancer(ip), slice_of(f"{ip.here}@node-a"))
    eventually(lambda: health(world, ip), (200, 1))
    world.put(slice_of(f"{ip.here}@node-a draining"))
    eventually(lambda: health(world, ip), (503, 0))
    for address, port in external(ip):
        assert world.outcomes(Origin.OUTSIDE, address, port) == at(ip.here)


def test_terminating_internal_cluster(worlds: Mapping[str, World], ip: Ip) -> None:
    """Under internalTrafficPolicy Cluster, terminating endpoints serve when no node has a ready endpoint."""
    put(worlds, service(), slice_of(f"{ip.here}@node-a draining", f"{ip.away}@node-b draining"))
    for each in worlds.values():
        assert each.outcomes(Origin.POD, ip.vip) == at(ip.here, ip.away)
    put(worlds, slice_of(f"{ip.here}@node-a draining", f"{ip.away}@node-b"))
    for each in worlds.values():
        assert each.outcomes(Origin.POD, ip.vip) == at(ip.away)


def test_terminating_internal_local(worlds: Mapping[str, World], ip: Ip) -> None:
    """Under internalTrafficPolicy Local, a node's terminating endpoints serve when it has no ready endpoint."""
    put(
        worlds,
        service(internalTrafficPolicy="Local"),
        slice_of(f"{ip.here}@node-a draining", f"{ip.away}@node-b"),
    )
    assert worlds["node-a"].outcomes(Origin.POD, ip.vip) == at(ip.here)
    assert worlds["node-b"].outcomes(Origin.POD, ip.vip) == at(ip.away)
    assert worlds["node-c"].outcomes(Origin.POD, ip.vip, times=2) == NOWHERE
    put(worlds, slice_of(f"{ip.here}@node-a draining", f"{ip.here2}@node-a"))
    assert worlds["node-a"].outcomes(Origin.POD, ip.vip) == at(ip.here2)


def test_terminating_external_cluster(worlds: Mapping[str, World], ip: Ip) -> None:
    """Under externalTrafficPolicy Cluster, terminating endpoints serve when no node has a ready endpoint."""
    put(worlds, balancer(ip, "Cluster"), slice_of(f"{ip.here}@node-a draining", f"{ip.away}@node-b draining"))
    for each in worlds.values():
        for address, port in external(ip):
            assert each.outcomes(Origin.OUTSIDE, address, port) == at(ip.here, ip.away, masqueraded=True)
    put(worlds, slice_of(f"{ip.here}@node-a draining", f"{ip.away}@node-b"))
    for each in worlds.values():
        for address, port in external(ip):
            assert each.outcomes(Origin.OUTSIDE, address, port) == at(ip.away, masqueraded=True)


def test_terminating_external_local(worlds: Mapping[str, World], ip: Ip) -> None:
    """Under externalTrafficPolicy Local, a node's terminating endpoints serve when it has no ready endpoint."""
    put(worlds, balancer(ip), slice_of(f"{ip.here}@node-a draining", f"{ip.away}@node-b"))
    expected: dict[str, Outcomes] = {"node-a": at(ip.here), "node-b": at(ip.away), "node-c": set(NOWHERE)}
    for name, reached in expected.items():
        for address, port in external(ip):
            assert worlds[name].outcomes(Origin.OUTSIDE, address, port, times=16) == reached


def test_terminating_and_not_serving(world: World, ip: Ip) -> None:
    """Connections are refused when all endpoints are terminating and no longer serve."""
    world.put(balancer(ip), slice_of(f"{ip.here}@node-a stopped"))
    for address, port in (*external(ip), (ip.vip, 80)):
        assert world.outcomes(Origin.OUTSIDE, address, port, times=2) == {TCP_RESET}


@pytest.mark.parametrize("kind", ["zone", "node"])
def test_traffic_distribution(worlds: Mapping[str, World], ip: Ip, kind: str) -> None:
    """A node uses the endpoints hinted for it or its zone, and all endpoints if a hint is missing or none matches."""
    world_of = {"node-a": ip.here, "node-b": ip.away}
    hinted = slice_of(
        f"{ip.here}@node-a {kind}={kind}-a", f"{ip.away}@node-b {kind}={kind}-b", f"{ip.away2}@node-b {kind}={kind}-b"
    )
    put(worlds, service(), hinted)
    assert worlds["node-a"].outcomes(Origin.POD, ip.vip) == at(ip.here)
    assert worlds["node-b"].outcomes(Origin.POD, ip.vip) == at(ip.away, ip.away2)
    assert worlds["node-c"].outcomes(Origin.POD, ip.vip) == at(ip.here, ip.away, ip.away2)
    put(worlds, slice_of(*(f"{address}@{name} {kind}={kind}-a" for name, address in world_of.items())))
    assert worlds["node-a"].outcomes(Origin.POD, ip.vip) == at(ip.here, ip.away)
    put(worlds, slice_of(f"{ip.here}@node-a {kind}={kind}-a", f"{ip.away}@node-b"))
    assert worlds["node-a"].outcomes(Origin.POD, ip.vip) == at(ip.here, ip.away)


@pytest.mark.parametrize("wish", ["PreferClose", "PreferSameZone"])
def test_traffic_distribution_in_three_zones(worlds: Mapping[str, World], ip: Ip, wish: str) -> None:
    """Clients use the servers of their own zone, and clients in a zone without a server use all servers."""
    put(
        worlds,
        service(trafficDistribution=wish),
        slice_of(f"{ip.here}@node-a zone=zone-a", f"{ip.here2}@node-a2 zone=zone-a", f"{ip.away}@node-b2 zone=zone-b"),
    )
    assert worlds["node-a"].outcomes(Origin.POD, ip.vip) == at(ip.here, ip.here2)
    assert worlds["node-b"].outcomes(Origin.POD, ip.vip) == at(ip.away)
    assert worlds["node-c"].outcomes(Origin.POD, ip.vip) == at(ip.here, ip.here2, ip.away)


def test_traffic_distribution_falls_back_and_returns(worlds: Mapping[str, World], ip: Ip) -> None:
    """With PreferSameNode a node without an endpoint uses another node's, and its own again once it is back."""
    first, second = f"{ip.here}@node-a node=node-a zone=zone-a", f"{ip.away}@node-b node=node-b zone=zone-b"
    put(worlds, service(trafficDistribution="PreferSameNode"), slice_of(first, second))
    for _ in range(2):
        put(worlds, slice_of(first, second))
        assert worlds["node-a"].outcomes(Origin.POD, ip.vip) == at(ip.here)
        assert worlds["node-b"].outcomes(Origin.POD, ip.vip) == at(ip.away)
        put(worlds, slice_of(second))
        for name in ("node-a", "node-b"):
            assert worlds[name].outcomes(Origin.POD, ip.vip) == at(ip.away)


def test_traffic_distribution_prefers_the_node(world: World, ip: Ip) -> None:
    """A node uses the endpoint hinted for it first, and without such an endpoint the endpoints hinted for its zone."""
    world.put(
        service(),
        slice_of(
            f"{ip.here}@node-a zone=zone-a node=node-a",
            f"{ip.here2}@node-d zone=zone-a node=node-d",
            f"{ip.away}@node-b zone=zone-b node=node-b",
        ),
    )
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here)
    world.put(
        slice_of(
            f"{ip.here2}@node-d zone=zone-a node=node-d",
            f"{ip.away}@node-b zone=zone-b node=node-b",
        )
    )
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here2)


def test_traffic_distribution_follows_the_node(world: World) -> None:
    """When the node's zone changes, its endpoints change with it."""
    world.put(service(), slice_of(f"{IP.here}@node-a zone=zone-a", f"{IP.away}@node-b zone=zone-b"))
    assert world.outcomes(Origin.POD, IP.vip) == at(IP.here)
    world.put(node("node-a", IP.node, IP6.node, zone="zone-b"))
    assert world.outcomes(Origin.POD, IP.vip) == at(IP.away)
    world.put(node("node-a", IP.node, IP6.node))
    assert world.outcomes(Origin.POD, IP.vip) == at(IP.here, IP.away)
