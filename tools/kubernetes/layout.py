"""The names and addresses of the cluster (pure).  All addresses are in namespaces of the cluster's own."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

CONTROL, CONTROL6 = "172.31.240.1", "fd00:31::1"
"""The control plane, and each node's gateway."""
CONTROL_PORT = 6443
NODES, NODES6 = f"{CONTROL}/24", f"{CONTROL6}/64"
PODS, PODS6 = "10.244.0.0/16", "fd00:244::/48"
SERVICES, SERVICES6 = "10.96.0.0/16", "fd00:96::/112"
FIRST_SERVICE, DNS_SERVICE = "10.96.0.1", "10.96.0.10"
MOST_NODES = 200
"""The last byte of a node's address is its number and ten more."""


class NodePlace(NamedTuple):
    """A node of the cluster: its name, and all that follows from its number."""

    number: int
    """From 1 on."""
    zones: int = 1

    @property
    def name(self) -> str:
        """The Node's name, and the host name that pods in the node's network see."""
        return f"node-{self.number}"

    @property
    def zone(self) -> str:
        """The zone: nodes take turns."""
        return f"zone-{'abcdefghij'[(self.number - 1) % self.zones]}"

    @property
    def address(self) -> str:
        """The node's IPv4 address."""
        return str(IPv4Address(CONTROL) + 9 + self.number)

    @property
    def address6(self) -> str:
        """The node's IPv6 address."""
        return str(IPv6Address(CONTROL6) + 9 + self.number)

    @property
    def pods(self) -> tuple[str, str]:
        """The ranges of the node's pods, IPv4 first."""
        return f"10.244.{self.number}.0/24", f"fd00:244:0:{self.number:x}::/64"

    @property
    def guest(self) -> tuple[str, str, str]:
        """An address that the CNI plugin gives to no pod, its gateway, and the length of the prefix."""
        return f"10.244.{self.number}.250", f"10.244.{self.number}.1", "24"

    @property
    def link(self) -> str:
        """The interface to the node at the control plane's side."""
        return f"to-{self.name}"


def places(nodes: int, zones: int) -> list[NodePlace]:
    """The nodes of a cluster.

    Raises:
        ValueError: there are more nodes than addresses, or no node for some zone.
    """
    if not 1 <= zones <= nodes <= MOST_NODES:
        raise ValueError(f"{nodes} nodes in {zones} zones: at least a node for each zone, at most {MOST_NODES} nodes")
    return [NodePlace(number, zones) for number in range(1, nodes + 1)]
