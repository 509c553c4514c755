"""The incidents of README.md: how each is made, and how it is named.

A row has the operator's command, the words that name the cause, and words that would be false.  The objects of a
row are beside five healthy Services.  `harm` damages the node, the API server or the agent, and undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml
from nftproxy_conformance.apiserver.faults import Fault, Reset, Respond
from nftproxy_conformance.lab import DROPPED, Origin
from nftproxy_conformance.lab.topology import NODE_IP, NODE_NAME

from nftproxy.model.settings import PROXY_NAME
from tests.kernel.conntrack.entries import fill
from tests.support.cluster import IP, IP6
from tests.support.objects import Object
from tests.support.waiting import wait_until
from tests.system.e2e.objects import external_name, service, slice_of
from tests.system.faults.bench import Bench, node, vip
from tests.system.faults.test_life import LOADED
from tests.system.incidents.programs import all_three, no_tables_left

METRICS = "curl -s http://127.0.0.1:10249/metrics"
Harm = Callable[[Bench], AbstractContextManager[object]]

HERE, HERE2, AWAY = f"{IP.here}@node-a", f"{IP.here2}@node-a", f"{IP.away}@node-b"
BALANCED: dict[str, Any] = {"type": "LoadBalancer", "balanced": [IP.balanced]}


class Incident(NamedTuple):
    """An incident.

    Attributes:
        symptom: its name, as in the page.
        command: the operator's command, without `nftproxy`.
        cause: the words in its output that name the cause.  The page has the first, or more.
        objects: the Services and EndpointSlices.
        harm: the damage beside objects.
        never: words that would be false.
        status: the command's exit status.
        commands: how many commands an operator gives until then.  `kubectl get` for a file is one.
        is_mute: whether nothing answers at the agent's ports, so that there is no verdict to compare.
        is_dear: whether it takes long, and so is slow (`tox run -e slow`).
    """

    symptom: str
    command: str
    cause: tuple[str, ...]
    objects: tuple[Object, ...] = ()
    harm: Harm = nullcontext
    never: tuple[str, ...] = ()
    status: int = 0
    commands: int = 1
    is_mute: bool = False
    is_dear: bool = False


def noted(made: Object, **annotations: str) -> Object:
    """An object with annotations of nftproxy, whose names have underscores for dashes."""
    made["metadata"]["annotations"] = {f"nftproxy.dev/{key.replace('_', '-')}": annotations[key] for key in annotations}
    return made


def proxied(made: Object) -> Object:
    """A Service whose load balancer takes packets to its addresses by itself."""
    for each in made["status"]["loadBalancer"]["ingress"]:
        each["ipMode"] = "Proxy"
    return made


# Damage


@contextmanager
def refused(bench: Bench) -> Iterator[None]:
    """Nobody listens at the API server's address."""
    bench.server.stop()
    yield
    bench.server.start()


def table(text: str, name: str = "firewall") -> Harm:
    """Another program's table `inet`."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        bench.lab.load(f"table inet {name} {{\n{text}\n}}")
        yield
        bench.lab.load(f"delete table inet {name}")

    return harm


@contextmanager
def dropped(bench: Bench) -> Iterator[None]:
    """A firewall drops all packets to the API server."""
    port = bench.server.port
    rule = f"chain input {{ type filter hook input priority 0; tcp dport {port} drop; tcp sport {port} drop; }}"
    with table(rule)(bench):
        yield


def answered(code: int, resource: str = "endpointslices") -> Harm:
    """The API server answers requests for a resource with an error."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        bench.server.faults.add(
            Fault(Respond(code, "go away"), resource=resource, count=None),
            Fault(Reset(), verb="watch", resource=resource),
        )
        yield
        bench.server.faults.clear()

    return harm


def restarted(harm: Harm) -> Harm:
    """The agent is started while there is some damage."""

    @contextmanager
    def both(bench: Bench) -> Iterator[None]:
        bench.stop()
        with harm(bench):
            bench.start()
            yield
        bench.wait_until_right()

    return both


@contextmanager
def ended(bench: Bench) -> Iterator[None]:
    """The agent doesn't run."""
    bench.stop()
    yield
    bench.start()
    bench.wait_until_right()


