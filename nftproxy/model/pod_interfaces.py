"""The names of the interfaces that network plugins give to pods, by which a node recognises its pods' packets."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class PodInterfaces(msgspec.Struct, frozen=True):
    """The interfaces of a network plugin's pods: all names that begin with `prefix`, or the interface `bridge`."""

    plugin: str
    daemon_sets: frozenset[str]  # the names of the plugin's DaemonSet
    prefix: str = ""
    bridge: str = ""

    def fields(self) -> dict[str, object]:
        """Return the fields of a KubeProxyConfiguration that name these interfaces."""
        if self.bridge:
            return {"detectLocalMode": "BridgeInterface", "detectLocal": {"bridgeInterface": self.bridge}}
        return {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": self.prefix}}

    def holds(self, interface: str) -> bool:
        """Whether an interface has such a name."""
        return interface == self.bridge if self.bridge else interface.startswith(self.prefix)

    def __str__(self) -> str:
        return self.bridge or f"{self.prefix}*"


POD_INTERFACES = {
    each.plugin: each
    for each in (
        # AWS_VPC_K8S_CNI_VETHPREFIX of amazon-vpc-cni-k8s.  It comes first: beside it Calico only enforces policies.
        PodInterfaces("aws-vpc", frozenset({"aws-node"}), prefix="eni"),
        PodInterfaces("calico", frozenset({"calico-node"}), prefix="cali"),  # Felix' InterfacePrefix
        PodInterfaces("cilium", frozenset({"cilium"}), prefix="lxc"),
        # The plugin bridge, and flannel, which uses it.
        PodInterfaces("bridge", frozenset({"kube-flannel-ds", "kube-flannel"}), bridge="cni0"),
        PodInterfaces("ptp", frozenset({"kindnet"}), prefix="veth"),  # the plugin ptp, and kindnet
    )
}
"""By the value of `--cni`.  The bridge precedes ptp: the ends of its pods' interfaces are called veth, too."""


def of_daemon_sets(names: Iterable[str]) -> PodInterfaces | None:
    """Return the pods' interfaces of a cluster with these DaemonSets, None without a known network plugin."""
    found = frozenset(names)
    return next((each for each in POD_INTERFACES.values() if each.daemon_sets & found), None)


def recognised(interfaces: Iterable[str]) -> PodInterfaces | None:
    """Return the pods' interfaces among a node's interfaces, None if there are none yet, or of an unknown plugin."""
    names = list(interfaces)
    return next((each for each in POD_INTERFACES.values() if any(map(each.holds, names))), None)
