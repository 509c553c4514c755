"""More incidents of README.md: those in which the node or the agent seems well and isn't."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from nftproxy_conformance.lab.topology import NODE_IP, NODE_NAME

from nftproxy.agent.reporting.health import DELETION_TAINT
from tests.support import objects
from tests.support.cluster import IP, IP6
from tests.system.e2e.objects import slice_of
from tests.system.faults.bench import SYNC_PERIOD, Bench, node, vip
from tests.system.faults.test_life import LOADED
from tests.system.incidents.rows import DOCTOR, FINE, HTTP, LIST, METRICS, PODS, WEB, WELL, Harm, Incident, web

# Damage


@contextmanager
def leaving(bench: Bench) -> Iterator[None]:
    """The cluster autoscaler is about to remove the node."""
    marked = node()
    marked.setdefault("spec", {})["taints"] = [{"key": DELETION_TAINT, "effect": "NoSchedule"}]
    bench.server.put(marked)
    yield
    bench.server.put(node())


def renamed(server_has: str, addresses: tuple[str, ...]) -> Harm:
    """The agent has the name of a Node with these addresses."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        bench.server.put(objects.node(server_has, *addresses))
        with configured(hostnameOverride=server_has)(bench):
            yield
        bench.server.delete("Node", "", server_has)

    return harm


def configured(**fields: Any) -> Harm:
    """The configuration has other fields."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        with bench.logging(LOADED):
            bench.config_map.update(yaml.safe_dump(bench.configuration | fields))
        yield
        with bench.logging(LOADED):
            bench.config_map.update(yaml.safe_dump(bench.configuration))
        bench.wait_until_right()

    return harm


@contextmanager
def moved(bench: Bench) -> Iterator[None]:
    """The Node's status has addresses that the machine no longer has."""
    bench.server.put(objects.node(NODE_NAME, "192.0.2.44", zone="a"))
    yield
    bench.server.put(node())


@contextmanager
def one_family_moved(bench: Bench) -> Iterator[None]:
    """The Node's status has an IPv6 address that the machine no longer has."""
    bench.server.put(objects.node(NODE_NAME, NODE_IP, "2001:db8::44", zone="a"))
    yield
    bench.server.put(node())


@contextmanager
def addressless(bench: Bench) -> Iterator[None]:
    """The Node has names, and no address."""
    bare = objects.node(NODE_NAME, zone="a")
    names = {"Hostname": NODE_NAME, "InternalDNS": f"{NODE_NAME}.internal"}
    bare["status"] = {"addresses": [{"type": kind, "address": name} for kind, name in names.items()]}
    bench.server.put(bare)
    bench.wait_until_right()
    yield
    bench.server.put(node())


@contextmanager
def translated(bench: Bench) -> Iterator[None]:
    """The Node has just an ExternalIP, which another machine translates to the node's own address."""
    outside = objects.node(NODE_NAME, zone="a")
    outside["status"] = {"addresses": [{"type": "ExternalIP", "address": "192.0.2.44"}]}
    bench.server.put(outside)
    bench.wait_until_right()
    yield
    bench.server.put(node())


@contextmanager
def half_ranged(bench: Bench) -> Iterator[None]:
    """The Node has a podCIDR of a single family."""
    ranged = node()
    ranged.setdefault("spec", {})["podCIDRs"] = ["10.1.0.0/24"]
    bench.server.put(ranged)
    with NODE_CIDR(bench):
        yield
    bench.server.put(node())


@contextmanager
def bridged(bench: Bench) -> Iterator[None]:
    """A firewall drops packets in the family bridge."""
    chain = "chain guard { type filter hook forward priority 0; tcp dport 8080 drop; }"
    bench.lab.load(f"table bridge ports {{\n{chain}\n}}")
    yield
    bench.lab.load("delete table bridge ports")


