"""The test API server takes and denies writes as a real server does, beyond the recordings."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from nftproxy_conformance.apiserver import ApiServer

from tests.conformance.apiserver.clients import WEB, refusal, service
from tests.support import objects

SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
MERGE = {"content-type": "application/merge-patch+json"}

EVENT: objects.Object = {
    "metadata": {"name": "node-a.1"},
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reportingController": "nftproxy",
    "reportingInstance": "nftproxy-node-a",
    "action": "Start",
    "reason": "Starting",
    "regarding": {"kind": "Node", "name": "node-a"},
    "note": "starting",
    "type": "Normal",
}


def fields(response: httpx.Response) -> list[str]:
    """The fields of the causes for which an object was denied."""
    assert refusal(response) == (422, "Invalid")
    return [cause["field"] for cause in response.json()["details"]["causes"]]


def created(client: httpx.Client, name: str = "web", **spec: Any) -> Any:
    """Create a Service with this spec, by default with a port, and return its stored spec."""
    response = client.post(SERVICES, json=objects.service(name, {"ports": [{"port": 80}]} | spec, namespace="default"))
    assert response.status_code == 201, response.text
    return response.json()["spec"]


def test_addresses_and_ports_are_given_once(client: httpx.Client) -> None:
    """Two Services get different ClusterIPs and node ports, and a port of two protocols gets a single node port."""
    ports = [{"name": name, "port": 53, "protocol": protocol} for name, protocol in (("a", "TCP"), ("b", "UDP"))]
    first, second = (created(client, name, type="NodePort", ports=ports) for name in ("a", "b"))
    assert first["clusterIP"] != second["clusterIP"]
    numbers = [{port["nodePort"] for port in spec["ports"]} for spec in (first, second)]
    assert [len(each) for each in numbers] == [1, 1]
    assert not numbers[0] & numbers[1]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"clusterIP": "10.97.0.1"}, ["spec.clusterIPs"]),
        ({"clusterIP": "10.96.0.77", "type": "ExternalName", "externalName": "a.example"}, ["spec.clusterIPs"]),
        ({"clusterIPs": ["10.96.0.7", "10.96.0.8"]}, ["spec.clusterIPs"]),
        ({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.8"]}, ["spec.clusterIPs[0]"]),
        ({"ports": [{"port": 80, "nodePort": 30001}]}, ["spec.ports[0].nodePort"]),
        ({"ports": [{"port": 80, "protocol": "ICMP"}]}, ["spec.ports[0].protocol"]),
        ({"ports": [{"port": 80, "name": "A"}]}, ["spec.ports[0].name"]),
        ({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000}]}, ["spec.ports[0].nodePort"]),
        ({"type": "Elsewhere"}, ["spec.type"]),
        ({"externalTrafficPolicy": "Local"}, ["spec.externalTrafficPolicy"]),
        ({"type": "NodePort", "externalTrafficPolicy": "Near"}, ["spec.externalTrafficPolicy"]),
        ({"internalTrafficPolicy": "Near"}, ["spec.internalTrafficPolicy"]),
        ({"type": "NodePort", "healthCheckNodePort": 30009}, ["spec.healthCheckNodePort"]),
        ({"loadBalancerSourceRanges": ["10.0.0.0/8"]}, ["spec.LoadBalancerSourceRanges"]),
        ({"sessionAffinity": "Cookie"}, ["spec.sessionAffinity"]),
        ({"type": "ExternalName", "externalName": "no name"}, ["spec.externalName"]),
    ],
)
def test_a_service_that_is_not_valid(client: httpx.Client, spec: objects.Object, expected: list[str]) -> None:
    """Each field is checked, and named in the causes, beside ports and addresses that another Service has."""
    created(client, "taken", type="NodePort", clusterIP="10.96.0.77", ports=[{"port": 80, "nodePort": 30000}])
    given = objects.service("bad", {"ports": [{"port": 80}]} | spec, namespace="default")
    assert fields(client.post(SERVICES, json=given)) == expected


def test_an_update_keeps_what_was_given(client: httpx.Client) -> None:
    """Allocated values that an update leaves out stay.  Another ClusterIP is denied."""
    before = created(client, type="NodePort")
    after = client.patch(WEB, json={"spec": {"ports": [{"port": 80}]}}, headers=MERGE).json()["spec"]
    assert (after["clusterIPs"], after["ports"]) == (before["clusterIPs"], before["ports"])
    assert fields(client.put(WEB, json=service(clusterIP="10.96.0.99"))) == ["spec.clusterIPs[0]"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"addressType": ""}, ["addressType"]),
        ({"addressType": "IPX"}, ["addressType"]),
        ({"endpoints": [{"addresses": []}]}, ["endpoints[0].addresses"]),
        ({"endpoints": [{"addresses": ["fd00::1"]}]}, ["endpoints[0].addresses[0]"]),
        ({"endpoints": [{"addresses": ["10.1.0.4"] * 101}]}, ["endpoints[0].addresses"]),
        ({"endpoints": [{"addresses": ["10.1.0.4"]}] * 1001}, ["endpoints"]),
        ({"endpoints": [objects.endpoint("10.1.0.4", "No Node")]}, ["endpoints[0].nodeName"]),
        (
            {"endpoints": [objects.endpoint("10.1.0.4", hints={"forZones": [{"name": "-"}]})]},
            ["endpoints[0].hints.forZones[0].name"],
        ),
        ({"ports": [{"port": 1}, {"port": 2}]}, ["ports[1].name"]),
        ({"ports": [{"name": "a", "port": 1, "protocol": "X"}]}, ["ports[0].protocol"]),
    ],
)
def test_a_slice_that_is_not_valid(client: httpx.Client, change: objects.Object, expected: list[str]) -> None:
    """An EndpointSlice's addresses, ports and lengths are checked.  Names of ports are unique across protocols."""
    assert fields(client.post(SLICES, json=objects.endpoint_slice("bad", namespace="default") | change)) == expected


