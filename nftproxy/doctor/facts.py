"""What is known of a node before it is judged: values that commands/doctor.py gathers, and the checks read.

Nobody sees everything: a container sees neither the node's processes nor, without root, legacy iptables.  So each fact
that can't be had is None (or missing from its mapping), and `Facts.unseen` says what and why: nothing is taken for well
because nobody could look.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from nftproxy.api.reviews import Right
from nftproxy.doctor.iptables import SavedTables
from nftproxy.model.addresses import Address, Family
from nftproxy.model.kernel import BaseChain


class Unseen(msgspec.Struct, frozen=True):
    """Something that couldn't be looked at, and why."""

    what: str
    why: str


class KubeProxy(msgspec.Struct, frozen=True, kw_only=True):
    """How kube-proxy is configured.

    `source` says where this was read.  `mode` is never empty: kube-proxy's default is iptables.  `problems` are what
    nftproxy says of this configuration when it is started with it, `faults` why it wouldn't start.
    `node_port_addresses` are the words and CIDRs as they are given.
    """

    source: str
    mode: str
    node_port_addresses: tuple[str, ...] = ()
    tcp_be_liberal: bool = False
    localhost_node_ports: bool = True
    scheduler: str = ""
    problems: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


class Metrics(msgspec.Struct, frozen=True):
    """What kube-proxy's metrics say, and the URL that they were read at; None for a metric that it doesn't have."""

    source: str
    invalid_dropped: int | None = None
    localhost_accepted: int | None = None


class Conntrack(msgspec.Struct, frozen=True):
    """Connection tracking: how many entries there are (in this network namespace) and may be (on the machine).

    `wanted` is the maximum that the configuration asks for, 0 for none.
    """

    count: int
    maximum: int
    buckets: int
    wanted: int = 0


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """What the API server says to the agent's credentials; `server` is its URL, `host` the name or address in that.

    `error` is why it can't be reached, or doesn't know us, "" if it can; then nothing else is known.  `denied` has the
    API's reason for each right that the agent lacks.  `cluster_ip` is that of the Service default/kubernetes, None
    where it couldn't be asked for.  `has_node` says whether the cluster has a Node of this node's name, None where
    that isn't known; `felix_mode` is nftablesMode in Calico's FelixConfiguration, None where it couldn't be read.
    """

    server: str
    host: str
    error: str = ""
    denied: Mapping[Right, str] = MappingProxyType({})
    cluster_ip: str | None = None
    has_node: bool | None = None
    felix_mode: str | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known; None for what isn't.

    `sysctls` are whole numbers by their paths below /proc/sys/net.  `schedulers` are those of IPVS' virtual servers.
    `traces` are what other_proxies.py finds, by proxy.  `missing_features` are lines for people, each with its source.
    `is_canary` says that our rules are those of a canary, which serves just some Services beside another proxy.
    `accounts` are packets by the names of the counters that kube-proxy's rules count in.
    `affinity_by_hash` is why IPv6 clients can't be remembered, "" if they can.
    """

    node: str
    kernel: str = ""
    configuration: KubeProxy | None = None
    metrics: Metrics | None = None
    saved: tuple[SavedTables, ...] = ()
    base_chains: tuple[BaseChain, ...] = ()
    nft_tables: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    traces: Mapping[str, list[str]] = MappingProxyType({})
    interfaces: tuple[str, ...] = ()
    addresses: tuple[Address, ...] | None = None
    has_our_rules: bool = False
    is_canary: bool = False
    has_agent: bool = False
    sysctls: Mapping[str, int] = MappingProxyType({})
    conntrack: Conntrack | None = None
    families: tuple[Family, ...] | None = None
    accounts: Mapping[str, int] = MappingProxyType({})
    missing_features: tuple[str, ...] = ()
    affinity_by_hash: str = ""
    api: Api | None = None
    unseen: tuple[Unseen, ...] = ()

    @property
    def mode(self) -> str:
        """kube-proxy's mode: as it is configured, or else as its traces show; "" without either."""
        if self.configuration is not None:
            return self.configuration.mode
        if any(_OF_IPVS & set(table.chains) for saved in self.saved for table in saved.tables):
            return "ipvs"
        return mode_of_traces(self.traces.get("kube-proxy", []))

    def setting(self, path: str) -> str:
        """A sysctl in words, by its name as people know it, with its value or "not there"."""
        return f"net.{path.replace('/', '.')} is {self.sysctls.get(path, 'not there')}"


def mode_of_traces(traces: list[str]) -> str:
    """The mode that kube-proxy's traces tell of; "" if there are none.

    Its chains are those of iptables mode unless something of IPVS is there.
    """
    text = "\n".join(traces)
    return next((mode for word, mode in _MODES.items() if word in text), "")


_OF_IPVS = frozenset({"KUBE-NODE-PORT", "KUBE-IPVS-FILTER"})
"""Chains of the table filter that kube-proxy has in IPVS mode alone."""
_MODES = {"(ipvs mode)": "ipvs", "(iptables or ipvs mode)": "iptables", "(nftables mode)": "nftables"}
