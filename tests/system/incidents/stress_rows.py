"""More incidents of README.md: a machine that is slow, full, or wrong about the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.cluster import IP
from tests.support.processes import CHECKOUT, kill
from tests.support.waiting import wait_until
from tests.system.e2e.objects import service_cidr
from tests.system.faults.bench import Bench
from tests.system.incidents.rows import FINE, METRICS, PODS, WELL, Incident, noted, web

# Damage


@contextmanager
def another_agent(
    bench: Bench,
    environment: dict[str, str],
    program: str = "tests.system.faults.hasty",
    stderr: Any = None,
    arguments: Sequence[str] = (),
) -> Iterator[subprocess.Popen[Any]]:
    """An agent with another environment, program or log takes the place of the usual agent, which starts again."""
    bench.stop()
    command = [sys.executable, "-m", program, "run", *bench.options, *arguments]
    given = os.environ | {"PYTHONPATH": str(CHECKOUT)} | environment
    with bench.log_path.open("a") as log:
        process = bench.lab.node.popen(command, cwd=CHECKOUT, env=given, stdout=log, stderr=stderr or log)
    try:
        bench.wait_until_right()
        bench.wait_until(lambda: bench.command("status").status == 0)
        yield process
    finally:
        kill(process)
    bench.start()
    bench.wait_until_right()


@contextmanager
def slow_kernel(bench: Bench) -> Iterator[None]:
    """The kernel takes 20 s for each transaction of libnftables."""
    delay = ["-e", "trace=sendmsg", "-e", "inject=sendmsg:delay_enter=20s"]
    command = ["strace", "-f", "-q", "-p", str(bench.process_id), "-o", "/dev/null", *delay]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        wait_until(lambda: all(map(is_traced, threads(bench.process_id))))
        bench.server.put(service_cidr("more", "10.99.0.0/24"))
        try:
            yield
        finally:
            tracer.terminate()
    bench.server.delete("ServiceCIDR", "", "more")
    bench.wait_until_right()


def threads(process: int) -> list[Path]:
    """The threads of a process, as files below /proc."""
    return list(Path(f"/proc/{process}/task").iterdir())


def is_traced(thread: Path) -> bool:
    """Whether another program traces a thread."""
    return "TracerPid:\t0\n" not in (thread / "status").read_text()


@contextmanager
def clock_jumps(bench: Bench) -> Iterator[None]:
    """The agent's wall clock jumps by an hour."""
    with TemporaryDirectory() as directory:
        clock = Path(directory) / "clock"
        clock.write_text("0")
        with another_agent(bench, {"CLOCK": str(clock)}, "tests.system.incidents.jumping_clock"):
            (Path(directory) / "new").write_text("3600")
            (Path(directory) / "new").rename(clock)
            yield


@contextmanager
def disk_full(bench: Bench) -> Iterator[None]:
    """The agent's log is on a full disk, as are its temporary files."""
    with Path("/dev/full").open("w") as full, another_agent(bench, {"TMPDIR": "/proc"}, stderr=full):
        yield


@contextmanager
def limit_set_full(bench: Bench) -> Iterator[None]:
    """The set of clients of a limit of connections has no room for another client."""
    clients = (str(IPv4Address("198.18.0.0") + number) for number in range(65_536))
    elements = ", ".join(f"{each} . {IP.vip} . tcp . 80" for each in clients)
    bench.lab.load(f"add element ip nftproxy connections-5 {{ {elements} }}")
    yield
    bench.lab.load("flush set ip nftproxy connections-5")


@contextmanager
def affinity_map_full(bench: Bench) -> Iterator[None]:
    """The map of remembered clients, which has room for two in the agent's templates, has no room for another."""
    with TemporaryDirectory() as directory:
        copied = copytree(CHECKOUT / "templates", Path(directory) / "templates")
        template = copied / "endpoints.nft.j2"
        template.write_text(template.read_text().replace("size 1048576", "size 2"))
        with another_agent(bench, {}, arguments=("--templates", str(copied))):
            clients = ", ".join(f"198.18.0.{number} . {IP.vip} . 80 : {IP.here}" for number in (1, 2))
            bench.lab.load(f"add element ip nftproxy tcp-affinity-10800 {{ {clients} }}")
            yield


@contextmanager
def without_descriptors(bench: Bench) -> Iterator[None]:
    """The agent has all of its file descriptors open."""
    with another_agent(bench, {}, "tests.system.faults.leaky") as process:
        os.kill(process.pid, signal.SIGUSR1)
        yield
        os.kill(process.pid, signal.SIGUSR2)


# Incidents

STRESS = [
    Incident(
        "kernel is slow", "status", ("NOT HEALTHY", "a change waits for"), (), slow_kernel, WELL[:1], 1, is_dear=True
    ),
    Incident(
        "clients of a limit are too many",
        "status",
        ("connections-5: FULL", "without a limit"),
        (noted(web(), client_connections="5"), PODS),
        limit_set_full,
        is_dear=True,
    ),
    Incident(
        "clients of session affinity are too many",
        "status",
        ("tcp-affinity-10800: FULL", "but not remembered"),
        (web(sessionAffinity="ClientIP"), PODS),
        affinity_map_full,
        is_dear=True,
    ),
    Incident(
        "agent has no file descriptor left",
        "status",
        ("NFT020", "no file descriptor is left"),
        FINE,
        without_descriptors,
        WELL[1:],
        is_dear=True,
    ),
    Incident(
        "clock jumps by an hour",
        "status",
        ("healthy; node", "Warnings: none"),
        FINE,
        clock_jumps,
        ("NFT509", "OUT OF TOUCH"),
        is_dear=True,
    ),
    Incident(
        "log is on a full disk",
        METRICS,
        ("nftproxy_log_lines_dropped_total",),
        FINE,
        disk_full,
        ("nftproxy_log_lines_dropped_total 0",),
        is_dear=True,
    ),
]
"""Incidents of the machine."""
