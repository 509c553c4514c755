"""What kube-proxy does and nftproxy doesn't, in the configuration, rules and metrics that kube-proxy has on this node.

The measure is docs/semantics.md.  In each check the rules and counters in the kernel count for more than what is
configured: they show what is used.
"""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy.doctor.facts import Facts
from nftproxy.doctor.findings import Finding, Kind, Severity, Stage, stage_of
from nftproxy.doctor.iptables import SavedTables
from nftproxy.doctor.metrics import INVALID_DROPPED, LOCALHOST_ACCEPTED
from nftproxy.model.addresses import family_of
from nftproxy.model.codes import Code

NODE_PORT_ADDRESSES = Kind(Code.NODE_PORTS_EVERYWHERE, Severity.WARNING)
LOCALHOST_NODE_PORTS = Kind(Code.LOCALHOST_NODE_PORTS, Severity.WARNING)
INVALID = Kind(Code.INVALID_NOT_DROPPED, Severity.WARNING)
IPVS_SCHEDULER = Kind(Code.IPVS_SCHEDULER, Severity.WARNING)
IPVS_INTERFACE = Kind(Code.IPVS_ADDRESSES, Severity.NOTE)
WITHOUT_EFFECT = Kind(Code.CONFIGURATION_UNUSED, Severity.NOTE)
UNUSABLE = Kind(Code.CONFIGURATION_INVALID, Severity.ERROR)
BOTH_VARIANTS = Kind(Code.BOTH_IPTABLES, Severity.WARNING)

RANDOM_ENOUGH = frozenset({"", "rr"})
"""Schedulers for which a random choice is no other service: without weights, round robin gives everybody as much."""
LOCALHOST_COUNTER = "localhost_nps_accepted_pkts"
INVALID_COUNTER = "ct_state_invalid_dropped_pkts"
"""The names under which kube-proxy's rules count, for its two metrics (pkg/proxy/metrics)."""


def node_port_addresses(facts: Facts) -> Iterator[Finding]:
    """Modes in which kube-proxy serves node ports on all addresses by default."""
    configuration = facts.configuration
    if facts.mode not in ("iptables", "ipvs") or stage_of(facts) is Stage.AFTER:
        return
    if configuration is None:
        yield NODE_PORT_ADDRESSES.seen(
            f"kube-proxy's rules are those of {facts.mode} mode",
            "its configuration isn't known, and may name addresses",
            severity=Severity.NOTE,
        )
    elif not configuration.node_port_addresses:
        where = f"mode {configuration.mode} without nodePortAddresses, in {configuration.source}"
        several = facts.addresses or ()
        is_one_each = facts.addresses is not None and len(set(map(family_of, several))) == len(several)
        severity = Severity.NOTE if is_one_each else Severity.WARNING
        yield NODE_PORT_ADDRESSES.seen(
            where, f"addresses on this node's interfaces: {', '.join(sorted(several)) or 'none'}", severity=severity
        )


def localhost_node_ports(facts: Facts) -> Iterator[Finding]:
    """Packets to node ports at localhost that kube-proxy has counted; or that it may have had without counting."""
    accepted = facts.metrics.localhost_accepted if facts.metrics else None
    counted = _counted(facts, LOCALHOST_COUNTER, LOCALHOST_ACCEPTED, accepted)
    if counted:
        yield LOCALHOST_NODE_PORTS.seen(*counted)
    elif accepted is None and LOCALHOST_COUNTER not in facts.accounts and _serves_localhost(facts):
        assert facts.configuration
        yield LOCALHOST_NODE_PORTS.seen(
            f"mode iptables without localhostNodePorts: false, in {facts.configuration.source}",
            "whether anybody uses it isn't known: kube-proxy's metric is not to be had here",
            severity=Severity.NOTE,
        )


def _counted(facts: Facts, counter: str, metric: str, total: int | None) -> list[str]:
    """What kube-proxy has counted itself: in its rules, and in a metric, whose value is `total`."""
    counted = []
    if packets := facts.accounts.get(counter, 0):
        counted.append(f"the counter {counter} of kube-proxy's rules has {packets} packets")
    if total and facts.metrics:
        counted.append(f"{metric} is {total}, at {facts.metrics.source}")
    return counted


