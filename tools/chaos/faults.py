"""The faults: a function for each makes the fault, waits as long as it lasts, and ends it.

After any fault the kernel must hold the rules of the API server's objects, without anybody's help.  Meanwhile all
connections must go on, except where the fault harms the rules themselves.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import yaml
from nftproxy_conformance.apiserver import ApiServer, faults
from nftproxy_conformance.lab import LabError
from nftproxy_conformance.lab.topology import NODE_IP

from tests.system.faults.bench import PERMISSIONS, PLURALS, delete, endpoints, node, service, vip
from tools.chaos.agent import PATIENCE, ChaosAgent
from tools.chaos.cluster import ANCHORS, Cluster, external_ip, node_port

Manifest = dict[str, Any]
LONGEST_ABSENCE = 30.0
"""Seconds for which an agent that was killed at the same time is waited for."""
NOISE = 3000
"""Elements of another program's set: their notifications are more than a socket's buffer takes."""


CUT_OFF = """
table ip silence {{
  chain lost {{
    type filter hook output priority raw
    ip daddr 127.0.0.1 tcp dport {port} drop
    ip saddr 127.0.0.1 tcp sport {port} drop
  }}
}}
"""
"""Loses all packets between the API server and its clients: with nothing refused or closed, only time-outs tell."""


class Scene(NamedTuple):
    """The parts of a run.  `harm` is called before a fault damages the rules, `changing` is held to stop changes."""

    agent: ChaosAgent
    server: ApiServer
    cluster: Cluster
    changing: threading.Lock
    harm: Callable[[], None]


Strike = Callable[[Scene, Random], None]


class ChaosFault(NamedTuple):
    """A fault.  Two faults of different groups may happen at once."""

    group: str
    strike: Strike


FAULTS: dict[str, ChaosFault] = {}
"""All faults, by the names that `--only` takes."""


def fault(name: str, group: str) -> Callable[[Strike], Strike]:
    """Decorate a function that is a fault of a group."""

    def register(strike: Strike) -> Strike:
        FAULTS[name] = ChaosFault(group, strike)
        return strike

    return register


def _wait(rng: Random, longest: float = 2.0) -> None:
    time.sleep(rng.uniform(0.2, longest))


def _last(rng: Random, end: Callable[[], object], longest: float = 2.0) -> None:
    """Let a fault last for a while, and then end it, even if an error comes meanwhile."""
    try:
        _wait(rng, longest)
    finally:
        end()


# The API server


@fault("API server down", "api")
def api_down(scene: Scene, rng: Random) -> None:
    """The server is gone for a while: nobody listens, or its host is cut off and all packets are lost."""
    if rng.random() < 0.5:
        scene.agent.lab.load(CUT_OFF.format(port=scene.server.port))
        _last(rng, lambda: _drop(scene, "silence"), 4.0)
    else:
        scene.server.stop()
        _last(rng, scene.server.start, 4.0)


@fault("API server without history", "api")
def api_forgets(scene: Scene, rng: Random) -> None:
    """The server restarts, and has no history."""

    def start() -> None:
        scene.server.compact()
        scene.server.start()

    scene.server.stop()
    _last(rng, start)


@fault("API server restored", "api")
def api_restored(scene: Scene, rng: Random) -> None:
    """The server's objects and versions go back to an earlier state, as from a backup of etcd.

    Nothing is written before the agent has asked: as much as was lost, written again by then, would hide the loss from
    everybody (docs/architecture.md), and here only a few seconds are lost.
    """
    with scene.changing:
        revision, objects = scene.server.revision, scene.cluster.histories.latest()
    _wait(rng, 3.0)
    with scene.changing:
        scene.server.stop()
        restored = time.time()  # earlier requests met the server as it was
        scene.cluster.restore(revision, objects, time.monotonic())
        scene.agent.forget_wanted()
        _wait_until_asked(scene.server, restored)


def _wait_until_asked(server: ApiServer, since: float) -> None:
    """Wait until each resource was asked for, or for so long that the agent is nowhere."""

    def is_asked(plural: str) -> bool:
        return any(each.time > since and each.status == 200 for each in server.requests(resource=plural))

    with contextlib.suppress(TimeoutError):
        server.wait_until(lambda: all(map(is_asked, PLURALS)), LONGEST_ABSENCE)


def _end_watches(server: ApiServer) -> None:
    server.faults.add(*(faults.Fault(faults.EndWatch(), verb="watch", resource=plural) for plural in PLURALS))


@fault("410", "api")
def expired(scene: Scene, rng: Random) -> None:
    """All watches get the error that their version has expired."""
    scene.server.compact()
    scene.server.faults.add(faults.Fault(faults.error_event(410, reason="Expired"), verb="watch", count=len(PLURALS)))
    _wait(rng)


STREAMS: tuple[faults.Action, ...] = (
    faults.EndWatch(),
    faults.Reset(),
    faults.BlackHole(),
    faults.CutLine(),
    faults.CutLine(faults.Parting.RESET),
    faults.Duplicate(),
    faults.error_event(429),
    faults.error_event(500),
    faults.unknown_event(),
    faults.Inject(b"<html>\n"),
)
ANSWERS: tuple[faults.Action, ...] = (
    faults.Respond(429, retry_after=1),
    faults.Respond(500),
    faults.Respond(503, body=b"<html>Service Unavailable</html>"),
    faults.Reset(),
    faults.Truncate(),
    faults.Truncate(then=faults.Parting.END),
)


@fault("broken streams", "api")
def streams(scene: Scene, rng: Random) -> None:
    """Watches break in all ways."""
    for plural in PLURALS:
        scene.server.faults.add(faults.Fault(rng.choice(STREAMS), verb="watch", resource=plural))
    _wait(rng)


@fault("wrong answers", "api")
def answers(scene: Scene, rng: Random) -> None:
    """Lists are asked for, and answered by errors and nonsense a few times."""
    scene.server.faults.add(*(faults.Fault(rng.choice(ANSWERS), verb="list") for _ in range(rng.randint(2, 6))))
    expired(scene, rng)


@fault("slow answers", "api")
def slow(scene: Scene, rng: Random) -> None:
    """Lists and watches are slow to come."""
    before, during = rng.uniform(0.2, 1.0), rng.uniform(0.0, 1.0)
    scene.server.faults.add(faults.Fault(faults.Slow(before, during), verb="list", count=3))
    scene.server.faults.add(faults.Fault(faults.Slow(before), verb="watch", count=3))
    expired(scene, rng)


# Credentials and permissions


@fault("token rotated", "api")
def token_rotated(scene: Scene, rng: Random) -> None:
    """The token is replaced, and the old token is no longer valid."""
    scene.server.rotate_token()
    _end_watches(scene.server)
    _wait(rng)


@fault("token expired", "api")
def token_expired(scene: Scene, rng: Random) -> None:
    """The token expires, and only later there is another token."""
    scene.server.expire_token()
    _end_watches(scene.server)
    _last(rng, scene.server.rotate_token, 3.0)


@fault("forbidden", "api")
def forbidden(scene: Scene, rng: Random) -> None:
    """A resource may not be read for a while."""
    plural = rng.choice(sorted(PLURALS))
    scene.server.rbac = [each for each in PERMISSIONS if each[1] != plural]
    _end_watches(scene.server)
    _last(rng, lambda: setattr(scene.server, "rbac", PERMISSIONS), 3.0)


# The agent


@fault("killed", "agent")
def killed(scene: Scene, rng: Random) -> None:
    """The agent is killed, and started again after a while."""
    scene.agent.kill()
    _last(rng, scene.agent.start)


@fault("restarted", "agent")
def restarted(scene: Scene, rng: Random) -> None:
    """The agent is stopped as the kubelet does, and started again."""
    scene.agent.stop(may_be_starting=True)
    _last(rng, scene.agent.start, 1.0)


@fault("suspended", "agent")
def suspended(scene: Scene, rng: Random) -> None:
    """The agent gets no CPU for a while."""
    with scene.agent.suspended():
        _wait(rng, 4.0)


@fault("configuration changed", "agent")
def configuration(scene: Scene, rng: Random) -> None:
    """The configuration changes to another, or to an invalid configuration, and then to a good configuration."""
    good = yaml.safe_dump(scene.agent.configuration)
    other = yaml.safe_dump(scene.agent.configuration | {"nftables": {"syncPeriod": "2s", "minSyncPeriod": "50ms"}})
    scene.agent.config_map.update(rng.choice([other, other, "mode: [", good.replace("10.1.0.0/16", "10.1.0.0/99")]))
    _last(rng, scene.agent.renew_configuration, 5.0)


@fault("full disk", "agent")
def disk_full(scene: Scene, rng: Random) -> None:
    """No temporary file can be written, while connections to the API have to be made anew."""
    with scene.agent.full_disk():
        token_rotated(scene, rng)


@fault("file descriptors", "agent")
def file_descriptors(scene: Scene, rng: Random) -> None:
    """The agent may open next to no more files, while connections have to be made anew and rules are loaded."""
    with scene.agent.few_files(rng.randint(0, 3)):
        token_rotated(scene, rng)


@fault("silent clients", "agent")
def clients(scene: Scene, rng: Random) -> None:
    """Many clients of the health port say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(rng.randint(50, 300)):
            end = stack.enter_context(scene.agent.lab.node.socket(socket.AF_INET, socket.SOCK_STREAM))
            end.settimeout(2.0)
            end.connect_ex(("127.0.0.1", 10256))
        _wait(rng)


