"""The fields of EndpointSlices, Nodes and ServiceCIDRs: values that are read, and values that are lost alone."""

from __future__ import annotations

import pytest

from nftproxy.model.addresses import Protocol, parse_network
from nftproxy.model.objects import EndpointPort, Endpoints, EndpointSlice, EndpointState, Node, ServiceCIDR
from tests.support.raw import CIDR, NODE, SLICE, Raw, changed, endpoint_slice, read, shown

# ---- an EndpointSlice's fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("addressType", "IPv5", "'IPv5' is not IPv4, IPv6 or FQDN"),
        ("addressType", None, "null is not IPv4, IPv6 or FQDN"),
        ("addressType", 4, "4 is not a string"),
        ("metadata|labels|kubernetes.io/service-name", "Web", "'Web' is not the name of a Service"),
        ("metadata|labels|kubernetes.io/service-name", 5, "5 is not the name of a Service"),
    ],
)
def test_a_slice_without_family_or_service_is_lost(path: str, value: object, problem: str) -> None:
    """A slice that doesn't tell its address family or its Service is lost and reported."""
    assert read(changed(SLICE, path, value)) == (None, [f"EndpointSlice shop/web-abcde: {shown(path)}: {problem}"])


@pytest.mark.parametrize("name", ["other/web", "kube-system/kubernetes", "../web"])
def test_a_slice_belongs_to_a_service_of_its_own_namespace(name: str) -> None:
    """The label names a Service without its namespace: another namespace's can't be named."""
    label = "kubernetes.io/service-name"
    value, (problem,) = read(changed(SLICE, f"metadata|labels|{label}", name))
    assert value is None
    assert problem == f"EndpointSlice shop/web-abcde: metadata.labels.{label}: {name!r} is not the name of a Service"
    own, _ = read(SLICE)
    assert isinstance(own, EndpointSlice)
    assert own.service.namespace == own.key.namespace == "shop"


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ({"name": "http", "port": 8080}, [EndpointPort("http", Protocol.TCP, 8080)]),
        ({"name": "", "port": 53, "protocol": "UDP"}, [EndpointPort("", Protocol.UDP, 53)]),
        ({"name": None, "port": 8080}, []),
        ({"port": 8080}, []),
        ({"name": "http", "port": None}, []),
        ({"name": "http"}, []),
    ],
)
def test_slice_ports(port: Raw, expected: list[EndpointPort]) -> None:
    """A port counts if it has a name, which may be "", and a number."""
    made, problems = endpoint_slice("ports", [port])
    assert (list(made.ports), problems) == (expected, [])


@pytest.mark.parametrize("ports", [None, []])
def test_a_slice_without_ports(ports: object) -> None:
    """A slice may have no ports."""
    made, problems = endpoint_slice("ports", ports)
    assert (made.ports, problems) == ((), [])


