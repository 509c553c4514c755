"""Two nodes as k3s has them: a load balancer whose addresses are the nodes' own, and its pods with host ports.

ServiceLB of k3s makes a pod on each node with a hostPort for each port of the Service, and writes the nodes' addresses
into the Service's status.  CNI's plugin portmap translates host ports in NAT chains of its own, which may have been
there before ours, or come after.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from nftproxy_conformance.lab import RealHost, RealNetwork, RealNode, obstacle

from nftproxy.model.objects import EndpointSlice, Service
from tests.support.cluster import CONNECTIONS, IP, IP6, Ip
from tests.support.factories import node, pipeline, service, slice_of

NODES = ("node-a", "node-b")
BOTH = (IP, IP6)
ADDRESSES = {"node-a": {IP: "192.168.0.2", IP6: "fd00:c0a8::2"}, "node-b": {IP: "192.168.0.3", IP6: "fd00:c0a8::3"}}
POD_CIDRS = {"node-a": {IP: "10.1.0.0/24", IP6: "fd00:1::/64"}, "node-b": {IP: "10.1.1.0/24", IP6: "fd00:1:0:1::/64"}}

PORTMAP = """
table {nft} nat {{
  chain CNI-HOSTPORT-SETMARK {{ meta mark set meta mark or 0x2000; }}
  chain CNI-DN-svclb {{
    {nft} saddr {pods} tcp dport 80 jump CNI-HOSTPORT-SETMARK
    tcp dport 80 dnat to {pod}:80
  }}
  chain CNI-HOSTPORT-DNAT {{ tcp dport 80 jump CNI-DN-svclb; }}
  chain CNI-HOSTPORT-MASQ {{ meta mark and 0x2000 == 0x2000 masquerade; }}
  chain PREROUTING {{ type nat hook prerouting priority -100; fib daddr type local jump CNI-HOSTPORT-DNAT; }}
  chain OUTPUT {{ type nat hook output priority -100; fib daddr type local jump CNI-HOSTPORT-DNAT; }}
  chain POSTROUTING {{ type nat hook postrouting priority 100; jump CNI-HOSTPORT-MASQ; }}
}}
"""
"""The chains of portmap with a pod of ServiceLB, as iptables-nft loads them."""


def pod_on(name: str, ip: Ip, number: int) -> str:
    """The address of a pod on a node."""
    start = POD_CIDRS[name][ip].partition("/")[0]
    return f"{start}{number}" if ip.is_ipv6 else f"{start.removesuffix('0')}{number}"


class Town(NamedTuple):
    """Two nodes, each with a server pod and a pod of ServiceLB, a client pod on the first, and a client outside."""

    nodes: dict[str, RealNode]
    client: RealHost
    outside: RealHost

    def load(self, policy: str, *at: str, order: str = "ours") -> None:
        """Load the rules of both nodes, in this order, for a Service that has its pods on these nodes."""
        for name, machine in self.nodes.items():
            machine.node.reset()
            own = node(name, internal_ips=ADDRESSES[name].values(), pod_cidrs=POD_CIDRS[name].values())
            made = pipeline(*balanced(policy, *at), node=own)
            rules = {"ours": made.full_transaction({}).text, "portmap": "".join(portmap(name, ip) for ip in BOTH)}
            for each in order.split():
                machine.load(rules[each])

    def ask(self, who: RealHost, of: str, ip: Ip, port: int = 80) -> set[tuple[str, str]]:
        """The servers that answer at a node's address, each with the client address that it sees."""
        answers = (who.ask(ADDRESSES[of][ip], port, timeout=10) for _ in range(CONNECTIONS // 2))
        return {(answer.name, answer.client.ip) for answer in answers}


def portmap(name: str, ip: Ip) -> str:
    """The chains for a pod of ServiceLB on a node."""
    pod = pod_on(name, ip, 9)
    return PORTMAP.format(nft=ip.nft, pods=POD_CIDRS[name][ip], pod=f"[{pod}]" if ip.is_ipv6 else pod)


def balanced(policy: str, *at: str) -> list[Service | EndpointSlice]:
    """The Service that both nodes' addresses belong to, and slices of its pods on some nodes."""
    addresses = [ADDRESSES[name][ip] for name, ip in itertools.product(NODES, BOTH)]
    made = service(
        type="LoadBalancer",
        cluster_ips=[IP.vip, IP6.vip],
        load_balancer_ips=addresses,
        external_policy=policy,
        ports=["http:80:30080"],
    )
    pods = (slice_of(endpoints=[f"{pod_on(name, ip, 4)}@{name}" for name in at], suffix=ip.nft) for ip in BOTH)
    return [made, *pods]


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    """The two nodes, and everyone around them."""
    if why := obstacle():
        pytest.skip(why)
    with RealNetwork() as network:
        nodes = {name: network.node(name) for name in NODES}
        for name, machine in nodes.items():
            machine.pod(f"web-{name[-1]}", *(pod_on(name, ip, 4) for ip in BOTH)).serve(8080)
            machine.pod(f"svclb-{name[-1]}", *(pod_on(name, ip, 9) for ip in BOTH)).serve(80)
        client = nodes["node-a"].pod("client", *(pod_on("node-a", ip, 200) for ip in BOTH))
        yield Town(nodes, client, network.host("outside", IP.client, IP6.client))


def names(found: set[tuple[str, str]]) -> set[str]:
    """The names of the servers that answered."""
    return {name for name, _ in found}


ORDERS = pytest.mark.parametrize("order", ["ours", "portmap ours", "ours portmap"])


@ORDERS
def test_every_address_reaches_every_endpoint(town: Town, ip: Ip, order: str) -> None:
    """With policy Cluster both nodes' addresses lead from everywhere to all endpoints, past ServiceLB's own pods."""
    town.load("Cluster", *NODES, order=order)
    for of in NODES:
        for who in (town.outside, town.client, *town.nodes.values()):
            assert names(town.ask(who, of, ip)) == {"web-a", "web-b"}


@ORDERS
def test_local_policy_keeps_clients_addresses(town: Town, ip: Ip, order: str) -> None:
    """With policy Local each node's address leads outside clients to its own endpoint, which sees their addresses."""
    town.load("Local", *NODES, order=order)
    for of, server in (("node-a", "web-a"), ("node-b", "web-b")):
        assert town.ask(town.outside, of, ip) == {(server, ip.client)}
    for of in NODES:  # a pod reaches all of them by either node's address, as itself
        mine = ip.of(town.client)
        assert town.ask(town.client, of, ip) == {("web-a", mine), ("web-b", mine)}


def test_local_policy_serves_where_the_endpoints_are(town: Town, ip: Ip) -> None:
    """The address of the node with an endpoint serves, and the address of the other node drops connections from
    outside.
    """
    town.load("Local", "node-b")
    assert town.ask(town.outside, "node-b", ip) == {("web-b", ip.client)}
    for _ in range(4):
        with pytest.raises(TimeoutError):
            town.outside.ask(ADDRESSES["node-a"][ip], 80, timeout=0.5)
    for of in NODES:
        assert names(town.ask(town.client, of, ip)) == {"web-b"}


@ORDERS
def test_node_ports_on_the_same_addresses(town: Town, ip: Ip, order: str) -> None:
    """The node port is served beside the load balancer's port."""
    town.load("Cluster", *NODES, order=order)
    for of in NODES:
        assert names(town.ask(town.outside, of, ip, 30080)) == {"web-a", "web-b"}
