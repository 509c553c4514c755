"""Addresses and routes around the lab's node, and the origins of connections.

    pods of this node                   node-a                    everything else
    10.1.0.0/24    cni0 10.1.0.1/24  ┌──────────┐ eth0 192.168.0.2/24   192.168.0.0/24   other nodes
    fd00:1::/64   ───────────────────┤          ├────────────────────   10.1.1.0/24 ...  their pods
                      fd00:1::1/64   └──────────┘ fd00:c0a8::2/64       198.51.100.0/24  clients outside
                                                                        203.0.113.0/24   load balancers' addresses

Packets without another route leave through the uplink, those to Service addresses too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

NODE_NAME = "node-a"
UPLINK = "eth0"  # the node's interface to all hosts but its pods
PODS = "cni0"  # the default name of its interface to them

NODE_IP, NODE_IP6 = "192.168.0.2", "fd00:c0a8::2"
GATEWAY, GATEWAY6 = "192.168.0.1", "fd00:c0a8::1"
NODE_POD_IP, NODE_POD_IP6 = "10.1.0.1", "fd00:1::1"  # the node's own address among its pods
POD_CIDR, POD_CIDR6 = "10.1.0.0/24", "fd00:1::/64"
CLUSTER_CIDR, CLUSTER_CIDR6 = "10.1.0.0/16", "fd00:1::/48"
SERVICE_CIDR, SERVICE_CIDR6 = "10.96.0.0/16", "fd00:96::/112"
LOAD_BALANCER_CIDR, LOAD_BALANCER_CIDR6 = "203.0.113.0/24", "2001:db8:113::/64"


class Origin(Enum):
    """Where a connection comes from.  The value is for reports."""

    POD = "pod"  # a pod of the node, in through the pods interface
    NODE = "node"  # the node's own sockets
    OUTSIDE = "outside"  # in through the uplink
    REMOTE_POD = "remote pod"  # in through the uplink, from another node's pod

    def __repr__(self) -> str:
        return self.name


OWN = ""  # in place of an interface: sent by the node itself, or delivered to it
INTERFACES = {Origin.POD: PODS, Origin.NODE: OWN, Origin.OUTSIDE: UPLINK, Origin.REMOTE_POD: UPLINK}
"""The node's interface that connections come in through."""


class Site(NamedTuple):
    """A node's addresses with prefix lengths, and the networks of its own pods.

    All other packets leave through the uplink, by way of the gateways if there are any.
    """

    addresses: tuple[str, ...] = (f"{NODE_IP}/24", f"{NODE_IP6}/64")
    pods: tuple[str, ...] = (f"{NODE_POD_IP}/24", f"{NODE_POD_IP6}/64")
    pod_networks: tuple[str, ...] = ()
    gateways: tuple[str, ...] = (GATEWAY, GATEWAY6)


SITE = Site()
"""The lab's own, as in the picture above."""

# Default source addresses.  For the node the kernel chooses.
DEFAULT_SOURCES: Mapping[Origin, tuple[str, str]] = MappingProxyType(
    {
        Origin.POD: ("10.1.0.200", "fd00:1::c8"),
        Origin.OUTSIDE: ("198.51.100.200", "2001:db8:100::c8"),
        Origin.REMOTE_POD: ("10.1.1.200", "fd00:1:0:1::c8"),
    }
)
