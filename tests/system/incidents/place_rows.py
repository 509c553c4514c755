"""More incidents of README.md: an agent in a wrong place, and a node whose interfaces lose packets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from nftproxy_conformance.lab import Namespace

from tests.support.processes import start_module
from tests.support.waiting import wait_until
from tests.system.faults.bench import Bench
from tests.system.incidents.night_rows import TAKEN
from tests.system.incidents.partial_rows import port_squatted
from tests.system.incidents.rows import DOCTOR, FINE, HTTP, WELL, Incident

CONFLICTS = "list conflicts -A -o wide"

# Damage


@contextmanager
def in_a_pods_namespace(bench: Bench) -> Iterator[None]:
    """The agent runs in a network namespace of its own, as without hostNetwork, and has its objects from manifests."""
    kinds = ("Node", "Service", "EndpointSlice", "ServiceCIDR")
    items = [each for kind in kinds for each in bench.server.objects(kind)]
    bench.stop()
    with TemporaryDirectory() as directory, Namespace("pod") as pod:
        (Path(directory) / "objects.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        arguments = ("tests.system.faults.hasty", "run", "--source", directory, *bench.options)
        with bench.log_path.open("a") as log, start_module(pod, *arguments, stdout=log, stderr=log) as agent:
            try:
                wait_until(lambda: "agent" in bench.command("status").out, bench.log)
                yield
            finally:
                agent.terminate()
                agent.wait()
    bench.start()
    bench.wait_until_right()


@contextmanager
def without_hairpin(bench: Bench) -> Iterator[None]:
    """A pod is at a port of the bridge cbr0 that sends nothing back."""
    if not Path("/proc/sys/net/bridge").exists():
        pytest.skip("br_netfilter is not loaded")
    bench.lab.node.sysctl({"bridge/bridge-nf-call-iptables": "1"})
    for command in ("add cbr0 type bridge", "add pod7 type veth peer name pod7b", "set pod7 master cbr0"):
        bench.lab.node.ip(f"link {command}")
    yield
    for name in ("cbr0", "pod7"):
        bench.lab.node.ip(f"link delete {name}")


@contextmanager
def with_a_narrow_tunnel(bench: Bench) -> Iterator[None]:
    """A tunnel takes smaller packets than a pod sends."""
    for command in ("pod7 type veth peer name pod7b", "vxlan7 mtu 1280 type vxlan id 7 dstport 4789 dev lo"):
        bench.lab.node.ip(f"link add {command}")
    yield
    for name in ("vxlan7", "pod7"):
        bench.lab.node.ip(f"link delete {name}")


# Incidents

NAMESPACES = ("NFT019", "works in another network namespace", "hostNetwork")
PLACE = [
    Incident(
        "agent is in a pod's namespace",
        "status",
        (*NAMESPACES, "no interface here has InternalIP"),
        FINE,
        in_a_pods_namespace,
        (*WELL, "NFT624"),
        is_mute=True,
    ),
    Incident(
        "agent is in a pod's namespace, by explain",
        HTTP,
        NAMESPACES,
        FINE,
        in_a_pods_namespace,
        ("NFT624",),
        is_mute=True,
        is_dear=True,
    ),
    Incident("bridge port without hairpin", DOCTOR, ("NFT642", "at the port pod7"), FINE, without_hairpin, (), 1),
    Incident("tunnel has a small MTU", DOCTOR, ("NFT643", "the MTU is 1280 at vxlan7"), FINE, with_a_narrow_tunnel),
    Incident(
        "health port is taken, by list",
        CONFLICTS,
        ("NFT009", "10256", "the agent's own port"),
        (),
        port_squatted,
        is_mute=True,
        is_dear=True,
    ),
    Incident("health check's port is taken, as a conflict", CONFLICTS, ("NFT010", "32000"), (), TAKEN),
]
"""Incidents of the place where the agent runs, and of the node's interfaces and ports."""
