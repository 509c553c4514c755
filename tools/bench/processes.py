"""The API server and the agent, each a process of its own in the node's namespace, and what they cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from nftproxy.lab import Namespace
from tools.bench.cluster import CLUSTER_CIDR, NODE, SERVICE_CIDR

CHECKOUT = Path(__file__).resolve().parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
STARTING = 300.0  # seconds that a server may take to read its objects


def start(namespace: Namespace, arguments: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Start one of our programs, `python -m` what the arguments say."""
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    return namespace.popen([sys.executable, "-m", *arguments], cwd=CHECKOUT, env=environment, **options)


class ApiProcess:
    """`python -m nftproxy.lab.apiserver`, once it has its objects and listens.

    Args:
        namespace: the node's.
        manifests: the file with its objects.
        directory: where it writes a kubeconfig, and its log.
    """

    def __init__(self, namespace: Namespace, manifests: Path, directory: Path) -> None:
        self.kubeconfig = directory / "kubeconfig"
        log = (directory / "apiserver.log").open("w")
        arguments = ["nftproxy.lab.apiserver", "--manifests", str(manifests), "--kubeconfig", str(self.kubeconfig)]
        arguments += ["--service-cidr", SERVICE_CIDR]
        self._process = start(namespace, arguments, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("http"), (directory / "apiserver.log").read_text()
        self.port = int(line.rpartition(":")[2])

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(STARTING)


class AgentProcess:
    """`nftproxy run`, with the configuration that a node has.

    Args:
        namespace: the node's.
        kubeconfig: of the API server.
        directory: for its configuration and log.
        profile: where cProfile's figures go when it ends, None for no profile.
    """

    def __init__(self, namespace: Namespace, kubeconfig: Path, directory: Path, profile: Path | None = None) -> None:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": NODE,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": CLUSTER_CIDR,
        }
        path = directory / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        self._log = directory / "agent.log"
        profiler = ["cProfile", "-o", str(profile), "-m"] if profile else []
        self.began = time.monotonic()
        with self._log.open("a") as log:
            arguments = [*profiler, "nftproxy", "run", "--config", str(path)]
            self._process = start(namespace, arguments, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text()

    def check(self) -> None:
        """It runs, and has said nothing that is wrong."""
        assert self._process.poll() is None, self.log
        wrong = [line for line in self.log.splitlines() if " ERROR " in line or line.startswith("Traceback")]
        assert not wrong, self.log

    def stop(self) -> None:
        """End it as the kubelet does."""
        self.check()
        self._process.terminate()
        assert self._process.wait(20) == 0, self.log

    def kill(self) -> None:
        """End it whatever it does."""
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """The process and all that it has started."""
        return list(_family(self._process.pid))

    @property
    def cpu(self) -> float:
        """User and system time of all of them so far, in seconds."""
        return sum(map(_cpu, self.pids))

    @property
    def resident(self) -> int:
        """Resident memory of all of them, in bytes."""
        return sum(_memory(pid, "VmRSS") for pid in self.pids)

    @property
    def peak(self) -> int:
        """The greatest that resident memory has been, in bytes."""
        return sum(_memory(pid, "VmHWM") for pid in self.pids)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                yield from _family(int(child))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS  # proc(5): utime and stime


def _memory(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
