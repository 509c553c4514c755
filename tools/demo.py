"""A demonstration of nftproxy on a scratch node: `python -m tools.demo`, as root, takes some twenty seconds.

Two nodes, their pods and a client outside are network namespaces with real servers and clients in them.  The cluster is
examples/everything: every endpoint in its manifests is a pod here.  `nftproxy run` is a process of its own on node-a.
Every figure is measured.  A promise that isn't kept is marked, and makes the exit status 1.
"""

from __future__ import annotations

import ipaddress
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import yaml
from nftproxy_conformance.lab import RealHost, RealNetwork, obstacle, topology
from nftproxy_conformance.lab.echo import EchoAnswer

from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family, host_port, port_text
from tests.support.background import repeating
from tests.support.processes import CHECKOUT, AgentProcess, start_module
from tests.support.waiting import PATIENCE, wait_until

EXAMPLE = CHECKOUT / "examples" / "everything"

WEB, WEB6, CART, CART6 = "10.96.0.10", "fd00:96::10", "10.96.0.50", "fd00:96::50"
DNS, DNS6, EMPTY, EMPTY6 = "10.96.0.2", "fd00:96::2", "10.96.0.62", "fd00:96::62"
BALANCER, BALANCER6 = "203.0.113.7", "2001:db8:113::7"
WEB_NODE_PORT = 30080
HERE, THERE = ("node-a", "10.1.0.5", "fd00:1::5"), ("node-b", "10.1.1.5", "fd00:1:0:1::5")
"""Where web-2 is, and where web-4 will be."""

CONNECTIONS = 150
"""So many connections show how they spread over three pods: a pod with less than a third of a fair share is no
chance."""
ANSWER = PATIENCE / 6
"""Seconds in which an answer comes on a busy machine too."""
EDITS = 3
"""An odd number, so that web-4 is there in the end."""


# ---- the report ----------------------------------------------------------------------------------------------------


class Report:
    """Prints a line for each event, in colour on a terminal only.

    Attributes:
        broken: how many promises were not kept.
    """

    def __init__(self) -> None:
        self.broken = 0

    def step(self, text: str) -> None:
        """Print the heading of a step."""
        click.secho(f"\n{text}", bold=True)

    def note(self, text: str) -> None:
        """Print a line that promises nothing."""
        click.echo(f"         {text}")

    def promise(self, kept: bool, text: str) -> None:
        """Print an observation, and whether it keeps the promise."""
        self.broken += not kept
        mark = click.style("ok    ", fg="green") if kept else click.style("BROKEN", fg="red", bold=True)
        click.echo(f"  {mark} {text}")

    def end(self) -> int:
        """Print how it went.  Returns the exit status."""
        if self.broken:
            click.secho(f"\n{self.broken} promises were broken", fg="red", bold=True)
        else:
            click.secho("\nAll promises were kept.", fg="green")
        return 1 if self.broken else 0


class Result(NamedTuple):
    """The result of a connection: the answer or the error, when it ended, and how long it took (seconds)."""

    answer: EchoAnswer | None
    error: OSError | None
    ended: float
    seconds: float

    def __str__(self) -> str:
        if isinstance(self.error, TimeoutError):
            return "no answer"
        return str(self.error.strerror).lower() if self.error else f"answer of {self.answer}"


def attempt(ask: Callable[[], EchoAnswer]) -> Result:
    """Make a connection, and return its result."""
    began = time.monotonic()
    answer, error = None, None
    try:
        answer = ask()
    except OSError as raised:
        error = raised
    ended = time.monotonic()
    return Result(answer, error, ended, ended - began)


class Results:
    """The results of some connections."""

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


def connect(host: RealHost, address: str, port: int, protocol: str = "tcp", *, times: int = CONNECTIONS) -> Results:
    """Make some connections in a row."""
    return Results([attempt(lambda: host.ask(address, port, protocol, timeout=ANSWER)) for _ in range(times)])


