"""The cluster's API: whether the agent reaches it from this node, by which address, and what it may do there."""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy.doctor.facts import Facts
from nftproxy.doctor.findings import Finding, Kind, Severity
from nftproxy.model.codes import Code

CAN_DO_WITHOUT = frozenset({"servicecidrs", "events"})

UNREACHABLE = Kind(Code.API_UNREACHABLE, Severity.ERROR)
DENIED = Kind(Code.API_DENIED, Severity.ERROR)
DENIED_EXTRAS = Kind(Code.RIGHTS_USEFUL, Severity.WARNING)
COLD = Kind(Code.API_BY_CLUSTER_IP, Severity.WARNING)
NO_NODE = Kind(Code.NODE_UNKNOWN, Severity.WARNING)


def reachable(facts: Facts) -> Iterator[Finding]:
    """Whether the API answers to us at all."""
    if facts.api and facts.api.error:
        yield UNREACHABLE.seen(f"{facts.api.server}: {facts.api.error}")


def rights(facts: Facts) -> Iterator[Finding]:
    """What the agent may not do, verb by verb."""
    denied = facts.api.denied if facts.api else {}
    for kind, matters in ((DENIED, False), (DENIED_EXTRAS, True)):
        evidence = [
            f"{right}{f': {reason}' if reason else ''}"
            for right, reason in denied.items()
            if (right.resource in CAN_DO_WITHOUT) is matters
        ]
        if evidence:
            yield kind.seen(*evidence)


def cold_node(facts: Facts) -> Iterator[Finding]:
    """Whether the agent's way to the API leads through a Service."""
    if facts.api and facts.api.cluster_ip and facts.api.host == facts.api.cluster_ip:
        yield COLD.seen(f"{facts.api.server}, which is the ClusterIP of the Service default/kubernetes")


def own_node(facts: Facts) -> Iterator[Finding]:
    """Whether the cluster knows this node."""
    if facts.api and facts.api.has_node is False:
        yield NO_NODE.seen(f"no Node {facts.node}, at {facts.api.server}")


CHECKS = (reachable, rights, cold_node, own_node)
KINDS = (UNREACHABLE, DENIED, DENIED_EXTRAS, COLD, NO_NODE)
