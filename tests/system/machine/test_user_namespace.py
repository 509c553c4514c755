"""The agent in a user namespace, as with rootless k3s, kind and Sysbox: it is root only over its own network."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import objects
from tests.support.waiting import wait_until

UNSHARE = ("unshare", "--user", "--map-root-user", "--net")
CONFIG = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.1.0.0/16
"""


def nft(process: int, *arguments: str) -> str:
    """Run nft in the namespaces of a process, and return its output."""
    inside = ("nsenter", "--user", "--net", "--target", str(process))
    return subprocess.run([*inside, "nft", *arguments], capture_output=True, text=True, check=False).stdout


def test_the_agent_serves(tmp_path: Path) -> None:
    """`run` loads the rules, follows changes, hears of foreign changes to its table, and ends by SIGTERM."""
    if subprocess.run([*UNSHARE, "true"], check=False).returncode:
        pytest.skip("this machine makes no user namespaces")
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (tmp_path / "config.yaml").write_text(CONFIG)
    write(manifests, "10.96.0.10")
    arguments = ["--config", str(tmp_path / "config.yaml"), "--hostname-override", "node-a", "--source", str(manifests)]
    arguments += ["--agent-socket", str(tmp_path / "agent.sock")]
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen([*UNSHARE, sys.executable, "-m", "nftproxy", "run", *arguments], stderr=log)

        def serves(address: str) -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            return f"{address} . tcp . 80" in nft(process.pid, "list", "map", "ip", "nftproxy", "services")

        try:
            wait_until(lambda: serves("10.96.0.10"), (tmp_path / "log").read_text)
            write(manifests, "10.96.0.10", "10.96.0.11")
            wait_until(lambda: serves("10.96.0.11"), (tmp_path / "log").read_text)
            nft(process.pid, "flush", "map", "ip", "nftproxy", "services")
            wait_until(lambda: serves("10.96.0.11"), (tmp_path / "log").read_text)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
            process.wait()


def write(manifests: Path, *addresses: str) -> None:
    """Write a Node and a Service for each address."""
    items = [objects.node("node-a", "192.168.0.2")]
    items += [
        objects.service(f"s{number}", {"clusterIP": address}, ports=[{"port": 80}])
        for number, address in enumerate(addresses)
    ]
    (manifests / "new").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (manifests / "new").rename(manifests / "objects.json")
