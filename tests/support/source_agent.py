"""`nftproxy run` with manifests instead of an API server, in a network namespace of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.support import objects
from tests.support.processes import KilledAtEnd
from tests.support.waiting import wait_until

CONFIG = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.1.0.0/16
"""


class SourceAgent(KilledAtEnd):
    """The agent's process.  A context manager.

    Args:
        directory: the directory of its files.
        unshare: the options of unshare(1) for its namespaces.
        more: further fields of its configuration, in YAML.
        options: further arguments of `Popen`.
    """

    def __init__(self, directory: Path, *unshare: str, more: str = "", **options: Any) -> None:
        self._manifests = directory / "manifests"
        self._manifests.mkdir()
        self.log = directory / "log"
        self.log.touch()
        self.socket_path = directory / "agent.sock"
        (directory / "config.yaml").write_text(CONFIG + more)
        self._arguments = ["--config", str(directory / "config.yaml"), "--hostname-override", "node-a"]
        self._arguments += ["--source", str(self._manifests), "--agent-socket", str(self.socket_path)]
        self._unshare = unshare
        self._options = options

    def __enter__(self) -> Self:
        command = ["unshare", *self._unshare, sys.executable, "-m", "nftproxy", "run", *self._arguments]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(command, **{"stderr": log} | self._options)
        self._inside: tuple[str, ...] = ("nsenter", "--net", "--target", str(self._process.pid))
        if "--user" in self._unshare:
            self._inside += ("--user",)
        return self

    def write(self, *addresses: str) -> None:
        """Have a Node and a Service for each address instead of all objects before."""
        items = [objects.node("node-a", "192.168.0.2")]
        items += [
            objects.service(f"s{number}", {"clusterIP": address}, ports=[{"port": 80}])
            for number, address in enumerate(addresses)
        ]
        fresh = self._manifests / "new"
        fresh.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        fresh.rename(self._manifests / "objects.json")

    def run(self, *command: str) -> str:
        """Run a command in the agent's namespaces, and return its output."""
        return subprocess.run([*self._inside, *command], capture_output=True, text=True, check=False).stdout

    def wait_until_served(self, address: str) -> None:
        """Wait until the kernel has the Service of an address."""

        def is_served() -> bool:
            assert self._process.poll() is None, self.log.read_text()
            return f"{address} . tcp . 80" in self.run("nft", "list", "map", "ip", "nftproxy", "services")

        wait_until(is_served, self.log.read_text)

    def stop(self) -> int:
        """End the agent by SIGTERM, and return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)
