"""Session affinity (test/e2e/network/service.go)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from nftproxy_conformance.lab import Address, Origin

from tests.support.cluster import IP, IP6, Ip
from tests.support.waiting import wait_until_seen_to_stay
from tests.system.e2e.agent import World
from tests.system.e2e.objects import Object, service, slice_of

CLIENTS = 24
"""Without affinity all 24 clients get the same endpoints again once in 16 million times."""

each_type = pytest.mark.parametrize("service_type", ["ClusterIP", "NodePort", "LoadBalancer"])


def sticky(service_type: str, timeout: int = 10800, **spec: Any) -> Object:
    """A Service with affinity, and its timeout in seconds."""
    affinity: dict[str, Any] = {"clientIP": {"timeoutSeconds": timeout}}
    return plain(service_type, sessionAffinity="ClientIP", sessionAffinityConfig=affinity, **spec)


def plain(service_type: str, **spec: Any) -> Object:
    """A Service without affinity, for TCP and UDP."""
    node_port = ":30080" if service_type == "NodePort" else ""
    return service(
        ports=[f"tcp:80{node_port}/TCP", f"udp:80{node_port}/UDP"],
        type=service_type,
        balanced=[IP.balanced, IP6.balanced] if service_type == "LoadBalancer" else [],
        **spec,
    )


def pods(*endpoints: str) -> Object:
    """The endpoints of the Service."""
    return slice_of(*endpoints, ports=["tcp:8080/TCP", "udp:8080/UDP"])


def choices(world: World, ip: Ip, service_type: str, protocol: str = "tcp") -> list[Address | None]:
    """The endpoints that the clients reach now, in the order of the clients."""
    address, port = {"NodePort": (ip.node, 30080), "LoadBalancer": (ip.balanced, 80)}.get(service_type, (ip.vip, 80))
    origin = Origin.POD if service_type == "ClusterIP" else Origin.OUTSIDE
    prefix = (ip.pod if service_type == "ClusterIP" else ip.client).removesuffix("c8").removesuffix("200")
    sources = [f"{prefix}{number + 10}" for number in range(CLIENTS)]
    return [world.connect(origin, address, port, protocol, source=source)[0].endpoint for source in sources]


@each_type
def test_affinity(world: World, ip: Ip, service_type: str) -> None:
    """Each client stays with its endpoint, and the clients share both endpoints."""
    world.put(sticky(service_type), pods(ip.here, ip.away))
    first = choices(world, ip, service_type)
    assert set(first) == {(ip.here, 8080), (ip.away, 8080)}
    assert choices(world, ip, service_type) == first


@each_type
def test_affinity_udp(world: World, ip: Ip, service_type: str) -> None:
    """A client's new UDP flows stay with its endpoint for UDP, which may differ from its endpoint for TCP."""
    world.put(sticky(service_type), pods(ip.here, ip.away))
    tcp, udp = choices(world, ip, service_type), choices(world, ip, service_type, "udp")
    assert set(udp) == {(ip.here, 8080), (ip.away, 8080)}
    assert choices(world, ip, service_type, "udp") == udp
    assert choices(world, ip, service_type) == tcp


@each_type
def test_affinity_switched(world: World, ip: Ip, service_type: str) -> None:
    """Affinity takes effect when it is switched on, and ends when it is switched off."""
    world.put(plain(service_type), pods(ip.here, ip.away))
    assert choices(world, ip, service_type) != choices(world, ip, service_type)
    for _ in range(2):
        world.put(sticky(service_type))
        assert choices(world, ip, service_type) == choices(world, ip, service_type)
        world.put(plain(service_type))
        assert choices(world, ip, service_type) != choices(world, ip, service_type)


def test_affinity_timeout(world: World) -> None:
    """A client keeps its endpoint for the Service's timeout after its last connection, and no longer."""
    world.put(sticky("NodePort", timeout=2), pods(IP.here, IP.away))

    def look() -> list[list[Address | None]]:
        return [choices(world, IP, "ClusterIP"), choices(world, IP, "NodePort")]

    wait_until_seen_to_stay(look, (1, 1.2), 2)
    last = look()
    time.sleep(2.5)
    assert all(now != then for now, then in zip(look(), last, strict=True))


def test_affinity_ends_with_the_endpoint(world: World, ip: Ip) -> None:
    """A client whose endpoint is gone gets another endpoint, and stays with it."""
    world.put(sticky("ClusterIP"), pods(ip.here, ip.away))
    choices(world, ip, "ClusterIP")
    world.put(pods(ip.away, ip.away2))
    after = choices(world, ip, "ClusterIP")
    assert set(after) == {(ip.away, 8080), (ip.away2, 8080)}
    assert choices(world, ip, "ClusterIP") == after


@pytest.mark.slow
def test_affinity_survives_a_restart(world: World) -> None:
    """Clients stay with their endpoints while the agent is stopped and after it has started again."""
    world.put(sticky("ClusterIP"), pods(IP.here, IP.away))
    first = choices(world, IP, "ClusterIP")
    world.agent.stop()
    assert choices(world, IP, "ClusterIP") == first
    world.agent.start()
    world.settle()
    assert choices(world, IP, "ClusterIP") == first


@pytest.mark.parametrize("service_type", ["NodePort", "LoadBalancer"])
def test_affinity_with_external_policy_local(world: World, ip: Ip, service_type: str) -> None:
    """Under externalTrafficPolicy Local each client outside stays with an endpoint of the node itself."""
    world.put(
        sticky(service_type, externalTrafficPolicy="Local"),
        pods(f"{ip.here}@node-a", f"{ip.here2}@node-a", f"{ip.away}@node-b"),
    )
    first = choices(world, ip, service_type)
    assert set(first) == {(ip.here, 8080), (ip.here2, 8080)}
    assert choices(world, ip, service_type) == first


@pytest.mark.parametrize("service_type", ["NodePort", "LoadBalancer"])
def test_affinity_switched_with_external_policy_local(world: World, ip: Ip, service_type: str) -> None:
    """Under externalTrafficPolicy Local, too, affinity begins when switched on and ends when switched off."""
    world.put(pods(f"{ip.here}@node-a", f"{ip.here2}@node-a", f"{ip.away}@node-b"))
    for _ in range(2):
        world.put(plain(service_type, externalTrafficPolicy="Local"))
        assert choices(world, ip, service_type) != choices(world, ip, service_type)
        world.put(sticky(service_type, externalTrafficPolicy="Local"))
        assert choices(world, ip, service_type) == choices(world, ip, service_type)
