"""The test API server keeps objects as a real server does, and takes the same writes."""

from __future__ import annotations

import time

import httpx
import pytest
from nftproxy_conformance.apiserver import ApiServer

from tests.conformance.apiserver.clients import SERVICES, SLICES, WEB, listed, names, refusal, service
from tests.support import objects

# ---- objects -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "api_version", "path"),
    [
        ("Service", "v1", "/api/v1/namespaces/default/services/one"),
        ("Node", "v1", "/api/v1/nodes/one"),
        ("EndpointSlice", "discovery.k8s.io/v1", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/one"),
        ("ServiceCIDR", "networking.k8s.io/v1", "/apis/networking.k8s.io/v1/servicecidrs/one"),
        ("Event", "events.k8s.io/v1", "/apis/events.k8s.io/v1/namespaces/default/events/one"),
    ],
)
def test_an_object_is_at_its_url(
    server: ApiServer, client: httpx.Client, kind: str, api_version: str, path: str
) -> None:
    """Each resource has its path, and an object gets the metadata that only the server gives."""
    revision = server.put({"kind": kind, "metadata": {"name": "one", "labels": {"a": "b"}}, "spec": {"x": [1]}})
    found = client.get(path).json()
    assert (found["kind"], found["apiVersion"], found["spec"]) == (kind, api_version, {"x": [1]})
    metadata = found["metadata"]
    assert (metadata["name"], metadata["labels"]) == ("one", {"a": "b"})
    assert metadata.get("generation") == (1 if kind == "EndpointSlice" else None)
    assert metadata["resourceVersion"] == str(revision)
    assert len(metadata["uid"]) == 36
    assert time.strptime(metadata["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
    assert found == server.get(kind, "default" if "namespaces" in path else "", "one")


def test_items_of_a_list_have_no_kind(server: ApiServer, client: httpx.Client) -> None:
    """A list names the kind of its items once, as typed lists do, and carries the newest resourceVersion."""
    server.put(service("b"), service("a"))
    revision = server.put({"kind": "Node", "metadata": {"name": "n"}})
    content = listed(client)
    assert (content["kind"], content["apiVersion"]) == ("ServiceList", "v1")
    assert content["metadata"] == {"resourceVersion": str(revision)}
    assert [set(item) for item in content["items"]] == [{"metadata", "spec"}] * 2
    assert names(content) == ["a", "b"]


def test_one_number_counts_all_changes(server: ApiServer) -> None:
    """Every write and deletion of any kind takes the next resourceVersion."""
    first = server.put(service())
    assert server.put({"kind": "Node", "metadata": {"name": "n"}}) == first + 1
    assert server.delete("Service", "default", "web") == first + 2
    assert server.revision == first + 2
    assert server.get("Service", "default", "web") is None


def test_a_write_that_changes_nothing_is_none(server: ApiServer) -> None:
    """The same object again has no new resourceVersion, and new labels of a slice aren't a new generation."""
    written, other = (objects.endpoint_slice("web-1", *pods) for pods in ([], ["10.1.0.4@node-a"]))
    revision = server.put(written)
    assert server.put(written) == revision
    server.put(objects.endpoint_slice("web-1", labels={"a": "b"}))
    assert server.objects("EndpointSlice")[0]["metadata"]["generation"] == 1
    server.put(other)
    assert server.objects("endpointslices")[0]["metadata"]["generation"] == 2
    assert server.objects("endpointslices")[0]["metadata"]["resourceVersion"] == str(revision + 2)


def test_a_new_object_of_an_old_name_is_another(server: ApiServer) -> None:
    """An object keeps its uid and its creation time as long as it lives, and no longer."""
    server.put(service())
    uid = server.objects("Service")[0]["metadata"]["uid"]
    server.put(service(type="NodePort"))
    assert server.objects("Service")[0]["metadata"]["uid"] == uid
    server.delete("Service", "default", "web")
    server.put(service())
    assert server.objects("Service")[0]["metadata"]["uid"] != uid


def test_a_namespace_has_its_own_list(server: ApiServer, client: httpx.Client) -> None:
    """The path of a namespace lists its objects.  The path without a namespace lists all, by namespace and name."""
    server.put(service("a", "shop"), service("b", "bank"))
    assert names(listed(client)) == ["b", "a"]
    assert names(listed(client, "/api/v1/namespaces/shop/services")) == ["a"]


@pytest.mark.parametrize(
    "path", ["/version", "/version/", "/api", "/apis/", "/api/v1", "/apis/events.k8s.io", "/livez"]
)
def test_discovery_answers(client: httpx.Client, path: str) -> None:
    """Discovery works with a slash at the end and without."""
    assert client.get(path).status_code == 200


def test_requests_are_counted_in_metrics(server: ApiServer, client: httpx.Client) -> None:
    """/metrics counts requests by verb and resource.  Unfinished requests have the status 0."""
    del server
    listed(client)
    listed(client)
    lines = client.get("/metrics").text.splitlines()
    assert 'apiserver_request_total{verb="LIST",resource="services",code="200"} 2' in lines
    assert 'apiserver_request_total{verb="GET",resource="/metrics",code="0"} 1' in lines


@pytest.mark.parametrize(
    "path",
    ["/api/v2/services", "/api/v1/secrets", "/api/v1/services/web", "/api/v1/namespaces/a/nodes", f"{SLICES}/a/b"],
)
def test_an_unknown_path_of_a_group_is_a_404_status(client: httpx.Client, path: str) -> None:
    """Any other path in a group that is known is answered with a Status of 404."""
    assert refusal(client.get(path)) == (404, "NotFound")


@pytest.mark.parametrize("path", ["/", "/apis/example.test/v1", "/apis/example.test/v1/things"])
def test_a_path_of_no_group_is_a_plain_404(client: httpx.Client, path: str) -> None:
    """A path of no group is answered with a 404 in plain text."""
    response = client.get(path)
    assert (response.status_code, response.headers["content-type"]) == (404, "text/plain; charset=utf-8")


# ---- writes over HTTP ----------------------------------------------------------------------------------------------


def test_create(server: ApiServer, client: httpx.Client) -> None:
    """POST makes an object, once, in the namespace of the path.  A Service begins with an empty status."""
    path = "/api/v1/namespaces/default/services"
    made = client.post(path, json=service() | {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}})
    assert made.status_code == 201
    assert made.json() == server.get("Service", "default", "web")
    assert made.json()["status"] == {"loadBalancer": {}}
    assert refusal(client.post(path, json=service())) == (409, "AlreadyExists")
    assert refusal(client.post(path, json=service("x", "other"))) == (400, "BadRequest")
    assert refusal(client.post(path, content=b"{")) == (400, "BadRequest")
    assert refusal(client.post(path, headers={"content-type": "text/plain"})) == (415, "UnsupportedMediaType")
    generated = client.post(path, json={"metadata": {"generateName": "web-"}, "spec": {"ports": [{"port": 80}]}})
    assert generated.json()["metadata"]["name"].startswith("web-")


def test_update_from_an_old_version_is_a_conflict(server: ApiServer, client: httpx.Client) -> None:
    """PUT replaces an object if its resourceVersion is still the newest, or isn't given."""
    server.put(service())
    old = client.get(WEB).json()
    assert client.put(WEB, json=service(type="NodePort")).json()["spec"]["type"] == "NodePort"
    assert refusal(client.put(WEB, json=old)) == (409, "Conflict")
    assert refusal(client.put(WEB.replace("web", "none"), json=service("none"))) == (404, "NotFound")


def test_the_status_is_written_by_itself(server: ApiServer, client: httpx.Client) -> None:
    """PUT of an object leaves its status alone, and PUT of the status leaves everything else alone."""
    server.put(service() | {"status": {"was": 1}})
    client.put(WEB, json=service(type="NodePort") | {"status": {"was": 2}})
    assert server.objects("Service")[0]["status"] == {"was": 1}
    client.put(f"{WEB}/status", json=service(type="ClusterIP") | {"status": {"was": 3}})
    assert server.objects("Service")[0]["status"] == {"was": 3}
    assert server.objects("Service")[0]["spec"]["type"] == "NodePort"


def test_merge_patch(server: ApiServer, client: httpx.Client) -> None:
    """PATCH merges, null removes, `/status` has its own, and other kinds of patch are refused."""
    server.put(service(type="NodePort", externalIPs=["192.0.2.1"]))
    merge = {"content-type": "application/merge-patch+json"}
    client.patch(WEB, json={"spec": {"type": None, "externalIPs": []}, "status": {"a": 1}}, headers=merge)
    client.patch(f"{WEB}/status", json={"spec": {"x": 1}, "status": {"b": 2}}, headers=merge)
    found = server.objects("Service")[0]
    assert (found["spec"]["type"], found["spec"]["externalIPs"], "x" in found["spec"]) == ("ClusterIP", [], False)
    assert found["status"] == {"loadBalancer": {}, "b": 2}
    assert refusal(client.patch(WEB, json={})) == (415, "UnsupportedMediaType")


def test_delete(server: ApiServer, client: httpx.Client) -> None:
    """DELETE removes an object at once, and a second DELETE finds nothing."""
    server.put(service())
    assert client.delete(WEB).json()["status"] == "Success"
    assert server.objects("Service") == []
    assert refusal(client.delete(WEB)) == (404, "NotFound")
    assert refusal(client.delete(SERVICES)) == (405, "MethodNotAllowed")
