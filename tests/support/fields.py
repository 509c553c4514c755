"""Every field that the parser keeps, against every form that an API server of 1.28 to 1.36 has accepted for it.

The forms are those that the API servers' validation lets pass (pkg/apis/core/validation, pkg/apis/discovery/validation,
pkg/apis/networking/validation, and apimachinery's util/validation).  docs/fields.md shows how each is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from nftproxy.api import schema
from nftproxy.api.decode import Shape
from nftproxy.api.parse import Outcome, parse_object
from nftproxy.model.errors import Problem
from nftproxy.model.objects import EndpointPort, Ignored, ServicePort
from tests.support.factories import INSTALLED_KINDS
from tests.support.raw import CIDR, NODE, SERVICE, SLICE, Raw, changed

OBJECTS: dict[type[Shape], Raw] = {
    schema.RawService: SERVICE,
    schema.RawEndpointSlice: SLICE,
    schema.RawNode: NODE,
    schema.RawServiceCIDR: CIDR,
}


class Absence(Enum):
    """The form of a field that has no value."""

    ABSENT = "absent"

    def __str__(self) -> str:
        return self.value


ABSENT = Absence.ABSENT
"""Stands for a field that isn't there, or is null."""
ALL, OLD = "", "not by 1.36"
"""The API servers that accept a form: all, or those that don't check as strictly as 1.36 does (KEP-4858)."""


class Form(NamedTuple):
    """A form of a field's value."""

    value: object
    accepted: str = ALL


class Field(NamedTuple):
    """A field, and the forms of its value."""

    shape: type[Shape]
    name: str  # its API names from the object down, without indexes
    read: str  # the parts of the parsed value that the field decides, as paths, separated by blanks
    forms: tuple[Form, ...]
    at: str = ""  # its path in the example, without forms that stand for a list
    beside: tuple[tuple[str, object], ...] = ()  # other parts of the example that make the field count

    @property
    def kind(self) -> str:
        """The kind of object that has the field."""
        return self.shape.__name__.removeprefix("Raw")

    def example(self, value: object) -> Raw:
        """The example with this value in the field."""
        raw = OBJECTS[self.shape]
        for path, other in self.beside:
            raw = changed(raw, path, other)
        return changed(raw, self.at or self.name, None if value is ABSENT else value)

    def outcome(self, value: object) -> tuple[Outcome, list[Problem]]:
        """The value that the example with this value is parsed to, and the problems."""
        problems: list[Problem] = []
        return parse_object(self.example(value), "", problems, kinds=INSTALLED_KINDS), problems

    def shown(self, value: object) -> str:
        """How the field is read with this value, in words."""
        outcome, _ = self.outcome(value)
        if isinstance(outcome, Ignored):
            return f"not served: {outcome.reason}"
        if outcome is None:
            return "the object is left out"
        if not self.read:
            return "has no effect"
        return ", ".join(filter(None, (in_words(part(outcome, path)) for path in self.read.split()))) or "nothing"


def part(value: Any, path: str) -> Any:
    """The part of a value at a dotted path of attributes and indexes."""
    for step in path.split("."):
        value = value[int(step)] if step.isdigit() else getattr(value, step)
    return value


def in_words(value: Any) -> str:
    """A part of a parsed value, as the page shows it."""
    match value:
        case bool():
            return "yes" if value else "no"
        case None | "" | ():
            return ""
        case Enum():
            return in_words(value.value)
        case ServicePort():
            node_port = f", node port {value.node_port}" if value.node_port else ""
            return f"`{value.name}:{value.port}/{value.protocol.name}`{node_port}"
        case EndpointPort():
            return f"`{value.name}:{value.port}/{value.protocol.name}`"
        case int():
            return str(value)
        case ((str(), _), *_):
            return ", ".join(f"`{key}={text}`" for key, text in value)
        case tuple() | list():
            return ", ".join(map(in_words, value))
        case _:
            return f"`{value}`"


def each(*values: object, accepted: str = ALL) -> tuple[Form, ...]:
    """Forms that the same API servers accept."""
    return tuple(Form(value, accepted) for value in values)


