"""Nodes and ServiceCIDRs: from their shapes (schema.py) to their values in the model.

A bad address or range costs itself alone, and is reported.
"""

from __future__ import annotations

from nftproxy.api import schema
from nftproxy.api.decode import Report, is_label_value, network, node_address, numbered, several, show
from nftproxy.model.addresses import Address, Network
from nftproxy.model.objects import Node, ObjectKey, ServiceCIDR

ZONE = "topology.kubernetes.io/zone"


def build_node(given: schema.RawNode, key: ObjectKey, report: Report) -> Node:
    """Build a Node, without the parts that are bad."""
    spec = given.spec or schema.NodeSpec()
    addresses = (given.status or schema.NodeStatus()).addresses
    return Node(
        name=key.name,
        zone=_zone(given.labels.get(ZONE), report),
        internal_ips=_node_ips(addresses, "InternalIP", report),
        external_ips=_node_ips(addresses, "ExternalIP", report),
        pod_cidrs=_pod_cidrs(spec, report),
        is_deleted=given.metadata is not None and given.metadata.deletion_timestamp is not None,
        taints=tuple(dict.fromkeys(taint.key for taint in spec.taints or () if taint.key)),
    )


def _zone(value: object, report: Report) -> str:
    if value in (None, ""):
        return ""
    if isinstance(value, str) and is_label_value(value):
        return value
    report(f"metadata.labels.{ZONE}", f"{show(value)} is not the name of a zone")
    return ""


def _node_ips(given: list[schema.NodeAddress] | None, kind: str, report: Report) -> tuple[Address, ...]:
    judged = (
        node_address(item.address, f"status.addresses[{index}].address", report)
        for index, item in numbered(given)
        if item.type == kind
    )
    return tuple(dict.fromkeys(address for address in judged if address is not None))


def _pod_cidrs(spec: schema.NodeSpec, report: Report) -> tuple[Network, ...]:
    """Parse spec.podCIDRs, or spec.podCIDR without it."""
    if spec.pod_cidrs or not spec.pod_cidr:
        return several(spec.pod_cidrs, network, "spec.podCIDRs", report)
    single = network(spec.pod_cidr, "spec.podCIDR", report)
    return (single,) if single else ()


def build_service_cidr(given: schema.RawServiceCIDR, key: ObjectKey, report: Report) -> ServiceCIDR:
    """Build a ServiceCIDR with its readable ranges."""
    return ServiceCIDR(key.name, several((given.spec or schema.ServiceCIDRSpec()).cidrs, network, "spec.cidrs", report))