@fault("second agent", "agent")
def second_agent(scene: Scene, rng: Random) -> None:
    """Another agent is started on the same node.  After a while either of the two goes."""
    other = scene.agent.start_another(*scene.agent.options)
    time.sleep(rng.uniform(2.0, 5.0))
    if rng.random() < 0.5:
        scene.agent.replace_by(other)
    else:
        other.terminate()
        other.wait(PATIENCE)


# The kernel, and other programs that write to it


def _harm(scene: Scene, text: str) -> None:
    """Do something to the rules, if another fault has left anything to do it to."""
    scene.harm()
    with contextlib.suppress(LabError):
        scene.agent.lab.load(text)


@fault("flushed", "kernel")
def flushed(scene: Scene, rng: Random) -> None:
    """A host firewall starts anew, and takes all rules along."""
    _harm(scene, rng.choice(["flush ruleset", "delete table ip nftproxy", "delete table ip6 nftproxy"]))
    _wait(rng, 1.0)


@fault("altered", "kernel")
def altered(scene: Scene, rng: Random) -> None:
    """Somebody empties a map, adds an element, or turns a hook off."""
    number = rng.choice(ANCHORS)
    _harm(
        scene,
        rng.choice(
            [
                "flush map ip nftproxy tcp-endpoints",
                f"add element ip nftproxy no-endpoints {{ {vip(number)} . tcp . 80 }}",
                f"delete element ip nftproxy services {{ {vip(number)} . tcp . 80 }}",
                "flush chain ip nftproxy services",
            ]
        ),
    )
    _wait(rng, 1.0)