IPV4_ADDRESSES = (
    *each("10.96.11.12"),
    *each("010.096.011.012", "::ffff:10.96.11.12", "::FFFF:0a60:0b0c", "::ffff:010.096.011.012", accepted=OLD),
)
ADDRESSES = (
    *IPV4_ADDRESSES,
    *each("fd00:96::c", "FD00:0096:0:0:0:0:0:0C", "fd00:96::10.0.0.1"),
    *each("fd00:96::010.0.0.1", accepted=OLD),
)
SPECIAL = each("255.255.255.255", "239.1.1.1", "ff05::2")
"""Special addresses that the API lets pass for external addresses and endpoints."""
ANY_SPECIAL = each("0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.1", "::1", "fe80::1")
"""Special addresses that pass where the API judges no more than the form."""
RANGES = (
    *each("10.96.0.0/16", "0.0.0.0/0"),
    *each("010.096.000.000/16", "10.96.0.0/016", "::ffff:10.96.0.0/112", "10.96.11.12/16", accepted=OLD),
    *each("fd00:96::/112", "FD00:0096:0::/112", "::/0"),
    *each("fd00:96::c/112", "fd00:96::/0112", accepted=OLD),
)


def lists(forms: tuple[Form, ...]) -> tuple[Form, ...]:
    """The forms as lists of a single value."""
    return tuple(Form([form.value], form.accepted) for form in forms)


NO_CLUSTER_IPS: tuple[tuple[str, object], ...] = (("spec.clusterIPs", []),)
NO_POD_CIDRS: tuple[tuple[str, object], ...] = (("spec.podCIDRs", []),)
ENDPOINT = "endpoints.0"
TEXT = "a text/1"
"""Stands for any text, where the API judges none."""


def metadata(shape: type[Shape], name: str, *names: Form) -> Iterator[Field]:
    """The fields of metadata of any kind, as the proxy reads them."""
    yield Field(shape, "metadata.name", name, names)
    namespaces = each("shop", "3shop") if name == "key" else each(ABSENT)
    yield Field(shape, "metadata.namespace", name, namespaces)