@contextmanager
def not_forwarding(bench: Bench) -> Iterator[None]:
    """The node doesn't forward packets."""
    bench.lab.node.sysctl({"ipv4/ip_forward": "0"})
    yield
    bench.lab.node.sysctl({"ipv4/ip_forward": "1"})


@contextmanager
def tracking_is_full(bench: Bench) -> Iterator[None]:
    """Connection tracking has as many entries as the machine allows a namespace, and drops a new connection.

    Other programs may raise the machine's limit meanwhile.
    """

    def is_full() -> bool:
        bench.lab.node.call(fill, bench.lab.node.conntrack_room() + 1_000)
        return bench.lab.connect(Origin.POD, vip(3), 80) == DROPPED

    wait_until(is_full)
    yield
    bench.lab.node.flush_conntrack()


@contextmanager
def nameless(bench: Bench) -> Iterator[None]:
    """The cluster has no Node of the agent's name."""
    bench.server.delete("Node", "", NODE_NAME)
    yield
    bench.server.put(node())


@contextmanager
def unrouted(bench: Bench) -> Iterator[None]:
    """Nothing routes to the other nodes' pods."""
    bench.lab.node.run(["ip", "route", "add", "unreachable", "10.1.77.0/24"])
    yield
    bench.lab.node.run(["ip", "route", "delete", "unreachable", "10.1.77.0/24"])


@contextmanager
def missing(bench: Bench) -> Iterator[None]:
    """The kernel lacks an element, and the agent is gone."""
    with ended(bench):
        bench.lab.load(f"delete element ip nftproxy services {{ {IP.vip} . tcp . 80 }}")
        yield


def harmed(text: str) -> Harm:
    """The table is changed, and the agent is gone."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        with ended(bench):
            bench.lab.load(text)
            yield

    return harm


UNHOOKED = harmed("delete chain ip nftproxy nat-prerouting")
DORMANT = harmed("table ip nftproxy { flags dormant; }")


@contextmanager
def emptied(bench: Bench) -> Iterator[None]:
    """Another program flushes the ruleset, and the agent repairs it."""
    with bench.logging("NFT408"):
        bench.lab.node.run(["nft", "flush", "ruleset"])
    bench.wait_until_right()
    yield


@contextmanager
def misconfigured(bench: Bench) -> Iterator[None]:
    """The configuration has changed, and can't be used."""
    with bench.logging("NFT105"):
        bench.config_map.update(yaml.safe_dump(bench.configuration | {"oomScoreAdj": 5000}))
    yield
    bench.config_map.update(yaml.safe_dump(bench.configuration))
    bench.wait_until(lambda: "NFT105" not in bench.command("status").out)


@contextmanager
def rangeless(bench: Bench) -> Iterator[None]:
    """The configuration has no range of pods."""
    less = {key: value for key, value in bench.configuration.items() if key != "clusterCIDR"}
    with bench.logging(LOADED):
        bench.config_map.update(yaml.safe_dump(less))
    yield
    with bench.logging(LOADED):
        bench.config_map.update(yaml.safe_dump(bench.configuration))
    bench.wait_until_right()


@contextmanager
def rival(bench: Bench) -> Iterator[None]:
    """kube-proxy has left a table."""
    bench.lab.node.run(["nft", "add", "table", "ip", "kube-proxy"])
    yield
    bench.lab.node.run(["nft", "delete", "table", "ip", "kube-proxy"])


@contextmanager
def silent(bench: Bench) -> Iterator[None]:
    """One of three pods answers no connection."""
    bench.lab.node.flush_conntrack()
    unanswered = 0
    while unanswered < 5:
        outcome = bench.lab.connect(Origin.POD, IP.vip, 80)
        if str(outcome.endpoint) == f"{IP.here}:8080":
            unanswered += 1
        else:
            bench.lab.reply(outcome)
    yield
    bench.lab.node.flush_conntrack()


@contextmanager
def remembered(bench: Bench) -> Iterator[None]:
    """A client has connected."""
    bench.lab.connect(Origin.OUTSIDE, IP.vip, 80)
    yield


