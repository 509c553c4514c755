"""An agent follows the interface whose address masqueraded connections get."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nftproxy_conformance.lab import Origin

from tests.support.cluster import IP, IP6, Ip
from tests.system.e2e.agent import World, eventually
from tests.system.e2e.objects import service, slice_of

OWN = {IP: "192.0.2.77", IP6: "2001:db8:77::77"}


def source(world: World, ip: Ip) -> str:
    """The source that an endpoint sees of a connection from outside."""
    (outcome,) = world.connect(Origin.OUTSIDE, ip.balanced)
    return outcome.source.ip if outcome.source else ""


def warnings(world: World) -> list[str]:
    """The log's lines about the source of masqueraded connections, without times."""
    return [line.partition(" NFT114: ")[2] for line in world.agent.log().splitlines() if " NFT114: " in line]


def test_the_source_follows_an_interface(tmp_path: Path) -> None:
    """The kernel chooses the source, with a warning, until the interface has an address of the family."""
    with World(tmp_path, more="nftproxy:\n  masqueradeAddress: [mq0]\n") as world:
        world.put(
            service(vips=[IP.vip, IP6.vip], type="LoadBalancer", balanced=[IP.balanced, IP6.balanced]),
            slice_of(IP.here),
            slice_of(IP6.here),
        )
        chosen = {ip: source(world, ip) for ip in OWN}
        assert set(chosen.values()).isdisjoint({"", *OWN.values()})
        text = "mq0 has no {} address: the kernel chooses the source of masqueraded {} connections"
        eventually(lambda: set(warnings(world)) >= {text.format(name, name) for name in ("IPv4", "IPv6")}, wanted=True)
        world.lab.node.ip("link add mq0 type veth peer name mq1", "link set mq0 up", "link set mq1 up")
        for ip, address in OWN.items():
            assert source(world, ip) == chosen[ip]
            world.lab.node.ip(f"address add {address}/{128 if ip.is_ipv6 else 32} dev mq0 {'nodad' * ip.is_ipv6}")
            eventually(partial(source, world, ip), address)
        eventually(lambda: "masqueraded connections get the configured source again" in world.agent.log(), wanted=True)
