"""Checks of the cluster's API: is it reachable from this node, by which address, and with which permissions?"""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy.doctor.findings import Finding, error, warning
from nftproxy.doctor.observations import Observations
from nftproxy.model.codes import Code
from nftproxy.model.objects import Node
from nftproxy.model.whereabouts import absent_addresses, elsewhere

CAN_DO_WITHOUT = frozenset({"servicecidrs", "events"})
"""Resources without which the agent serves all the same."""
OLDEST_VERSION = (1, 28)
"""The oldest Kubernetes version that nftproxy supports.  The tests follow servers from this version on."""
DENIED = (401, 403)
"""HTTP statuses of missing authentication or authorization."""


def _reachable(observed: Observations) -> Iterator[Finding]:
    if observed.api and observed.api.error:
        status = observed.api.status
        code = Code.API_UNHELPFUL if status else Code.API_UNREACHABLE
        yield error(Code.API_DENIED if status in DENIED else code, f"{observed.api.server}: {observed.api.error}")


def _permissions(observed: Observations) -> Iterator[Finding]:
    denied = observed.api.denied if observed.api else {}
    for made, code, is_extra in ((error, Code.API_DENIED, False), (warning, Code.RIGHTS_USEFUL, True)):
        evidence = [
            f"{permission}{f': {reason}' if reason else ''}"
            for permission, reason in denied.items()
            if (permission.resource in CAN_DO_WITHOUT) is is_extra
        ]
        if evidence:
            yield made(code, *evidence)


def _reached_through_a_service(observed: Observations) -> Iterator[Finding]:
    api = observed.api
    if api and api.cluster_ip and api.host == api.cluster_ip:
        evidence = f"{api.server}, which is the ClusterIP of the Service default/kubernetes"
        yield warning(Code.API_BY_CLUSTER_IP, evidence)


def _own_node(observed: Observations) -> Iterator[Finding]:
    if observed.api and observed.api.has_node is False:
        yield warning(Code.NODE_UNKNOWN, f"no Node {observed.node}, at {observed.api.server}")


def _elsewhere(observed: Observations) -> Iterator[Finding]:
    """Find the name of another node, another network namespace, or a changed address."""
    known = {}
    if observed.api and observed.api.internal_ips:
        known[observed.node] = observed.api.internal_ips
    if observed.agent and observed.agent.internal_ips:
        known[observed.agent.node] = observed.agent.internal_ips
    for name, addresses in known.items() if observed.addresses is not None else ():
        if absent := absent_addresses(Node(name, internal_ips=addresses), observed.addresses or ()):
            yield warning(Code.NODE_ELSEWHERE, elsewhere(name, absent))


def _old_version(observed: Observations) -> Iterator[Finding]:
    api = observed.api
    if api and api.version and api.version < OLDEST_VERSION:
        found, oldest = (".".join(map(str, each)) for each in (api.version, OLDEST_VERSION))
        yield warning(
            Code.API_OLD, f"{api.server} is of Kubernetes {found}, and the oldest supported version is {oldest}"
        )


CHECKS = (_reachable, _permissions, _reached_through_a_service, _own_node, _elsewhere, _old_version)
