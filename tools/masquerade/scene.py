"""The network of a run, and the run itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from subprocess import PIPE
from typing import NamedTuple

import msgspec
from nftproxy_conformance.lab import Namespace, RealHost, RealNetwork, RealNode

from tests.support.factories import pipeline, service, slice_of
from tests.support.processes import start_module
from tools.masquerade import counters
from tools.masquerade.client import Orders, Result, total

VIP, BALANCED, PORT, POD_PORT = "10.96.0.10", "203.0.113.7", 80, 8080
PODS = 2
FRONTS = {"node": VIP, "pod": BALANCED, "outside": BALANCED}
"""By where clients are, an address of the Service for which they are masqueraded."""
DIRECTLY = "directly"
WAYS = (DIRECTLY, "masquerade", "masquerade random", "masquerade fully-random")


class Run(NamedTuple):
    """The setup of a run: the clients (number, place), how they ask, and how they are masqueraded."""

    origin: str
    clients: int
    protocol: str
    rate: float
    way: str
    seconds: float = 60.0


class Outcome(NamedTuple):
    """The outcome of a run: the clients' results, and the kernel's counters of TCP and connection tracking."""

    result: Result
    clients: Counter[str]
    pods: Counter[str]
    tracked: Counter[str]


def measure(run: Run) -> Outcome:
    """Make a network, do the run in it, and remove it."""
    with RealNetwork() as network, ExitStack() as stack:
        node = network.node()
        pods = [node.pod(f"web-{each}", f"10.1.0.{4 + each}", f"fd00:1::{4 + each:x}") for each in range(PODS)]
        for pod in pods:
            stack.enter_context(serving(pod, run.protocol, pod.address))
        namespace, sources = _clients(network, node, run)
        node.load(rules(run, [pod.address for pod in pods]))
        servers = [(pod.address, POD_PORT) for pod in pods] if run.way == DIRECTLY else [(FRONTS[run.origin], PORT)]
        before = counters.tcp(namespace)
        result = _ask(namespace, Orders(run.protocol, sources, tuple(servers), run.rate, run.seconds))
        clients = counters.tcp(namespace) - before
        seen = sum((counters.tcp(pod.namespace) for pod in pods), Counter())
        return Outcome(result, clients, seen, counters.conntrack(node.node))


def rules(run: Run, pods: Sequence[str]) -> str:
    """The rules of a Service with these pods, with the run's statement for ours."""
    fronts, targets = [f"main:{PORT}/{run.protocol}"], [f"main:{POD_PORT}/{run.protocol}"]
    told = service(cluster_ips=[VIP], ports=fronts, type="LoadBalancer", load_balancer_ips=[BALANCED])
    made = pipeline(told, slice_of(endpoints=[f"{pod}@node-a" for pod in pods], ports=targets))
    text = made.full_transaction({}).text
    if run.way == DIRECTLY:
        return text
    return re.sub(r"\bmasquerade(?: fully-random)?(?= comment)", run.way, text)


def _clients(network: RealNetwork, node: RealNode, run: Run) -> tuple[Namespace, tuple[str, ...]]:
    """Return the clients' namespace and addresses, none where the kernel is to choose."""
    if run.origin == "node":
        return node.node, ()
    if run.origin == "pod":
        host, form = node.pod("client", "10.1.0.99", "fd00:1::99"), "10.1.0.{}"
    else:
        host, form = network.host("client", "198.51.100.99", "2001:db8:100::99"), "198.51.100.{}"
    if run.clients == 1:
        return host.namespace, ()
    sources = tuple(form.format(100 + each) for each in range(run.clients))
    host.add_addresses(*sources)
    return host.namespace, sources


@contextmanager
def serving(pod: RealHost, protocol: str, address: str) -> Iterator[None]:
    """Have a server listen on `POD_PORT` of an address of a pod."""
    arguments = (protocol, address, str(POD_PORT))
    server = start_module(pod.namespace, "tools.masquerade.server", *arguments, stdout=PIPE, bufsize=0)
    with server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline()
            yield
        finally:
            server.kill()


def _ask(namespace: Namespace, orders: Orders) -> Result:
    """Have the orders carried out: by two processes, if there are two clients, as only these may meet in the kernel."""
    parts = [orders.sources[::2], orders.sources[1::2]] if len(orders.sources) > 1 else [orders.sources]
    each = [msgspec.structs.replace(orders, sources=part, rate=orders.rate / len(parts)) for part in parts]
    clients = [(order, start_module(namespace, "tools.masquerade.client", stdin=PIPE, stdout=PIPE)) for order in each]
    with ThreadPoolExecutor() as threads:
        answers = threads.map(lambda pair: pair[1].communicate(msgspec.json.encode(pair[0]))[0], clients)
    return total([msgspec.json.decode(answer, type=Result) for answer in answers])