@contextmanager
def gone(bench: Bench) -> Iterator[None]:
    """A pod with a connection is gone."""
    bench.lab.node.flush_conntrack()
    bench.lab.connect(Origin.POD, IP.vip, 80)
    bench.server.put(slice_of())
    bench.wait_until_right()
    yield
    bench.lab.node.flush_conntrack()


@contextmanager
def crowded(bench: Bench) -> Iterator[None]:
    """A pod of CNI plugins, dockerd and ufw."""
    node = bench.lab.node
    with TemporaryDirectory() as directory, no_tables_left(node), all_three(node, Path(directory)):
        yield


def together(*harms: Harm) -> Harm:
    """Several damages at once."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        first, *rest = harms
        with first(bench), together(*rest)(bench) if rest else nullcontext():
            yield

    return harm


# The table


def web(name: str = "web", **spec: Any) -> Object:
    """A Service with an address of IPv4 alone."""
    return service(name, **{"vips": [IP.vip if name == "web" else IP.vip2]} | spec)


def drops(number: int, rule: str) -> str:
    """A chain that drops forwarded packets."""
    return f"chain f {{ type filter hook forward priority {number}; {rule}; }}"


WEB, PODS = web(), slice_of(HERE, AWAY)
FINE = (WEB, PODS)
HTTP = f"explain {IP.vip}:80"
LIST = "list services -n shop -o wide"
OUTSIDE = f"--from {IP.client}"
FILES = "cluster.yaml --config config.yaml --node node-a --kernel"
DOCTOR = "doctor --config config.yaml --hostname-override node-a"
TOUCH = "healthy, BUT OUT OF TOUCH"
WELL = ("healthy; node", "Warnings: none")
EMPTY = ("No resources found", "no Service is reached here", "must have nothing")
NOWHERE = ("on any node", "selector matches no pod")
UNKNOWN = ("knows no Service",)
OTHER = (web("other", **BALANCED), slice_of(AWAY, name="other"))
RANGES: dict[str, Any] = {"loadBalancerSourceRanges": ["192.0.2.0/24"]}
HUGE: dict[str, Any] = {
    "ports": [f"p{port}:{port}" for port in range(80, 181)],
    "externalIPs": [f"203.0.114.{number}" for number in range(100)],
}
WALL = table(drops(10, "tcp dport 8080 drop"))
UNTRACKED = table("chain raw { type filter hook prerouting priority -300; tcp dport 80 notrack; }")
EARLY = table("chain n { type nat hook prerouting priority -150; tcp dport 80 dnat ip to 10.1.1.99; }")
BOTH = together(refused, not_forwarding)
WALLS = together(table(drops(10, "policy drop")), table(drops(20, "tcp dport 8080 drop"), "second"))
NAMELESS_PORT = slice_of(HERE, ports=["other:8080"])
UNREADY = slice_of(f"{HERE} unready", f"{AWAY} unready")
EAST = (web("other", internalTrafficPolicy="Local"), slice_of(AWAY, name="other"))

THE_AGENT = [
    Incident(
        "agent starts, 403 for EndpointSlices",
        f"explain {vip(3)}:80",
        ("403 Forbidden", "endpointslices", "in force"),
        (),
        restarted(answered(403)),
        EMPTY,
        1,
    ),
    Incident(
        "agent starts without API",
        "list services -A",
        ("Connection refused", "waits for", "in force"),
        (),
        restarted(refused),
        EMPTY,
        1,
    ),
    Incident("API drops packets", "status", ("no connection to", TOUCH), (), dropped, WELL, 3),
    Incident("nobody listens at the API's address", "status", ("Connection refused", TOUCH), (), refused, WELL, 3),
    Incident("API answers 401", "status", ("401 Unauthorized", TOUCH), (), answered(401), WELL, 3),
    Incident("API answers 403", "status", ("403 Forbidden", TOUCH), (), answered(403), WELL, 3),
    Incident("agent has ended", "status", ("no nftproxy runs",), (), ended, WELL, 1),
    Incident("configuration is bad", "status", ("NFT105", "oomScoreAdj"), (), misconfigured, WELL[1:]),
    Incident("node name names no Node", "status", ("NFT635",), (), nameless, WELL, 3),
    Incident("kube-proxy's table is left", "status", ("NFT007",), (), rival, WELL[1:]),
    Incident("ruleset was flushed", METRICS, ("NFT408",), FINE, emptied),
    Incident(
        "element is missing, no agent", f"{HTTP} {FILES}", ("and has nothing",), FINE, missing, ("a change came",), 1, 2
    ),
    Incident("base chain is missing, no agent", f"{HTTP} {FILES}", ("no packet comes to",), FINE, UNHOOKED, (), 1, 2),
    Incident("table is dormant, no agent", f"{HTTP} {FILES}", ("table is dormant",), FINE, DORMANT, (), 1, 2),
]
THE_NODE = [
    Incident("firewall drops", f"{HTTP} --trace", ("chain f of the table firewall",), FINE, WALL, (), 1),
    Incident("two firewalls drop", DOCTOR, ("second", "firewall"), FINE, WALLS, (), 1),
    Incident("ufw, docker, iptables CNI", f"{HTTP} --trace", ("chain FORWARD",), FINE, crowded, (), 1, is_dear=True),
    Incident("ufw, docker, CNI, a firewall", DOCTOR, ("FORWARD", "firewall"), FINE, together(crowded, WALL), (), 1),
    Incident("NOTRACK comes first", f"{HTTP} --trace", ("explained as translated, but",), FINE, UNTRACKED, (), 1),
    Incident("NOTRACK comes first, by doctor", DOCTOR, ("NFT639", "chain raw"), FINE, UNTRACKED, (), 1),
    Incident("another DNAT comes first", DOCTOR, ("NFT639", "chain n", "translates"), FINE, EARLY, (), 1),
    Incident("nothing routes to pods", "status", ("NFT018",), (WEB, slice_of("10.1.77.5@node-b")), unrouted, WELL[1:]),
    Incident("ip_forward is off", "status", ("NFT624",), FINE, not_forwarding, WELL[1:]),
    Incident("ip_forward is off, by explain", f"{HTTP} {OUTSIDE}", ("NFT624",), FINE, not_forwarding),
    Incident(
        "connection tracking is full", "status", ("NFT626", "100 %"), FINE, tracking_is_full, WELL[1:], is_mute=True
    ),
    Incident("pods have no range", DOCTOR, ("NFT637",), FINE, rangeless, (), 1),
    Incident(
        "pods have no range, a bare doctor", "doctor", ("NFT637", "agent's"), FINE, rangeless, (), 1, is_dear=True
    ),
    Incident("API away, ip_forward off", DOCTOR, ("NFT624", "Connection refused"), FINE, BOTH, (), 1),
]
SERVICES = [
    Incident(
        "node port at another address",
        f"explain {IP.own}:30080",
        ("node ports are served only at",),
        (web(ports=["80:30080"], type="NodePort"), PODS),
        never=("no Service is served",),
    ),
    Incident(
        "node port at an address of another family",
        f"explain [{IP6.node}]:30080",
        ("no Service is served at the port",),
        (web(ports=["80:30080"], type="NodePort"), PODS),
        never=("no Service has",),
    ),
    Incident(
        "another proxy's Service",
        HTTP,
        (PROXY_NAME,),
        (web(labels={PROXY_NAME: "other"}), PODS),
        never=("no Service is served",),
    ),
    Incident(
        "headless", "explain svc/shop/web", ("headless",), (service(vips=(), clusterIP="None"), PODS), never=UNKNOWN
    ),
    Incident("ExternalName", "explain svc/shop/web", ("ExternalName",), (external_name(),), never=UNKNOWN),
    Incident("no such Service", "explain svc/shop/web", ("knows no Service",), status=1),
    Incident("port isn't served", f"explain {IP.vip}:81", ("which does not serve this port",), FINE),
    Incident(
        "targetPort names no container port",
        LIST,
        ("none with the port",),
        (web(ports=["http:80"]), NAMELESS_PORT),
        never=NOWHERE[1:],
    ),
    Incident(
        "new pods name their port otherwise",
        LIST,
        ("in their EndpointSlice: 1 of 2",),
        (web(ports=["http:80"]), slice_of(HERE, ports=["http:8080"]), slice_of(AWAY, suffix="2", ports=["web:8080"])),
        never=NOWHERE,
    ),
    Incident(
        "load balancer IP with ipMode Proxy",
        f"explain {IP.balanced}:80 {OUTSIDE}",
        ("load balancer IP of Service shop/web with ipMode Proxy",),
        (proxied(web(**BALANCED)), PODS),
        never=("no Service is served",),
    ),
    Incident(
        "load balancer's health check",
        "explain node:32000",
        ("answers health checks of Service shop/web", "the status is 503"),
        (web(**BALANCED, externalTrafficPolicy="Local", healthCheckNodePort=32000), slice_of(AWAY)),
        never=(f"{NODE_IP}:32000/TCP: no Service",),
    ),
    Incident("selector matches no pod", LIST, ("selector matches no pod", "NoEndpoints"), (WEB, slice_of())),
    Incident("no pod is ready", LIST, ("none of 2 is ready", "NoEndpoints"), (WEB, UNREADY), never=NOWHERE[1:]),
    Incident(
        "internalTrafficPolicy Local",
        LIST,
        ("NoneLocal",),
        (web(internalTrafficPolicy="Local"), slice_of(AWAY)),
        never=NOWHERE,
    ),
    Incident(
        "externalTrafficPolicy Local",
        f"explain {IP.balanced}:80 {OUTSIDE}",
        ("no usable endpoint is on this node",),
        (web(**BALANCED, externalTrafficPolicy="Local"), slice_of(AWAY)),
        never=NOWHERE,
    ),
    Incident("annotation is misspelt", LIST, ("NFT211",), (noted(web(), algoritm="random"), PODS)),
    Incident("annotation is misspelt, by explain", HTTP, ("NFT211",), (noted(web(), algoritm="random"), PODS)),
    Incident(
        "Service is too large, by its address",
        HTTP,
        ("Service shop/web asks for this address but is quarantined",),
        (web(**BALANCED, **HUGE), PODS),
        never=("no Service's", "no Service has"),
    ),
    Incident("Service is too large", LIST, ("Quarantined", "10000 are allowed"), (web(**BALANCED, **HUGE), PODS)),
    Incident(
        "two Services, one address",
        LIST,
        ("belongs to Service shop/other", "Conflict"),
        (*OTHER, web(**BALANCED), slice_of(HERE)),
    ),
    Incident("two Services, two causes", LIST, ("NoneLocal", "NoEndpoints"), (WEB, slice_of(), *EAST)),
    Incident("conflict of a large Service", LIST, ("Quarantined",), (*OTHER, web(**BALANCED, **HUGE), slice_of(HERE))),
]
CLIENTS = [
    Incident(
        "source range",
        f"explain {IP.balanced}:80 {OUTSIDE}",
        ("is in none of",),
        (web(**BALANCED, **RANGES), PODS),
        never=("translated",),
    ),
    Incident(
        "denied range",
        f"{HTTP} {OUTSIDE}",
        ("is denied",),
        (noted(web(), denied_source_ranges="198.51.100.0/24"), PODS),
        never=("translated",),
    ),
    Incident(
        "limit for each client",
        f"{HTTP} {OUTSIDE}",
        ("beyond them are dropped", "translated within the limits: to"),
        (noted(web(), client_connections="1"), PODS),
        remembered,
        ("translated: to",),
    ),
    Incident(
        "remembered client",
        f"{HTTP} {OUTSIDE}",
        ("remembers this client",),
        (web(sessionAffinity="ClientIP"), PODS),
        remembered,
        ("drawn at random", "50.0 %"),
    ),
    Incident("silent pod, of three", "top", (f"{IP.here}:8080 5 5",), (WEB, slice_of(HERE, HERE2, AWAY)), silent),
    Incident("pod is gone, connection stays", "top", ("(gone)",), (WEB, slice_of(HERE)), gone),
]
INCIDENTS = [*THE_AGENT, *THE_NODE, *SERVICES, *CLIENTS]