@fault("others' commits", "kernel")
def others_commits(scene: Scene, rng: Random) -> None:
    """Another program commits to a table of its own, again and again."""
    for number in range(rng.randint(20, 100)):
        _fill(scene, "drops", f"192.0.2.{number}")
    _drop(scene, "drops")


def _fill(scene: Scene, table: str, addresses: str) -> None:
    """Commit addresses to a set of a table that isn't ours, even if another fault has removed it."""
    made = f"add table ip {table}\nadd set ip {table} noise {{ typeof ip saddr ; }}"
    scene.agent.lab.load(f"{made}\nadd element ip {table} noise {{ {addresses} }}")


def _drop(scene: Scene, table: str) -> None:
    scene.agent.lab.load(f"add table ip {table}\ndelete table ip {table}")


@fault("notifications lost", "agent")
def overrun(scene: Scene, rng: Random) -> None:
    """So much is committed while the agent gets no CPU that the kernel drops notifications (ENOBUFS)."""
    addresses = ", ".join(f"198.{18 + each // 65536}.{each // 256 % 256}.{each % 256}" for each in range(NOISE))
    harms = rng.random() < 0.5
    with scene.agent.suspended():
        for _ in range(8):
            _fill(scene, "floods", addresses)
            _drop(scene, "floods")
        if harms:
            _harm(scene, "flush map ip nftproxy tcp-endpoints")
    _wait(rng)


# Objects


