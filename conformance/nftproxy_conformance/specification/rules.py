"""The rule of docs/semantics.md that a connection has broken: its section, and a sentence of that section.

Expected and seen outcomes decide: the owner of the place, the endpoints that were left out, the hidden source.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from nftproxy.extensions.external_addresses.fields import PINGS, Ping
from nftproxy.model.addresses import Address, Protocol, contains, family_of
from nftproxy.model.objects import Endpoint, TrafficPolicy
from nftproxy_conformance.lab.outcome import PING, Kind, Outcome, Probe
from nftproxy_conformance.lab.topology import Origin
from nftproxy_conformance.specification.endpoints import Lists
from nftproxy_conformance.specification.fronts import Front
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import place_of, virtual_ips


class Rule(Enum):
    """A rule: the title of its section, and its sentence."""

    PROTOCOLS = "Which objects count", "TCP (the default), UDP or SCTP"
    CAPTURED = "Virtual addresses", "`externalTrafficPolicy` applies to them, `internalTrafficPolicy` to the ClusterIP"
    OTHER_PORTS = "Virtual addresses", "Every other port of a ClusterIP, of any protocol, is rejected"
    UNALLOCATED = (
        "Virtual addresses",
        "Packets to an address of a ServiceCIDR that is no Service's ClusterIP are dropped",
    )
    UNTOUCHED = "Virtual addresses", "Other ports of external addresses are not touched"
    CLOSED = "Virtual addresses", "they are rejected at addresses in `nftproxy.externalIPCIDRs`"
    PINGS = (
        "Virtual addresses",
        "answers a client's pings if a Service has a usable endpoint for the client there",
    )
    USABLE = "Endpoints", "An endpoint is *usable* if it is ready, or serving and terminating."
    TOPOLOGY = "Choosing", "Topology is judged over the ready endpoints only"
    DRAW = "Choosing", "Each new connection draws from its list at random, all with the same chance."
    TERMINATING = "Choosing", "if no endpoint is ready anywhere, all that are serving and terminating"
    POLICY = "Policies and masquerading", "others | local | no: the endpoint sees the client"
    INTERNAL_POLICY = "Policies and masquerading", "ClusterIP | `Local` | everyone | local"
    MASQUERADING = (
        "Policies and masquerading",
        "sources that aren't local, including the node's own connections",
    )
    EXTERNAL_MASQUERADING = "Policies and masquerading", "external | `Cluster` | everyone | cluster | always, pods too"
    HAIRPIN = "Policies and masquerading", "A pod that reaches itself through a Service is masqueraded"
    REJECTED = "No endpoints", "no usable endpoint anywhere | rejected | rejected"
    DROPPED = "No endpoints", "policy `Local`, none on this node, some elsewhere | dropped | dropped"
    AFFINITY = "Session affinity", "With `sessionAffinity: ClientIP` a client reaches the same pod"
    SILENT = "Failover", "endpoints that don't answer *this node* are left out until they answer again"
    REFUSED = "Failover", "A refusal passes if no other endpoint would do better"
    GONE = "Failover", "connections to an endpoint end once its address is in no EndpointSlice, instead of hanging"
    SOURCE_RANGES = "Source ranges", "What isn't admitted is dropped"
    FORBIDDEN = "What clients may not do", "What is forbidden is dropped, as what source ranges exclude"
    HEALTH = "Node ports", "The answer at an address is that of its family"
    NODE_PORTS = "Node ports", "Node ports are served on the addresses of each"
    ESTABLISHED = "When rules change", "Established TCP connections are never touched"
    FLOWS = "When rules change", "UDP flows to a Service's address or node port that go to none of its usable endpoints"
    ASSOCIATIONS = (
        "When rules change",
        "SCTP associations are deleted likewise once their endpoint is in no EndpointSlice",
    )
    RESTRICTED = "When rules change", "So a new restriction holds for one-way UDP and repeated TCP handshakes too"
    CHANGES = "When rules change", "A first change is applied at once"

    @property
    def section(self) -> str:
        """The title of its section."""
        return self.value[0]

    @property
    def sentence(self) -> str:
        """The rule's sentence, as on the page."""
        return self.value[1]

    @property
    def anchor(self) -> str:
        """The rule's page and section."""
        return f"semantics.md#{self.section.lower().replace(' ', '-')}"

    def __str__(self) -> str:
        return f"{self.anchor}: {self.sentence}"


def rule_of(oracle: Oracle, probe: Probe, seen: Iterable[Outcome], what: str) -> Rule:
    """The rule that a connection has broken.

    Args:
        oracle: the oracle of the world.
        probe: the connection.
        seen: its wrong outcomes.
        what: the `what` of the `Difference`.
    """
    if what.endswith(CHANGES_ONLY):
        return Rule.CHANGES
    if probe.protocol == PING:
        return Rule.PINGS if oracle.world.config[PINGS] is Ping.ANSWER else _unserved(oracle, Address(probe.address))
    place = place_of(probe)
    front, expected = oracle.front_of(place), oracle.expected(probe)
    if what == NOT_REMEMBERED:
        return Rule.AFFINITY
    if what == WRONGLY_FOLLOWED:
        return Rule.ASSOCIATIONS if probe.protocol == "sctp" else Rule.FLOWS
    if what in _BY_WHAT:
        return _BY_WHAT[what]
    if what == WRONGLY_REFUSED:
        return Rule.REFUSED
    if what == WRONGLY_ENDED:
        return Rule.GONE if any(outcome.endpoint for outcome in seen) else Rule.ESTABLISHED
    if front is None or front.port is None:
        return _unserved(oracle, place.address)
    if {outcome.kind for outcome in expected} == {Kind.ENDPOINT}:
        return _served(oracle, front, probe, expected, frozenset(seen))
    return _turned_away(oracle, front, probe)


