"""More incidents of README.md: partial failures, and objects of which a part is wrong."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from nftproxy_conformance.apiserver.faults import Fault, Respond
from nftproxy_conformance.lab.topology import NODE_IP

from tests.support.cluster import IP, IP6
from tests.system.e2e.objects import service, service_cidr, slice_of
from tests.system.faults.bench import Bench
from tests.system.incidents.night_rows import configured
from tests.system.incidents.rows import (
    AWAY,
    BALANCED,
    DOCTOR,
    FILES,
    FINE,
    HERE,
    HTTP,
    LIST,
    PODS,
    WEB,
    WELL,
    Harm,
    Incident,
    answered,
    drops,
    harmed,
    table,
    web,
)

HTTP6 = f"explain [{IP6.vip}]:80"
AWAY6 = f"{IP6.away}@node-b"
DUAL = (service(), PODS, slice_of(AWAY6))

# Damage


def sysctl(path: str, value: str, before: str) -> Harm:
    """A sysctl of the node has another value."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        bench.lab.node.sysctl({path: value})
        yield
        bench.lab.node.sysctl({path: before})

    return harm


@contextmanager
def suspended(bench: Bench) -> Iterator[None]:
    """The agent is stopped, and keeps its socket."""
    os.kill(bench.process_id, signal.SIGSTOP)
    yield
    os.kill(bench.process_id, signal.SIGCONT)


@contextmanager
def killed(bench: Bench) -> Iterator[None]:
    """The kernel has killed the agent, as for want of memory."""
    bench.kill()
    yield
    bench.start()
    bench.wait_until_right()


@contextmanager
def interface_renamed(bench: Bench) -> Iterator[None]:
    """The pods' bridge gets another name than the configuration has."""
    run = bench.lab.node.run
    run(["ip", "link", "add", "pods0", "type", "bridge"])
    with configured(detectLocalMode="BridgeInterface", detectLocal={"bridgeInterface": "pods0"})(bench):
        run(["ip", "link", "set", "pods0", "name", "pods1"])
        yield
    run(["ip", "link", "delete", "pods1"])


@contextmanager
def policy_routed(bench: Bench) -> Iterator[None]:
    """A routing rule, and no route, leads one range of pods nowhere."""
    rule = ["to", "10.1.78.0/24", "unreachable"]
    bench.lab.node.run(["ip", "rule", "add", *rule])
    yield
    bench.lab.node.run(["ip", "rule", "delete", *rule])


def nonsense(resource: str) -> Harm:
    """The API server answers 200 with a page of HTML for a resource."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        bench.server.faults.add(
            Fault(Respond(200, body=b"<html>a portal</html>"), verb="list", resource=resource, count=None),
            Fault(Respond(410), verb="watch", resource=resource, count=1),
        )
        bench.server.restart()
        yield
        bench.server.faults.clear()

    return harm


@contextmanager
def port_squatted(bench: Bench) -> Iterator[None]:
    """Another program has the health port before the agent starts."""
    bench.stop()
    opened = bench.lab.node.call(lambda: socket.create_server(("0.0.0.0", 10256), backlog=1))
    bench.start()
    yield
    opened.close()
    bench.wait_until(lambda: "NFT009" not in bench.command("status").out)


@contextmanager
def second_range(bench: Bench) -> Iterator[None]:
    """The cluster has a second ServiceCIDR, which is taken away again."""
    bench.server.put(service_cidr("more", "10.99.0.0/24"))
    bench.wait_until_right()
    bench.server.delete("ServiceCIDR", "", "more")
    bench.wait_until_right()
    yield


def masqueraded(rule: str) -> Harm:
    """Another program's chain changes the source of connections to pods."""
    return table(f"chain m {{ type nat hook postrouting priority 90; {rule}; }}", "sources")


# Incidents