@pytest.mark.parametrize(
    ("port", "problem"),
    [
        ({"name": "x", "port": 0}, ".port: 0 is not a port from 1 to 65535"),
        ({"name": "x", "port": 1, "protocol": "QUIC"}, ".protocol: 'QUIC' is not TCP, UDP or SCTP"),
        ({"name": "-", "port": 1}, ".name: '-' is not a port name (a DNS label of at most 63 characters)"),
        ({"name": "http", "port": 1}, ": repeats the name of an earlier port with the same protocol"),
        ("x", ": 'x' is not an object"),
    ],
)
def test_a_bad_slice_port_is_lost_alone(port: object, problem: str) -> None:
    """A bad port of a slice is lost and reported, and the rest stays."""
    made, problems = endpoint_slice("ports.-", port)
    assert made.ports == (EndpointPort("http", Protocol.TCP, 8080),)
    assert problems == [f"EndpointSlice shop/web-abcde: ports[1]{problem}"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (None, (True, True, False)),
        ({}, (True, True, False)),
        ({"ready": None, "serving": None, "terminating": None}, (True, True, False)),
        ({"ready": False}, (False, False, False)),
        ({"ready": True, "serving": False}, (True, False, False)),
        ({"ready": False, "serving": True, "terminating": True}, (False, True, True)),
    ],
)
def test_conditions(conditions: object, expected: tuple[bool, bool, bool]) -> None:
    """An endpoint is ready unless denied, serving as it is ready unless said otherwise, and not terminating."""
    (made,) = endpoint_slice("endpoints.0.conditions", conditions)[0].endpoints
    assert (made.ready, made.serving, made.terminating) == expected


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ({}, ".addresses: is empty"),
        ({"addresses": []}, ".addresses: is empty"),
        ({"addresses": "10.1.0.9"}, ".addresses: '10.1.0.9' is not a list"),
        ({"addresses": [9]}, ".addresses[0]: 9 is not a string"),
        ({"addresses": ["fd00:1::4"]}, ".addresses[0]: fd00:1::4 is not an IPv4 address"),
        ({"addresses": ["10.1.0.0256"]}, ".addresses[0]: '10.1.0.256' does not appear to be an IPv4 or IPv6 address"),
        (
            {"addresses": ["169.254.169.254"]},
            ".addresses[0]: '169.254.169.254' is a loopback, link-local, multicast, broadcast or unspecified address",
        ),
        ({"addresses": ["10.1.0.9"], "conditions": {"ready": "yes"}}, ".conditions.ready: 'yes' is not true or false"),
        ({"addresses": ["10.1.0.9"], "conditions": 1}, ".conditions: 1 is not an object"),
        ({"addresses": ["10.1.0.9"], "nodeName": "node a"}, ".nodeName: 'node a' is not the name of a Node"),
        ({"addresses": ["10.1.0.9"], "nodeName": 7}, ".nodeName: 7 is not a string"),
        (None, ": null is not an object"),
    ],
)
def test_a_bad_endpoint_is_lost_alone(endpoint: object, problem: str) -> None:
    """An endpoint with an unreadable address, condition or node is lost and reported, and the rest stays."""
    made, problems = endpoint_slice("endpoints.-", endpoint)
    assert [each.address for each in made.endpoints] == ["10.1.0.4"]
    assert problems == [f"EndpointSlice shop/web-abcde: endpoints[1]{problem}"]


def test_only_the_first_address_is_read() -> None:
    """Faults in an endpoint's other addresses don't matter."""
    assert endpoint_slice("endpoints.0.addresses", ["10.1.0.4", "x", 5])[1] == []


@pytest.mark.parametrize(
    ("hints", "zones", "nodes"),
    [
        (None, None, None),
        ({}, None, None),
        ({"forZones": []}, None, None),
        ({"forZones": [{"name": "a"}, {"name": "B_1"}]}, ("a", "B_1"), None),
        ({"forNodes": [{"name": "node-a"}]}, None, ("node-a",)),
    ],
)
def test_hints(hints: object, zones: object, nodes: object) -> None:
    """Hints are names of zones and nodes, or None."""
    made, problems = endpoint_slice("endpoints.0.hints", hints)
    assert (made.endpoints.states[0].zone_hints, made.endpoints.states[0].node_hints, problems) == (zones, nodes, [])


@pytest.mark.parametrize(("given", "zone"), [("a", "a"), ("", ""), (None, "")])
def test_zone(given: object, zone: str) -> None:
    """Weights go by an endpoint's zone, which is "" if unknown."""
    made, problems = endpoint_slice("endpoints.0.zone", given)
    assert (made.endpoints.states[0].zone, problems) == (zone, [])


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("a b", "'a b' is not the name of a zone"),
        (3, "3 is not a string"),
        ({"a": 1}, "an object is not a string"),
    ],
)
def test_a_bad_zone_leaves_the_endpoint(given: object, fault: str) -> None:
    """A zone that can't be read costs a weight by zone, and nothing else."""
    made, problems = endpoint_slice("endpoints.0.zone", given)
    assert made.endpoints.states[0].zone == ""
    assert problems == [f"EndpointSlice shop/web-abcde: endpoints[0].zone: {fault}"]