def test_a_slice_keeps_its_family(client: httpx.Client) -> None:
    """The addressType of a slice can't be changed."""
    given = objects.endpoint_slice("web-1", namespace="default")
    assert client.post(SLICES, json=given).status_code == 201
    assert fields(client.put(f"{SLICES}/web-1", json=given | {"addressType": "IPv6"})) == ["addressType"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"series": {"count": 5, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}, []),
        ({"series": {"count": 1, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}, ["series.count"]),
        ({"series": {"count": 2}}, ["series.lastObservedTime"]),
        ({"note": "another"}, ["message"]),
        ({"reason": "Another", "type": "Warning"}, ["reason", "type"]),
        ({"regarding": {"name": "node-b"}}, ["involvedObject"]),
        ({"eventTime": "2026-01-01T00:00:02.000000Z"}, ["eventTime"]),
    ],
)
def test_of_an_event_only_the_series_changes(client: httpx.Client, change: objects.Object, expected: list[str]) -> None:
    """A patch may raise the count of an Event.  All other fields are immutable."""
    assert client.post(EVENTS, json=EVENT).status_code == 201
    response = client.patch(f"{EVENTS}/node-a.1", json=change, headers=MERGE)
    assert (fields(response) if expected else response.status_code) == (expected or 200)


def test_an_event_of_a_node_is_in_a_namespace_of_the_system(client: httpx.Client) -> None:
    """An Event about an object without a namespace may be in `default` and `kube-system` only."""
    client.post("/api/v1/namespaces", json={"metadata": {"name": "shop"}})
    for namespace, expected in (("kube-system", 201), ("shop", 422)):
        path = EVENTS.replace("default", namespace)
        assert client.post(path, json=EVENT).status_code == expected


def test_a_namespace_that_is_going_takes_nothing_new(server: ApiServer, client: httpx.Client) -> None:
    """A deleted Namespace is Terminating, and creations in it are denied with that cause."""
    server.put(objects.service(namespace="shop"))
    assert client.delete("/api/v1/namespaces/shop").json()["status"] == {"phase": "Terminating"}
    response = client.post(EVENTS.replace("default", "shop"), json=EVENT)
    assert refusal(response) == (403, "Forbidden")
    assert response.json()["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    assert refusal(client.post(EVENTS.replace("default", "none"), json=EVENT)) == (404, "NotFound")


def test_a_form_that_there_is_not(client: httpx.Client) -> None:
    """An unsupported format is refused with 406, and `*/*` means JSON."""
    assert refusal(client.get(SERVICES, headers={"accept": "text/csv"})) == (406, "NotAcceptable")
    assert client.get(SERVICES, headers={"accept": "text/csv, */*;q=0.1"}).json()["kind"] == "ServiceList"


def test_managed_fields_name_each_writer(client: httpx.Client) -> None:
    """Each writer has an entry in managedFields for its last write."""
    created(client)
    for manager in ("one/1.0", "two/2.0", "one/1.1"):
        labels = {"metadata": {"labels": {manager[:3]: manager[4:]}}}
        found = client.patch(WEB, json=labels, headers=MERGE | {"user-agent": manager}).json()["metadata"]
    assert [entry["manager"] for entry in found["managedFields"]] == ["python-httpx", "two", "one"]
    assert found["managedFields"][2]["fieldsV1"] == {"f:metadata": {"f:labels": {"f:one": {}}}}
