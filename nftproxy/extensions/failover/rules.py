"""Failover from endpoints that are silent, that refuse, or that are gone: its share of the rules."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from nftproxy.extensions.failover.annotations import FAILOVER, Failover
from nftproxy.extensions.failover.memberships import port_failover
from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.objects import Service, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.extension import AddToPort, CompiledPort, CompiledService, Settings
from nftproxy.policy.facts import Addition, Part
from nftproxy.policy.limits import fronts_at_most
from nftproxy.policy.numbers import namespace_number
from nftproxy.policy.state import ClusterState

TABLE, PORT = "extensions/failover/table.nft.j2", "extensions/failover/port.nft.j2"

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


class FailoverTable(msgspec.Struct, frozen=True):
    """The lines of this feature in a table's skeleton.

    `watchers` holds the chain that notes connections without an answer, if any Service asks for failover from silent
    endpoints.  `refusals` are rows of (match, protocol) of the packets that refuse a connection, if any asks for
    failover after these.  `icmp_errors` are the protocols of those of them that are ICMP errors.
    """

    watchers: tuple[str, ...] = ("watch",)
    refusals: tuple[tuple[str, str], ...] = ()
    icmp_errors: tuple[str, ...] = ()


def uses(service: Service) -> Collection[Failover]:
    """The failures after which a Service's connections go to other endpoints."""
    return service.options[FAILOVER]


def elements(service: Service, _config: Config) -> int:
    """The most elements that failover adds for a Service."""
    failures, fronts = uses(service), fronts_at_most(service)
    of_refused = 2 * fronts.all + (service.external_policy is TrafficPolicy.LOCAL) * fronts.outside
    return (Failover.SILENT in failures) * fronts.all + (Failover.REFUSED in failures) * of_refused


def table(state: ClusterState, _settings: Settings, family: Family) -> Part | None:
    """Failover's part of a table's skeleton, None if no Service needs it."""
    watchers = ("watch",) if state.users_of(Failover.SILENT) else ()
    refusals = REFUSALS[family] if state.users_of(Failover.REFUSED) else ()
    if not watchers and not refusals:
        return None
    errors = tuple(protocol for match, protocol in refusals if (match, protocol) != _RESET)
    return Part(TABLE, FailoverTable(watchers, refusals, errors))


def ports(given: CompiledService) -> AddToPort:
    """Return a function that adds the memberships of a TCP port."""
    failures = uses(given.service)
    namespace = namespace_number(given.service.key.namespace, given.family)

    def add(port: CompiledPort) -> Addition | None:
        if port.port.protocol is not Protocol.TCP or not failures:
            return None
        return Addition(Part(PORT, port_failover(failures, namespace, port)))

    return add