def _serves_localhost(facts: Facts) -> bool:
    given = facts.configuration
    if given is None or given.mode != "iptables" or not given.localhost_node_ports:
        return False
    return not given.node_port_addresses or any(
        text.startswith(("127.", "0.0.0.0/0", "localhost", "all")) for text in given.node_port_addresses
    )


def invalid_packets(facts: Facts) -> Iterator[Finding]:
    """Rules with which kube-proxy drops invalid packets, unless tcpBeLiberal is set."""
    if facts.sysctls.get("netfilter/nf_conntrack_tcp_be_liberal") or (
        facts.configuration and facts.configuration.tcp_be_liberal
    ):
        return
    rules = [
        (saved.tool, rule)
        for saved in facts.saved
        if (table := saved.table("filter"))
        for rule in table.of("KUBE-FORWARD")
        if "--ctstate INVALID" in rule.matches and rule.target == "DROP"
    ]
    dropped = facts.metrics.invalid_dropped if facts.metrics else None
    evidence = [f"{tool}-save: KUBE-FORWARD has dropped {rule.packets} invalid packets" for tool, rule in rules]
    counted = _counted(facts, INVALID_COUNTER, INVALID_DROPPED, dropped)
    evidence += counted
    if evidence:
        used = bool(counted) or any(rule.packets for _, rule in rules)
        evidence += ["net.netfilter.nf_conntrack_tcp_be_liberal is 0", f"Linux {facts.kernel}"]
        yield INVALID.seen(*evidence, severity=Severity.WARNING if used else Severity.NOTE)


def schedulers(facts: Facts) -> Iterator[Finding]:
    """How IPVS spreads connections: as configured, and as the virtual servers have it."""
    given = facts.configuration
    evidence = []
    if given is not None and given.mode == "ipvs":
        evidence.append((given.scheduler, f"ipvs.scheduler: {given.scheduler or 'rr, by default'}, in {given.source}"))
    evidence += [(name, f"virtual servers with the scheduler {name}") for name in sorted(set(facts.schedulers))]
    if evidence:
        matters = any(name not in RANDOM_ENOUGH for name, _ in evidence)
        severity = Severity.WARNING if matters else Severity.NOTE
        yield IPVS_SCHEDULER.seen(*(text for _, text in evidence), severity=severity)


def ipvs_interface(facts: Facts) -> Iterator[Finding]:
    """The interface that has every address."""
    if "kube-ipvs0" in facts.interfaces and stage_of(facts) is not Stage.AFTER:
        yield IPVS_INTERFACE.seen("the interface kube-ipvs0")


def fields(facts: Facts) -> Iterator[Finding]:
    """What nftproxy would say when it is started with kube-proxy's configuration."""
    given = facts.configuration
    if given is not None and given.faults:
        yield UNUSABLE.seen(*given.faults)
    if given is not None and given.problems:
        yield WITHOUT_EFFECT.seen(*given.problems)


def both_variants(facts: Facts) -> Iterator[Finding]:
    """kube-proxy's chains in legacy iptables and in nftables' at once."""
    for prefix in ("iptables", "ip6tables"):
        having = [saved.tool for saved in facts.saved if saved.tool.startswith(f"{prefix}-") and _has_services(saved)]
        if len(having) > 1:
            yield BOTH_VARIANTS.seen(*(f"{tool}-save: the chain KUBE-SERVICES" for tool in having))


def _has_services(saved: SavedTables) -> bool:
    return any("KUBE-SERVICES" in table.chains for table in saved.tables)


CHECKS = (
    node_port_addresses,
    localhost_node_ports,
    invalid_packets,
    schedulers,
    ipvs_interface,
    fields,
    both_variants,
)
KINDS = (
    NODE_PORT_ADDRESSES,
    LOCALHOST_NODE_PORTS,
    INVALID,
    IPVS_SCHEDULER,
    IPVS_INTERFACE,
    WITHOUT_EFFECT,
    UNUSABLE,
    BOTH_VARIANTS,
)
