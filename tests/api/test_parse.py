"""The entrance for API objects: objects that count, their names, lists, and text that is no JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from nftproxy.api.kinds import KINDS, ObjectKind, kinds_for
from nftproxy.api.parse import parse_json, parse_key, parse_manifest, parse_manifest_json
from nftproxy.model.addresses import Address, Family, Protocol, parse_network
from nftproxy.model.errors import Problem
from nftproxy.model.objects import (
    ClusterObject,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    EndpointState,
    Ignored,
    Node,
    ObjectKey,
    Service,
    ServiceCIDR,
    ServicePort,
    ServiceType,
    TrafficPolicy,
)
from tests.support.raw import CIDR, NODE, SERVICE, SLICE, WEB, Raw, changed, endpoint_slice, read, service

# ---- whole objects ---------------------------------------------------------------------------------------------------


def test_a_service() -> None:
    """All that matters about a Service is read."""
    assert service() == (
        Service(
            key=WEB,
            created=1714558830,
            type=ServiceType.LOAD_BALANCER,
            cluster_ips=(Address("10.96.0.10"), Address("fd00:96::10")),
            ports=(ServicePort("http", Protocol.TCP, 80, 30080), ServicePort("dns", Protocol.UDP, 53, 30053)),
            external_ips=(Address("203.0.113.7"),),
            load_balancer_ips=(Address("203.0.113.80"),),
            source_ranges=(parse_network("198.51.100.0/24"),),
            internal_policy=TrafficPolicy.CLUSTER,
            external_policy=TrafficPolicy.LOCAL,
            affinity_timeout=600,
            health_check_node_port=32000,
            labels=(("app", "web"),),
        ),
        [],
    )


def test_an_endpoint_slice() -> None:
    """All that matters about an EndpointSlice is read, and of each endpoint the first address only."""
    expected = EndpointSlice(
        key=ObjectKey("shop", "web-abcde"),
        service=WEB,
        family=Family.IPV4,
        ports=(EndpointPort("http", Protocol.TCP, 8080),),
        endpoints=Endpoints("10.1.0.4", (EndpointState(True, True, False, "node-a", ("node-a",), ("a",), "a"),)),
    )
    assert endpoint_slice() == (expected, [])


def test_a_node() -> None:
    """A Node's zone, addresses by type in their order, and podCIDRs are read."""
    expected = Node(
        name="node-a",
        zone="a",
        internal_ips=(Address("192.168.0.2"), Address("fd00:c0a8::2")),
        external_ips=(Address("203.0.113.2"),),
        pod_cidrs=(parse_network("10.1.0.0/24"), parse_network("fd00:1::/64")),
    )
    assert read(NODE) == (expected, [])


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_service_cidr(version: str) -> None:
    """A ServiceCIDR's ranges are read, in either version of the API."""
    expected = ServiceCIDR("kubernetes", (parse_network("10.96.0.0/12"), parse_network("fd00:96::/112")))
    assert read(CIDR | {"apiVersion": f"networking.k8s.io/{version}"}) == (expected, [])


@pytest.mark.parametrize("spec", [{}, {"podCIDR": None, "podCIDRs": None}, {"podCIDR": ""}])
def test_a_node_without_pod_cidrs(spec: Raw) -> None:
    """A Node that was given no podCIDR yet has none."""
    assert read(NODE | {"spec": spec})[0].pod_cidrs == ()  # type: ignore[union-attr]


def test_a_nodes_single_pod_cidr() -> None:
    """Without podCIDRs, podCIDR counts."""
    assert read(NODE | {"spec": {"podCIDR": "10.1.7.0/24"}})[0].pod_cidrs == (  # type: ignore[union-attr]
        parse_network("10.1.7.0/24"),
    )


@pytest.mark.parametrize(
    "bare", [{"metadata": {"name": "a"}}, {"metadata": {"name": "a"}, "spec": None, "status": None}]
)
def test_a_bare_node(bare: Raw) -> None:
    """A Node may have nothing but a name."""
    assert read({"apiVersion": "v1", "kind": "Node"} | bare) == (Node("a"), [])


