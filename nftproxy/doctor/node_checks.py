"""Checks of the node itself: features of its kernel and nft, sysctls, and the limits of connection tracking."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from nftproxy.doctor.findings import Finding, Severity, error, found, note, warning
from nftproxy.doctor.observations import KubeProxyConfigFacts, Observations
from nftproxy.model.addresses import FAMILY_NAMES, Family, family_of
from nftproxy.model.codes import Code
from nftproxy.model.conntrack_fill import nearly_full

_FORWARDING: Mapping[str, tuple[Family, Severity]] = MappingProxyType(
    {
        "ipv4/ip_forward": (Family.IPV4, Severity.ERROR),
        "ipv6/conf/all/forwarding": (Family.IPV6, Severity.WARNING),  # many clusters have no IPv6
    }
)
_BRIDGED = ("bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables")
BRIDGES = frozenset({"cni0", "cbr0", "kube-bridge"})
"""The pods' bridges of the CNI plugins bridge and flannel, of kubenet, and of kube-router."""

_TUNNELS = frozenset({"vxlan", "geneve", "ipip", "ip6tnl", "sit", "gre", "wireguard"})
"""The kinds of interfaces by which network plugins send packets to pods of other nodes."""

SHORTEST_TIMEOUTS: Mapping[str, int] = MappingProxyType(
    {
        "netfilter/nf_conntrack_tcp_timeout_established": 300,
        "netfilter/nf_conntrack_udp_timeout": 10,
        "netfilter/nf_conntrack_udp_timeout_stream": 10,
    }
)
"""Seconds below which a timeout breaks ordinary connections: keepalives are minutes apart, answers of DNS seconds."""

LONGEST_CHAIN = 8
"""The most entries a bucket: twice the ratio of kube-proxy's and the kernel's defaults (sysctl.py)."""


def _features(observed: Observations) -> Iterator[Finding]:
    """Find missing features of the kernel and nft."""
    if observed.missing_features:
        yield error(Code.FEATURE_MISSING, *observed.missing_features)
    if observed.affinity_by_hash:
        yield note(Code.AFFINITY_BY_HASH, observed.affinity_by_hash)
    missing = [] if observed.families is None else [family for family in Family if family not in observed.families]
    if missing:
        yield warning(Code.FAMILY_MISSING, *(FAMILY_NAMES[family] for family in missing))


def _forwarding(observed: Observations) -> Iterator[Finding]:
    """Find families in which the node has addresses and doesn't forward."""
    for path, (family, severity) in _FORWARDING.items():
        has_addresses = family in map(family_of, observed.addresses or ())
        if observed.sysctls.get(path) == 0 and (has_addresses or family is Family.IPV4):
            yield found(severity, Code.NOT_FORWARDING, observed.setting(path))


def _forwarding_of_interfaces(observed: Observations) -> Iterator[Finding]:
    """Find interfaces from which the node doesn't forward, though it does in general."""
    for version, whole in (("ipv4", "ipv4/ip_forward"), ("ipv6", "ipv6/conf/all/forwarding")):
        off = [path for path in forwarding_of(version, observed.interfaces) if observed.sysctls.get(path) == 0]
        if off and observed.sysctls.get(whole) == 1:
            yield warning(Code.NOT_FORWARDING, *map(observed.setting, off))


def forwarding_of(version: str, interfaces: Collection[str]) -> list[str]:
    """Return the sysctls that say whether packets that come in by these interfaces are forwarded."""
    return [f"{version}/conf/{name}/forwarding" for name in interfaces if name != "lo"]


def _timeouts(observed: Observations) -> Iterator[Finding]:
    """Find timeouts of connection tracking that end connections with short pauses."""
    short = [path for path, least in SHORTEST_TIMEOUTS.items() if observed.sysctls.get(path, least) < least]
    if short:
        yield warning(Code.TIMEOUTS_SHORT, *map(observed.setting, short))


