"""A node: namespaces of its own, containerd, a kubelet, and pods on a bridge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from nftproxy_conformance.lab import Namespace

from nftproxy.kernel.others.processes import processes_called
from nftproxy.trace.links import add_addresses, join
from tests.support.waiting import wait_until
from tools.kubernetes.binaries import Binaries
from tools.kubernetes.control_plane import PATIENCE
from tools.kubernetes.images import PAUSE
from tools.kubernetes.layout import CONTROL, CONTROL6, DNS_SERVICE, NODES, NodePlace

NODE_SCRIPT = Path(__file__).with_name("node.sh")
INTERFACE = "eth0"
PREFIXES = NODES.partition("/")[2], "64"
CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Where oom scores can't be lowered, the kubelet's values are raised to the least that the machine allows.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{{directory}}"
"""


class ClusterNode:
    """A node of the cluster, from `start` on.

    Args:
        place: its name and addresses.
        directory: its files go there.
        fabric: the namespace that nodes are joined to.
    """

    def __init__(self, place: NodePlace, directory: Path, fabric: Namespace) -> None:
        self.place = place
        self.directory = directory
        self.namespace = Namespace(place.name)
        self.cgroup = f"nftproxy-{os.getpid()}-{place.name}"
        self._fabric = fabric
        directory.mkdir(parents=True)

    def start(self, binaries: Binaries, kubeconfig: Path) -> None:
        """Join the network, and start containerd and the kubelet, without waiting for them."""
        self._join()
        self._write_configuration()
        unshare = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
        script = [str(NODE_SCRIPT), self.place.name, self.cgroup, str(self.directory)]
        kubelet = [binaries.path("kubelet"), f"--kubeconfig={kubeconfig}"]
        kubelet.append(f"--node-ip={self.place.address},{self.place.address6}")
        with (self.directory / "node.log").open("ab") as log:
            self.namespace.popen([*unshare, *script, *kubelet], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self) -> str:
        """The end of the output of the node's programs."""
        return "".join(file.read_text(errors="replace")[-2000:] for file in sorted(self.directory.glob("*.log")))

    @cached_property
    def guest(self) -> Namespace:
        """A client among the node's pods, with an address of theirs.  The first pod brings the bridge that it joins."""
        made = Namespace(f"guest of {self.place.name}")
        address, gateway, length = self.place.guest
        made.ip("link set lo up")
        join(self.namespace, "guest", made, INTERFACE)
        self.namespace.ip("link set dev guest master cni0")
        add_addresses(made, INTERFACE, f"{address}/{length}")
        made.ip(f"route add default via {gateway}")
        return made

    def restart_kubelet(self) -> None:
        """Kill the kubelet, and wait until the next one is well."""
        (old,) = self._kubelets()
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: self._kubelets() not in ([], [old]) and self._kubelet_is_well(), self.log, patience=PATIENCE)

    def _kubelets(self) -> list[int]:
        """The kubelet's process, if it runs."""
        return self.namespace.call(lambda: [each.number for each in processes_called("kubelet")])

    def _kubelet_is_well(self) -> bool:
        command = ["curl", "--silent", "http://127.0.0.1:10248/healthz"]
        return str(self.namespace.popen(command, stdout=subprocess.PIPE, text=True).communicate()[0]) == "ok"

    def close(self) -> None:
        """End all of its processes, and remove its groups of processes."""
        if "guest" in vars(self):
            self.guest.close()
        self.namespace.close()
        trees = Path("/sys/fs/cgroup")
        for root in (*trees.glob(self.cgroup), *trees.glob(f"*/{self.cgroup}")):
            for group in (*sorted(root.rglob("*/"), reverse=True), root):
                wait_until(partial(_is_removed, group), partial(str, group))

    def _join(self) -> None:
        join(self._fabric, self.place.link, self.namespace, INTERFACE)
        self._fabric.ip(f"link set dev {self.place.link} master nodes")
        self.namespace.ip("link set lo up")
        self.namespace.sysctl({"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"})
        addresses = zip((self.place.address, self.place.address6), PREFIXES, strict=True)
        add_addresses(self.namespace, INTERFACE, *(f"{address}/{length}" for address, length in addresses))
        self.namespace.ip(f"route add default via {CONTROL}", f"route add default via {CONTROL6}")

    def _write_configuration(self) -> None:
        (self.directory / "containerd.toml").write_text(CONTAINERD.format(directory=self.directory))
        (self.directory / "10-bridge.conflist").write_text(json.dumps(network(self.place.pods)))
        (self.directory / "resolv.conf").write_text(f"nameserver {DNS_SERVICE}\n")
        (self.directory / "kubelet.yaml").write_text(json.dumps(self._kubelet()))

    def _kubelet(self) -> dict[str, Any]:
        """A KubeletConfiguration.  Nobody beside the cluster reaches the kubelet, so it lets everybody in."""
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "evictionHard": {"memory.available": "50Mi"},
            "imageGCHighThresholdPercent": 100,
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.directory / "resolv.conf"),
            "makeIPTablesUtilChains": False,
            "serializeImagePulls": False,
        }


def _is_removed(group: Path) -> bool:
    """Remove a group of processes, unless one of its processes is still ending."""
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def network(ranges: Sequence[str]) -> dict[str, Any]:
    """The configuration of a CNI plugin: a bridge, and host ports."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": each}] for each in ranges],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap]}