def _hostile() -> list[Manifest]:
    """Invalid objects, each in another way."""
    odd = "x\ny; } flush ruleset; #"
    return [
        service(9000, ports="80"),
        service(9001, ports=[{"port": 0}, {"port": 70000}, {"port": "80"}, {"port": 80, "protocol": "ICMP"}, 7]),
        service(9002, clusterIP="127.0.0.1", clusterIPs=["127.0.0.1", "::1", "10.96.0.1 }"]),
        service(9003, externalIPs=["0.0.0.0", "224.0.0.1", "010.0.0.1", odd], sessionAffinity=odd),
        service(9004, ports=[{"port": 80, "name": odd, "nodePort": -1}], type=odd),
        service(9005, loadBalancerSourceRanges=["10.0.0.0/33", odd], type="LoadBalancer"),
        endpoints(9006, "127.0.0.1", "169.254.169.254", "255.255.255.255", odd),
        endpoints(9007, "10.1.0.9") | {"endpoints": [{"addresses": []}, {"addresses": "10.1.0.9"}, None, 3]},
        endpoints(9008, "10.1.0.9") | {"ports": [{"port": "x"}, {"name": odd, "port": 80}], "addressType": "FQDN"},
        endpoints(9009, *(f"10.2.{each // 250}.{each % 250 + 1}" for each in range(1000))),
        service(9009, ports=[{"port": port, "name": f"p{port}"} for port in range(1, 100)]),
    ]


def _thieves() -> list[Manifest]:
    """Services that claim the addresses and node ports of older Services, and the node's own."""
    return [
        service(
            9100 + number,
            type="NodePort",
            externalIPs=[external_ip(number), vip(number), str(NODE_IP)],
            ports=[{"port": 80, "nodePort": node_port(number)}],
        )
        for number in ANCHORS
    ]


@fault("hostile objects", "objects")
def hostile_objects(scene: Scene, rng: Random) -> None:
    """Invalid objects come, and go again."""
    _come_and_go(scene, rng, _hostile())


@fault("contested addresses", "objects")
def thieves(scene: Scene, rng: Random) -> None:
    """Services come that claim addresses of other Services, and go again."""
    _come_and_go(scene, rng, _thieves())


def _come_and_go(scene: Scene, rng: Random, objects: list[Manifest]) -> None:
    def go() -> None:
        with scene.changing:
            delete(scene.server, objects)  # a server that was restored meanwhile may have lost them

    rng.shuffle(objects)
    with scene.changing:
        scene.server.put(*objects)
    _last(rng, go)


TENANT = 9200
"""The number of the hostile tenant's Service, in a namespace of its own."""
TENANTS_PORTS, TENANTS_PODS, TENANTS_RANGES = 20, 400, 500
"""8,000 rows, and ranges: enough that each change is a large one (agent/sync/turns.py)."""


def tenants_objects(number: int) -> list[Manifest]:
    """The hostile tenant's objects after its change of this number: other ports, another algorithm, other ranges."""
    names = [{"name": f"p{port}", "port": port} for port in range(1, TENANTS_PORTS + 1)]
    offered = [{"name": f"p{port}", "port": 8000 + port + number % 2} for port in range(1, TENANTS_PORTS + 1)]
    pods = (f"10.1.{2 + each // 200}.{1 + each % 200}" for each in range(TENANTS_PODS))
    ranges = (f"198.{18 + each % 2}.{each // 2}.{number % 8 * 16}/28" for each in range(TENANTS_RANGES))
    made = [service(TENANT, ports=names), endpoints(TENANT, *pods) | {"ports": offered}]
    for each in made:
        each["metadata"]["namespace"] = "evil"
    made[0]["metadata"]["annotations"] = {
        "nftproxy.dev/algorithm": ("random", "round-robin")[number % 2],
        "nftproxy.dev/denied-source-ranges": ",".join(ranges),
    }
    return made


@fault("hostile tenant", "objects")
def hostile_tenant(scene: Scene, rng: Random) -> None:
    """A tenant rewrites a large Service again and again: its ports, its algorithm and a flood of ranges."""
    for number in range(rng.randint(6, 10)):
        with scene.changing:
            scene.server.put(*tenants_objects(number))
        time.sleep(rng.uniform(0.3, 0.7))
    with scene.changing:
        delete(scene.server, tenants_objects(0))


@fault("node changes", "objects")
def node_changes(scene: Scene, rng: Random) -> None:
    """The Node moves through zones, is tainted, and all that depends on it is decided anew each time."""
    for zone in rng.choices("abcd", k=5):
        with scene.changing:
            scene.server.put(node(zone=zone) | {"spec": {"taints": [{"key": zone, "effect": "NoSchedule"}]}})
        time.sleep(rng.uniform(0.0, 0.3))
    with scene.changing:
        scene.server.put(node())
