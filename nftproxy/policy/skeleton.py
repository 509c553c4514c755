"""The facts of a table's skeleton: everything that depends on the node and the configuration, and on no Service."""

from __future__ import annotations

from nftproxy.model.addresses import Family, Protocol, family_of
from nftproxy.policy.extension import Settings
from nftproxy.policy.facts import TableFacts
from nftproxy.policy.fronts import collapsed, nodeport_addresses, serves_every_address
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

_LOOPBACK = {Family.IPV4: "127.0.0.0/8", Family.IPV6: "::1"}


def compile_table(state: ClusterState, settings: Settings, family: Family) -> TableFacts:
    """The facts for the skeleton of one family's table."""
    config = settings.config
    ip = family.value
    bit = 1 << config.masquerade_bit
    everywhere = serves_every_address(config, family)
    local = local_sources(state.node, config, family)
    parts = (each.table(state, settings, family) for each in settings.extensions)
    later = (each.later(family) for each in settings.extensions)
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
        filter_priority=_BEFORE_FILTERS if config.is_canary else _FILTER,
        endings=settings.endings,
        parts=tuple(filter(None, parts)),
        later=tuple(filter(None, later)),
    )
