"""Checks for everything that kube-proxy does and nftproxy doesn't, by kube-proxy's configuration, rules and metrics.

The measure is docs/semantics.md.  Rules and counters in the kernel outweigh the configuration: they show actual use.
"""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy.config.declared_fields import Fields
from nftproxy.doctor.findings import Finding, MigrationStage, error, note, stage_of, warning
from nftproxy.doctor.kube_proxy_readers import INVALID_DROPPED, LOCALHOST_ACCEPTED
from nftproxy.doctor.observations import Observations
from nftproxy.doctor.saved_iptables import SavedTables
from nftproxy.model.addresses import family_of
from nftproxy.model.codes import Code
from nftproxy.model.pod_interfaces import recognised

LOCALHOST_COUNTER = "localhost_nps_accepted_pkts"
INVALID_COUNTER = "ct_state_invalid_dropped_pkts"
"""The names of the counters in kube-proxy's rules, for its two metrics (pkg/proxy/metrics)."""


def _node_port_addresses(observed: Observations) -> Iterator[Finding]:
    """Find modes in which kube-proxy serves node ports on all addresses by default."""
    configuration = observed.configuration
    if observed.mode not in ("iptables", "ipvs") or stage_of(observed) is MigrationStage.AFTER:
        return
    if configuration is None:
        yield note(
            Code.NODE_PORTS_EVERYWHERE,
            f"kube-proxy's rules are those of {observed.mode} mode",
            "its configuration is unknown, and may name addresses",
        )
    elif not configuration.node_port_addresses:
        several = observed.addresses or ()
        is_one_each = observed.addresses is not None and len(set(map(family_of, several))) == len(several)
        yield (note if is_one_each else warning)(
            Code.NODE_PORTS_EVERYWHERE,
            f"mode {configuration.mode} without nodePortAddresses, in {configuration.source}",
            f"addresses on this node's interfaces: {', '.join(sorted(several)) or 'none'}",
        )


def _localhost_node_ports(observed: Observations) -> Iterator[Finding]:
    """Find packets to node ports at localhost that kube-proxy has counted, or that it may serve without counting."""
    accepted = observed.metrics.localhost_accepted if observed.metrics else None
    counted = _counted(observed, LOCALHOST_COUNTER, LOCALHOST_ACCEPTED, accepted)
    if counted:
        yield warning(Code.LOCALHOST_NODE_PORTS, *counted)
    elif accepted is None and LOCALHOST_COUNTER not in observed.accounts and _serves_localhost(observed):
        assert observed.configuration
        yield note(
            Code.LOCALHOST_NODE_PORTS,
            f"mode iptables without localhostNodePorts: false, in {observed.configuration.source}",
            "its use is unknown, as kube-proxy's metric isn't available here",
        )


def _counted(observed: Observations, counter: str, metric: str, total: int | None) -> list[str]:
    """Lines of evidence from kube-proxy's counters: a counter of its rules, and a metric with the value `total`."""
    counted = []
    if packets := observed.accounts.get(counter, 0):
        counted.append(f"the counter {counter} of kube-proxy's rules has {packets} packets")
    if total and observed.metrics:
        counted.append(f"{metric} is {total}, at {observed.metrics.source}")
    return counted


def _serves_localhost(observed: Observations) -> bool:
    given = observed.configuration
    if given is None or given.mode != "iptables" or not given.localhost_node_ports:
        return False
    return not given.node_port_addresses or any(
        text.startswith(("127.", "0.0.0.0/0", "localhost", "all")) for text in given.node_port_addresses
    )


def _invalid_packets(observed: Observations) -> Iterator[Finding]:
    """Find rules by which kube-proxy drops invalid packets, unless tcpBeLiberal is set."""
    if observed.sysctls.get("netfilter/nf_conntrack_tcp_be_liberal") or (
        observed.configuration and observed.configuration.tcp_be_liberal
    ):
        return
    rules = [
        (saved.tool, rule)
        for saved in observed.saved
        if (table := saved.table("filter"))
        for rule in table.of("KUBE-FORWARD")
        if "--ctstate INVALID" in rule.matches and rule.target == "DROP"
    ]
    dropped = observed.metrics.invalid_dropped if observed.metrics else None
    evidence = [f"{tool}-save: KUBE-FORWARD has dropped {rule.packets} invalid packets" for tool, rule in rules]
    counted = _counted(observed, INVALID_COUNTER, INVALID_DROPPED, dropped)
    evidence += counted
    if evidence:
        is_used = bool(counted) or any(rule.packets for _, rule in rules)
        evidence += ["net.netfilter.nf_conntrack_tcp_be_liberal is 0", f"Linux {observed.kernel}"]
        yield (warning if is_used else note)(Code.INVALID_NOT_DROPPED, *evidence)