def _bridged(observed: Observations) -> Iterator[Finding]:
    """Find bridges on which packets between two pods bypass the rules."""
    bridges = sorted(BRIDGES & set(observed.interfaces))
    off = [path for path in _BRIDGED if observed.sysctls.get(path, 0) == 0]
    if bridges and off:
        yield warning(Code.BRIDGE_BYPASSES, f"the interface {', '.join(bridges)}", *map(observed.setting, off))


def _hairpin(observed: Observations) -> Iterator[Finding]:
    """Find pods' ports through which the bridge doesn't send packets back.

    It matters while rules translate packets on the bridge.  Else the node routes them, and they leave by the bridge.
    """
    bridges = BRIDGES.union(each.bridge for each in _configurations(observed) if each.bridge)
    off = [each for each in observed.links if each.bridge in bridges and each.kind == "veth" and not each.hairpin]
    if off and any(observed.sysctls.get(path) == 1 for path in _BRIDGED):
        ports = [f"hairpin is off at the port {each.name} of the bridge {each.bridge}" for each in off]
        yield warning(Code.HAIRPIN_OFF, *ports)


def _configurations(observed: Observations) -> Iterator[KubeProxyConfigFacts]:
    """Yield the known configurations, which may name the pods' bridge."""
    yield from filter(None, [observed.configuration, observed.agent and observed.agent.configuration])


def _routes(observed: Observations) -> Iterator[Finding]:
    """Find endpoints without a route, and endpoints that alone go by the default route."""
    lost = [
        f"nothing routes to {address} ({each.why_not})" for address, each in observed.routes.items() if each.why_not
    ]
    stray = [*_stray(observed, Family.IPV4), *_stray(observed, Family.IPV6)]
    if lost or stray:
        yield (warning if lost else note)(Code.PODS_UNROUTED, *lost, *stray)


def _stray(observed: Observations, family: Family) -> Iterator[str]:
    """Yield the endpoints of a family that the default route leads to, if other routes lead to others."""
    found = {address: each for address, each in observed.routes.items() if family_of(address) is family}
    routed = sum(each.prefix > 0 for each in found.values())
    known = sum(not each.why_not for each in found.values())
    for address, each in found.items() if routed else ():
        if not (each.prefix or each.why_not):
            yield f"the default route leads to {address}, though {routed} of {known} endpoints have routes of their own"


def _mtu(observed: Observations) -> Iterator[Finding]:
    """Find tunnels and routes to endpoints whose packets are smaller than those of the pods' interfaces."""
    pods = [each for each in observed.links if each.kind == "veth"]
    largest = max(pods, key=lambda each: each.mtu, default=None)
    if largest is None:
        return
    small = {each.name: each.mtu for each in observed.links if each.mtu < largest.mtu}
    tunnels = [each.name for each in observed.links if each.kind in _TUNNELS]
    ways = dict.fromkeys([*tunnels, *(each.interface for each in observed.routes.values())])
    found = [f"the MTU is {small[name]} at {name}" for name in ways if name in small]
    found += [
        f"the MTU is {each.mtu} on the route to {address}"
        for address, each in observed.routes.items()
        if 0 < each.mtu < largest.mtu
    ]
    if found:
        yield note(Code.MTU_SMALL, f"the MTU is {largest.mtu} at {largest.name}", *found)


def _conntrack(observed: Observations) -> Iterator[Finding]:
    """Find a connection tracking table that is nearly full, too small, or has too few buckets."""
    seen = observed.conntrack
    if seen is None:
        return
    if fill := nearly_full(seen.count, seen.maximum):
        yield warning(Code.CONNTRACK_FULL, fill)
    if seen.wanted > seen.maximum:
        yield note(
            Code.CONNTRACK_SMALL,
            f"net.netfilter.nf_conntrack_max is {seen.maximum}, and the configuration asks for {seen.wanted}",
        )
    if seen.maximum > LONGEST_CHAIN * seen.buckets:
        yield warning(Code.CONNTRACK_SLOW, f"{seen.buckets} buckets for {seen.maximum} entries")


CHECKS = (_features, _forwarding, _forwarding_of_interfaces, _bridged, _hairpin, _routes, _mtu, _timeouts, _conntrack)
