"""The values that are fixed for the life of a process: configuration, and capabilities of nft and the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from nftproxy.model.addresses import Address, Family, Network
from nftproxy.model.config_fields import ConfigField

# The ports that kube-proxy has (pkg/cluster/ports).
HEALTHZ_PORT = 10256
METRICS_PORT = 10249
CANARY_HEALTHZ_PORT, CANARY_METRICS_PORT = 10356, 10349
"""For a proxy beside kube-proxy: a hundred higher, outside of node ports, and used by no part of Kubernetes."""

PROXY_NAME = "service.kubernetes.io/service-proxy-name"
"""The label that names the proxy of a Service.

kube-proxy ignores every Service with this label, with any value (pkg/proxy/apis/well_known_labels.go)."""

AGENT_SOCKET = "/run/nftproxy/agent.sock"
"""The default path of the socket on which the agent answers commands."""

ELEMENT_BUDGET = 600_000
"""The default budget of elements of all Services together (policy/budget.py).  100,000 Services of two endpoints have
500,000.  docs/limits.md has the memory of an agent at this budget."""


T = TypeVar("T")

Values = tuple[tuple[ConfigField[Any], object], ...]
"""Fields that extensions declare, with their values."""


class DetectLocalMode(Enum):
    """How to recognise traffic of this node's pods (detectLocalMode, KEP-2450)."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE_INTERFACE = "BridgeInterface"
    INTERFACE_NAME_PREFIX = "InterfaceNamePrefix"


class Conntrack(msgspec.Struct, frozen=True):
    """Limits and timeouts of connection tracking.  A 0 leaves the kernel's value alone."""

    max_per_core: int = 32768
    min: int = 131072
    tcp_established_timeout: float = 86400.0  # seconds, as are the other timeouts
    tcp_close_wait_timeout: float = 3600.0
    udp_timeout: float = 0.0
    udp_stream_timeout: float = 0.0
    tcp_be_liberal: bool = False


class LogFormat(Enum):
    """The format of the log (logging.format)."""

    TEXT = "text"
    JSON = "json"


class Logging(msgspec.Struct, frozen=True):
    """The format and the verbosity of the log."""

    format: LogFormat = LogFormat.TEXT
    verbosity: int = 0  # as klog's: 0 for important lines, 4 for each step, 6 for each request, 8 for everything


class NodePortAddresses(msgspec.Struct, frozen=True):
    """The addresses that serve node ports (nodePortAddresses, KEP-3866 and KEP-6032): the sum of these fields."""

    primary: bool = True  # the node's own address of each family
    networks: tuple[Network, ...] = ()  # the addresses of the node's interfaces that are in a network
    localhost: frozenset[Family] = frozenset()  # 127.0.0.1 or ::1, for TCP, in these families


class PortRange(NamedTuple):
    """Ports from the first to the last, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


PROTECTED_PORTS = (
    PortRange(22, 22),  # ssh
    PortRange(179, 179),  # BGP
    PortRange(2379, 2381),  # etcd: clients, peers, metrics
    PortRange(4789, 4789),  # VXLAN (RFC 7348)
    PortRange(5473, 5473),  # Calico's Typha
    PortRange(6081, 6081),  # Geneve (RFC 8926)
    PortRange(6443, 6443),  # kube-apiserver, of k3s and RKE2 too
    PortRange(8472, 8472),  # VXLAN as Linux had it first: Flannel, Cilium
    PortRange(9345, 9345),  # RKE2's supervisor
    PortRange(10248, 10250),  # kubelet and a proxy's metrics (pkg/cluster/ports)
    PortRange(10256, 10260),  # a proxy's health, controller managers, scheduler (pkg/cluster/ports)
    PortRange(51820, 51821),  # WireGuard: Flannel, Calico
    PortRange(51871, 51871),  # WireGuard: Cilium
)
"""Ports that a node can't work without.  No external address of a Service takes them from its node."""


class Config(msgspec.Struct, frozen=True):
    """The configuration of nftproxy.  All defaults but `min_sync_period` are kube-proxy's.  Periods are in seconds."""

    masquerade_all: bool = False  # masquerade all connections to ClusterIPs
    masquerade_bit: int = 14  # the bit of the packet mark, from 0, the lowest
    masquerade_fully_random: bool = False  # random source ports for TCP too, as kube-proxy has them
    detect_local_mode: DetectLocalMode = DetectLocalMode.CLUSTER_CIDR
    cluster_cidrs: tuple[Network, ...] = ()  # the ranges of the cluster's pods, at most one a family
    bridge_interface: str = ""  # for the mode BridgeInterface
    interface_name_prefix: str = ""  # for the mode InterfaceNamePrefix
    node_port_addresses: NodePortAddresses = NodePortAddresses()
    allow_localhost_node_ports: bool = True  # serve node ports at localhost if node_port_addresses asks for that
    allow_service_external_ips: bool = True  # serve externalIPs
    hostname_override: str = ""  # the name of the Node, "" for the host's
    bind_address: Address | None = None  # its family is that of the servers' default hosts, None for 0.0.0.0 and ::
    kubeconfig: str = ""  # a path, "" for the service account of a pod
    sync_period: float = 30.0  # between two periodic checks of the rules
    min_sync_period: float = 0.01  # kube-proxy waits 1 s, as its syncs cost so much (ours cost as much as the change)
    healthz_bind_address: str = f"0.0.0.0:{HEALTHZ_PORT}"  # host:port, an IPv6 host in brackets
    metrics_bind_address: str = f"127.0.0.1:{METRICS_PORT}"  # in the same form
    bind_address_hard_fail: bool = False  # end the process if either of these two can't be opened
    oom_score_adj: int = -999
    conntrack: Conntrack = Conntrack()
    logging: Logging = Logging()
    protected_ports: tuple[PortRange, ...] = PROTECTED_PORTS  # the node keeps them against any Service
    external_ip_cidrs: tuple[Network, ...] = ()  # the only ranges whose externalIPs are served, all if empty
    agent_socket: str = AGENT_SOCKET  # the path of the Unix socket for commands such as `nftproxy status`, "" for none
    service_proxy_name: str = ""  # the value of the label PROXY_NAME of Services to serve, "" for no label
    startup_taint: str = ""  # the key of a taint to remove from the Node once all rules are loaded, "" for none
    element_budget: int = ELEMENT_BUDGET  # elements of all Services together, divided between the namespaces
    declared: Values = ()  # the values of the fields that extensions declare

    def __getitem__(self, field: ConfigField[T]) -> T:
        """Return the value of a declared field."""
        found = (value for each, value in self.declared if each.name == field.name)
        return cast("T", next(found, field.default))

    def having(self, values: Mapping[ConfigField[Any], object]) -> Config:
        """Return the configuration with other values of declared fields.

        A field that extensions share stays the one that has the words of all.
        """
        kept = {each.name: (each, value) for each, value in self.declared}
        for field, value in values.items():
            known, _ = kept.get(field.name, (field, value))
            kept[field.name] = known, value
        return msgspec.structs.replace(self, declared=tuple(kept.values()))

    @property
    def is_canary(self) -> bool:
        """Whether another proxy serves this node's other Services, and also everything that belongs to the node."""
        return bool(self.service_proxy_name)


class Capabilities(msgspec.Struct, frozen=True):
    """The features of the installed nft and kernel that rules depend on."""

    wide_maps: bool = True
    """`update` and `delete` statements on maps with keys wider than 16 bytes, which remembering IPv6 clients takes.

    nft 1.0.6 aborts on these.  1.1.3 has them."""