def schedulers(fields: Fields, observed: Observations) -> Iterator[Finding]:
    """Find IPVS schedulers, in the configuration and in the virtual servers.

    The first of `fields` that stands instead of ipvs.scheduler says what replaces them.
    """
    field = next((each for each in fields if each.instead_of and each.instead_of.path == "ipvs.scheduler"), None)
    if field is None:
        return
    given = observed.configuration
    names = set(observed.schedulers)
    evidence = [f"virtual servers with the scheduler {name}" for name in sorted(names)]
    if given is not None and given.mode == "ipvs":
        evidence.insert(0, f"ipvs.scheduler: {given.scheduler or 'rr, by default'}, in {given.source}")
        names.add(given.scheduler or "rr")
    found = {name: field.replacement(name) for name in sorted(names)}
    for name, (wanted, difference) in found.items():
        text = f"instead of {name}: {field.path}: {wanted.value}"
        evidence.append(f"{text}, where {difference}" if difference else text)
    if found:
        matters = any(each.difference for each in found.values())
        yield (warning if matters else note)(Code.IPVS_SCHEDULER, *evidence)


def _ipvs_interface(observed: Observations) -> Iterator[Finding]:
    """Find the interface that has the address of every Service."""
    if "kube-ipvs0" in observed.interfaces and stage_of(observed) is not MigrationStage.AFTER:
        yield note(Code.IPVS_ADDRESSES, "the interface kube-ipvs0")


def _local_sources(observed: Observations) -> Iterator[Finding]:
    """Find a configuration that says nothing about pods: policy Local then drops their own traffic, too."""
    agent, seen = observed.agent, observed.api or observed.agent
    given = observed.configuration or (agent.configuration if agent else None)
    if given is None:
        return
    lacks_range = given.takes_node_range and seen is not None and seen.has_pod_range is False
    if given.knows_local_sources and not lacks_range:
        return
    evidence = [f"no clusterCIDR and no other detectLocalMode, in {given.source}"]
    if lacks_range:
        evidence = [f"detectLocalMode: NodeCIDR, in {given.source}, and the Node {observed.node} has no podCIDRs"]
    if found := recognised(observed.interfaces):
        fields = "bridgeInterface" if found.bridge else "interfaceNamePrefix"
        value = found.bridge or found.prefix
        mode = found.fields()["detectLocalMode"]
        evidence.append(f"the interfaces {found} are pods': detectLocalMode: {mode}, detectLocal.{fields}: {value}")
    yield warning(Code.LOCAL_SOURCES_UNKNOWN, *evidence)


def _fields(observed: Observations) -> Iterator[Finding]:
    """Find the errors and warnings of nftproxy about kube-proxy's configuration."""
    given = observed.configuration
    if given is not None and given.faults:
        yield error(Code.CONFIGURATION_INVALID, *given.faults)
    if given is not None and given.problems:
        yield note(Code.CONFIGURATION_UNUSED, *given.problems)


def _both_variants(observed: Observations) -> Iterator[Finding]:
    """Find kube-proxy's chains in legacy iptables and in iptables-nft at once."""
    for prefix in ("iptables", "ip6tables"):
        having = [
            saved.tool for saved in observed.saved if saved.tool.startswith(f"{prefix}-") and _has_services(saved)
        ]
        if len(having) > 1:
            yield warning(Code.BOTH_IPTABLES, *(f"{tool}-save: the chain KUBE-SERVICES" for tool in having))


def _has_services(saved: SavedTables) -> bool:
    return any("KUBE-SERVICES" in table.chains for table in saved.tables)


CHECKS = (
    _node_port_addresses,
    _localhost_node_ports,
    _invalid_packets,
    _ipvs_interface,
    _local_sources,
    _fields,
    _both_variants,
)
