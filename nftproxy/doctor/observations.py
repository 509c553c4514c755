"""Observations of a node, which commands/doctor.py gathers and the checks judge.

A container sees neither the node's processes nor, without root, legacy iptables.  So a value that can't be read is None
(or missing from its mapping), and `Observations.unseen` names it with the reason.  No check takes a missing value for a
good one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from nftproxy.api.access_reviews import Permission
from nftproxy.doctor.saved_iptables import SavedTables
from nftproxy.model.addresses import Address, Family
from nftproxy.model.base_chains import BaseChain, ForeignChain
from nftproxy.model.link import Link
from nftproxy.model.objects import EndpointSlice
from nftproxy.model.route import Route


class Unseen(msgspec.Struct, frozen=True):
    """Something that couldn't be inspected, and the reason."""

    what: str
    why: str


class KubeProxyConfigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How kube-proxy is configured, as far as the checks need it."""

    source: str
    """Where this was read."""
    mode: str
    """Never empty: kube-proxy's default is iptables."""
    node_port_addresses: tuple[str, ...] = ()
    """CIDRs and words as they are given."""
    tcp_be_liberal: bool = False
    localhost_node_ports: bool = True
    bridge: str = ""
    """The pods' bridge (detectLocal.bridgeInterface)."""
    knows_local_sources: bool = True
    """Whether a range or an interface says which sources are pods (clusterCIDR, detectLocalMode)."""
    takes_node_range: bool = False
    """Whether that is the range of the Node's pods (detectLocalMode: NodeCIDR)."""
    scheduler: str = ""
    problems: tuple[str, ...] = ()
    """The warnings that nftproxy logs when it is started with this configuration."""
    faults: tuple[str, ...] = ()
    """The errors for which nftproxy doesn't start with it."""


class AgentFacts(msgspec.Struct, frozen=True):
    """The inputs of this node's agent: its configuration and its Node.

    `has_pod_range` says whether the Node has a range of pods (spec.podCIDRs).
    """

    configuration: KubeProxyConfigFacts
    has_pod_range: bool
    node: str = ""
    internal_ips: tuple[Address, ...] = ()


class KubeProxyMetrics(msgspec.Struct, frozen=True):
    """Two of kube-proxy's metrics, None if missing.  `source` is the URL."""

    source: str
    invalid_dropped: int | None = None
    localhost_accepted: int | None = None


class ConntrackUsage(msgspec.Struct, frozen=True):
    """The size of connection tracking: `count` is of this network namespace, `maximum` and `buckets` of the machine."""

    count: int
    maximum: int
    buckets: int
    wanted: int = 0
    """The maximum that the configuration asks for, 0 for none."""


class ApiAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The API server's answers to the agent's credentials."""

    server: str
    """Its URL, and the proxy on the way."""
    host: str
    """The name or address in its URL."""
    error: str = ""
    """Why the server is unreachable or rejects the credentials.  If it isn't "", nothing below is known."""
    status: int = 0
    """The HTTP status of an answer that is an error, 0 for no answer."""
    denied: Mapping[Permission, str] = MappingProxyType({})
    """The permissions that the agent lacks, each with the API's reason."""
    cluster_ip: str | None = None
    """The ClusterIP of the Service default/kubernetes."""
    has_node: bool | None = None
    """Whether the cluster has a Node of this node's name."""
    has_pod_range: bool | None = None
    """Whether that Node has a range of pods (spec.podCIDRs)."""
    internal_ips: tuple[Address, ...] | None = None
    """That Node's InternalIPs."""
    felix_mode: str | None = None
    """nftablesMode in Calico's FelixConfiguration."""
    slices: tuple[EndpointSlice, ...] = ()
    """Some EndpointSlices."""
    version: tuple[int, int] | None = None
    """Kubernetes' major and minor version."""


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """All observations of a node."""

    node: str
    kernel: str = ""
    configuration: KubeProxyConfigFacts | None = None
    agent: AgentFacts | None = None
    metrics: KubeProxyMetrics | None = None
    saved: tuple[SavedTables, ...] = ()
    base_chains: tuple[BaseChain, ...] = ()
    foreign_chains: tuple[ForeignChain, ...] = ()
    """Chains of nftables that can keep packets from Services, iptables-nft's among them.  Read only where our rules
    are."""
    nft_tables: tuple[str, ...] = ()
    flowtables: tuple[str, ...] = ()
    """The flowtables, as nft names them."""
    schedulers: tuple[str, ...] = ()
    """The schedulers of IPVS' virtual servers."""
    traces: Mapping[str, list[str]] = MappingProxyType({})
    """The findings of kernel/others/other_proxies.py, by proxy."""
    interfaces: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    routes: Mapping[Address, Route] = MappingProxyType({})
    """The routes to some endpoints of other nodes, within clusterCIDR."""
    addresses: tuple[Address, ...] | None = None
    has_our_rules: bool = False
    is_canary: bool = False
    """Whether our rules are a canary's, which serves some Services beside another proxy."""
    has_agent: bool = False
    agent_warnings: tuple[str, ...] = ()
    """The agent's present warnings, each with its code."""
    agent_delay: str = ""
    """Why the agent didn't answer in time, "" if it did, or if there is none."""
    sysctls: Mapping[str, int] = MappingProxyType({})
    """By path below /proc/sys/net."""
    conntrack: ConntrackUsage | None = None
    families: tuple[Family, ...] | None = None
    accounts: Mapping[str, int] = MappingProxyType({})
    """Packets by the names of the counters in kube-proxy's rules."""
    missing_features: tuple[str, ...] = ()
    """Lines for people, each with its source."""
    affinity_by_hash: str = ""
    """Why IPv6 clients can't be remembered, "" if they can."""
    api: ApiAccess | None = None
    unseen: tuple[Unseen, ...] = ()

    @property
    def mode(self) -> str:
        """kube-proxy's mode: as configured, or else as its traces show, "" without either."""
        if self.configuration is not None:
            return self.configuration.mode
        if any(_OF_IPVS & set(table.chains) for saved in self.saved for table in saved.tables):
            return "ipvs"
        return mode_of_traces(self.traces.get("kube-proxy", []))

    def setting(self, path: str) -> str:
        """Return a sysctl in words, by its usual name, with its value or "not there"."""
        return f"net.{path.replace('/', '.')} is {self.sysctls.get(path, 'not there')}"


def mode_of_traces(traces: list[str]) -> str:
    """Return the mode that kube-proxy's traces show, "" if there are none.

    Its chains are those of iptables mode unless something of IPVS is there.
    """
    text = "\n".join(traces)
    return next((mode for word, mode in _MODES.items() if word in text), "")


_OF_IPVS = frozenset({"KUBE-NODE-PORT", "KUBE-IPVS-FILTER"})
"""Chains of the table filter that kube-proxy has in IPVS mode alone."""
_MODES = {"(ipvs mode)": "ipvs", "(iptables or ipvs mode)": "iptables", "(nftables mode)": "nftables"}
