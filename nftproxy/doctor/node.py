"""The node itself: what its kernel and nft can do, its settings, and connection tracking's limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from nftproxy.doctor.facts import Facts
from nftproxy.doctor.findings import Finding, Kind, Severity
from nftproxy.model.addresses import FAMILY_NAMES, Family

FEATURE = Kind(
    "NFT621",
    Severity.ERROR,
    "This machine lacks what the rules need",
    "The kernel refuses all rules that use it, so no Service is served.",
    "Take a kernel that has it, built in or as a module: the option or version is named with each.",
)
FAMILY = Kind(
    "NFT622",
    Severity.WARNING,
    "This kernel's nftables lacks a family",
    "Services are not served in it.",
    "Take a kernel that has it, if the cluster uses this family.",
)
AFFINITY = Kind(
    "NFT623",
    Severity.NOTE,
    "Session affinity for IPv6 will go by a hash of the client's address",
    "Clients are not remembered: most of them move to another pod when the list of endpoints changes.",
    "Take nft 1.1.3 or later, if Services with IPv6 use sessionAffinity: ClientIP.",
)
FORWARDING = Kind(
    "NFT624",
    Severity.ERROR,
    "The node doesn't forward packets",
    "Connections to Services reach no pod except from the node itself.",
    "Set the sysctl that is named to 1, in /etc/sysctl.d.",
)
BRIDGED = Kind(
    "NFT625",
    Severity.WARNING,
    "Packets that cross the pods' bridge don't pass the rules",
    "A pod that reaches another pod on this node through a Service gets the answer directly over the bridge, from an "
    "address that it hasn't asked, and drops it.",
    "Load the module br_netfilter, and set net.bridge.bridge-nf-call-iptables and -ip6tables to 1.",
)
CONNTRACK_FULL = Kind(
    "NFT626",
    Severity.WARNING,
    "Connection tracking is nearly full",
    "When it is full the kernel drops the first packet of every new connection, to Services or not.",
    "Raise net.netfilter.nf_conntrack_max, with `conntrack.maxPerCore` and `conntrack.min`, or find who makes so many "
    "connections.",
)
CONNTRACK_SMALL = Kind(
    "NFT627",
    Severity.NOTE,
    "Connection tracking holds fewer entries than the configuration asks for",
    "nftproxy raises the limit at start, where it may write /proc/sys; in a container without privileges it can't.",
    "Set net.netfilter.nf_conntrack_max in /etc/sysctl.d, or keep the init container of the DaemonSet.",
)
CONNTRACK_CHAINS = Kind(
    "NFT628",
    Severity.WARNING,
    "Connection tracking's hash table is small for its entries",
    "When there are that many entries, each packet's lookup walks through a long list.",
    "Set /sys/module/nf_conntrack/parameters/hashsize to a quarter of nf_conntrack_max.",
)

_FORWARDING: Mapping[str, tuple[Family, Severity]] = MappingProxyType(
    {
        "ipv4/ip_forward": (Family.IPV4, Severity.ERROR),
        "ipv6/conf/all/forwarding": (Family.IPV6, Severity.WARNING),  # many clusters have no IPv6
    }
)
_BRIDGED = ("bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables")
BRIDGES = frozenset({"cni0", "cbr0", "kube-bridge"})
"""The pods' bridges of the plugins bridge and flannel, of kubenet, and of kube-router."""

FULL = 0.75
"""Part of the entries that may be there, from which a burst could need the rest."""
LONGEST_CHAIN = 8
"""Entries for each bucket, at the most: twice what kube-proxy and the kernel's own default have (sysctl.py)."""


def features(facts: Facts) -> Iterator[Finding]:
    """What the kernel and nft can't do."""
    if facts.missing_features:
        yield FEATURE.seen(*facts.missing_features)
    if facts.affinity_by_hash:
        yield AFFINITY.seen(facts.affinity_by_hash)
    missing = [] if facts.families is None else [family for family in Family if family not in facts.families]
    if missing:
        yield FAMILY.seen(*(FAMILY_NAMES[family] for family in missing))


def forwarding(facts: Facts) -> Iterator[Finding]:
    """Whether the node forwards, in each family that it has addresses of."""
    for path, (family, severity) in _FORWARDING.items():
        has_addresses = any((":" in str(address)) == (family is Family.IPV6) for address in facts.addresses or ())
        if facts.sysctls.get(path) == 0 and (has_addresses or family is Family.IPV4):
            yield FORWARDING.seen(f"net.{path.replace('/', '.')} is 0", severity=severity)


def bridged(facts: Facts) -> Iterator[Finding]:
    """Whether packets between two pods on a bridge meet the rules."""
    bridges = sorted(BRIDGES & set(facts.interfaces))
    off = [path for path in _BRIDGED if facts.sysctls.get(path, 0) == 0]
    if bridges and off:
        states = (f"net.{path.replace('/', '.')} is {facts.sysctls.get(path, 'not there')}" for path in off)
        yield BRIDGED.seen(f"the interface {', '.join(bridges)}", *states)


def conntrack(facts: Facts) -> Iterator[Finding]:
    """How full connection tracking is, and whether its sizes fit together."""
    seen = facts.conntrack
    if seen is None:
        return
    if seen.count > FULL * seen.maximum:
        share = 100 * seen.count // max(seen.maximum, 1)
        yield CONNTRACK_FULL.seen(f"{seen.count} entries of {seen.maximum}, {share} %")
    if seen.wanted > seen.maximum:
        yield CONNTRACK_SMALL.seen(f"net.netfilter.nf_conntrack_max is {seen.maximum}, and {seen.wanted} is asked for")
    if seen.maximum > LONGEST_CHAIN * seen.buckets:
        yield CONNTRACK_CHAINS.seen(f"{seen.buckets} buckets for {seen.maximum} entries")


CHECKS = (features, forwarding, bridged, conntrack)
KINDS = (
    FEATURE,
    FAMILY,
    AFFINITY,
    FORWARDING,
    BRIDGED,
    CONNTRACK_FULL,
    CONNTRACK_SMALL,
    CONNTRACK_CHAINS,
)
