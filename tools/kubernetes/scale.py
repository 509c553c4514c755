"""nftproxy and kube-proxy by turns in a cluster of any size: a real API server, and no pods.

Both have the same configuration, and both say in their metrics when their first rules were in the kernel.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from nftproxy_conformance.lab.node import Node

from nftproxy.sources.documents import to_yaml
from tests.support import objects
from tests.support.background import repeating
from tests.support.processes import CHECKOUT, memory
from tests.support.waiting import wait_until
from tools.bench.changes import replacement
from tools.bench.cluster import (
    CLUSTER_CIDR,
    NAMESPACE,
    NODE,
    SPARE,
    Pod,
    Size,
    pods,
    service,
    slice_of,
)
from tools.bench.listener import Listener
from tools.kubernetes.api import credentials
from tools.kubernetes.binaries import Binaries
from tools.kubernetes.control_plane import RealControlPlane, free_ports
from tools.kubernetes.storage import store

HEADER = (
    "proxy", "cold start, s; of processor time", "a change, ms, p50; most", "processor time of a change, ms",
    "resident; at most, with children, MB", "load average",
)  # fmt: skip
LOCALHOST, METRICS_PORT = "127.0.0.1", 10249
STRIDE = 6_151
"""From one changed Service to the next: a prime, so that they are spread over all."""
SETTLING, PATIENCE = 20.0, 900.0
"""Seconds after the first rules, and for each step at most."""
SYNCED = re.compile(
    r'^kubeproxy_sync_proxy_rules_last_timestamp_seconds(?:\{ip_family="IPv4"\})? ([1-9].*)', re.MULTILINE
)
TICKS = os.sysconf("SC_CLK_TCK")


class Contender(NamedTuple):
    """A proxy: its command before `--config FILE`, and the map that has an element for each Service."""

    name: str
    command: tuple[str, ...]
    table: str
    services: str


def connected(node: Node, port: int) -> http.client.HTTPConnection:
    """A connection to a port of a node."""
    made = http.client.HTTPConnection(LOCALHOST, port)
    made.sock = node.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.sock.connect((LOCALHOST, port))
    made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Api:
    """Connections to the API server in the namespace of a node."""

    def __init__(self, node: Node, kubeconfig: Path) -> None:
        url, self._context, self._headers = credentials(kubeconfig)
        self._node, self._port = node, int(url.rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection to the API server."""
        made = connected(self._node, self._port)
        made.sock = self._context.wrap_socket(made.sock, server_hostname=LOCALHOST)
        return made

    def write(self, over: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any]) -> float:
        """Write an object, and return when the API server had answered, by the monotonic clock."""
        body["metadata"].pop("uid", None)  # the API server's own counts
        over.request(method, path, json.dumps(body), {"Content-Type": "application/json", **self._headers})
        answer = over.getresponse()
        answered = time.monotonic()
        text = answer.read()
        assert answer.status < http.client.BAD_REQUEST, text
        return answered

    def has_cached(self, path: str) -> bool:
        """True if the API server has an object in its watch cache, from which lists come (resourceVersion=0)."""
        with contextlib.closing(self.connect()) as over:
            over.request("GET", f"{path}?resourceVersion=0", headers=self._headers)
            return over.getresponse().status == http.client.OK


def compare(
    binaries: Binaries, directory: Path, size: Size, turns: int, changes: int, say: Callable[[str], object]
) -> Iterator[tuple[str, ...]]:
    """A row of the table with `HEADER` for each turn of each proxy.

    Args:
        binaries: have kube-proxy.
        directory: for all files.
        size: of the cluster.
        turns: how often each proxy is started.
        changes: how many each start gets.
        say: reports progress.
    """
    contenders = (
        Contender("nftproxy", (sys.executable, "-m", "nftproxy", "run"), "nftproxy", "services"),
        Contender("kube-proxy", (binaries.path("kube-proxy"),), "kube-proxy", "service-ips"),
    )
    (port,) = free_ports(1)
    with (
        Node(NODE) as node,
        RealControlPlane(binaries, directory / "control-plane", LOCALHOST, port, start=node.popen) as control,
    ):
        api = fill(node, control, size)
        configuration = directory / "proxy.yaml"
        configuration.write_text(to_yaml([config(control.kubeconfig)]))
        fresh = iter(range(SPARE, SPARE << 1))
        for _ in range(turns):
            for each in contenders:
                with (directory / f"{each.name}.log").open("ab") as log:
                    command = [*each.command, "--config", str(configuration)]
                    process = node.popen(command, stdout=log, stderr=log, cwd=CHECKOUT)
                yield each.name, *_measure(node, api, process, each, size, islice(fresh, changes), say)
                process.kill()
                process.wait()
                node.reset()


