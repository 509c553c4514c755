"""The cluster's API: whether the agent reaches it from this node, by which address, and what it may do there."""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy.doctor.facts import Facts
from nftproxy.doctor.findings import Finding, Kind, Severity

CAN_DO_WITHOUT = frozenset({"servicecidrs", "events"})

UNREACHABLE = Kind(
    "NFT631",
    Severity.ERROR,
    "The API server can't be reached with these credentials",
    "Nothing is listed, so nftproxy writes no rules; those that are there stay.",
    "Check the address and the credentials, which are named, from this node.",
)
DENIED = Kind(
    "NFT632",
    Severity.ERROR,
    "The API denies what the agent needs",
    "The agent loads no rules before it has listed everything, and asks again for ever.",
    "Grant what is named to the account that was used, as the ClusterRole in examples/deploy/daemonset.yaml does.",
)
DENIED_EXTRAS = Kind(
    "NFT633",
    Severity.WARNING,
    "The API denies what the agent can do without",
    "Without servicecidrs packets to addresses that no Service has are not dropped; without events nobody learns from "
    "the cluster which Services lost a conflict.",
    "Grant what is named to the account that was used, as the ClusterRole in examples/deploy/daemonset.yaml does.",
)
COLD = Kind(
    "NFT634",
    Severity.WARNING,
    "The API server is reached by its ClusterIP",
    "After a boot nobody serves that address until nftproxy has written its rules, and for these it needs the API.",
    "Name an address that is no Service's: in KUBERNETES_SERVICE_HOST, the kubeconfig, or --api-server.",
)
NO_NODE = Kind(
    "NFT635",
    Severity.WARNING,
    "The cluster has no Node of this node's name",
    "Without it nftproxy doesn't know the node's addresses, zone and pods' range: node ports of `primary` are not "
    "served, and no endpoint counts as local.",
    "Set `hostnameOverride` to the name that `kubectl get nodes` shows, and pass it to doctor by --node.",
)


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