NOT_REMEMBERED = "was not remembered"
"""The `what` of a `Difference` if a client is sent to another pod than before."""
WRONGLY_REFUSED = "treats an endpoint's refusal otherwise"
"""The `what` of a `Difference` if a refusal reaches its client and should not, or the reverse."""
WRONGLY_ENDED = "treats a connection whose endpoint left otherwise"
"""The `what` of a `Difference` if an established connection ends and should not, or the reverse."""
WRONGLY_GOING_ON = "goes on after a restriction that excludes its client"
"""The `what` of a `Difference` if a flow that nobody has answered goes on."""
WRONGLY_FOLLOWED = "goes on otherwise after a change"
"""The `what` of a `Difference` if a flow stays at its endpoint and should not, or the reverse."""
WRONGLY_HEALTHY = "has another answer to a health check"
"""The `what` of a `Difference` of a health-check node port."""
_BY_WHAT = {WRONGLY_GOING_ON: Rule.RESTRICTED, WRONGLY_HEALTHY: Rule.HEALTH}
CHANGES_ONLY = "; on a new node it does not"
"""The end of `what` if a proxy that starts with the same cluster is right."""


def _unserved(oracle: Oracle, address: Address) -> Rule:
    """The rule for an address, at a port without a Service."""
    if any(address in service.cluster_ips for service in oracle.world.services):
        return Rule.OTHER_PORTS
    if oracle.closes(address):
        return Rule.CLOSED
    if any(contains(cidr, address) for each in oracle.world.service_cidrs for cidr in each.cidrs):
        return Rule.UNALLOCATED
    return Rule.NODE_PORTS if address in oracle.world.interfaces else Rule.UNTOUCHED


def _turned_away(oracle: Oracle, front: Front, probe: Probe) -> Rule:
    """The rule by which a connection to a Service port reaches no endpoint."""
    if not _lists(oracle, front, probe).cluster:
        return Rule.REJECTED
    if _is_guarded(front, probe):
        return Rule.SOURCE_RANGES
    return Rule.FORBIDDEN if oracle.forbids(probe) else Rule.DROPPED


def _lists(oracle: Oracle, front: Front, probe: Probe) -> Lists:
    assert front.port
    return oracle.lists(front.service, front.port, family_of(Address(probe.address)))


def _is_guarded(front: Front, probe: Probe) -> bool:
    """True if source ranges guard the front."""
    return bool(front.service.source_ranges) and probe.address in front.service.load_balancer_ips


def _served(oracle: Oracle, front: Front, probe: Probe, expected: frozenset[Outcome], seen: frozenset[Outcome]) -> Rule:
    """The rule for a connection that must reach an endpoint."""
    places = {outcome.endpoint for outcome in expected}
    strangers = {outcome.endpoint for outcome in seen} - places
    if not strangers:
        return _hidden(front, probe, seen) if seen - expected else Rule.DRAW
    entries = _entries(oracle, front)
    wrong = [each for each in strangers if each]
    if not wrong:  # no endpoint at all
        is_last_resort = not any(entries[each.ip].ready for each in places if each)
        return Rule.TERMINATING if is_last_resort else _not_served(oracle, front, probe)
    known = [entries[each.ip] for each in wrong if each.ip in entries]
    if not known:
        return Rule.DRAW
    if not any(pod.ready or (pod.serving and pod.terminating) for pod in known):
        return Rule.USABLE
    if set(wrong) <= _lists(oracle, front, probe).silent:
        return Rule.SILENT
    is_local = all(pod.node_name == oracle.world.node.name for pod in known)
    if front.policy is TrafficPolicy.LOCAL and not is_local:
        return Rule.POLICY if front.is_external else Rule.INTERNAL_POLICY
    return Rule.TERMINATING if not any(pod.ready for pod in known) else Rule.TOPOLOGY


def _not_served(oracle: Oracle, front: Front, probe: Probe) -> Rule:
    """The rule for a connection that must reach a ready endpoint, and reaches none."""
    if Protocol(probe.protocol) is not Protocol.TCP:
        return Rule.PROTOCOLS
    if _is_guarded(front, probe):
        return Rule.SOURCE_RANGES
    is_virtual = probe.address in virtual_ips(front.service)
    return Rule.CAPTURED if is_virtual or probe.address not in oracle.world.interfaces else Rule.NODE_PORTS


def _hidden(front: Front, probe: Probe, seen: Iterable[Outcome]) -> Rule:
    """The rule for a connection whose source is wrongly hidden or kept."""
    itself = [each for each in seen if each.endpoint and each.endpoint.ip == probe.source]
    if any(not each.masqueraded for each in itself):
        return Rule.HAIRPIN
    if not front.is_external:
        return Rule.MASQUERADING
    if front.policy is TrafficPolicy.CLUSTER:
        return Rule.EXTERNAL_MASQUERADING
    return Rule.MASQUERADING if probe.origin is Origin.NODE else Rule.POLICY


def _entries(oracle: Oracle, front: Front) -> dict[str, Endpoint]:
    """The endpoints of a Service by their addresses, usable or not.  A ready entry precedes another entry."""
    slices = (each for each in oracle.world.slices if each.service == front.service.key)
    entries = sorted((pod for each in slices for pod in each.endpoints), key=lambda pod: pod.ready)
    return {pod.address: pod for pod in entries}
