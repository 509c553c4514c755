"""Other programs whose rules meet ours: firewalls, Calico, and other service proxies with what they left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from nftproxy.doctor.facts import Facts
from nftproxy.doctor.findings import Finding, Kind, Severity, Stage, stage_of
from nftproxy.doctor.iptables import Rule, SavedTables, Table
from nftproxy.model.addresses import TABLE
from nftproxy.model.codes import Code
from nftproxy.model.kernel import BaseChain

FORWARD_ACCEPTS = Kind(Code.FORWARD_ACCEPTS_GO, Severity.WARNING)
FORWARD_DROPS = Kind(Code.FORWARD_DROPS, Severity.WARNING)
FIREWALL_IN_NFT = Kind(Code.FIREWALL_IN_NFT, Severity.NOTE)
CALICO_AUTO = Kind(Code.CALICO_FOLLOWS, Severity.WARNING)
LEFT_BY_KUBE_PROXY = Kind(Code.KUBE_PROXY_LEFT, Severity.WARNING)
CILIUM = Kind(Code.CILIUM_PRESENT, Severity.WARNING)
KUBE_ROUTER = Kind(Code.KUBE_ROUTER_PRESENT, Severity.WARNING)
NO_AGENT = Kind(Code.RULES_WITHOUT_AGENT, Severity.WARNING)
ROUTE_LOCALNET = Kind(Code.ROUTE_LOCALNET_LEFT, Severity.WARNING)

_OF_FIREWALLS: Mapping[str, str] = MappingProxyType(
    {"ufw-": "ufw", "DOCKER": "Docker", "FORWARD_": "firewalld", "FWD": "firewalld"}
)
"""What the names of a firewall's chains begin with."""
_STOPS = frozenset({"DROP", "REJECT"})
_FORWARDS = "forward"


def forwarding(facts: Facts) -> Iterator[Finding]:
    """A chain FORWARD that drops: with kube-proxy's accepts, or when these are gone."""
    for saved in facts.saved:
        table = saved.table("filter")
        if table is None or (why := _drops(table)) is None:
            continue
        accepts = [rule for rule in table.of("KUBE-FORWARD") if rule.target == "ACCEPT"]
        where = f"{saved.tool}-save: the chain FORWARD {why}{_whose(saved)}"
        if accepts:
            met = sum(rule.packets for rule in accepts)
            yield FORWARD_ACCEPTS.seen(where, f"KUBE-FORWARD has {len(accepts)} accepts, which {met} packets have met")
        elif stage_of(facts) in (Stage.AFTER, Stage.FRESH):
            yield FORWARD_DROPS.seen(where, f"it leads to {', '.join(_jumps(table)) or 'no other chain'}")


def _drops(table: Table) -> str | None:
    """Why a packet that nobody accepts doesn't pass the chain FORWARD; None if it does."""
    if table.policies.get("FORWARD") == "DROP":
        return "has the policy DROP"
    last = next((rule for rule in table.of("FORWARD") if rule.is_unconditional and rule.target in _STOPS), None)
    return f"has a rule {last.target} for everything" if last else None


def _whose(saved: SavedTables) -> str:
    names = {
        firewall
        for table in saved.tables
        for chain in table.chains
        for prefix, firewall in _OF_FIREWALLS.items()
        if chain.startswith(prefix)
    }
    return f" ({', '.join(sorted(names))})" if names else ""


def _jumps(table: Table) -> list[str]:
    def is_chain(rule: Rule) -> bool:
        return rule.target in table.chains

    return list(dict.fromkeys(rule.target for rule in table.of("FORWARD") if is_chain(rule)))


def firewalls_in_nft(facts: Facts) -> Iterator[Finding]:
    """Base chains with the policy drop that no iptables shows."""
    shown = {"filter", "mangle", "nat", "raw", "security"}  # iptables-nft's

    def matters(chain: BaseChain) -> bool:
        is_iptables = chain.family in ("ip", "ip6") and chain.table in shown
        return chain.hook == _FORWARDS and chain.drops and not is_iptables and chain.table != TABLE

    evidence = [f"the chain {c.name} in the table {c.family} {c.table}" for c in facts.base_chains if matters(c)]
    if evidence:
        yield FIREWALL_IN_NFT.seen(*evidence)


def calico(facts: Facts) -> Iterator[Finding]:
    """Calico in its nftables data plane because of kube-proxy's tables; or about to leave it."""
    here = [f"the table {table}" for table in facts.nft_tables if table in ("ip calico", "ip6 calico")]
    mode = facts.api.felix_mode if facts.api else None
    follows_kube_proxy = facts.mode == "nftables" or facts.has_our_rules
    if here and follows_kube_proxy and mode in (None, "Auto"):
        how = "nftablesMode: Auto, in" if mode else "nftablesMode couldn't be read from"
        yield CALICO_AUTO.seen(*here, f"{how} felixconfiguration/default")


def other_proxies(facts: Facts) -> Iterator[Finding]:
    """Traces of other service proxies; those of kube-proxy once ours are there too."""
    kinds = {"Cilium": CILIUM, "kube-router": KUBE_ROUTER}
    if stage_of(facts) is Stage.BESIDE:
        kinds["kube-proxy"] = LEFT_BY_KUBE_PROXY
    yield from (kind.seen(*facts.traces[proxy]) for proxy, kind in kinds.items() if facts.traces.get(proxy))


def no_agent(facts: Facts) -> Iterator[Finding]:
    """Our rules without an agent."""
    if facts.has_our_rules and not facts.has_agent:
        yield NO_AGENT.seen(f"the table {TABLE} is in the kernel, and no process has the agent's lock")


def route_localnet(facts: Facts) -> Iterator[Finding]:
    """A sysctl of kube-proxy's that outlives its rules, and with them what made it safe."""
    path = "ipv4/conf/all/route_localnet"
    if facts.sysctls.get(path) and stage_of(facts) in (Stage.AFTER, Stage.FRESH):
        yield ROUTE_LOCALNET.seen(facts.setting(path))


CHECKS = (forwarding, firewalls_in_nft, calico, other_proxies, no_agent, route_localnet)
KINDS = (
    FORWARD_ACCEPTS,
    FORWARD_DROPS,
    FIREWALL_IN_NFT,
    CALICO_AUTO,
    LEFT_BY_KUBE_PROXY,
    CILIUM,
    KUBE_ROUTER,
    NO_AGENT,
    ROUTE_LOCALNET,
)