@pytest.mark.parametrize(
    ("hints", "problem"),
    [
        ({"forZones": [{"name": "a b"}]}, "hints.forZones[0].name: 'a b' is not the name of a zone or Node"),
        ({"forZones": [{}]}, "hints.forZones[0].name: null is not the name of a zone or Node"),
        ({"forZones": ["a"]}, "hints.forZones[0]: 'a' is not an object"),
        ({"forZones": "a"}, "hints.forZones: 'a' is not a list"),
        ("a", "hints: 'a' is not an object"),
    ],
)
def test_bad_hints_leave_the_endpoint(hints: object, problem: str) -> None:
    """A bad hint is lost alone: hints decide where traffic goes best, not where it may go."""
    made, problems = endpoint_slice("endpoints.0.hints", hints)
    assert made.endpoints == Endpoints("10.1.0.4", (EndpointState(node_name="node-a", zone="a"),))
    assert problems == [f"EndpointSlice shop/web-abcde: endpoints[0].{problem}"]


@pytest.mark.parametrize(
    ("reference", "pods"),
    [
        ({"kind": "Pod", "namespace": "shop", "name": "web-1"}, "web-1"),
        ({"kind": "Pod", "name": "web-1"}, "web-1"),
        ({"kind": "Pod", "namespace": "blog", "name": "web-1"}, ""),
        ({"kind": "VM", "name": "web-1"}, ""),
        ({"kind": "Pod", "name": "a b"}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_the_pods_of_endpoints(reference: object, pods: str) -> None:
    """An endpoint has the name of the pod of its namespace that it refers to, and any other reference is no fault."""
    made, problems = endpoint_slice("endpoints.0.targetRef", reference)
    assert (made.pods, problems) == (pods, [])
    assert list(made.pod_names()) == [("10.1.0.4", pods)]


def test_a_bad_reference_leaves_the_endpoint() -> None:
    """The name of a pod that can't be read costs the name alone."""
    made, problems = endpoint_slice("endpoints.0.targetRef", {"kind": "Pod", "name": 7})
    assert (made.pods, len(made.endpoints.states)) == ("", 1)
    assert problems == ["EndpointSlice shop/web-abcde: endpoints[0].targetRef.name: 7 is not a string"]


# ---- Nodes and ServiceCIDRs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("status.addresses.2.address", "x", "'x' does not appear to be an IPv4 or IPv6 address"),
        ("status.addresses.2.address", None, "null is not a string"),
        ("spec.podCIDRs.0", "10.1.0.0", "'10.1.0.0' is not a CIDR"),
        ("metadata|labels|topology.kubernetes.io/zone", "a b", "'a b' is not the name of a zone"),
    ],
)
def test_bad_fields_of_a_node(path: str, value: object, problem: str) -> None:
    """A bad address, range or zone of a Node is lost alone."""
    outcome, problems = read(changed(NODE, path, value))
    assert isinstance(outcome, Node)
    assert problems == [f"Node node-a: {shown(path)}: {problem}"]


def test_a_bad_range_of_a_service_cidr() -> None:
    """A bad range of a ServiceCIDR is lost alone."""
    outcome, problems = read(changed(CIDR, "spec.cidrs.0", "10.96.0.0/x"))
    assert outcome == ServiceCIDR("kubernetes", (parse_network("fd00:96::/112"),))
    assert problems == ["ServiceCIDR kubernetes: spec.cidrs[0]: '10.96.0.0/x' is not a CIDR"]


def test_the_trigger_time_is_kept() -> None:
    """The trigger time of an EndpointSlice's change is kept to the fraction of a second."""
    annotations = {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00.25Z"}
    value, problems = endpoint_slice("metadata|annotations", annotations)
    assert (value.triggered, problems) == (1767225600.25, [])
