"""What nftproxy does, shown on a scratch node: `python -m tools.demo`, as root, takes some twenty seconds.

Two nodes, their pods and a client outside are network namespaces with real servers and clients in them (lab/pods.py).
The cluster is examples/everything: every endpoint in its manifests is a pod here.  `nftproxy run` is a process of its
own on node-a.  Every figure is measured; a promise that isn't kept is marked, and makes the exit status 1.
"""

from __future__ import annotations

import ipaddress
import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import yaml

from nftproxy.kernel.libnftables import Kernel
from nftproxy.lab import Namespace, RealHost, RealNetwork, RealNode, obstacle, topology
from nftproxy.lab.echo import KINDS, Answer
from nftproxy.model.addresses import Family, host_port

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLE = CHECKOUT / "examples" / "everything"

WEB, WEB6, CART, CART6 = "10.96.0.10", "fd00:96::10", "10.96.0.50", "fd00:96::50"
DNS, DNS6, EMPTY, EMPTY6 = "10.96.0.2", "fd00:96::2", "10.96.0.62", "fd00:96::62"
BALANCER, BALANCER6 = "203.0.113.7", "2001:db8:113::7"
WEB_NODE_PORT = 30080
HERE, THERE = ("node-a", "10.1.0.5", "fd00:1::5"), ("node-b", "10.1.1.5", "fd00:1:0:1::5")
"""Where web-2 is, and where web-4 will be."""

CONNECTIONS = 150
"""How many show how connections spread over three pods: fewer than a third of a fair share for one is no chance."""
AT_ONCE = 500.0
"""Milliseconds: far longer than a refusal takes, and less than a client waits until it tries again (1 s, RFC 6298)."""
PROMISE = 200.0
"""Milliseconds from an edit until rules follow; the new pod answers a few connections later.  The best of some edits
counts, as another process may be busy on this machine."""
FEWEST_EDITS, MOST_EDITS = 3, 9
"""How many there are, odd numbers: more than the fewest if none of them was in time."""
PATIENCE = 60.0
"""Seconds for what takes a moment, on a machine that has other things to do."""


# ---- what is said --------------------------------------------------------------------------------------------------


