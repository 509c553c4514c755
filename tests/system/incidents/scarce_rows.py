"""More incidents of README.md: an agent that lacks CPU, memory, a thread or the fast path."""

from __future__ import annotations

import importlib
import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from nftproxy.extensions.fast_path.rules import FAST_PATH_TABLE
from tests.support.cgroups import cpu_limited, memory_limited
from tests.support.waiting import wait_until
from tests.system.faults.bench import Bench, endpoints, service
from tests.system.faults.test_life import LOADED
from tests.system.incidents.rows import FINE, HTTP, PODS, WELL, Harm, Incident, drops, noted, table, web
from tests.system.incidents.stress_rows import is_traced, threads

# Damage


def with_cpus(cpus: float) -> Harm:
    """A cgroup allows the agent this much of a CPU."""

    @contextmanager
    def harm(bench: Bench) -> Iterator[None]:
        with cpu_limited(bench.process_id, cpus):
            yield
        bench.wait_until(lambda: "NFT026" not in bench.command("status").out)

    return harm


@contextmanager
def killed_for_memory(bench: Bench) -> Iterator[None]:
    """The agent grows beyond the memory limit of its cgroup, and the kernel kills it."""
    numbers = itertools.count(1000)

    def grow() -> bool:
        for number in itertools.islice(numbers, 50):
            bench.server.put(service(number), endpoints(number))
        return bench.has_died

    with memory_limited(bench.process_id, 2**20):
        wait_until(grow, bench.log, pause=0.1)
        bench.await_end()
    for kind in ("Service", "EndpointSlice"):
        for each in bench.server.objects(kind):
            if re.match(r"s\d{4}", name := each["metadata"]["name"]):
                bench.server.delete(kind, "shop", name)
    yield
    bench.start()
    bench.wait_until_right()


@contextmanager
def restarted_after_that(bench: Bench) -> Iterator[None]:
    """The agent was killed for its memory, and runs again."""
    with killed_for_memory(bench):
        pass
    yield


@contextmanager
def thread_hangs(bench: Bench) -> Iterator[None]:
    """The thread that reads the kubeconfig again hangs at it, as on a file server that is away."""
    delay = ["-P", str(bench.kubeconfig), "-e", "trace=openat", "-e", "inject=openat:delay_enter=1000s"]
    command = ["strace", "-f", "-q", "-p", str(bench.process_id), "-o", "/dev/null", *delay]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        wait_until(lambda: all(map(is_traced, threads(bench.process_id))))
        try:
            yield
        finally:
            tracer.terminate()
    bench.wait_until(lambda: "NFT025" not in bench.command("status").out)


@contextmanager
def fast_path_refused(bench: Bench) -> Iterator[None]:
    """The kernel refuses the table of the fast path, as another program owns a table of its name."""

    def take() -> Callable[[str], tuple[int, str, str]]:
        command: Callable[[str], tuple[int, str, str]] = importlib.import_module("nftables").Nftables().cmd
        status, _, error = command(f"add table inet {FAST_PATH_TABLE} {{ flags owner; }}")
        assert status == 0, error
        return command

    owner = bench.lab.node.call(take)
    fields: dict[str, Any] = {"nftproxy": {**bench.configuration["nftproxy"], "fastPath": {"interfaces": ["*"]}}}
    with bench.logging(LOADED):
        bench.config_map.update(yaml.safe_dump(bench.configuration | fields))
    try:
        yield
    finally:
        del owner
    with bench.logging(LOADED):
        bench.config_map.update(yaml.safe_dump(bench.configuration))
    bench.wait_until_right()


@contextmanager
def fast_path_refused_and_drop(bench: Bench) -> Iterator[None]:
    """The kernel refuses the fast path, and a firewall drops the packets of connections that are there."""
    with fast_path_refused(bench), table(drops(10, "tcp dport 8080 drop"))(bench):
        yield


@contextmanager
def without_new_sockets(bench: Bench) -> Iterator[None]:
    """The kernel gives the threads that look at the node no further socket, so they can't read connection tracking.

    The agent's first thread, which has the connections to the API, gets sockets.
    """
    looking = [each for each in threads(bench.process_id) if each.name != str(bench.process_id)]
    named = [f"--attach={each.name}" for each in looking]
    command = ["strace", "-q", *named, "-o", "/dev/null", "-e", "inject=socket:error=ENOBUFS"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        wait_until(lambda: all(map(is_traced, looking)))
        try:
            yield
        finally:
            tracer.terminate()
    bench.wait_until(lambda: "NFT422" not in bench.command("status").out)


# Incidents

BALANCED = (noted(web(), algorithm="least-connections"), PODS)
SCARCE = [
    Incident(
        "agent has five per cent of a CPU",
        "status",
        ("NFT026", "its cgroup allows it 0.05 CPUs, and stopped it in"),
        FINE,
        with_cpus(0.05),
        WELL[1:],
        is_dear=True,
    ),
    Incident(
        "the kernel kills the agent for its memory",
        "status",
        ("no nftproxy runs", "the kernel killed an agent", "memory limit of its cgroup"),
        FINE,
        killed_for_memory,
        WELL,
        1,
        is_dear=True,
    ),
    Incident(
        "it was killed for its memory, and runs again",
        "status",
        ("healthy; node", "up for"),
        FINE,
        restarted_after_that,
        is_dear=True,
    ),
    Incident(
        "one thread hangs",
        "status",
        ("NFT025", "credentials_fault", "takes more than"),
        FINE,
        thread_hangs,
        WELL[1:],
        is_dear=True,
    ),
    Incident(
        "fast path is refused",
        HTTP,
        ("NFT421", "all packets of a connection pass all chains"),
        FINE,
        fast_path_refused,
        ("takes the fast path",),
        is_dear=True,
    ),
    Incident(
        "fast path is refused, and a firewall drops",
        f"{HTTP} --trace",
        ("NFT421", "all packets of a connection pass all chains", "chain f of the table firewall"),
        FINE,
        fast_path_refused_and_drop,
        ("takes the fast path",),
        1,
        is_dear=True,
    ),
    Incident(
        "connections can't be counted",
        "status",
        ("NFT422", "endpoints keep their shares of connections"),
        BALANCED,
        without_new_sockets,
        WELL[1:],
        is_dear=True,
    ),
    Incident("fast path is refused, by status", "status", ("NFT421",), FINE, fast_path_refused, WELL[1:], is_dear=True),
]
"""Incidents of the agent's resources."""