def squatted(port: int) -> Harm:
    """Another program listens at a port, before the agent wants it."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        opened = bench.lab.node.call(lambda: socket.create_server((NODE_IP, port)))
        bench.server.put(*CHECKED)
        yield
        bench.server.delete("Service", "shop", "web")
        opened.close()

    return harm


@contextmanager
def deleted_while_stopped(bench: Bench) -> Iterator[None]:
    """Another program deletes an element while the agent is stopped for longer than its periodic check's pause."""
    os.kill(bench.process_id, signal.SIGSTOP)
    try:
        bench.lab.load(f"delete element ip nftproxy services {{ {vip(3)} . tcp . 80 }}")
        time.sleep(2 * SYNC_PERIOD)
        with bench.logging("NFT408"):
            os.kill(bench.process_id, signal.SIGCONT)
    finally:
        os.kill(bench.process_id, signal.SIGCONT)
    bench.wait_until_right()
    yield


@contextmanager
def kubeconfig_damaged(bench: Bench) -> Iterator[None]:
    """The kubeconfig is cut off in the middle."""
    whole = bench.kubeconfig.read_text()
    bench.kubeconfig.write_text(whole[: len(whole) // 2] + "\n  - {")
    yield
    bench.kubeconfig.write_text(whole)
    bench.wait_until(lambda: "NFT107" not in bench.command("status").out)


@contextmanager
def one_interface_off(bench: Bench) -> Iterator[None]:
    """An interface's packets aren't forwarded, though forwarding is on."""
    names = bench.lab.node.call(lambda: sorted(name for _, name in socket.if_nameindex() if name != "lo"))
    bench.lab.node.sysctl({f"ipv4/conf/{names[0]}/forwarding": "0"})
    yield
    bench.lab.node.sysctl({f"ipv4/conf/{names[0]}/forwarding": "1"})


@contextmanager
def forgetful(bench: Bench) -> Iterator[None]:
    """Connection tracking forgets established connections after 5 s."""
    path = "netfilter/nf_conntrack_tcp_timeout_established"
    bench.lab.node.sysctl({path: "5"})
    yield
    bench.lab.node.sysctl({path: "86400"})


# Incidents

TAKEN = squatted(32000)
ANSWERS = ("the agent answers load balancers here",)
CHECKED = (
    web(type="LoadBalancer", balanced=[IP.balanced], externalTrafficPolicy="Local", healthCheckNodePort=32000),
    PODS,
)
BRIDGE = configured(detectLocalMode="BridgeInterface", detectLocal={"bridgeInterface": "cbr0"})
PREFIX = configured(detectLocalMode="InterfaceNamePrefix", detectLocal={"interfaceNamePrefix": "cali"})
NODE_CIDR = configured(detectLocalMode="NodeCIDR")
EVERYTHING = configured(clusterCIDR="0.0.0.0/0")
DUAL = (web(vips=[IP.vip, IP6.vip]), PODS)
NODE_PORT = (web(type="NodePort", ports=["80:30080"]), PODS)
AT_NODE = f"explain {NODE_IP}:30080"
NAMELESS = (web(internalTrafficPolicy="Local"), slice_of(IP.here))
NOWHERE = ("other nodes have some", "on another node")
REPAIRS = 'nftproxy_repairs_total{ip_family="IPv4"}'
OTHERS_NAME = renamed("node-z", ("192.0.2.55",))
ELSEWHERE = ("NFT019", "192.0.2.55")
NIGHT = [
    Incident("wrong node name", "status", ELSEWHERE, (), OTHERS_NAME, WELL),
    Incident("wrong node name, by explain", HTTP, ELSEWHERE, FINE, OTHERS_NAME, is_dear=True),
    Incident(
        "wrong node name, by doctor", "doctor --config config.yaml", ELSEWHERE, (), OTHERS_NAME, (), 1, is_dear=True
    ),
    Incident("node's address has changed", "status", ("NFT019", "192.0.2.44"), (), moved, WELL),
    Incident("node's IPv6 address has changed", DOCTOR, ("NFT019", "2001:db8::44"), (), one_family_moved, (), 1),
    Incident("Node has no address", LIST, ("NoAddress", "node port 30080 (IPv4)"), NODE_PORT, addressless),
    Incident("Node has no address, by status", "status", ("NFT024", "no InternalIP"), NODE_PORT, addressless, WELL),
    Incident(
        "Node has no address, by explain",
        AT_NODE,
        ("a node port of Service shop/web", "no InternalIP"),
        NODE_PORT,
        addressless,
    ),
    Incident("Node's address has changed, by list", LIST, ("NFT019", "192.0.2.44"), NODE_PORT, moved),
    Incident("ExternalIP is translated elsewhere", "status", ("NFT024", "192.0.2.44"), NODE_PORT, translated, WELL),
    Incident("ExternalIP is translated elsewhere, by list", LIST, ("NFT024", "192.0.2.44"), NODE_PORT, translated),
    Incident("endpoint is a ClusterIP", LIST, ("NoEndpoints", "at a ClusterIP"), (WEB, slice_of(f"{vip(3)}@node-b"))),
    Incident(
        "endpoint is a ClusterIP, by explain", HTTP, ("at a ClusterIP", vip(3)), (WEB, slice_of(f"{vip(3)}@node-b"))
    ),
    Incident("slice without nodeName, Local", HTTP, ("names no node (nodeName) for 1 of 1",), NAMELESS, never=NOWHERE),
    Incident("slice without nodeName, by list", LIST, ("NoneLocal", "(nodeName)"), NAMELESS, never=NOWHERE),
    Incident("bridge of a name that isn't there", "status", ("NFT637", "cbr0", "bridgeInterface"), FINE, BRIDGE, WELL),
    Incident(
        "bridge isn't there, by explain", HTTP, ("NFT637", "no interface has the name cbr0"), FINE, BRIDGE, is_dear=True
    ),
    Incident("prefix that no interface has", "status", ("NFT637", "cali", "the interfaces are"), FINE, PREFIX, WELL),
    Incident("NodeCIDR without podCIDR", "status", ("NFT637", "has no podCIDR"), FINE, NODE_CIDR, WELL),
    Incident("NodeCIDR without podCIDR of IPv6", "status", ("NFT637", "no podCIDR of IPv6"), DUAL, half_ranged, WELL),
    Incident("bridge rules drop, by doctor", DOCTOR, ("NFT636", "table bridge ports"), FINE, bridged, (), 1),
    Incident("bridge rules drop, by trace", f"{HTTP} --trace", ("not tried", "the table bridge ports"), FINE, bridged),
    Incident("health check's port is taken", "status", ("NFT010", "32000"), (), TAKEN, WELL),
    Incident("health check's port is taken, by explain", "explain node:32000", ("NFT010",), (), TAKEN, ANSWERS),
    Incident("health check's port is taken, by list", LIST, ("NFT010", "Conflict"), (), TAKEN),
    Incident("health check's port is taken, by doctor", "doctor", ("NFT010", "32000"), (), TAKEN, (), 1),
    Incident("element deleted while the agent was stopped", METRICS, ("NFT408", REPAIRS), FINE, deleted_while_stopped),
    Incident("kubeconfig is damaged", "status", ("NFT107", "a restart fails"), (), kubeconfig_damaged, WELL),
    Incident("one interface doesn't forward", DOCTOR, ("NFT624", "forwarding is 0"), FINE, one_interface_off, (), 1),
    Incident("timeout of 5 s", DOCTOR, ("NFT641", "tcp_timeout_established is 5"), FINE, forgetful, (), 1),
    Incident("clusterCIDR is everything", "status", ("NFT637", "0.0.0.0/0"), FINE, EVERYTHING, WELL),
    Incident("what no trace shows", f"{HTTP} --trace", ("not tried", "rp_filter"), FINE),
    Incident("autoscaler removes the node", "status", (DELETION_TAINT, "NO NEW CONNECTIONS"), (), leaving, (), 3),
]
"""Incidents with the node's state that no object of the Service shows."""
