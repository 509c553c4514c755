"""Checks for other programs whose rules meet ours: firewalls, Calico, other service proxies and their leftovers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from types import MappingProxyType

from nftproxy.doctor.findings import Finding, MigrationStage, note, stage_of, warning
from nftproxy.doctor.observations import Observations
from nftproxy.doctor.saved_iptables import Rule, SavedTables, Table
from nftproxy.model.addresses import TABLE
from nftproxy.model.base_chains import BaseChain, Effect, ForeignChain, rule_with
from nftproxy.model.codes import Code

_OF_FIREWALLS: Mapping[str, str] = MappingProxyType(
    {"ufw-": "ufw", "DOCKER": "Docker", "FORWARD_": "firewalld", "FWD": "firewalld"}
)
"""Firewalls by the prefixes of their chains' names."""
_STOPS = frozenset({"DROP", "REJECT"})
_FORWARDS = "forward"
_BY_EFFECT: Mapping[Code, Set[Effect]] = MappingProxyType(
    {
        Code.OTHERS_MAY_DROP: {Effect.DROPS},
        Code.OTHERS_COME_FIRST: {Effect.EXEMPTS, Effect.TRANSLATES},
    }
)


def _forwarding(observed: Observations) -> Iterator[Finding]:
    """Find chains FORWARD that drop, with kube-proxy's accepts or without them."""
    for saved in observed.saved:
        table = saved.table("filter")
        if table is None or (why := _drops(table)) is None:
            continue
        accepts = [rule for rule in table.of("KUBE-FORWARD") if rule.target == "ACCEPT"]
        where = f"{saved.tool}-save: the chain FORWARD {why}{_whose(saved)}"
        if accepts:
            met = sum(rule.packets for rule in accepts)
            yield warning(
                Code.FORWARD_ACCEPTS_GO,
                where,
                f"KUBE-FORWARD has {len(accepts)} accept rules, which have matched {met} packets",
            )
        elif stage_of(observed) in (MigrationStage.AFTER, MigrationStage.FRESH):
            yield warning(
                Code.FORWARD_DROPS,
                where,
                f"it leads to {', '.join(_jumps(table)) or 'no other chain'}",
            )


def _drops(table: Table) -> str | None:
    """Why the chain FORWARD stops packets that no rule accepts, None if it lets them pass."""
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


def _firewalls_in_nft(observed: Observations) -> Iterator[Finding]:
    """Find base chains with the policy drop that iptables doesn't show."""
    shown = {"filter", "mangle", "nat", "raw", "security"}  # iptables-nft's

    def matters(chain: BaseChain) -> bool:
        is_iptables = chain.family in ("ip", "ip6") and chain.table in shown
        return chain.hook == _FORWARDS and chain.drops and not is_iptables and chain.table != TABLE

    evidence = [f"the chain {c.name} in the table {c.family} {c.table}" for c in observed.base_chains if matters(c)]
    if evidence and not observed.has_our_rules:  # then `_other_chains` names it
        yield note(Code.FIREWALL_IN_NFT, *evidence)


def _other_chains(observed: Observations) -> Iterator[Finding]:
    """Find every chain of other programs that can keep packets from Services, once our rules are there."""
    found = [*observed.foreign_chains, *(chain for saved in observed.saved for chain in _legacy_chains(saved))]
    for code, effects in _BY_EFFECT.items():
        evidence = [str(chain) for chain in sorted(found) if chain.effect in effects]
        if evidence and observed.has_our_rules:
            yield warning(code, *evidence)


def _legacy_chains(saved: SavedTables) -> Iterator[ForeignChain]:
    """Yield the built-in chains of legacy iptables that can drop packets, or exempt them from connection tracking.

    Chains of iptables-nft are among the kernel's base chains already.
    """
    for table in saved.tables if saved.is_legacy else ():
        for chain, policy in table.policies.items():
            if why := "its policy is drop" if policy == "DROP" else _in_reach(table, chain, Effect.DROPS, _STOPS):
                yield ForeignChain(saved.tool, table.name, chain, chain.lower(), Effect.DROPS, why)
            if why := _in_reach(table, chain, Effect.EXEMPTS, {"NOTRACK"}):
                yield ForeignChain(saved.tool, table.name, chain, chain.lower(), Effect.EXEMPTS, why)


def _in_reach(table: Table, start: str, effect: Effect, wanted: Set[str]) -> str:
    """How a chain can have an effect by these targets, "" if it can't.  kubelet's chains don't count."""
    targets: dict[str, set[str]] = {}
    for rule in table.rules:
        targets.setdefault(rule.chain, set()).add(rule.target)

    def near(chain: str) -> Iterator[str]:
        return (each for each in targets.get(chain, ()) if each in table.chains and not each.startswith("KUBE-"))

    return rule_with(effect, start, lambda chain: bool(targets.get(chain, set()) & wanted), near)


def _calico(observed: Observations) -> Iterator[Finding]:
    """Find a Calico that uses nftables because kube-proxy's nftables mode is there: it will switch back to iptables."""
    here = [f"the table {table}" for table in observed.nft_tables if table in ("ip calico", "ip6 calico")]
    mode = observed.api.felix_mode if observed.api else None
    follows_kube_proxy = observed.mode == "nftables" or observed.has_our_rules
    if here and follows_kube_proxy and mode in (None, "Auto"):
        how = "nftablesMode: Auto, in" if mode else "nftablesMode couldn't be read from"
        yield warning(Code.CALICO_FOLLOWS, *here, f"{how} felixconfiguration/default")


def _other_proxies(observed: Observations) -> Iterator[Finding]:
    """Find traces of other service proxies, and kube-proxy's beside our rules."""
    codes = {"Cilium": Code.CILIUM_PRESENT, "kube-router": Code.KUBE_ROUTER_PRESENT}
    if stage_of(observed) is MigrationStage.BESIDE:
        codes["kube-proxy"] = Code.KUBE_PROXY_LEFT
    yield from (warning(code, *observed.traces[proxy]) for proxy, code in codes.items() if observed.traces.get(proxy))


def _no_agent(observed: Observations) -> Iterator[Finding]:
    """Find our rules without an agent, and an agent that doesn't answer."""
    if observed.agent_delay:
        yield warning(Code.AGENT_SILENT, observed.agent_delay)
    if observed.has_our_rules and not observed.has_agent:
        yield warning(
            Code.RULES_WITHOUT_AGENT,
            f"the table {TABLE} is in the kernel, and no process has the agent's lock",
        )


def _route_localnet(observed: Observations) -> Iterator[Finding]:
    """Find a sysctl of kube-proxy's that outlives the rules that made it safe."""
    path = "ipv4/conf/all/route_localnet"
    if observed.sysctls.get(path) and stage_of(observed) in (MigrationStage.AFTER, MigrationStage.FRESH):
        yield warning(Code.ROUTE_LOCALNET_LEFT, observed.setting(path))


CHECKS = (
    _forwarding,
    _firewalls_in_nft,
    _other_chains,
    _calico,
    _other_proxies,
    _no_agent,
    _route_localnet,
)