V6_DROP = table(drops(10, "meta nfproto ipv6 tcp dport 8080 drop"))
UDP_DROP = table(drops(10, "udp dport 8080 drop"))
OWN_DROP = table("chain o { type filter hook output priority 10; tcp dport 8080 reject; }")
MARKED = table("chain p { type filter hook prerouting priority -120; tcp dport 80 meta mark set 0x4000; }", "marks")
TWO_PORTS = (web(ports=["http:80", "admin:81"]), slice_of(HERE, ports=["http:8080"]))
UDP = (web(ports=["dns:53/UDP"]), slice_of(AWAY, ports=["dns:8080/UDP"]))
PARTIAL = [
    Incident(
        "IPv6 alone isn't forwarded",
        "status",
        ("NFT624", "IPv6"),
        DUAL,
        sysctl("ipv6/conf/all/forwarding", "0", "1"),
        WELL[1:],
    ),
    Incident(
        "rules of IPv6 are gone, no agent",
        f"{HTTP6} {FILES}",
        ("no packet comes to ip6 nftproxy",),
        DUAL,
        harmed("delete table ip6 nftproxy"),
        (),
        1,
        2,
    ),
    Incident(
        "one map is empty, no agent",
        f"{HTTP} {FILES}",
        ("services must have", "and has nothing"),
        FINE,
        harmed("flush map ip nftproxy services"),
        (),
        1,
        2,
    ),
    Incident(
        "a firewall drops IPv6 alone", f"{HTTP6} --trace", ("chain f of the table firewall",), DUAL, V6_DROP, (), 1
    ),
    Incident(
        "a firewall drops UDP alone",
        f"explain {IP.vip}:53/UDP --trace",
        ("chain f of the table firewall",),
        UDP,
        UDP_DROP,
        (),
        1,
    ),
    Incident("a firewall rejects the node's own", f"{HTTP} --from node --trace", ("chain o",), FINE, OWN_DROP, (), 1),
    Incident(
        "another MASQUERADE",
        f"{HTTP} --trace",
        ("chain m of the table sources", "DIFFERS"),
        FINE,
        masqueraded("tcp dport 8080 masquerade"),
        (),
        1,
    ),
    Incident(
        "another program sets our mark",
        f"{HTTP} --trace",
        ("chain p of the table marks", "DIFFERS"),
        FINE,
        MARKED,
        (),
        1,
    ),
    Incident(
        "API answers 403 for Nodes alone", "status", ("403 Forbidden", "nodes"), (), answered(403, "nodes"), WELL, 3
    ),
    Incident(
        "API answers 429 for Services alone", "status", ("429", "services"), (), answered(429, "services"), WELL, 3
    ),
    Incident(
        "API answers nonsense for Services",
        "status",
        ("NFT509", "no changes of services"),
        (),
        nonsense("services"),
        WELL,
        3,
    ),
    Incident(
        "agent is stopped", "status --timeout 1", ("it is stopped", "kill -CONT"), (), suspended, WELL, 1, is_mute=True
    ),
    Incident(
        "agent is stopped, by explain",
        f"{HTTP} --timeout 1",
        ("it is stopped", "kill -CONT"),
        FINE,
        suspended,
        (),
        1,
        is_mute=True,
    ),
    Incident("agent was killed", "status", ("no nftproxy runs",), (), killed, WELL, 1),
    Incident("health port is taken", "status", ("NFT009", "10256"), (), port_squatted, WELL, is_mute=True),
    Incident(
        "health port is taken, by doctor",
        "doctor",
        ("NFT009", "10256"),
        (),
        port_squatted,
        (),
        1,
        is_mute=True,
        is_dear=True,
    ),
    Incident(
        "pods' bridge was renamed",
        "status",
        ("NFT637", "no interface has the name pods0"),
        FINE,
        interface_renamed,
        WELL,
    ),
    Incident(
        "a routing rule loses one range",
        "status",
        ("NFT018",),
        (WEB, slice_of("10.1.78.5@node-b")),
        policy_routed,
        WELL[1:],
    ),
    Incident(
        "a routing rule loses one range, by doctor",
        DOCTOR,
        ("NFT018", "nothing routes to 10.1.78.5"),
        (WEB, slice_of("10.1.78.5@node-b")),
        policy_routed,
        (),
        1,
    ),
    Incident(
        "ServiceCIDR was taken away",
        "explain 10.99.0.9:80",
        ("no Service is served there, so the packet is routed as any other",),
        (),
        second_range,
    ),
    Incident(
        "one port of two has no endpoint",
        LIST,
        ("port admin (IPv4): no usable endpoint", "none with the port `admin`"),
        TWO_PORTS,
    ),
    Incident(
        "one family has no endpoint",
        LIST,
        ("port 80 (IPv6): no usable endpoint", "no EndpointSlice of IPv6"),
        (service(), PODS),
    ),
    Incident(
        "one family has no endpoint, by explain",
        HTTP6,
        ("the Service has no EndpointSlice of IPv6",),
        (service(), PODS),
    ),
    Incident(
        "endpoints are names", LIST, ("the Service has no EndpointSlice of IPv4",), (WEB, slice_of(family="FQDN"))
    ),
    Incident(
        "external IP is the node's",
        LIST,
        ("the port is protected on the node's own addresses", "Conflict"),
        (web(externalIPs=[str(NODE_IP)], ports=["22"]), PODS),
    ),
    Incident(
        "external IP is another's ClusterIP",
        LIST,
        ("it is the ClusterIP of Service shop/other",),
        (web(externalIPs=[IP.vip2]), PODS, web("other"), slice_of(AWAY, name="other")),
    ),
    Incident(
        "node port is another's",
        LIST,
        ("it does not get node:30080/TCP", "Service shop/other"),
        (web(type="NodePort", ports=["80:30080"]), PODS, web("other", type="NodePort", ports=["80:30080"])),
    ),
    Incident(
        "source range is no range",
        LIST,
        ("NFT208", "'everywhere' is not a CIDR"),
        (web(**BALANCED, loadBalancerSourceRanges=["everywhere"]), PODS),
    ),
    Incident(
        "all pods terminate",
        HTTP,
        ("serving while it terminates",),
        (WEB, slice_of(f"{HERE} draining", f"{AWAY} draining")),
    ),
    Incident(
        "two pods have the same address",
        HTTP,
        ("pods of several nodes have the same address", "on node-a, node-b"),
        (WEB, slice_of(HERE), slice_of(f"{IP.here}@node-b", suffix="2")),
    ),
    Incident("slice is another Service's", LIST, ("no EndpointSlice of IPv4",), (WEB, slice_of(HERE, name="wbe"))),
    Incident("protocol is another", f"explain {IP.vip}:80/UDP", ("which does not serve this port",), FINE),
]
