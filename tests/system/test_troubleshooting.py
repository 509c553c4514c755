"""docs/troubleshooting.md keeps its word: for each row of its tables the fault is made, and the commands lead there.

The commands and the rows are read from the page.  A row must be the first of its table whose words are in the output of
the commands.  All is on a single node with an agent, a real kernel, packets, and an API server.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from nftproxy_conformance.apiserver.faults import Fault, Respond
from nftproxy_conformance.lab import DROPPED, NODE, TCP_RESET, UNTOUCHED, Origin, Outcome, obstacle

from nftproxy.model.settings import PROXY_NAME
from tests.kernel.conntrack.entries import fill
from tests.support.cluster import IP, IP6, at
from tests.support.command import nftproxy
from tests.support.objects import Object
from tests.support.selection import every
from tests.support.waiting import wait_until
from tests.system.e2e.agent import World, ask_http, eventually
from tests.system.e2e.objects import node, service, slice_of
from tests.system.incidents.test_incidents import INCIDENTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
LISTED = ("Node", "Service", "EndpointSlice", "ServiceCIDR")
SYMPTOM = re.compile(r"```sh\n(?P<commands>.*?)```\n\n\|[^\n]*\n(?P<rows>(?:\|[^\n]*\n)+)", re.DOTALL)

HERE, AWAY = f"{IP.here}@node-a", f"{IP.away}@node-b"
POD, OUTSIDE = Origin.POD, Origin.OUTSIDE
BALANCED: dict[str, Any] = {"type": "LoadBalancer", "balanced": [IP.balanced]}

REFUSED, EVERYWHERE, ONE = "Connection refused", "Times out from everywhere", "Times out from one node only"
SOME, OTHER = "Works on one node and not on another", "Another Service answers"
HIDDEN, POPULAR = "Client addresses are all the node's", "One pod gets everything"
SOMETIMES = "Sometimes times out"
SLOW, MOMENT, WITHOUT = "Slow, or old pods, after a rollout", "Services stop for a moment", "A change has no effect"


class Row(NamedTuple):
    """A row of a table: its heading, its commands, its words, and the words of the rows above it."""

    heading: str
    commands: str
    words: str
    above: tuple[str, ...]


def rows_of_page() -> Iterator[Row]:
    """Every row of every symptom."""
    for section in PAGE.read_text().split("\n## ")[1:]:
        for found in SYMPTOM.finditer(section):
            words = re.findall(r"^\| `([^`]+)`", found["rows"], re.MULTILINE)
            for index, each in enumerate(words):
                yield Row(section.partition("\n")[0], found["commands"], each, tuple(words[:index]))


ROWS = {(row.heading, row.words): row for row in rows_of_page()}


class Scene:
    """A node with its agent, on which faults are made and the page's commands are run."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self.server, self.agent, self.node = world.server, world.agent, world.lab.node
        self._directory = directory

    def has(self, *given: Object) -> None:
        """Let the cluster have these objects alone, beside its nodes."""
        self.world.clear()
        self.world.put(node("node-b", "192.168.0.3"), *given)

    def find(self, heading: str, words: str) -> None:
        """Assert that the commands of a row lead to it, and to none above it in its table."""
        row = ROWS[heading, words]
        answer = self.answer(row.commands)
        assert next((each for each in (*row.above, words) if each in answer), "none") == words, answer

    def answer(self, commands: str) -> str:
        """The output of commands, run in a row on the node, where the cluster's objects are a file."""
        listed = [each for kind in LISTED for each in self.server.objects(kind)]
        cluster = {"apiVersion": "v1", "kind": "List", "items": listed}
        (self._directory / "cluster.yaml").write_text(yaml.safe_dump(cluster))
        return "\n".join(self.node.call(self._run, line) for line in commands.splitlines())

    def _run(self, line: str) -> str:
        files = {"cluster.yaml": self._directory / "cluster.yaml", "config.yaml": self.agent.config}
        program, *words = shlex.split(line)
        if program == "nftproxy":
            asks_agent = words[0] in ("status", "list", "top") or "--live" in words
            socket = ["--agent-socket", str(self.agent.config.with_suffix(".sock"))] if asks_agent else []
            done = nftproxy(*(files.get(word, word) for word in words), *socket)
            return done.out + done.err
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False).stdout

    def configure(self, **fields: Any) -> None:
        """Change the agent's configuration."""
        self.agent.config.write_text(yaml.safe_dump(yaml.safe_load(self.agent.config.read_text()) | fields))

    def ask(self, path: str) -> str:
        """The answer of the agent at a path of its ports, "" without an answer."""
        port = 10249 if path == "/metrics" else 10256
        answer = ask_http(self.node, f"http://127.0.0.1:{port}{path}")
        return answer.body if answer else ""

    @contextmanager
    def counting(self, code: str) -> Iterator[None]:
        """Wait at the end of the context until the agent has counted a further warning of a code."""
        before = self.warnings(code)
        yield
        wait_until(lambda: self.warnings(code) > before)

    def warnings(self, code: str) -> float:
        """How many warnings of a code the agent has logged."""
        found = re.search(rf'^nftproxy_warnings_total{{code="{code}"}} (.*)$', self.ask("/metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def wait_for(self, words: str, path: str) -> None:
        """Wait until an answer of the agent has some words."""
        eventually(lambda: words in self.ask(path), True)


class Case(NamedTuple):
    """A row whose fault is in the cluster's objects, and the outcomes of connections with it, as far as they show
    it.
    """

    heading: str
    words: str
    objects: tuple[Object, ...]
    outcomes: set[Outcome]
    origin: Origin = POD
    address: str = IP.vip
    port: int = 80


def annotated(name: str, value: str) -> Object:
    """The Service with an annotation of ours."""
    made = service()
    made["metadata"]["annotations"] = {f"nftproxy.dev/{name}": value}
    return made


FINE = (service(), slice_of(HERE, AWAY))
BOTH = at(IP.here, IP.away)
LIMITED, MISTYPED = annotated("client-connections", "1"), annotated("algoritm", "maglev")
UNREADABLE: dict[str, Any] = {"loadBalancerSourceRanges": ["198.51.100.300/24"]}
ELSEWHERE: dict[str, Any] = {"loadBalancerSourceRanges": ["192.0.2.0/24"]}
HUGE = service(
    ports=[f"p{port}:{port}" for port in range(80, 181)],
    externalIPs=[f"203.0.114.{number}" for number in range(100)],
    **BALANCED,
)
LOCAL: dict[str, Any] = {"externalTrafficPolicy": "Local"}
INTERNAL: dict[str, Any] = {"internalTrafficPolicy": "Local"}
CASES = [
    Case(REFUSED, "has no usable endpoint on any node", (service(), slice_of(f"{HERE} unready")), {TCP_RESET}),
    Case(REFUSED, "which does not serve this port", (service(ports=["81"]), slice_of(HERE)), {TCP_RESET}),
    Case(REFUSED, "translated: to", FINE, BOTH),
    Case(EVERYWHERE, "NFT208", (service(**BALANCED, **UNREADABLE), slice_of(HERE)), {DROPPED}, OUTSIDE, IP.balanced),
    Case(EVERYWHERE, "is quarantined", (HUGE, slice_of(HERE)), {UNTOUCHED}, OUTSIDE, IP.balanced),
    Case(
        EVERYWHERE,
        "is in none of",
        (service(**BALANCED, **ELSEWHERE), slice_of(HERE)),
        {DROPPED},
        OUTSIDE,
        IP.balanced,
    ),
    Case(EVERYWHERE, "no Service is reached here", FINE, {UNTOUCHED}, OUTSIDE, IP.balanced),
    Case(
        EVERYWHERE,
        "translated: to",
        (service(**BALANCED), slice_of(HERE)),
        at(IP.here, masqueraded=True),
        OUTSIDE,
        IP.balanced,
    ),
    Case(
        EVERYWHERE,
        "node ports are served only at",
        (
            node("node-a", IP.node, IP6.node, IP.own),
            service(ports=["80:30080"], type="NodePort"),
            slice_of(HERE),
        ),
        {NODE},
        OUTSIDE,
        IP.own,
        30080,
    ),
    Case(
        ONE,
        "no usable endpoint is on this node, though other nodes have some",
        (service(**INTERNAL), slice_of(AWAY)),
        {DROPPED},
    ),
    Case(SOMETIMES, "limits for each client", (LIMITED, slice_of(HERE)), {*at(IP.here), DROPPED}),
    Case(ONE, "kernel: holds exactly", FINE, BOTH),
    Case(
        SOME,
        "the port is protected on the node's own addresses",
        (service(ports=["22"], type="LoadBalancer", balanced=[IP.node]), slice_of(HERE)),
        {NODE},
        OUTSIDE,
        IP.node,
        22,
    ),
    Case(
        SOME,
        "no usable endpoint is on this node, though other nodes have some",
        (service(**BALANCED, **LOCAL), slice_of(AWAY)),
        {DROPPED},
        OUTSIDE,
        IP.balanced,
    ),
    Case(
        OTHER,
        "lost by shop/web",
        (service("other", **BALANCED), slice_of(AWAY, name="other"), service(**BALANCED), slice_of(HERE)),
        at(IP.away, masqueraded=True),
        OUTSIDE,
        IP.balanced,
    ),
    Case(
        OTHER,
        "which takes precedence",
        (service("other", **BALANCED), slice_of(AWAY, name="other"), service(**BALANCED), slice_of(HERE)),
        at(IP.away, masqueraded=True),
        OUTSIDE,
        IP.balanced,
    ),
    Case(
        HIDDEN,
        "masqueraded: externalTrafficPolicy Cluster hides the client's address",
        (service(**BALANCED), slice_of(HERE)),
        at(IP.here, masqueraded=True),
        OUTSIDE,
        IP.balanced,
    ),
    Case(
        HIDDEN,
        "masqueraded: it is not a local source",
        (service(**BALANCED, **LOCAL), slice_of(HERE)),
        at(IP.here, masqueraded=True),
        OUTSIDE,
    ),
    Case(POPULAR, "list: local", (service(**INTERNAL), slice_of(HERE, AWAY)), at(IP.here)),
    Case(
        POPULAR,
        "its own do not name this node's zone",
        (service(), slice_of(f"{HERE} zone=zone-a", f"{AWAY} zone=zone-b")),
        at(IP.here),
    ),
    Case(POPULAR, "to the only endpoint", (service(), slice_of(HERE, f"{AWAY} unready")), at(IP.here)),
    Case(POPULAR, "drawn at random", FINE, BOTH),
    Case(SLOW, "serving while it terminates", (service(), slice_of(f"{HERE} draining")), at(IP.here)),
    Case(
        WITHOUT,
        "doesn't serve Service",
        (service(labels={PROXY_NAME: "other"}), slice_of(HERE)),
        {DROPPED},
    ),
    Case(WITHOUT, "knows no Service", (), {DROPPED}),
    Case(WITHOUT, "NFT211", (MISTYPED, slice_of(HERE)), at(IP.here)),
    Case(WITHOUT, "NFT204", (service(externalIPs=["127.0.0.1"]), slice_of(HERE)), at(IP.here)),
    Case(
        WITHOUT,
        "all endpoints are used in spite of",
        (service(trafficDistribution="PreferSameZone"), slice_of(f"{HERE} zone=zone-a", AWAY)),
        BOTH,
    ),
]

AFFINITY = POPULAR, "session affinity:"
OPEN = POPULAR, "10.1.0.4:8080"
DEAD, FULL = (SOMETIMES, "10.1.0.4:8080"), (SOMETIMES, "NFT626")
API_AWAY = [(SOME, "NFT509"), (SOME, "NFT501"), (SLOW, "NFT501")]
NOT_FOLLOWED = SOME, "element ip nftproxy"
FLUSHED = MOMENT, "NFT408"
NOT_FORWARDING = ONE, "NFT624"
MISCONFIGURED = WITHOUT, "NFT105"
BEHIND = [(SLOW, "must have"), (SLOW, "src=10.1.1.4")]
STARTING = [(ONE, '"waitingFor"'), (SOME, "NFT503"), (SOME, "NFT007")]
GONE = ONE, "and has nothing"
AS_INCIDENTS = [
    *((ONE, code) for code in ("NFT019", "NFT018", "NFT010")),
    (HIDDEN, "NFT637"),
    *((SLOW, code) for code in ("NFT026", "NFT025")),
]
"""The rows whose fault an incident of tests/system/incidents makes, which runs the same command."""


def test_every_row_is_tried() -> None:
    """The page has rows, and a test here makes the fault of each."""
    tried = [(case.heading, case.words) for case in CASES]
    assert sorted(
        [
            *tried,
            AFFINITY,
            OPEN,
            DEAD,
            FULL,
            NOT_FOLLOWED,
            *API_AWAY,
            FLUSHED,
            NOT_FORWARDING,
            MISCONFIGURED,
            *BEHIND,
            *STARTING,
            GONE,
            *AS_INCIDENTS,
        ]
    ) == sorted(ROWS)
    of_incidents = {(f"nftproxy {each.command}", cause) for each in INCIDENTS for cause in each.cause}
    assert all({(line, row[1]) for line in ROWS[row].commands.splitlines()} & of_incidents for row in AS_INCIDENTS)


def test_the_cluster_is_written_as_it_is_here() -> None:
    """The command that makes the file lists all kinds that nftproxy reads, which the tests put into it."""
    (command,) = re.findall(r"^kubectl get (\S+) -A -o yaml > cluster.yaml$", PAGE.read_text(), re.MULTILINE)
    assert sorted(command.split(",")) == sorted(f"{kind.lower()}s" for kind in LISTED)


@pytest.fixture(scope="module")
def shared_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A node with its agent."""
    if why := obstacle():
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("node")
    with World(directory) as world:
        yield Scene(world, directory)


@pytest.fixture
def scene(shared_scene: Scene) -> Iterator[Scene]:
    """A node with its agent.  At the end the API server runs, and the node forwards and tracks connections."""
    yield shared_scene
    shared_scene.server.start()
    shared_scene.node.sysctl({"ipv4/ip_forward": "1"})
    shared_scene.node.flush_conntrack()


@pytest.mark.parametrize("case", every(2, [f"{case.heading}: {case.words}" for case in CASES], CASES))
def test_a_fault_in_the_cluster(scene: Scene, case: Case) -> None:
    """Where the objects are the cause, connections go wrong as the heading says, and the commands lead to the row."""
    scene.has(*case.objects)
    assert scene.world.outcomes(case.origin, case.address, case.port) == case.outcomes
    scene.find(case.heading, case.words)


def test_session_affinity(scene: Scene) -> None:
    """A client that stays with a pod is explained by session affinity."""
    scene.has(service(sessionAffinity="ClientIP"), slice_of(HERE, AWAY))
    assert len(scene.world.outcomes(POD, IP.vip)) == 1
    scene.find(*AFFINITY)


def test_open_connections_are_counted(scene: Scene) -> None:
    """The endpoint that connections are open to is named with them."""
    scene.has(service(ports=["a:80/UDP"]), slice_of(HERE, ports=["a:8080/UDP"]))
    assert scene.world.outcomes(POD, IP.vip, protocol="udp") == at(IP.here)
    scene.find(*OPEN)


def test_a_pod_that_does_not_answer(scene: Scene) -> None:
    """All connections to a pod that doesn't answer are counted as unanswered."""
    scene.has(service(ports=["a:80/UDP"]), slice_of(HERE, AWAY, ports=["a:8080/UDP"]))
    assert scene.world.outcomes(POD, IP.vip, protocol="udp") == BOTH
    scene.find(*DEAD)
    assert re.search(r" 10\.1\.0\.4:8080 +([1-9]\d*) +\1$", scene.answer(ROWS[DEAD].commands), re.MULTILINE)


@pytest.mark.slow
def test_connection_tracking_is_full(scene: Scene) -> None:
    """The doctor names a full connection tracking, which drops a new connection."""
    scene.has(*FINE)
    scene.node.call(fill, scene.world.lab.node.conntrack_room() + 1_000)
    assert scene.world.lab.connect(POD, IP.vip, 80) == DROPPED
    scene.find(*FULL)


def test_another_program_deletes_the_rules(scene: Scene) -> None:
    """Once the agent has repaired rules that another program deleted, its metrics name the reason."""
    scene.has(*FINE)
    with scene.counting("NFT408"):
        scene.node.run(["nft", "delete", "table", "ip", "nftproxy"])
    scene.find(*FLUSHED)
    scene.has(*FINE)


def test_a_node_that_does_not_forward(scene: Scene) -> None:
    """Without ip_forward no connection leaves for another node's pod, though the rules are right."""
    scene.has(service(), slice_of(AWAY))
    scene.node.sysctl({"ipv4/ip_forward": "0"})
    assert scene.world.outcomes(POD, IP.vip) == {DROPPED}
    scene.find(*NOT_FORWARDING)
    scene.node.sysctl({"ipv4/ip_forward": "1"})
    assert scene.world.outcomes(POD, IP.vip) == at(IP.away)


def test_a_bad_configuration(scene: Scene) -> None:
    """A configuration that the agent doesn't take is in its health, as long as it is there."""
    scene.configure(oomScoreAdj=5000)
    try:
        scene.wait_for("NFT105", "/healthz")
        scene.find(*MISCONFIGURED)
    finally:
        scene.configure(oomScoreAdj=-999)
    eventually(lambda: "NFT105" in scene.ask("/healthz"), False)


@pytest.mark.slow
def test_the_api_server_is_away(scene: Scene) -> None:
    """While the API server is away, status and metrics of the agent say so, and its rules don't follow the cluster."""
    scene.has(*FINE)
    with scene.counting("NFT501"):
        scene.server.stop()
    scene.wait_for("NFT509", "/healthz")
    for each in API_AWAY:
        scene.find(*each)
    scene.server.put(slice_of(HERE))
    scene.find(*NOT_FOLLOWED)
    scene.server.start()
    scene.has(*FINE)


@pytest.fixture
def ending(scene: Scene) -> Iterator[Scene]:
    """A node whose agent is stopped by the test.  At the end nothing keeps it from starting, and it runs."""
    yield scene
    scene.server.faults.clear()
    scene.node.run(["nft", "add table ip kube-proxy; delete table ip kube-proxy"])
    scene.agent.kill()
    scene.agent.start()


@pytest.mark.slow
def test_an_agent_that_has_ended(ending: Scene) -> None:
    """Rules that nobody keeps differ from the cluster, and UDP flows to pods that have gone stay."""
    scene = ending
    scene.has(service(ports=["a:80/TCP", "b:80/UDP"]), slice_of(HERE, AWAY, ports=["a:8080/TCP", "b:8080/UDP"]))
    assert scene.world.outcomes(POD, IP.vip, protocol="udp") == BOTH
    scene.agent.stop()
    scene.server.put(slice_of(HERE, ports=["a:8080/TCP", "b:8080/UDP"]))
    for each in BEHIND:
        scene.find(*each)


@pytest.mark.slow
def test_an_agent_that_can_not_start(ending: Scene) -> None:
    """An agent that may not list everything names the resources that it waits for, and names another proxy that has
    left rules.
    """
    scene = ending
    scene.has(*FINE)
    scene.agent.stop()
    scene.server.faults.add(Fault(Respond(403), verb="list", resource="endpointslices", count=None))
    scene.node.run(["nft", "add", "table", "ip", "kube-proxy"])
    with scene.agent.logging("NFT503"):
        scene.agent.launch()
    scene.wait_for("NFT007", "/livez")
    for each in STARTING:
        scene.find(*each)


@pytest.mark.slow
def test_rules_that_are_gone(ending: Scene) -> None:
    """Where neither rules nor an agent are, the kernel has none of the rules that it must have."""
    scene = ending
    scene.has(*FINE)
    scene.agent.stop()
    scene.node.run(["nft", "delete", "table", "ip", "nftproxy"])
    scene.find(*GONE)
