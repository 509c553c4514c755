"""The node itself: what its kernel and nft can do, its settings, and connection tracking's limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from nftproxy.doctor.facts import Facts
from nftproxy.doctor.findings import Finding, Kind, Severity
from nftproxy.model.addresses import FAMILY_NAMES, Family, family_of
from nftproxy.model.codes import Code

FEATURE = Kind(Code.FEATURE_MISSING, Severity.ERROR)
FAMILY = Kind(Code.FAMILY_MISSING, Severity.WARNING)
AFFINITY = Kind(Code.AFFINITY_BY_HASH, Severity.NOTE)
FORWARDING = Kind(Code.NOT_FORWARDING, Severity.ERROR)
BRIDGED = Kind(Code.BRIDGE_BYPASSES, Severity.WARNING)
CONNTRACK_FULL = Kind(Code.CONNTRACK_FULL, Severity.WARNING)
CONNTRACK_SMALL = Kind(Code.CONNTRACK_SMALL, Severity.NOTE)
CONNTRACK_CHAINS = Kind(Code.CONNTRACK_SLOW, Severity.WARNING)

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
        has_addresses = family in map(family_of, facts.addresses or ())
        if facts.sysctls.get(path) == 0 and (has_addresses or family is Family.IPV4):
            yield FORWARDING.seen(facts.setting(path), severity=severity)


def bridged(facts: Facts) -> Iterator[Finding]:
    """Whether packets between two pods on a bridge meet the rules."""
    bridges = sorted(BRIDGES & set(facts.interfaces))
    off = [path for path in _BRIDGED if facts.sysctls.get(path, 0) == 0]
    if bridges and off:
        yield BRIDGED.seen(f"the interface {', '.join(bridges)}", *map(facts.setting, off))


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
