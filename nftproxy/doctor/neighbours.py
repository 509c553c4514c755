"""Other programs whose rules meet ours: firewalls, Calico, and other service proxies with what they left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from nftproxy.doctor.facts import Facts
from nftproxy.doctor.findings import Finding, Kind, Severity, Stage, stage_of
from nftproxy.doctor.iptables import Rule, SavedTables, Table
from nftproxy.model.addresses import TABLE
from nftproxy.model.kernel import BaseChain

FORWARD_ACCEPTS = Kind(
    "NFT611",
    Severity.WARNING,
    "kube-proxy's accepts will vanish, and another program drops what it forwards",
    "kube-proxy's chain KUBE-FORWARD accepts what it masquerades, and what belongs to connections that are there.  "
    "nftproxy writes no rules into other programs' tables: once that chain is gone, the policy below it decides.",
    "Let the firewall accept forwarded packets of the pods' ranges: for ufw `ufw route allow`, or "
    'DEFAULT_FORWARD_POLICY="ACCEPT" in /etc/default/ufw; for Docker a rule in the chain DOCKER-USER; for firewalld '
    "the pods' ranges in the zone trusted.",
)
FORWARD_DROPS = Kind(
    "NFT612",
    Severity.WARNING,
    "This node drops what it forwards unless another program's rule accepts it",
    "Connections from other nodes and from outside to pods of this node, through Services or not, depend on those "
    "rules.",
    "See that they accept the pods' ranges, from and to: the chains that are named are where to look.",
)
FIREWALL_IN_NFT = Kind(
    "NFT613",
    Severity.NOTE,
    "A firewall drops forwarded packets in a table of its own",
    "In nftables an accept in one table, whether kube-proxy's or anybody's, doesn't save a packet from a drop in "
    "another.  So what this firewall lets pass today it lets pass afterwards.",
    "Nothing.",
)
CALICO_AUTO = Kind(
    "NFT614",
    Severity.WARNING,
    "Calico will change its data plane when kube-proxy's tables are gone",
    "With nftablesMode Auto, Calico uses nftables where it finds kube-proxy's tables of nftables mode, and iptables "
    "everywhere else, nodes with nftproxy among them.  It looks when calico-node starts: that start then replaces all "
    "of its rules.",
    "Before the first node is switched, set the mode that Calico has now: `kubectl patch felixconfiguration default "
    '--type merge --patch \'{"spec": {"nftablesMode": "Enabled"}}\'`.',
)
LEFT_BY_KUBE_PROXY = Kind(
    "NFT615",
    Severity.WARNING,
    "kube-proxy's rules are still there beside nftproxy's",
    "Nothing updates them any more, and where nftproxy has no endpoint they may send a connection to a pod that has "
    "gone.  If kube-proxy itself is still running, both answer for the same addresses.",
    "Keep kube-proxy from this node, then run `nftproxy cleanup --kube-proxy MODE`.",
)
CILIUM = Kind(
    "NFT616",
    Severity.WARNING,
    "Cilium works on this node, or has",
    "With kubeProxyReplacement Cilium translates connections to Services before nftproxy sees them; what a Cilium "
    "that is gone has left stays in force as well.",
    'Run Cilium with kubeProxyReplacement: "false"; if it is gone from the cluster, boot the node.',
)
KUBE_ROUTER = Kind(
    "NFT617",
    Severity.WARNING,
    "kube-router works on this node, or has",
    "Its service proxy answers for the same addresses through IPVS; what it left stays in force until it is removed.",
    "Run kube-router with --run-service-proxy=false; if it is gone from the cluster, run "
    "`kube-router --cleanup-config`.",
)
NO_AGENT = Kind(
    "NFT618",
    Severity.WARNING,
    "nftproxy's rules are there, and no agent keeps them up to date",
    "Connections go to the endpoints of the time when the agent ended.",
    "Start the agent, or remove the rules with `nftproxy cleanup`.",
)
ROUTE_LOCALNET = Kind(
    "NFT619",
    Severity.WARNING,
    "kube-proxy has left route_localnet on",
    "The kernel takes packets from other machines for 127.0.0.0/8, which kube-proxy's rules kept out (CVE-2020-8558).  "
    "nftproxy doesn't need it.",
    "Run `sysctl net.ipv4.conf.all.route_localnet=0`, or boot the node.",
)

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
        yield ROUTE_LOCALNET.seen(f"net.{path.replace('/', '.')} is 1")


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
