"""The test API server knows the features that its Kubernetes version has by default."""

from __future__ import annotations

import base64
import json

import httpx
import pytest
from nftproxy_conformance.apiserver import ApiServer

from tests.conformance.apiserver.clients import SERVICES, names, service
from tests.support import objects

CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"
INITIAL = {"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "timeoutSeconds": "1"}


@pytest.mark.parametrize(("version", "status"), [("v1.30.9", 400), ("v1.31.0", 200)])
def test_services_by_their_cluster_ip(server: ApiServer, client: httpx.Client, version: str, status: int) -> None:
    """From 1.31 on Services are selected by spec.clusterIP."""
    server.settings.version = version
    server.put(service("a"), service("b", clusterIP="None"))
    answer = client.get(SERVICES, params={"fieldSelector": "spec.clusterIP!=None"})
    assert answer.status_code == status
    if status == 200:
        assert names(answer.json()) == ["a"]
    else:
        assert answer.json()["message"] == 'field label not supported: "spec.clusterIP"'


@pytest.mark.parametrize(("version", "status"), [("v1.32.0", 404), ("v1.33.0", 200)])
def test_ranges_of_services(server: ApiServer, client: httpx.Client, version: str, status: int) -> None:
    """From 1.33 on the server has ServiceCIDRs, and lists them among its resources."""
    server.settings.version = version
    assert client.get(CIDRS).status_code == status
    listed = client.get("/apis/networking.k8s.io/v1").json()["resources"]
    assert bool(listed) is (status == 200)


@pytest.mark.parametrize(("version", "status"), [("v1.32.0", 500), ("v1.33.0", 400)])
def test_versions_that_are_no_numbers(server: ApiServer, client: httpx.Client, version: str, status: int) -> None:
    """From 1.33 on such a list is a bad request, before that an error without a reason, as a watch is."""
    server.settings.version = version
    answer = client.get(SERVICES, params={"resourceVersion": "a"})
    assert (answer.status_code, answer.json().get("reason")) == (status, "BadRequest" if status == 400 else None)


@pytest.mark.parametrize(
    ("version", "status"), [("v1.31.0", 422), ("v1.32.0", 200), ("v1.33.0", 422), ("v1.34.0", 200)]
)
def test_watches_that_begin_with_a_list(server: ApiServer, client: httpx.Client, version: str, status: int) -> None:
    """1.32 sends initial events, 1.33 doesn't, and from 1.34 on all versions do."""
    server.settings.version = version
    answer = client.get(SERVICES, params=INITIAL)
    assert answer.status_code == status
    if status == 422:
        (cause,) = answer.json()["details"]["causes"]
        assert (cause["reason"], cause["field"]) == ("FieldValueForbidden", "sendInitialEvents")
        assert cause["message"].endswith("unless the WatchList feature gate is enabled")


@pytest.mark.parametrize(("version", "lists"), [("v1.32.0", 1), ("v1.34.0", 0)])
def test_the_end_of_a_list_in_a_watch(server: ApiServer, client: httpx.Client, version: str, lists: int) -> None:
    """1.32 adds an empty list to the bookmark after the initial events, and 1.34 doesn't."""
    server.settings.version = version
    first, *_ = client.get(SERVICES, params=INITIAL | {"allowWatchBookmarks": "true"}).text.splitlines()
    annotations = json.loads(first)["object"]["metadata"]["annotations"]
    assert annotations.pop("k8s.io/initial-events-end") == "true"
    found = {name: json.loads(base64.b64decode(value)) for name, value in annotations.items()}
    empty: objects.Object = {"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": None}
    assert list(found.items()) == [("kubernetes.io/initial-events-list-blueprint", empty)] * lists


@pytest.mark.parametrize(
    ("version", "given", "stored"),
    [
        ("v1.30.0", "PreferClose", None),
        ("v1.31.0", "PreferClose", "PreferClose"),
        ("v1.33.0", "PreferSameNode", "denied"),
        ("v1.34.0", "PreferSameNode", "PreferSameNode"),
    ],
)
def test_traffic_distributions(
    server: ApiServer, client: httpx.Client, version: str, given: str, stored: str | None
) -> None:
    """1.31 begins to store spec.trafficDistribution, and 1.34 has more values for it."""
    server.settings.version = version
    document = service(trafficDistribution=given)
    answer = client.post("/api/v1/namespaces/default/services", json=document)
    if stored == "denied":
        causes = answer.json()["details"]["causes"]
        assert [(each["field"], answer.status_code) for each in causes] == [("spec.trafficDistribution", 422)]
    else:
        assert answer.json()["spec"].get("trafficDistribution") == stored


@pytest.mark.parametrize(("version", "kept"), [("v1.33.0", {}), ("v1.34.0", {"forNodes": [{"name": "node-a"}]})])
def test_hints_for_nodes(server: ApiServer, client: httpx.Client, version: str, kept: object) -> None:
    """From 1.34 on EndpointSlices keep hints for nodes."""
    server.settings.version = version
    endpoint = objects.endpoint("10.0.0.1", "node-a", hints={"forNodes": [{"name": "node-a"}]})
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    answer = client.post(path, json=objects.endpoint_slice("web-x", endpoint, service="web", namespace="default"))
    assert answer.status_code == 201, answer.text
    assert answer.json()["endpoints"][0]["hints"] == kept


@pytest.mark.parametrize(("version", "kept"), [("v1.29.0", {}), ("v1.30.0", {"ipMode": "Proxy"})])
def test_modes_of_load_balancer_addresses(
    server: ApiServer, client: httpx.Client, version: str, kept: dict[str, str]
) -> None:
    """From 1.30 on the status of a Service keeps ipMode."""
    server.settings.version = version
    server.put(service(type="LoadBalancer"))
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "Proxy"}]}}}
    answer = client.patch(
        "/api/v1/namespaces/default/services/web/status",
        json=status,
        headers={"content-type": "application/merge-patch+json"},
    )
    assert answer.json()["status"]["loadBalancer"]["ingress"] == [{"ip": "192.0.2.1"} | kept]