def config(kubeconfig: Path) -> dict[str, Any]:
    """The configuration of both proxies."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": NODE,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": CLUSTER_CIDR,
        "conntrack": {"maxPerCore": 0, "min": 0},
    }


def fill(node: Node, control: RealControlPlane, size: Size) -> Api:
    """Start a control plane with all Services.  Service 0 has the address of the API server's own Service.

    They come after the API server, which ends if its first check of all Services takes a minute.  This returns once the
    API server's watch cache has them all.
    """
    control.start()
    api = Api(node, control.kubeconfig)
    with contextlib.closing(api.connect()) as over:
        api.write(over, "POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        api.write(over, "POST", "/api/v1/nodes", objects.node(NODE, "192.168.0.2", zone="a"))
    numbers = range(1, size.services + 1)
    made = (each for number in numbers for each in (service(number), slice_of(number, pods(size, number))))
    with contextlib.closing(connected(node, control.etcd_port)) as over:
        store(over, made)
    last = f"s{size.services}"
    paths = (
        f"/api/v1/namespaces/{NAMESPACE}/services/{last}",
        f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{last}-1",
    )
    wait_until(lambda: all(map(api.has_cached, paths)), lambda: f"no {last}", patience=PATIENCE, pause=0.2)
    return api


def _measure(
    node: Node,
    api: Api,
    process: subprocess.Popen[Any],
    contender: Contender,
    size: Size,
    fresh: Iterator[int],
    say: Callable[[str], object],
) -> tuple[str, ...]:
    began, most, times = time.time(), 0, list[float]()

    def look() -> None:
        nonlocal most
        most = max(most, memory(process.pid))

    with repeating(look, 0.05):
        wait_until(lambda: _synced(node) is not None, partial(str, contender.name), patience=PATIENCE, pause=0.1)
        cold, cold_work = (_synced(node) or 0) - began, processor_time(process.pid)
        say(f"{contender.name} has all rules after {cold:.1f} s, {cold_work:.1f} of processor time")
        time.sleep(SETTLING)
        listing = subprocess.PIPE
        listed = node.popen(
            ["nft", "list", "map", "ip", contender.table, contender.services], stdout=listing, text=True
        )
        assert str(listed.communicate()[0]).count(" : ") >= size.services, f"{contender.name} lacks Services"
        before = processor_time(process.pid)
        with Listener(node) as listener:
            for number in fresh:
                change = replacement(size, 1 + number * STRIDE % size.services, newcomer := Pod(number))
                over = api.connect()  # the API server closes connections that were idle for a slow change
                answered = api.write(over, change.method, change.path, change.body or {})
                needle = ipaddress.ip_address(newcomer.address).packed
                times.append(listener.wait((needle,), PATIENCE)[-1].time - answered)
                say(f"a change: {times[-1]:.3f} s")
                time.sleep(1.5)  # more than kube-proxy's minSyncPeriod
        work = (processor_time(process.pid) - before) / len(times)
    return (
        f"{cold:.1f}; {cold_work:.1f}",
        f"{1e3 * statistics.median(times):,.1f}; {1e3 * max(times):,.1f}",
        f"{1e3 * work:,.1f}",
        f"{memory(process.pid) / 1e6:.0f}; {most / 1e6:.0f}",
        f"{os.getloadavg()[0]:.1f}",
    )


def _synced(node: Node) -> float | None:
    """When the proxy's rules were last in the kernel, by the wall clock, None before the first time."""
    try:
        with contextlib.closing(connected(node, METRICS_PORT)) as over:
            over.request("GET", "/metrics")
            found = SYNCED.search(over.getresponse().read().decode())
    except OSError:
        return None
    return float(found[1]) if found else None


def processor_time(process_id: int) -> float:
    """The seconds of processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS  # proc(5): utime, stime, cutime, cstime