class Report:
    """Says what happens, a line each, in colour on a terminal only.

    Attributes:
        broken: how many promises were not kept.
    """

    def __init__(self) -> None:
        self.broken = 0
        self._is_terminal = sys.stdout.isatty()

    def step(self, text: str) -> None:
        """Begin with something new."""
        self._print(f"\n{self._coloured('1', text)}")

    def tell(self, text: str) -> None:
        """Say what is done."""
        self._print(f"         {text}")

    def promise(self, kept: bool, text: str) -> None:
        """Say what was seen, and whether it is what was promised."""
        self.broken += not kept
        mark = self._coloured("32", "ok    ") if kept else self._coloured("31;1", "BROKEN")
        self._print(f"  {mark} {text}")

    def end(self) -> int:
        """Say how it went; the exit status."""
        if self.broken:
            self._print(f"\n{self._coloured('31;1', f'{self.broken} promises were broken')}")
        else:
            self._print(f"\n{self._coloured('32', 'All promises were kept.')}")
        return 1 if self.broken else 0

    def _coloured(self, colour: str, text: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._is_terminal else text

    @staticmethod
    def _print(text: str) -> None:
        print(text, flush=True)


class Result(NamedTuple):
    """What became of one connection: who answered, or the error; when it ended, and how long it took (seconds)."""

    answer: Answer | None
    error: OSError | None
    ended: float
    seconds: float


def attempt(ask: Callable[[], Answer]) -> Result:
    """Make one connection, and see what becomes of it."""
    began = time.monotonic()
    answer, error = None, None
    try:
        answer = ask()
    except OSError as raised:
        error = raised
    ended = time.monotonic()
    return Result(answer, error, ended, ended - began)


class Results:
    """What became of some connections."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = results
        self.failed = [result.error for result in results if result.error]
        answers = [result.answer for result in results if result.answer]
        self.pods = Counter(answer.name for answer in answers)
        self.clients = Counter(answer.client.ip for answer in answers)

    def __str__(self) -> str:
        names = ", ".join(f"{name} {count}" for name, count in sorted(self.pods.items()))
        failures = f"; {len(self.failed)} failed: {self.failed[0]}" if self.failed else ""
        return f"{names or 'no answer'}{failures}"

    def spread_over(self, *pods: str) -> bool:
        """Whether all were answered, by these pods, each with its share."""
        fewest = len(self.results) / len(pods) / 3
        return not self.failed and set(self.pods) == set(pods) and min(self.pods.values()) > fewest

    def slowest(self) -> float:
        """How long the longest took, in milliseconds."""
        return max(result.seconds for result in self.results) * 1000


class Traffic:
    """Clients that make one connection after the other in the background, from entering to leaving."""

    def __init__(self, *asks: Callable[[], Answer]) -> None:
        self._results: list[Result] = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[ask], daemon=True) for ask in asks]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, ask: Callable[[], Answer]) -> None:
        while not self._is_over.is_set():
            self._results.append(attempt(ask))

    def so_far(self) -> Results:
        """What became of all connections until now."""
        return Results(list(self._results))

    def since(self, moment: float) -> Results:
        """What became of the connections that began after a moment, once they are enough to show how they spread."""
        end = time.monotonic() + PATIENCE
        while True:
            found = [result for result in list(self._results) if result.ended - result.seconds > moment]
            if len(found) > CONNECTIONS or time.monotonic() > end:
                return Results(found)
            time.sleep(0.01)

    def first_answer(self, pod: str, since: float) -> Result | None:
        """Wait for the first answer of a pod since some time; None if none comes."""
        end = time.monotonic() + PATIENCE
        seen = 0
        while time.monotonic() < end:
            for result in self._results[seen:]:
                seen += 1
                if result.ended > since and result.answer and result.answer.name == pod:
                    return result
            time.sleep(0.001)
        return None


# ---- the cluster ---------------------------------------------------------------------------------------------------


class Pod(NamedTuple):
    """A pod as the EndpointSlices know it; `ports` are of (number, protocol)."""

    name: str
    node: str
    address: str
    address6: str
    ports: frozenset[tuple[int, str]]


def manifests(directory: Path) -> Iterator[dict[str, Any]]:
    """Every object in a directory's files, Lists taken apart."""
    for file in sorted(directory.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield from document["items"] if document["kind"] == "List" else [document]


def pods_of(slices: Iterator[dict[str, Any]]) -> list[Pod]:
    """The pods that EndpointSlices refer to."""
    found: dict[str, Pod] = {}
    for each in slices:
        ports = {(port["port"], port.get("protocol", "TCP").lower()) for port in each["ports"]}
        for endpoint in each["endpoints"]:
            if "targetRef" in endpoint and each["addressType"] == "IPv4":
                (address,) = endpoint["addresses"]
                name = endpoint["targetRef"]["name"]
                found[name] = Pod(name, endpoint["nodeName"], address, sibling(address), frozenset(ports))
    return list(found.values())


def sibling(address: str) -> str:
    """The IPv6 address of the pod that has this IPv4 address, as the examples have it: 10.1.2.3 is fd00:1:0:2::3."""
    _, _, node, number = address.split(".")
    return str(ipaddress.IPv6Address(f"fd00:1:0:{int(node):x}::{int(number):x}"))


class Cluster:
    """Two nodes with the pods that some manifests speak of, and two hosts outside.

    Attributes:
        node: node-a, where nftproxy is to run.
        shopper: a pod on it, that is a client.
        outside: a client outside.
        stranger: another one, whom the load balancer's source ranges do not name.
        pods: all pods by name, the shopper aside.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        network = stack.enter_context(RealNetwork())
        self._nodes = {name: network.node(name) for name in (topology.NODE_NAME, "node-b")}
        self.node = self._nodes[topology.NODE_NAME]
        self.shopper = self.node.pod("shopper", "10.1.0.200", "fd00:1::c8")
        self.outside = network.host("outside", "198.51.100.7", "2001:db8:100::7")
        self.stranger = network.host("stranger", "192.0.2.7", "2001:db8:bad::7")
        self._nodes["node-b"].serve(6443)  # the API server
        self.pods: dict[str, RealHost] = {}
        for pod in pods_of(each for each in manifests(directory) if each["kind"] == "EndpointSlice"):
            self.add(pod)

    def add(self, pod: Pod) -> None:
        """Start a pod with its servers."""
        host = self._nodes[pod.node].pod(pod.name, pod.address, pod.address6)
        for port, protocol in pod.ports:
            if protocol in KINDS:  # there is no echo server for SCTP
                host.serve(port, protocol)
        self.pods[pod.name] = host

    def clients(self) -> list[RealHost]:
        """The pods on node-a."""
        return [self.shopper, *(pod for pod in self.pods.values() if pod.address.startswith("10.1.0."))]


class Proxy:
    """`nftproxy run` on a node, following a directory; it ends with the node at the latest."""

    def __init__(self, node: RealNode, directory: Path, config: Path) -> None:
        self._namespace: Namespace = node.node
        self._log = directory.parent / "nftproxy.log"
        self._began = time.monotonic()
        with self._log.open("w") as log:
            self._process = self._start(
                "run",
                f"--source={directory}",
                f"--config={config}",
                f"--hostname-override={topology.NODE_NAME}",
                log=log,
            )

    def _start(self, *arguments: str, log: Any) -> subprocess.Popen[Any]:
        command = [sys.executable, "-m", "nftproxy", *arguments]
        return self._namespace.popen(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def elements(self) -> int:
        """How many elements the node's kernel holds in our tables; 0 without tables."""
        kernel = Kernel()
        return self._namespace.call(lambda: sum(len(kernel.elements(family)) for family in Family))

    def tables(self) -> int:
        """How many of our tables the node's kernel holds."""
        kernel = Kernel()
        return self._namespace.call(lambda: sum(kernel.read_back(family) is not None for family in Family))

    def until_loaded(self) -> float:
        """Wait until the tables are there; seconds since the start."""
        while self.tables() < len(Family):
            if time.monotonic() - self._began > PATIENCE or self._process.poll() is not None:
                raise TimeoutError("nftproxy has not loaded its rules")
            time.sleep(0.005)
        return time.monotonic() - self._began

    def stop(self) -> int:
        """Stop it as systemd and the kubelet do; its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(10)

    def cleanup(self) -> int:
        """Run `nftproxy cleanup`; its exit status."""
        with self._log.open("a") as log:
            return self._start("cleanup", log=log).wait(10)


# ---- the steps -----------------------------------------------------------------------------------------------------


class Demo:
    """The steps, in the order in which they are shown.

    Args:
        report: says what happens.
        cluster: where it happens.
        directory: the manifests, which are edited.
        proxy: looks after node-a.
    """

    def __init__(self, report: Report, cluster: Cluster, directory: Path, proxy: Proxy) -> None:
        self.report = report
        self.cluster = cluster
        self.directory = directory
        self.proxy = proxy

    def run(self) -> None:
        """Show everything."""
        self.load()
        self.connect()
        self.refuse()
        self.edit()
        self.stick()
        self.stop()
        self.clean_up()

    def load(self) -> None:
        """The rules come."""
        self.report.step("Rules: nftproxy run --source manifests --hostname-override node-a")
        try:
            seconds = self.proxy.until_loaded()
        except TimeoutError as error:
            self.report.promise(kept=False, text=f"{error}; it says:\n{self.proxy.log}")
            raise SystemExit(self.report.end()) from error
        count = self.proxy.elements()
        self.report.promise(
            count > 0, f"{seconds:.2f} s after the start of the process the kernel holds {count} elements in 2 tables"
        )

    def connect(self) -> None:
        """Connections of all kinds arrive."""
        self.report.step(f"Connections, {CONNECTIONS} each")
        node, shopper, outside = self.cluster.node, self.cluster.shopper, self.cluster.outside
        web, dns = ("web-1", "web-2", "web-3"), ("coredns-1", "coredns-2")
        for host, what, address, port, protocol, pods in (
            (shopper, "pod -> ClusterIP", WEB, 80, "tcp", web),
            (shopper, "pod -> ClusterIP", WEB6, 80, "tcp", web),
            (node, "node -> ClusterIP", WEB, 80, "tcp", web),
            (shopper, "pod -> ClusterIP", DNS, 53, "udp", dns),
            (shopper, "pod -> ClusterIP", DNS6, 53, "udp", dns),
            (outside, "outside -> node port", node.address, WEB_NODE_PORT, "tcp", web),
            (outside, "outside -> node port", node.address6, WEB_NODE_PORT, "tcp", web),
        ):
            results = connect(host, address, port, protocol)
            self.report.promise(results.spread_over(*pods), f"{what:22}{place(address, port, protocol):28}{results}")
        self.balance()

    def balance(self) -> None:
        """Policy Local: outside goes to the pod on this node with its address kept, inside goes anywhere."""
        shopper, outside = self.cluster.shopper, self.cluster.outside
        for address, client in ((BALANCER, outside.address), (BALANCER6, outside.address6)):
            results = connect(outside, address, 443)
            self.report.promise(
                results.spread_over("gateway-1") and set(results.clients) == {client},
                f"{'outside -> balancer':22}{place(address, 443, 'tcp'):28}{results}, on this node; it sees "
                f"{', '.join(results.clients)}",
            )
            results = connect(shopper, address, 443)
            self.report.promise(
                results.spread_over("gateway-1", "gateway-2"),
                f"{'pod -> balancer':22}{place(address, 443, 'tcp'):28}{results}: policy Local is not for them",
            )

    def refuse(self) -> None:
        """What can't be served is rejected at once; what isn't allowed is dropped."""
        self.report.step("No endpoints, and no admission")
        for host, what, address in (
            (self.cluster.shopper, "pod", EMPTY),
            (self.cluster.shopper, "pod", EMPTY6),
            (self.cluster.node, "node", EMPTY),
        ):
            result = attempt(lambda host=host, address=address: host.ask(address, 80))  # type: ignore[misc]
            took = result.seconds * 1000
            self.report.promise(
                isinstance(result.error, ConnectionRefusedError) and took < AT_ONCE,
                f"{f'{what} -> no endpoints':22}{place(address, 80, 'tcp'):28}{said(result)} after {took:.1f} ms",
            )
        result = attempt(lambda: self.cluster.stranger.ask(BALANCER, 443, timeout=0.5))
        self.report.promise(
            isinstance(result.error, TimeoutError),
            f"{'stranger -> balancer':22}{place(BALANCER, 443, 'tcp'):28}{said(result)} for {result.seconds:.1f} s, as "
            f"{self.cluster.stranger.address} is in no source range",
        )

    def edit(self) -> None:
        """A manifest is edited while clients keep connecting."""
        self.report.step(
            "Edits under load: in manifests/web.yaml, web-2 gives way to web-4, comes back, and goes again"
        )
        web2, web4 = (Pod(f"web-{i}", *where, frozenset({(8080, "tcp")})) for i, where in ((2, HERE), (4, THERE)))
        self.cluster.add(web4)
        node, shopper, outside = self.cluster.node, self.cluster.shopper, self.cluster.outside
        milliseconds: list[float] = []
        with Traffic(
            lambda: shopper.ask(WEB, 80),
            lambda: shopper.ask(WEB6, 80),
            lambda: outside.ask(node.address, WEB_NODE_PORT),
        ) as traffic:
            for gone, new in itertools.cycle([(web2, web4), (web4, web2)]):
                time.sleep(1.1)  # a quiet time, whatever nftables.minSyncPeriod is by default
                closed = replace_pod(self.directory / "web.yaml", gone, new)
                first = traffic.first_answer(new.name, closed)
                milliseconds.append((first.ended - closed) * 1000 if first else float("inf"))
                fewest = FEWEST_EDITS if min(milliseconds) < PROMISE else MOST_EDITS
                if new is web4 and len(milliseconds) >= fewest:
                    break
            later = traffic.since(first.ended if first else time.monotonic())
        results = traffic.so_far()
        self.report.promise(
            not results.failed and len(results.results) > CONNECTIONS,
            f"a pod and a host outside made {len(results.results)} connections, {len(results.failed)} failed "
            f"(the longest took {results.slowest():.0f} ms)",
        )
        self.report.promise(
            min(milliseconds) < PROMISE,
            f"the new pod answered {', '.join(f'{took:.0f}' for took in milliseconds)} ms after the file was closed",
        )
        self.report.promise(later.spread_over("web-1", "web-3", "web-4"), f"from then on: {later}")

    def stick(self) -> None:
        """Clients come back to the pod that they had."""
        clients = self.cluster.clients()
        self.report.step(f"Session affinity: {len(clients)} pods connect to shop/cart ten times each")
        for address in (CART, CART6):
            had = {client.name: connect(client, address, 80, times=10) for client in clients}
            failed = sum(len(results.failed) for results in had.values())
            strays = [name for name, results in had.items() if len(results.pods) != 1]
            pods = Counter(pod for results in had.values() for pod in results.pods)
            self.report.promise(
                not failed and not strays and len(pods) > 1,
                f"{'pod -> ClusterIP':22}{place(address, 80, 'tcp'):28}{len(strays)} clients saw more than one pod; "
                f"clients by pod: {', '.join(f'{pod} {count}' for pod, count in sorted(pods.items()))}",
            )

    def stop(self) -> None:
        """The proxy stops, its rules stay."""
        self.report.step("SIGTERM to nftproxy, while a pod keeps connecting")
        before = self.proxy.elements()
        with Traffic(lambda: self.cluster.shopper.ask(WEB, 80)) as traffic:
            began = time.monotonic()
            status = self.proxy.stop()
            took = time.monotonic() - began
            traffic.since(began + took)
        self.report.promise(status == 0, f"the process ended with status {status} after {took * 1000:.0f} ms")
        after = self.proxy.elements()
        self.report.promise(before == after > 0, f"the rules are still there: {after} elements")
        results = traffic.so_far()
        self.report.promise(
            not results.failed and len(results.results) > CONNECTIONS,
            f"the pod made {len(results.results)} connections, {len(results.failed)} failed",
        )

    def clean_up(self) -> None:
        """The rules go when that is asked for."""
        self.report.step("nftproxy cleanup")
        status = self.proxy.cleanup()
        left = self.proxy.tables()
        self.report.promise(status == 0 and not left, f"it ended with status {status}; {left} tables are left")
        result = attempt(lambda: self.cluster.shopper.ask(WEB, 80, timeout=0.5))
        self.report.promise(bool(result.error), f"{'pod -> ClusterIP':22}{place(WEB, 80, 'tcp'):28}{said(result)}")


def connect(host: RealHost, address: str, port: int, protocol: str = "tcp", *, times: int = CONNECTIONS) -> Results:
    """Make some connections, one after the other."""
    return Results([attempt(lambda: host.ask(address, port, protocol)) for _ in range(times)])


def place(address: str, port: int, protocol: str) -> str:
    """An address, port and protocol for people."""
    return f"{host_port(address, port)}/{protocol}"


def said(result: Result) -> str:
    """What a client learned."""
    if isinstance(result.error, TimeoutError):
        return "no answer"
    return str(result.error.strerror).lower() if result.error else f"answer of {result.answer}"


def replace_pod(file: Path, gone: Pod, new: Pod) -> float:
    """Put a pod in the place of another one in a manifest's slices; when the file was closed."""
    documents = list(yaml.safe_load_all(file.read_text()))
    for each in documents:
        for endpoint in each.get("endpoints", ()):
            if endpoint["targetRef"]["name"] == gone.name:
                endpoint["addresses"] = [new.address6 if each["addressType"] == "IPv6" else new.address]
                endpoint["nodeName"] = new.node
                endpoint["targetRef"]["name"] = new.name
    file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    return time.monotonic()


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory with a copy of the example, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="nftproxy-demo-") as name:
        shutil.copytree(EXAMPLE, Path(name), dirs_exist_ok=True)
        yield Path(name)


def main() -> int:
    """Show everything; the exit status, 1 if a promise was broken, 2 if nothing could be shown."""
    if why := obstacle().replace("the lab", "the demo"):
        print(why, file=sys.stderr)
        return 2
    report = Report()
    began = time.monotonic()
    with ExitStack() as stack:
        directory = stack.enter_context(scratch())
        report.step("A scratch cluster: network namespaces with real servers and clients")
        cluster = Cluster(directory / "manifests", stack)
        report.tell(
            f"node-a and node-b with {len(cluster.pods) + 1} pods, and hosts outside; {time.monotonic() - began:.1f} s"
        )
        report.tell(f"manifests: a copy of {EXAMPLE.relative_to(CHECKOUT)}")
        proxy = Proxy(cluster.node, directory / "manifests", directory / "config.yaml")
        Demo(report, cluster, directory / "manifests", proxy).run()
        if report.broken:
            report.tell(f"nftproxy said:\n{proxy.log}")
    report.step(f"{time.monotonic() - began:.1f} s in all")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