def test_a_node_that_is_about_to_go() -> None:
    """That a Node is being deleted is read, and of its taints the keys, each once."""
    raw = changed(NODE, "metadata.deletionTimestamp", "2024-05-01T10:20:30Z")
    raw["spec"]["taints"] = [
        {"key": "ToBeDeletedByClusterAutoscaler", "value": "1714558830", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
        {"effect": "NoSchedule"},
    ]
    node, problems = read(raw)
    assert isinstance(node, Node)
    assert node.is_deleted
    assert node.taints == ("ToBeDeletedByClusterAutoscaler", "node.kubernetes.io/unreachable")
    assert problems == []


@pytest.mark.parametrize(
    ("path", "value"), [("metadata.deletionTimestamp", None), ("spec.taints", None), ("spec.taints", [])]
)
def test_a_node_that_stays(path: str, value: object) -> None:
    """A Node without a time of deletion and without taints is not about to go."""
    node, problems = read(changed(NODE, path, value))
    assert isinstance(node, Node)
    assert (node.is_deleted, node.taints, problems) == (False, (), [])


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"key": 5}, "Node node-a: spec.taints[0].key: 5 is not a string"),
        ("x", "Node node-a: spec.taints[0]: 'x' is not an object"),
    ],
)
def test_a_bad_taint(bad: object, problem: str) -> None:
    """An unreadable taint is lost and reported, and the rest stays."""
    node, problems = read(changed(NODE, "spec.taints", [bad, {"key": "a"}]))
    assert isinstance(node, Node)
    assert (node.taints, problems) == (("a",), [problem])


# ---- which objects count ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (
            "metadata|labels|service.kubernetes.io/service-proxy-name",
            "other",
            "it is for another proxy (label service.kubernetes.io/service-proxy-name)",
        ),
        (
            "metadata|labels|service.kubernetes.io/service-proxy-name",
            True,
            "it is for another proxy (label service.kubernetes.io/service-proxy-name)",
        ),
        ("spec.type", "ExternalName", "its type is ExternalName"),
        ("spec.clusterIP", "None", "it is headless (clusterIP None)"),
        ("spec.clusterIPs", ["None"], "it is headless (clusterIP None)"),
        ("spec", {}, "it has no clusterIP"),
        ("spec", None, "it has no clusterIP"),
        ("spec.clusterIPs", [None], "it has no clusterIP"),
        ("spec", {"clusterIP": "", "ports": [{"port": 80}]}, "it has no clusterIP"),
    ],
)
def test_services_that_do_not_count(path: str, value: object, reason: str) -> None:
    """A Service that is another proxy's, an ExternalName, headless or without ClusterIP is ignored, with the reason."""
    found, problems = read(changed(SERVICE, path, value))
    assert isinstance(found, Ignored)
    assert (found.object, found.reason, found.key, problems) == ("Service shop/web", reason, WEB, [])


def test_an_ignored_service_has_its_addresses() -> None:
    """The ClusterIPs of another proxy's Service are kept, and faults in them are nobody's problem here."""
    another = changed(SERVICE, "metadata|labels|service.kubernetes.io/service-proxy-name", "other")
    reason = "it is for another proxy (label service.kubernetes.io/service-proxy-name)"
    ignored = Ignored("Service shop/web", reason, WEB, (Address("10.96.0.10"), Address("fd00:96::10")))
    assert read(another) == (ignored, [])
    assert read(changed(another, "spec.clusterIPs", [7])) == (Ignored("Service shop/web", reason, WEB), [])


PROXY_NAME = "service.kubernetes.io/service-proxy-name"


@pytest.mark.parametrize("document", [SERVICE, SLICE], ids=["Service", "EndpointSlice"])
@pytest.mark.parametrize(("label", "counts"), [("canary", True), ("other", False), ("", False), (None, False)])
def test_a_named_proxy_serves_objects_with_its_label(document: dict[str, Any], label: str | None, counts: bool) -> None:
    """A Service or slice counts if the label has the proxy's name.  With another label, or none, it is ignored."""
    given = document if label is None else changed(document, f"metadata|labels|{PROXY_NAME}", label)
    (value,) = parse_manifest(given, "", [], kinds=kinds_for("canary"))
    assert read_json(given, kinds_for("canary")) == ([value], [])
    assert isinstance(value, Ignored) is not counts
    if isinstance(value, Ignored):
        assert value.reason == f"it is for another proxy (no label {PROXY_NAME}=canary)"


