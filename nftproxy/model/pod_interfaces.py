"""The names of the interfaces that network plugins give to pods, by which a node recognises its pods' packets."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class PodInterfaces(msgspec.Struct, frozen=True):
    """The interfaces of a network plugin's pods: those whose names begin with `prefix`, or the one `bridge`."""

    plugin: str
    prefix: str = ""
    bridge: str = ""

    def fields(self) -> dict[str, object]:
        """Return the fields of a KubeProxyConfiguration that name these interfaces."""
        if self.bridge:
            return {"detectLocalMode": "BridgeInterface", "detectLocal": {"bridgeInterface": self.bridge}}
        return {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": self.prefix}}

    def holds(self, interface: str) -> bool:
        """Whether an interface is one of these."""
        return interface == self.bridge if self.bridge else interface.startswith(self.prefix)

    def __str__(self) -> str:
        return self.bridge or f"{self.prefix}*"


POD_INTERFACES = {
    each.plugin: each
    for each in (
        PodInterfaces("aws-vpc", prefix="eni"),  # AWS_VPC_K8S_CNI_VETHPREFIX, amazon-vpc-cni-k8s
        PodInterfaces("calico", prefix="cali"),  # Felix' InterfacePrefix
        PodInterfaces("cilium", prefix="lxc"),
        PodInterfaces("bridge", bridge="cni0"),  # the plugin bridge, and flannel, which uses it
        PodInterfaces("ptp", prefix="veth"),  # the plugin ptp, and kindnet
    )
}
"""By the value of `--cni`.  The bridge precedes ptp: the ends of its pods' interfaces are called veth, too."""


def recognised(interfaces: Iterable[str]) -> PodInterfaces | None:
    """Return the pods' interfaces among a node's interfaces, None if there are none yet, or of an unknown plugin."""
    names = list(interfaces)
    return next((each for each in POD_INTERFACES.values() if any(map(each.holds, names))), None)