class Traffic:
    """Connections that clients keep making in the background."""

    def __init__(self) -> None:
        self._results: list[Result] = []

    def connect(self, ask: Callable[[], EchoAnswer]) -> None:
        """Make another connection."""
        self._results.append(attempt(ask))

    def so_far(self) -> Results:
        """The results of all connections until now."""
        return Results(list(self._results))

    def since(self, moment: float) -> Results:
        """Wait until enough connections have begun after a moment to show how they spread, and return them."""

        def later() -> list[Result]:
            return [result for result in list(self._results) if result.ended - result.seconds > moment]

        with suppress(AssertionError):
            wait_until(lambda: len(later()) > CONNECTIONS)
        return Results(later())

    def first_answer(self, pod: str, since: float) -> Result | None:
        """Wait for the first answer of a pod since some time.  None if none comes."""

        def found() -> Result | None:
            answers = (each for each in list(self._results) if each.answer and each.answer.name == pod)
            return next((each for each in answers if each.ended > since), None)

        with suppress(AssertionError):
            wait_until(found)
        return found()


@contextmanager
def traffic(*asks: Callable[[], EchoAnswer]) -> Iterator[Traffic]:
    """Clients that keep making connections all the while."""
    made = Traffic()
    with ExitStack() as stack:
        for ask in asks:
            stack.enter_context(repeating(partial(made.connect, ask)))
        yield made


# ---- the cluster ---------------------------------------------------------------------------------------------------


class Pod(NamedTuple):
    """A pod as the EndpointSlices name it.  `ports` are of (number, protocol)."""

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
    """Two nodes with the pods of some manifests, and two hosts outside.

    Args:
        network: where they are.
        directory: has the manifests, which are edited, and the configuration.

    Attributes:
        agent: the agent of node-a.
        node: node-a.
        shopper: a pod on it that is a client.
        outside: a client outside.
        stranger: another client outside, which is in none of the load balancer's source ranges.
        pods: all pods by name, the shopper aside.
    """

    def __init__(self, network: RealNetwork, directory: Path) -> None:
        self.manifests = directory / "manifests"
        self._nodes = {name: network.node(name) for name in (topology.NODE_NAME, "node-b")}
        self.node = self._nodes[topology.NODE_NAME]
        self.shopper = self.node.pod("shopper", "10.1.0.200", "fd00:1::c8")
        self.outside = network.host("outside", "198.51.100.7", "2001:db8:100::7")
        self.stranger = network.host("stranger", "192.0.2.7", "2001:db8:bad::7")
        self._nodes["node-b"].serve(6443)  # the API server
        self.agent = AgentProcess(self.node.node, directory / "nftproxy.log")
        self._options = [f"--source={self.manifests}", f"--config={directory / 'config.yaml'}"]
        self._options += [f"--hostname-override={topology.NODE_NAME}"]
        self.pods: dict[str, RealHost] = {}
        for pod in pods_of(each for each in manifests(self.manifests) if each["kind"] == "EndpointSlice"):
            self.add(pod)

    def add(self, pod: Pod) -> None:
        """Start a pod with its servers."""
        host = self._nodes[pod.node].pod(pod.name, pod.address, pod.address6)
        for port, protocol in pod.ports:
            if protocol != "sctp":  # few kernels have its sockets
                host.serve(port, protocol)
        self.pods[pod.name] = host

    def start_agent(self) -> float:
        """Start the agent, and wait until its tables are there.  Returns the seconds.

        Raises:
            AssertionError: the tables don't come.  The message has its log.
        """
        began = time.monotonic()
        self.agent.launch(*self._options)
        wait_until(lambda: self.agent.has_died or self.tables() == len(Family), self.agent.log, pause=0.005)
        assert not self.agent.has_died, self.agent.log()
        return time.monotonic() - began

    def clients(self) -> list[RealHost]:
        """The pods on node-a."""
        return [self.shopper, *(pod for pod in self.pods.values() if pod.address.startswith("10.1.0."))]

    def elements(self) -> int:
        """How many elements the kernel of node-a holds in our tables, 0 without tables."""
        kernel = Kernel()
        return self.node.node.call(lambda: sum(len(kernel.elements(family)) for family in Family))

    def tables(self) -> int:
        """How many of our tables the kernel of node-a holds."""
        kernel = Kernel()
        return self.node.node.call(lambda: sum(kernel.read_back(family) is not None for family in Family))


# ---- the steps -----------------------------------------------------------------------------------------------------


