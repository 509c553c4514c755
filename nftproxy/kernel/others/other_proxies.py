"""Traces of other service proxies in this network namespace: tables, chains and interfaces that only they make.

Two proxies serve the same addresses, and the order in which they came decides which one wins.  Rules of a proxy that
has ended stay in force as well.  So traces count, not processes: a process can't be seen from a container.

Names are those in the sources of kube-proxy 1.36, kube-router 2 and Cilium 1.18.  Chains that the kubelet makes
(KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY) are no trace.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.others.xtables import legacy_chains
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable

PROXIES = KUBE_PROXY, KUBE_ROUTER, CILIUM = "kube-proxy", "kube-router", "Cilium"

KUBE_PROXY_TABLE = "kube-proxy"
"""The table of each family that kube-proxy has in nftables mode."""
IPVS_INTERFACE = "kube-ipvs0"
"""The interface that has every address of a Service, in kube-proxy's IPVS mode."""

INTERFACES = {
    IPVS_INTERFACE: (KUBE_PROXY, " (ipvs mode)"),
    "kube-dummy-if": (KUBE_ROUTER, ""),
    "cilium_host": (CILIUM, ""),
}

_CHAINS = {
    KUBE_PROXY: "KUBE-(?:SERVICES|EXTERNAL-SERVICES|NODEPORTS|NODE-PORT|LOAD-BALANCER|PROXY-FIREWALL|PROXY-CANARY)",
    KUBE_ROUTER: "KUBE-ROUTER-[A-Z-]+",
    CILIUM: "(?:OLD_)?CILIUM_[A-Za-z0-9_]+",
}
_ANY_CHAIN = re.compile(f"(?:{'|'.join(_CHAINS.values())})\0".encode())

_MODE_OF_CHAINS = {KUBE_PROXY: " (iptables or ipvs mode)"}

MOST = 5
"""Traces of one proxy that are named.  More would only repeat it."""

Traces = dict[str, list[str]]


def other_proxies() -> Traces:
    """Return the proxies that have left traces, each with some of them.  Takes time in proportion to the chains.

    Raises:
        Unavailable: the kernel doesn't answer.
    """
    found: Traces = {}
    for proxy, trace in _traces():
        traces = found.setdefault(proxy, [])
        if len(traces) < MOST:
            traces.append(trace)
    return found


def _traces() -> Iterator[tuple[str, str]]:
    try:
        for _, name in socket.if_nameindex():
            if name in INTERFACES:
                proxy, mode = INTERFACES[name]
                yield proxy, f"the interface {name}{mode}"
        for family in Family:
            if nft_queries.table_comment(family, KUBE_PROXY_TABLE) is not None:
                yield KUBE_PROXY, f"the table {family.value} {KUBE_PROXY_TABLE} (nftables mode)"
            for table, chain in nft_queries.chains_matching(family, _ANY_CHAIN):
                yield _of_chain(chain, f"{family.value} {table}")
            for table, chain in legacy_chains(family, _ANY_CHAIN):
                yield _of_chain(chain, f"{table} of legacy {'iptables' if family is Family.IPV4 else 'ip6tables'}")
    except OSError as error:
        raise Unavailable(f"the traces of other proxies can't be read: {error.strerror}") from error


def _of_chain(chain: str, table: str) -> tuple[str, str]:
    proxy = next(proxy for proxy, names in _CHAINS.items() if re.fullmatch(names, chain))
    return proxy, f"the chain {chain} in the table {table}{_MODE_OF_CHAINS.get(proxy, '')}"
