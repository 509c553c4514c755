"""What is fixed for the life of a process: the configuration, and what the kernel side is able to do."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Address, Family, Network

# The ports that kube-proxy has (pkg/cluster/ports).
HEALTHZ_PORT = 10256
METRICS_PORT = 10249
CANARY_HEALTHZ_PORT, CANARY_METRICS_PORT = 10356, 10349
"""For a proxy beside one that has those: a hundred higher, which no part of Kubernetes uses, outside of node ports."""

AGENT_SOCKET = "/run/nftproxy/agent.sock"
"""Where the agent answers the commands that ask it, unless the configuration says otherwise."""


class DetectLocalMode(Enum):
    """How to recognise traffic of this node's pods (detectLocalMode, KEP-2450)."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE_INTERFACE = "BridgeInterface"
    INTERFACE_NAME_PREFIX = "InterfaceNamePrefix"


class Conntrack(msgspec.Struct, frozen=True):
    """Limits of connection tracking; timeouts in seconds.  What is 0 is left as the kernel has it."""

    max_per_core: int = 32768
    min: int = 131072
    tcp_established_timeout: float = 86400.0
    tcp_close_wait_timeout: float = 3600.0
    udp_timeout: float = 0.0
    udp_stream_timeout: float = 0.0
    tcp_be_liberal: bool = False


class LogFormat(Enum):
    """How the log is written (logging.format)."""

    TEXT = "text"
    JSON = "json"


class Logging(msgspec.Struct, frozen=True):
    """What the log has, and how; `verbosity` is klog's: 0 what matters, 4 each step, 6 each request, 8 everything."""

    format: LogFormat = LogFormat.TEXT
    verbosity: int = 0


class NodePortAddresses(msgspec.Struct, frozen=True):
    """Where node ports are served (nodePortAddresses, KEP-3866 and KEP-6032); all that is asked for is added up.

    `primary`: on the node's own address of each family.  `networks`: on the addresses of the node's interfaces that
    are in one of these.  `localhost`: at 127.0.0.1 or ::1, for TCP, in these families.
    """

    primary: bool = True
    networks: tuple[Network, ...] = ()
    localhost: frozenset[Family] = frozenset()


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
"""What nodes live by: no external address of a Service takes these ports from the node that has the address."""


class Config(msgspec.Struct, frozen=True):
    """What nftproxy is configured to do; without arguments, kube-proxy's defaults except for one.  Periods in seconds.

    That one is `min_sync_period`: kube-proxy gathers changes for a second, as each of its syncs costs so much; ours
    cost what changed, and wait 20 ms.

    `cluster_cidrs` has at most one of each family.  `bind_address` is a hint for the node's address, None where it says
    any.  `healthz_bind_address` and `metrics_bind_address` are "host:port", an IPv6 host in brackets.
    `hostname_override` and `kubeconfig` are "" where not given.  `masquerade_bit` counts from 0, the lowest.

    Of nftproxy alone, in the section `nftproxy` of the file: `protected_ports`, which no external address takes from
    the node that has the address, whatever the protocol; `external_ip_cidrs`, outside of which externalIPs are not
    served, where it has any.  `masquerade_fully_random` gives TCP random source ports too, as kube-proxy does.
    `service_proxy_name` is the value of the label service.kubernetes.io/service-proxy-name that Services must have to
    be served; "" serves those without the label.  `agent_socket` is the path of the Unix socket for `nftproxy status`
    and its likes, "" for none.  `startup_taint` is the key of the taint that is removed from the Node once all rules
    are loaded, "" for none.  `service_counts` counts the connections of each Service port.
    """

    masquerade_all: bool = False
    masquerade_bit: int = 14
    masquerade_fully_random: bool = False
    detect_local_mode: DetectLocalMode = DetectLocalMode.CLUSTER_CIDR
    cluster_cidrs: tuple[Network, ...] = ()
    bridge_interface: str = ""
    interface_name_prefix: str = ""
    node_port_addresses: NodePortAddresses = NodePortAddresses()
    allow_service_external_ips: bool = True
    hostname_override: str = ""
    bind_address: Address | None = None
    kubeconfig: str = ""
    sync_period: float = 30.0
    min_sync_period: float = 0.02
    healthz_bind_address: str = f"0.0.0.0:{HEALTHZ_PORT}"
    metrics_bind_address: str = f"127.0.0.1:{METRICS_PORT}"
    bind_address_hard_fail: bool = False
    oom_score_adj: int = -999
    conntrack: Conntrack = Conntrack()
    logging: Logging = Logging()
    protected_ports: tuple[PortRange, ...] = PROTECTED_PORTS
    external_ip_cidrs: tuple[Network, ...] = ()
    agent_socket: str = AGENT_SOCKET
    service_proxy_name: str = ""
    startup_taint: str = ""
    service_counts: bool = False

    @property
    def is_canary(self) -> bool:
        """Whether another proxy serves this node's other Services, and all that is the node's is that one's."""
        return bool(self.service_proxy_name)


class Capabilities(msgspec.Struct, frozen=True):
    """What the installed nft and kernel are able to do, as far as rules depend on it.

    `wide_maps`: `update` and `delete` statements on maps with keys wider than 16 bytes, which remembering IPv6 clients
    takes.  nft 1.0.6 aborts on these; 1.1.3 has them.
    """

    wide_maps: bool = True


class Settings(NamedTuple):
    """What is fixed for the life of a process: configuration, and what the kernel side is able to do."""

    config: Config = Config()
    capabilities: Capabilities = Capabilities()