SERVICE_FIELDS = (
    *metadata(schema.RawService, "key", *each("web"), *each("3web", accepted="since 1.34")),
    Field(
        schema.RawService,
        "metadata.labels",
        "labels",
        each(ABSENT, {"app": "web"}, {"app": ""}, {"service.kubernetes.io/service-proxy-name": ""}),
    ),
    Field(
        schema.RawService,
        "metadata.annotations",
        "options.given",
        each(ABSENT, {"example.com/a": TEXT}, {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}),
    ),
    Field(schema.RawService, "metadata.creationTimestamp", "created", each(ABSENT, "2024-05-01T10:20:30Z")),
    Field(schema.RawService, "metadata.deletionTimestamp", "", each(ABSENT, "2024-05-01T10:20:30Z")),
    Field(
        schema.RawService, "spec.type", "type", each(ABSENT, "ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
    ),
    Field(
        schema.RawService,
        "spec.clusterIP",
        "cluster_ips",
        (*each(ABSENT, "None"), *ADDRESSES),
        beside=NO_CLUSTER_IPS,
    ),
    Field(
        schema.RawService,
        "spec.clusterIPs",
        "cluster_ips",
        (*each([], ["None"], ["10.96.11.12", "fd00:96::c"], ["fd00:96::c", "10.96.11.12"]), *lists(ADDRESSES)),
    ),
    Field(
        schema.RawService, "spec.externalIPs", "external_ips", (*each(ABSENT, []), *lists(ADDRESSES), *lists(SPECIAL))
    ),
    Field(
        schema.RawService,
        "spec.loadBalancerSourceRanges",
        "source_ranges",
        (*each(ABSENT, [], [" 10.96.0.0/16 "]), *lists(RANGES), Form(["::ffff:10.96.0.0/95"], OLD)),
        beside=(("status.loadBalancer.ingress", []),),
    ),
    Field(schema.RawService, "spec.ports.name", "ports", each(ABSENT, "", "http", "80"), at="spec.ports.0.name"),
    Field(
        schema.RawService,
        "spec.ports.protocol",
        "ports",
        each(ABSENT, "TCP", "UDP", "SCTP"),
        at="spec.ports.0.protocol",
    ),
    Field(schema.RawService, "spec.ports.port", "ports", each(1, 65535), at="spec.ports.0.port"),
    Field(schema.RawService, "spec.ports.nodePort", "ports", each(ABSENT, 0, 1, 65535), at="spec.ports.0.nodePort"),
    Field(schema.RawService, "spec.internalTrafficPolicy", "internal_policy", each(ABSENT, "Cluster", "Local")),
    Field(schema.RawService, "spec.externalTrafficPolicy", "external_policy", each(ABSENT, "Cluster", "Local")),
    Field(schema.RawService, "spec.sessionAffinity", "affinity_timeout", each(ABSENT, "None", "ClientIP")),
    Field(
        schema.RawService,
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        "affinity_timeout",
        each(ABSENT, 1, 86400),
    ),
    Field(schema.RawService, "spec.healthCheckNodePort", "health_check_node_port", each(ABSENT, 0, 1, 65535)),
    Field(
        schema.RawService,
        "spec.trafficDistribution",
        "traffic_distribution",
        (
            *each(ABSENT),
            *each("PreferClose", accepted="since 1.30"),
            *each("PreferSameZone", "PreferSameNode", accepted="since 1.33"),
        ),
    ),
    Field(
        schema.RawService,
        "status.loadBalancer.ingress.ip",
        "load_balancer_ips",
        (*each(ABSENT, ""), *ADDRESSES, *SPECIAL, *ANY_SPECIAL),
        at="status.loadBalancer.ingress.0.ip",
        beside=(("spec.loadBalancerSourceRanges", []),),
    ),
    Field(
        schema.RawService,
        "status.loadBalancer.ingress.ipMode",
        "load_balancer_ips",
        (*each(ABSENT), *each("VIP", "Proxy", accepted="since 1.29")),
        at="status.loadBalancer.ingress.0.ipMode",
    ),
)

POD = {"kind": "Pod", "namespace": "shop", "name": "web-1"}
IPV6_SLICE = (("addressType", "IPv6"),)


def of_endpoints(name: str, read: str, *forms: Form, at: str = "", **others: Any) -> Field:
    """A field of an endpoint, read as a part of its state or of `Endpoints`."""
    place = f"{ENDPOINT}.{at or name}"
    return Field(schema.RawEndpointSlice, f"endpoints.{name}", read, forms, at=place, **others)


SLICE_FIELDS = (
    *metadata(schema.RawEndpointSlice, "key", *each("web-abcde", "web.example")),
    Field(
        schema.RawEndpointSlice,
        "metadata.labels",
        "service",
        each(
            ABSENT,
            {"kubernetes.io/service-name": "web"},
            {"kubernetes.io/service-name": ""},
            {"kubernetes.io/service-name": "Web_1"},
            {"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""},
        ),
    ),
    Field(schema.RawEndpointSlice, "metadata.annotations", "options.given", each(ABSENT, {"example.com/a": TEXT})),
    Field(schema.RawEndpointSlice, "metadata.creationTimestamp", "", each(ABSENT, "2024-05-01T10:20:30Z")),
    Field(schema.RawEndpointSlice, "metadata.deletionTimestamp", "", each(ABSENT, "2024-05-01T10:20:30Z")),
    Field(schema.RawEndpointSlice, "addressType", "family", each("IPv4", "FQDN")),
    Field(
        schema.RawEndpointSlice,
        "addressType",
        "family",
        each("IPv6"),
        beside=((f"{ENDPOINT}.addresses", ["fd00:1::4"]),),
    ),
    of_endpoints(
        "addresses", "endpoints.addresses", *lists((*IPV4_ADDRESSES, *SPECIAL[:2])), *each(["10.1.0.4", "10.1.0.5"])
    ),
    of_endpoints(
        "addresses",
        "endpoints.addresses",
        *lists((*each("fd00:1::4", "ff05::2"), *each("FD00:0001:0::4", "fd00:1::10.0.0.1", accepted=OLD))),
        beside=IPV6_SLICE,
    ),
    *(
        of_endpoints(
            f"conditions.{name}",
            f"endpoints.states.0.{name}",
            *each(ABSENT, True, False),
            beside=((f"{ENDPOINT}.conditions", {}),),
        )
        for name in ("ready", "serving", "terminating")
    ),
    of_endpoints("nodeName", "endpoints.states.0.node_name", *each(ABSENT, "node-a", "node.example")),
    of_endpoints("zone", "endpoints.states.0.zone", *each(ABSENT, "", "a", TEXT)),
    of_endpoints("hints.forZones.name", "endpoints.states.0.zone_hints", *each("a", ""), at="hints.forZones.0.name"),
    of_endpoints(
        "hints.forNodes.name",
        "endpoints.states.0.node_hints",
        *each("node-a", "node.example", accepted="since 1.33"),
        at="hints.forNodes.0.name",
    ),
    *(
        of_endpoints(f"targetRef.{name}", "pods", *each(ABSENT, *values), beside=((f"{ENDPOINT}.targetRef", POD),))
        for name, values in (
            ("kind", ("Pod", "Node", TEXT)),
            ("namespace", ("shop", "other", TEXT)),
            ("name", ("web-1", TEXT)),
        )
    ),
    Field(schema.RawEndpointSlice, "ports.name", "ports", each(ABSENT, "", "http", "80"), at="ports.0.name"),
    Field(
        schema.RawEndpointSlice, "ports.protocol", "ports", each(ABSENT, "TCP", "UDP", "SCTP"), at="ports.0.protocol"
    ),
    Field(schema.RawEndpointSlice, "ports.port", "ports", each(ABSENT, 1, 65535, 0, -1, 65536), at="ports.0.port"),
)

NODE_FIELDS = (
    *metadata(schema.RawNode, "name", *each("node-a", "node.example")),
    Field(
        schema.RawNode,
        "metadata.labels",
        "zone",
        each(ABSENT, {"topology.kubernetes.io/zone": "a"}, {"topology.kubernetes.io/zone": ""}),
    ),
    Field(schema.RawNode, "metadata.annotations", "", each(ABSENT, {"example.com/a": TEXT})),
    Field(schema.RawNode, "metadata.creationTimestamp", "", each(ABSENT, "2024-05-01T10:20:30Z")),
    Field(schema.RawNode, "metadata.deletionTimestamp", "is_deleted", each(ABSENT, "2024-05-01T10:20:30Z")),
    Field(schema.RawNode, "spec.podCIDR", "pod_cidrs", (*each(ABSENT, ""), *RANGES), beside=NO_POD_CIDRS),
    Field(schema.RawNode, "spec.podCIDRs", "pod_cidrs", (*lists(RANGES), *each(["10.1.0.0/24", "fd00:1::/64"]))),
    Field(
        schema.RawNode,
        "spec.taints.key",
        "taints",
        each("example.com/a"),
        at="spec.taints.0.key",
        beside=(("spec.taints", [{}]),),
    ),
    Field(
        schema.RawNode,
        "status.addresses.type",
        "internal_ips external_ips",
        each("InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS", TEXT),
        at="status.addresses.0.type",
        beside=(("status.addresses", [{"type": "", "address": "192.168.0.2"}]),),
    ),
    Field(
        schema.RawNode,
        "status.addresses.address",
        "internal_ips",
        tuple(form._replace(accepted=ALL) for form in (*ADDRESSES, *SPECIAL, *ANY_SPECIAL, Form(TEXT))),
        at="status.addresses.0.address",
        beside=(("status.addresses", [{"type": "InternalIP", "address": ""}]),),
    ),
)

CIDR_FIELDS = (
    *metadata(schema.RawServiceCIDR, "name", *each("kubernetes", "range.example")),
    *(
        Field(schema.RawServiceCIDR, f"metadata.{name}", "", each(ABSENT, value))
        for name, value in (
            ("labels", {"app": "web"}),
            ("annotations", {"example.com/a": TEXT}),
            ("creationTimestamp", "2024-05-01T10:20:30Z"),
            ("deletionTimestamp", "2024-05-01T10:20:30Z"),
        )
    ),
    Field(
        schema.RawServiceCIDR,
        "spec.cidrs",
        "cidrs",
        (*lists((*each("10.96.0.0/16", "fd00:96::/112"),)), *each(["10.96.0.0/16", "fd00:96::/112"])),
    ),
)

FIELDS = (*SERVICE_FIELDS, *SLICE_FIELDS, *NODE_FIELDS, *CIDR_FIELDS)
