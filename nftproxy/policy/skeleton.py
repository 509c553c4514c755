"""The facts of a table's skeleton: everything that depends on the node and the configuration, and on no Service."""

from __future__ import annotations

from nftproxy.extensions.counts.counted_fronts import CONNECTIONS, SCREENED, UnservedReason
from nftproxy.model.addresses import FAST_PATH_TABLE, Family, Protocol, family_of
from nftproxy.model.annotations import Failover
from nftproxy.model.settings import Config, FastPathScope, Settings
from nftproxy.policy.facts import COUNTED, Endings, FastPathFacts, TableFacts
from nftproxy.policy.fronts import answering_addresses, collapsed, nodeport_addresses, serves_every_address
from nftproxy.policy.local_sources import local_sources
from nftproxy.policy.numbers import NUMBERS, as_address
from nftproxy.policy.ranges import source_lengths
from nftproxy.policy.state import ClusterState

# How connections are masqueraded.  A random port now and then meets a TIME_WAIT that an earlier connection left in the
# pod, and whose entry in connection tracking is gone, since a client that uses a port again replaces the entry.  To
# the pod the peer's clock then seems to run backwards, since timestamps have an offset for each client, with newer
# kernels for each connection ("tcp: secure_seq: add back ports to TS offset": Linux 7.0, 6.12.94 and more).  So it
# ignores the SYN (PAWS, RFC 7323, 5.3).  A client that keeps its ports meets nothing but its own past.  Other
# protocols have no such past, and random ports, which spread evenly, are free for longer: docs/performance.md has the
# figures.
_TCP_KEEPS_ITS_PORT = ("meta l4proto tcp", "masquerade")
_RANDOM_PORTS = ("", "masquerade fully-random")

# kube-proxy's chains that drop packets to an unknown ClusterIP have priority 0 (nftables mode, 1.36).  Our chains come
# first for Services that kube-proxy leaves alone, so that these are rejected, in any order of start of the proxies.
_FILTER, _BEFORE_FILTERS = 0, -1

PACKETS = 16
"""How many packets of a connection pass on average before it enters the fast path.  After its handshake a short
connection has some five, so two thirds of these never enter.  `ct packets` would need accounting, which costs each
packet of all connections."""
ECHO = {Family.IPV4: "icmp type echo-request", Family.IPV6: "icmpv6 type echo-request"}
"""The match for pings."""
_UNANSWERED = "ct status & (dnat | seen-reply) == dnat"
_RESET = ("tcp flags & (rst | ack) == rst | ack tcp sequence 0", "tcp")
REFUSALS = {
    Family.IPV4: (
        _RESET,
        (f"icmp type {{ destination-unreachable, time-exceeded }} icmp code != frag-needed {_UNANSWERED}", "icmp"),
    ),
    Family.IPV6: (_RESET, (f"icmpv6 type {{ destination-unreachable, time-exceeded }} {_UNANSWERED}", "ipv6-icmp")),
}
"""The matches for packets that refuse a connection, and their protocols: a reset in answer to a first packet, and the
ICMP errors at which Linux gives up a connection without an answer."""
_LOOPBACK = {Family.IPV4: "127.0.0.0/8", Family.IPV6: "::1"}


def compile_table(state: ClusterState, settings: Settings, family: Family) -> TableFacts:
    """The facts for the skeleton of one family's table."""
    config = settings.config
    ip = family.value
    bit = 1 << config.masquerade_bit
    everywhere = serves_every_address(config, family)
    local = local_sources(state.node, config, family)
    refusals = REFUSALS[family] if state.failing_over[Failover.REFUSED] else ()
    return TableFacts(
        table=family.table,
        ip=ip,
        protocols=tuple(protocol.value for protocol in Protocol),
        numbers=NUMBERS[family],
        zero=as_address(0, family),
        lengths=source_lengths(family),
        mark=f"{bit:#x}",
        unmark=f"{bit ^ 0xFFFFFFFF:#x}",
        masquerades=(_RANDOM_PORTS,) if config.masquerade_fully_random else (_TCP_KEEPS_ITS_PORT, _RANDOM_PORTS),
        local_sources=(local.match(family),) if local else (),
        masqueraded_sources=("",) if config.masquerade_all else (local.match(family, "!= "),) if local else (),
        nodeport_matches=(
            (f"{ip} daddr != {_LOOPBACK[family]} fib daddr type local",)
            if everywhere
            else (f"{ip} daddr @nodeport-ips",)
        ),
        remembered_nodeports=("",) if everywhere else (f"ct original {ip} daddr @nodeport-ips",),
        nodeport_addresses=() if everywhere else nodeport_addresses(state, config, family),
        service_cidrs=collapsed(cidr for cidr in state.service_cidrs if family_of(cidr) is family),
        external_ips=_external_ips(config, family),
        pings=((ECHO[family], answering_addresses(state, family)),) if config.answers_pings else (),
        filter_priority=_BEFORE_FILTERS if config.is_canary else _FILTER,
        counted=(CONNECTIONS, *(reason.value for reason in UnservedReason if reason not in SCREENED))
        if config.service_counts
        else (),
        counters=("count-connection",) if config.service_counts else (),
        endings=endings(config),
        watchers=("watch",) if state.failing_over[Failover.SILENT] else (),
        refusals=refusals,
        icmp_errors=tuple(protocol for match, protocol in refusals if (match, protocol) != _RESET),
    )


def _external_ips(config: Config, family: Family) -> tuple[tuple[str, str], ...]:
    """The set of Services' external addresses, and the match for packets that are rejected there."""
    if config.closes_external_addresses:
        return (("external-ips", ""),)
    return (("external-ips", f"{ECHO[family]} "),) if config.answers_pings else ()


def compile_fast_path(config: Config) -> FastPathFacts | None:
    """The facts for the table of the fast path, None if it is off."""
    if not config.fast_path.interfaces:
        return None
    is_restricted = config.fast_path.connections is FastPathScope.SERVICES
    match = "ct status dnat ct status assured" if is_restricted else "ct status assured"
    return FastPathFacts(f"inet {FAST_PATH_TABLE}", match, PACKETS)


def endings(config: Config) -> Endings:
    """The verdicts for packets that no endpoint gets."""
    return COUNTED if config.service_counts else Endings()
