"""Checks for other programs whose rules meet ours: firewalls, Calico, other service proxies and their leftovers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from nftproxy.doctor.findings import Finding, MigrationStage, note, stage_of, warning
from nftproxy.doctor.observations import Observations
from nftproxy.doctor.saved_iptables import Rule, SavedTables, Table
from nftproxy.model.addresses import TABLE
from nftproxy.model.base_chains import BaseChain, DroppingChain
from nftproxy.model.codes import Code

_OF_FIREWALLS: Mapping[str, str] = MappingProxyType(
    {"ufw-": "ufw", "DOCKER": "Docker", "FORWARD_": "firewalld", "FWD": "firewalld"}
)
"""Firewalls by the prefixes of their chains' names."""
_STOPS = frozenset({"DROP", "REJECT"})
_FORWARDS = "forward"


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
    if evidence and not observed.has_our_rules:  # then `_others_that_drop` names it
        yield note(Code.FIREWALL_IN_NFT, *evidence)


def _others_that_drop(observed: Observations) -> Iterator[Finding]:
    """Find every chain of other programs on the path that can drop packets, once our rules are there."""
    found = [*observed.dropping_chains, *(chain for saved in observed.saved for chain in _legacy_chains(saved))]
    if observed.has_our_rules and found:
        yield warning(Code.OTHERS_MAY_DROP, *map(str, sorted(found)))


def _legacy_chains(saved: SavedTables) -> Iterator[DroppingChain]:
    """Yield the built-in chains of legacy iptables that can drop packets.

    Chains of iptables-nft are among the kernel's base chains already.
    """
    for table in saved.tables if saved.is_legacy else ():
        for chain, policy in table.policies.items():
            why = "its policy is drop" if policy == "DROP" else _drops_in_reach(table, chain)
            if why:
                yield DroppingChain(saved.tool, table.name, chain, chain.lower(), why)


def _drops_in_reach(table: Table, start: str) -> str:
    """How a chain can drop packets by itself or through its jumps, "" if it can't.  kubelet's chains don't count."""
    seen, waiting = {start}, [start]
    while waiting:
        name = waiting.pop()
        targets = {rule.target for rule in table.of(name)}
        if targets & _STOPS:
            return "a rule drops or rejects" if name == start else f"a rule in the chain {name} drops or rejects"
        near = sorted(each for each in targets - seen if each in table.chains and not each.startswith("KUBE-"))
        seen.update(near)
        waiting += near
    return ""


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
    """Find our rules without an agent."""
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


CHECKS = (_forwarding, _firewalls_in_nft, _others_that_drop, _calico, _other_proxies, _no_agent, _route_localnet)