def test_a_named_proxy_ignores_what_no_proxy_serves() -> None:
    """A labelled object that no proxy serves is ignored for that reason.  ServiceCIDRs are another proxy's."""
    headless = changed(changed(SERVICE, f"metadata|labels|{PROXY_NAME}", "canary"), "spec.clusterIP", "None")
    names_only = changed(changed(SLICE, f"metadata|labels|{PROXY_NAME}", "canary"), "addressType", "FQDN")
    reasons = []
    for document in (headless, names_only, CIDR):
        (value,) = parse_manifest(document, "", [], kinds=kinds_for("canary"))
        assert isinstance(value, Ignored)
        reasons.append(value.reason)
    assert reasons == [
        "it is headless (clusterIP None)",
        "its addressType is FQDN",
        "another proxy rejects connections to ClusterIPs that no Service has",
    ]


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (
            "metadata|labels|service.kubernetes.io/headless",
            "",
            "it is of a headless Service (label service.kubernetes.io/headless)",
        ),
        ("addressType", "FQDN", "its addressType is FQDN"),
        ("metadata.labels", {}, "it has no label kubernetes.io/service-name"),
        ("metadata.labels", None, "it has no label kubernetes.io/service-name"),
        ("metadata|labels|kubernetes.io/service-name", "", "it has no label kubernetes.io/service-name"),
    ],
)
def test_slices_that_do_not_count(path: str, value: object, reason: str) -> None:
    """A slice of a headless Service, of names, or of no Service is ignored, with the reason."""
    ignored = Ignored("EndpointSlice shop/web-abcde", reason, ObjectKey("shop", "web-abcde"))
    assert read(changed(SLICE, path, value)) == (ignored, [])


@pytest.mark.parametrize(
    "other",
    [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}},
        {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web"}},
        {"apiVersion": "v1", "kind": "EndpointSlice"},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": 5},
    ],
)
def test_other_kinds_are_passed_over(other: Raw) -> None:
    """Objects of other kinds, also of the same name in another group, are nothing and no problem."""
    assert read(other) == (None, [])


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({}, "kind: is missing"),
        ({"kind": 5, "apiVersion": "v1"}, "kind: 5 is not a string"),
        ({"kind": "Service"}, "apiVersion: is missing"),
        ({"kind": "Service", "apiVersion": ["v1"]}, "apiVersion: a list is not a string"),
        ({"kind": "Service", "apiVersion": "v2"}, "apiVersion: 'v2' is not understood, only v1"),
        (
            {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1beta1"},
            "apiVersion: 'discovery.k8s.io/v1beta1' is not understood, only discovery.k8s.io/v1",
        ),
        ([1], "a list is not an object"),
        ("text", "'text' is not an object"),
        (None, "null is not an object"),
    ],
)
def test_a_document_that_is_no_object_is_reported(raw: object, problem: str) -> None:
    """An object without kind or version, or with an unknown version, is lost and reported."""
    assert read(raw) == (None, [problem])


# ---- lists and other ways in -----------------------------------------------------------------------------------------


def read_manifest(raw: object) -> tuple[list[ClusterObject | Ignored], list[str]]:
    """Read a document, from bytes and from decoded JSON, which must agree.  Return its values and problems."""
    problems: list[Problem] = []
    values = parse_manifest(raw, "", problems)
    assert read_json(raw) == (values, problems)
    return values, list(map(str, problems))


def read_json(raw: object, kinds: Mapping[str, ObjectKind] = KINDS) -> tuple[list[object], list[Problem]]:
    """Read a document from bytes.  Return the values and problems of all its parts."""
    parts = list(parse_manifest_json(json.dumps(raw).encode(), "", kinds=kinds))
    return [value for values, _ in parts for value in values], [each for _, found in parts for each in found]