class Demo:
    """The steps, in the order in which they are shown.

    Args:
        report: prints each promise.
        cluster: where it happens.
    """

    def __init__(self, report: Report, cluster: Cluster) -> None:
        self.report = report
        self.cluster = cluster

    def run(self) -> None:
        """Show everything."""
        for step in (self.load, self.connect, self.refuse, self.edit, self.stick, self.stop, self.clean_up):
            step()

    def load(self) -> None:
        """The rules come."""
        self.report.step("Rules: nftproxy run --source manifests --hostname-override node-a")
        try:
            seconds = self.cluster.start_agent()
        except AssertionError as error:
            self.report.promise(kept=False, text=f"nftproxy has not loaded its rules; its log:\n{error}")
            raise SystemExit(self.report.end()) from error
        count = self.cluster.elements()
        text = f"{seconds:.2f} s after the start of the process the kernel holds {count} elements in 2 tables"
        self.report.promise(count > 0, text)

    def connect(self) -> None:
        """Connections of all kinds arrive."""
        self.report.step(f"Connections, {CONNECTIONS} each")
        node, shopper, outside = self.cluster.node, self.cluster.shopper, self.cluster.outside
        web, dns = ("web-1", "web-2", "web-3"), ("coredns-1", "coredns-2")
        for host, way, address, port, protocol, pods in (
            (shopper, "pod -> ClusterIP", WEB, 80, "tcp", web),
            (shopper, "pod -> ClusterIP", WEB6, 80, "tcp", web),
            (node, "node -> ClusterIP", WEB, 80, "tcp", web),
            (shopper, "pod -> ClusterIP", DNS, 53, "udp", dns),
            (shopper, "pod -> ClusterIP", DNS6, 53, "udp", dns),
            (outside, "outside -> node port", node.address, WEB_NODE_PORT, "tcp", web),
            (outside, "outside -> node port", node.address6, WEB_NODE_PORT, "tcp", web),
        ):
            results = connect(host, address, port, protocol)
            self._promise(results.spread_over(*pods), way, address, str(results), port, protocol)
        self.balance()

    def balance(self) -> None:
        """Policy Local: clients outside reach the pod on this node with their address kept, pods reach any."""
        shopper, outside = self.cluster.shopper, self.cluster.outside
        for address, client in ((BALANCER, outside.address), (BALANCER6, outside.address6)):
            results = connect(outside, address, 443)
            kept = results.spread_over("gateway-1") and set(results.clients) == {client}
            text = f"{results}, on this node; it sees {', '.join(results.clients)}"
            self._promise(kept, "outside -> balancer", address, text, 443)
            results = connect(shopper, address, 443)
            text = f"{results}: policy Local is not for them"
            self._promise(results.spread_over("gateway-1", "gateway-2"), "pod -> balancer", address, text, 443)

    def refuse(self) -> None:
        """Connections that can't be served are rejected at once, and connections that aren't allowed are dropped."""
        self.report.step("No endpoints, and no admission")
        for host, name, address in (
            (self.cluster.shopper, "pod", EMPTY),
            (self.cluster.shopper, "pod", EMPTY6),
            (self.cluster.node, "node", EMPTY),
        ):
            result = attempt(partial(host.ask, address, 80, timeout=ANSWER))
            kept = isinstance(result.error, ConnectionRefusedError)
            self._promise(kept, f"{name} -> no endpoints", address, f"{result} after {result.seconds * 1000:.1f} ms")
        result = attempt(lambda: self.cluster.stranger.ask(BALANCER, 443, timeout=0.5))
        text = f"{result} for {result.seconds:.1f} s, as {self.cluster.stranger.address} is in no source range"
        self._promise(isinstance(result.error, TimeoutError), "stranger -> balancer", BALANCER, text, 443)

    def edit(self) -> None:
        """A manifest is edited while clients keep connecting."""
        self.report.step(
            "Edits under load: in manifests/web.yaml, web-2 gives way to web-4, comes back, and goes again"
        )
        web2, web4 = (Pod(f"web-{i}", *where, frozenset({(8080, "tcp")})) for i, where in ((2, HERE), (4, THERE)))
        self.cluster.add(web4)
        node, shopper, outside = self.cluster.node, self.cluster.shopper, self.cluster.outside
        milliseconds: list[float] = []
        with traffic(
            lambda: shopper.ask(WEB, 80, timeout=ANSWER),
            lambda: shopper.ask(WEB6, 80, timeout=ANSWER),
            lambda: outside.ask(node.address, WEB_NODE_PORT, timeout=ANSWER),
        ) as made:
            for gone, new in itertools.islice(itertools.cycle([(web2, web4), (web4, web2)]), EDITS):
                time.sleep(1.1)  # longer than nftables.minSyncPeriod by default
                closed = replace_pod(self.cluster.manifests / "web.yaml", gone, new)
                first = made.first_answer(new.name, closed)
                milliseconds.append((first.ended - closed) * 1000 if first else float("inf"))
            later = made.since(first.ended if first else time.monotonic())
        slowest = max(result.seconds for result in made.so_far().results) * 1000
        self._promise_no_loss("a pod and a host outside", made.so_far(), f" (the longest took {slowest:.0f} ms)")
        self.report.promise(
            max(milliseconds) < float("inf"),
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
            text = f"{len(strays)} clients saw more than one pod; clients by pod: "
            text += ", ".join(f"{pod} {count}" for pod, count in sorted(pods.items()))
            self._promise(not failed and not strays and len(pods) > 1, "pod -> ClusterIP", address, text)

    def stop(self) -> None:
        """The agent stops, its rules stay."""
        self.report.step("SIGTERM to nftproxy, while a pod keeps connecting")
        before = self.cluster.elements()
        with traffic(lambda: self.cluster.shopper.ask(WEB, 80, timeout=ANSWER)) as made:
            began = time.monotonic()
            self.cluster.agent.terminate()
            status = self.cluster.agent.await_end()
            took = time.monotonic() - began
            made.since(began + took)
        self.report.promise(status == 0, f"the process ended with status {status} after {took * 1000:.0f} ms")
        after = self.cluster.elements()
        self.report.promise(before == after > 0, f"the rules are still there: {after} elements")
        self._promise_no_loss("the pod", made.so_far())

    def clean_up(self) -> None:
        """The rules go at the command to clean up."""
        self.report.step("nftproxy cleanup")
        node = self.cluster.node.node
        cleanup = start_module(node, "nftproxy", "cleanup", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        status = cleanup.wait(PATIENCE)
        left = self.cluster.tables()
        self.report.promise(status == 0 and not left, f"it ended with status {status}; {left} tables are left")
        result = attempt(lambda: self.cluster.shopper.ask(WEB, 80, timeout=0.5))
        self._promise(bool(result.error), "pod -> ClusterIP", WEB, str(result))

    def _promise(self, kept: bool, way: str, address: str, text: str, port: int = 80, protocol: str = "tcp") -> None:
        """Print a promise about connections to an address."""
        self.report.promise(kept, f"{way:22}{port_text(host_port(address, port), protocol):28}{text}")

    def _promise_no_loss(self, clients: str, results: Results, more: str = "") -> None:
        """Print whether connections were made all the while, and none of them failed."""
        kept = not results.failed and len(results.results) > CONNECTIONS
        text = f"{clients} made {len(results.results)} connections, {len(results.failed)} failed{more}"
        self.report.promise(kept, text)


def replace_pod(file: Path, gone: Pod, new: Pod) -> float:
    """Put a pod in the place of another in a manifest's slices.  Returns when the file was closed."""
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
def scratch() -> Iterator[Cluster]:
    """A cluster with a copy of the example."""
    with tempfile.TemporaryDirectory(prefix="nftproxy-demo-") as name, RealNetwork() as network:
        shutil.copytree(EXAMPLE, name, dirs_exist_ok=True)
        yield Cluster(network, Path(name))


def main() -> int:
    """Show everything.  Returns the exit status: 1 if a promise was broken, 2 if nothing could be shown."""
    if why := obstacle():
        click.echo(why, err=True)
        return 2
    report = Report()
    began = time.monotonic()
    report.step("A scratch cluster: network namespaces with real servers and clients")
    with scratch() as cluster:
        seconds = time.monotonic() - began
        report.note(f"node-a and node-b with {len(cluster.pods) + 1} pods, and hosts outside; {seconds:.1f} s")
        report.note(f"manifests: a copy of {EXAMPLE.relative_to(CHECKOUT)}")
        Demo(report, cluster).run()
        if report.broken:
            report.note(f"the log of nftproxy:\n{cluster.agent.log()}")
        report.step(f"{time.monotonic() - began:.1f} s in all")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
