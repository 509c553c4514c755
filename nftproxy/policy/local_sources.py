"""Local sources, according to detectLocalMode: pods of this cluster, or of this node (KEP-2450).

The rules match a packet by it (compile.py), and explanation/ judges a client by the same value.
"""

from __future__ import annotations

import msgspec

from nftproxy.model.addresses import Family, Network, family_of
from nftproxy.model.objects import Node
from nftproxy.model.settings import Config, DetectLocalMode


class LocalSources(msgspec.Struct, frozen=True):
    """Recognises the local sources of a family: by `network`, or by the interface that their packets come in through.

    `interface` is a name in nft's syntax: with `*` at its end it stands for all names that begin with the rest.
    `origin` names the field of the configuration, or the Node's, that says so.
    """

    origin: str
    network: Network | None = None
    interface: str = ""

    def match(self, family: Family, operator: str = "") -> str:
        """The nft match for local sources, or with the operator `!= ` for all other sources."""
        if self.network is None:
            return f'iifname {operator}"{self.interface}"'
        return f"{family.value} saddr {operator}{self.network}"

    def comes_in_by(self, interface: str) -> bool:
        """Whether packets that come in through an interface are local.  "" stands for the node's own packets."""
        if self.interface.endswith("*"):
            return interface.startswith(self.interface[:-1])
        return interface == self.interface

    def __str__(self) -> str:
        return f"{self.origin} {self.interface if self.network is None else self.network}"


def local_sources(node: Node, config: Config, family: Family) -> LocalSources | None:
    """How this node recognises the local sources of a family.  None if it can't."""
    mode = config.detect_local_mode
    if mode is DetectLocalMode.BRIDGE_INTERFACE:
        return LocalSources("detectLocal.bridgeInterface", interface=config.bridge_interface)
    if mode is DetectLocalMode.INTERFACE_NAME_PREFIX:
        return LocalSources("detectLocal.interfaceNamePrefix", interface=f"{config.interface_name_prefix}*")
    by_node = mode is DetectLocalMode.NODE_CIDR
    cidrs = [cidr for cidr in (node.pod_cidrs if by_node else config.cluster_cidrs) if family_of(cidr) is family]
    return LocalSources("the Node's podCIDR" if by_node else "clusterCIDR", cidrs[0]) if cidrs else None