def names(values: list[ClusterObject | Ignored]) -> list[str]:
    """The names of values."""
    return [str(value.key if isinstance(value, Service | EndpointSlice) else value) for value in values]


def without_type(raw: Raw) -> Raw:
    """An object as it stands in a typed list of the API."""
    return {field: value for field, value in raw.items() if field not in ("kind", "apiVersion")}


@pytest.mark.parametrize(
    "raw",
    [
        SERVICE,
        {"apiVersion": "v1", "kind": "List", "items": [{"kind": "Pod", "apiVersion": "v1"}, SERVICE]},
        {
            "apiVersion": "v1",
            "kind": "ServiceList",
            "metadata": {"resourceVersion": "1"},
            "items": [without_type(SERVICE)],
        },
        {"apiVersion": "v1", "kind": "ServiceList", "items": [SERVICE]},
    ],
)
def test_lists(raw: Raw) -> None:
    """A document is an object or a list of objects.  Items of a typed list need not have a type."""
    values, problems = read_manifest(raw)
    assert (names(values), problems) == (["shop/web"], [])


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {"apiVersion": "v1", "kind": "List", "items": []},
        {"apiVersion": "v1", "kind": "List", "items": None},
        {"apiVersion": "v1", "kind": "List"},
        {"apiVersion": "v1", "kind": "PodList", "items": [{}]},
        {"apiVersion": "example.com/v1", "kind": "ServiceList", "items": [{}]},
    ],
)
def test_lists_of_nothing(raw: object) -> None:
    """An empty document, an empty list and a list of another kind hold nothing, and are no problem."""
    assert read_manifest(raw) == ([], [])


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"apiVersion": "v1", "kind": "List", "items": [{}]}, "items[0]: kind: is missing"),
        ({"apiVersion": "v1", "kind": "List", "items": [[]]}, "items[0]: a list is not an object"),
        ({"apiVersion": "v1", "kind": "List", "items": {"a": 1}}, "items: an object is not a list"),
        ({"apiVersion": "v1", "kind": "NodeList", "items": [{}]}, "Node (items[0]): metadata.name: is missing"),
        ({"apiVersion": "v3", "kind": "NodeList", "items": [{}]}, "apiVersion: 'v3' is not understood, only v1"),
        (
            {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "List", "items": []}]},
            "items[0]: kind: a List within a list is not read",
        ),
        ([], "a list is not an object"),
    ],
)
def test_bad_lists(raw: object, problem: str) -> None:
    """A fault in a list is reported with the item's index."""
    assert read_manifest(raw) == ([], [problem])


@pytest.mark.parametrize("text", [b"", b"{", b"{} {}", b"nul", b'{"kind": "Servi', b"[" * 100_000])
def test_what_is_no_json(text: bytes) -> None:
    """Text that isn't JSON is a problem to `parse_json` and an error to `parse_manifest_json`."""
    problems: list[Problem] = []
    assert parse_json(text, "", problems) is None
    assert [problem.message.partition(":")[0] for problem in problems] == ["can't be read as JSON"]
    with pytest.raises(ValueError, match=r"."):
        parse_manifest_json(text, "")


def test_an_object_of_a_known_kind_need_not_say_it() -> None:
    """The caller may name the kind of an object."""
    problems: list[Problem] = []
    raw = json.dumps(without_type(SERVICE)).encode()
    made = parse_json(raw, "", problems, kind=KINDS["Service"])
    assert isinstance(made, Service)
    assert problems == []


@pytest.mark.parametrize(
    ("kind", "raw", "key"),
    [
        ("Service", b'{"metadata": {"namespace": "shop", "name": "web"}, "spec": 5}', WEB),
        ("Node", b'{"metadata": {"name": "node-a"}}', "node-a"),
        ("Service", b'{"metadata": {"name": "Web"}}', None),
        ("Service", b'{"metadata": 5}', None),
        ("Service", b"{", None),
    ],
)
def test_the_key_alone(kind: str, raw: bytes, key: object) -> None:
    """The key of an object is known in spite of other faults."""
    assert parse_key(raw, KINDS[kind]) == key
