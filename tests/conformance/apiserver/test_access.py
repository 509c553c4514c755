"""The test API server authenticates tokens and certificates, and applies RBAC, as a real server does."""

from __future__ import annotations

import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer, Permission, Proof, permissions_of

from tests.conformance.apiserver.clients import (
    SERVICES,
    SLICES,
    WEB,
    Object,
    bearer,
    client_of,
    refusal,
    service,
    watching,
)
from tests.support.waiting import wait_until


def test_without_a_token_there_is_nothing(guarded: ApiServer) -> None:
    """A client without a token is anonymous and may read the version.  A bad token allows nothing."""
    with client_of(guarded) as client:
        assert refusal(client.get(SERVICES)) == (403, "Forbidden")
        assert refusal(client.get("/apis")) == (403, "Forbidden")
        assert refusal(client.get(SERVICES, headers=bearer("guess"))) == (401, "Unauthorized")
        assert client.get("/version").status_code == 200
        assert client.get("/version", headers=bearer("guess")).status_code == 401
        assert client.get(SERVICES, headers=bearer(guarded.token)).status_code == 200
    assert guarded.requests(status=200)[-1].user == "system:serviceaccount:kube-system:nftproxy"


def test_a_token_is_rotated(guarded: ApiServer) -> None:
    """After a rotation the old token stays valid for its grace period, and a running watch goes on."""
    with client_of(guarded) as client:
        old = guarded.token
        client.headers.update(bearer(old))
        with watching(client) as events:
            guarded.rotate_token(grace=600)
            assert client.get(SERVICES).status_code == 200
            new = guarded.rotate_token(grace=0.1)
            assert client.get(SERVICES, headers=bearer(new)).status_code == 200
            wait_until(lambda: client.get(SERVICES).status_code == 401)
            guarded.put(service())
            assert next(events).name == "web"
        guarded.expire_token()
        assert client.get(SERVICES, headers=bearer(new)).status_code == 401


def test_tokens_are_rotated_at_once(guarded: ApiServer, tmp_path: Path) -> None:
    """After concurrent rotations the files have the valid token."""
    path = guarded.write_kubeconfig(tmp_path / "config")
    with ThreadPoolExecutor() as executor:
        tokens = list(executor.map(lambda _: guarded.rotate_token(), range(40)))
    assert len(set(tokens)) == 40
    assert yaml.safe_load(path.read_text())["users"][0]["user"]["token"] == guarded.token


def test_a_certificate_is_as_good_as_a_token(guarded: ApiServer, tmp_path: Path) -> None:
    """A client certificate of the server's authority names the client."""
    guarded.write_kubeconfig(tmp_path / "config", proof=Proof.CERTIFICATE, embed=False)
    with client_of(guarded, tmp_path) as client:
        assert client.get(SERVICES).status_code == 200
    assert guarded.requests()[-1].user == "kubernetes-admin"


def test_the_server_is_known_by_its_authority(guarded: ApiServer) -> None:
    """A client that trusts another authority doesn't talk to it."""
    with (
        ApiServer(tls=True) as other,
        client_of(other) as client,
        pytest.raises(httpx.ConnectError, match="CERTIFICATE"),
    ):
        client.get(f"{guarded.url}/version")


def test_what_no_rule_allows_is_forbidden(server: ApiServer, client: httpx.Client) -> None:
    """With rules, only their groups, resources and verbs are allowed.  The refusal names the request."""
    server.rbac = {("", "services", "list"), ("discovery.k8s.io", "*", "*")}
    assert client.get(SERVICES).status_code == 200
    assert client.get(SLICES).status_code == 200
    assert client.get("/version").status_code == 200
    response = client.get(SERVICES, params={"watch": "1"})
    assert refusal(response) == (403, "Forbidden")
    assert response.json()["message"] == (
        'services is forbidden: User "system:anonymous" cannot watch resource "services" in API group "" '
        "at the cluster scope"
    )
    assert client.put(f"{WEB}/status", json={}).json()["message"].endswith(
        'cannot update resource "services/status" in API group "" in the namespace "default"'
    )  # fmt: skip


def test_rules_come_from_roles(server: ApiServer, client: httpx.Client) -> None:
    """Rules are read from ClusterRoles and Roles.  Names apply to a list with a field selector, as in RBAC."""
    roles = """\
    kind: ClusterRole
    rules:
    - {apiGroups: [""], resources: [nodes], resourceNames: [node-a], verbs: [get, list, watch]}
    - {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
    - {nonResourceURLs: [/version], verbs: [get]}
    ---
    kind: Role
    metadata: {name: reader, namespace: shop}
    rules:
    - {apiGroups: [""], resources: [services], verbs: [list]}
    """
    assert Permission("events.k8s.io", "events", "create") in server.allow(*yaml.safe_load_all(textwrap.dedent(roles)))
    assert permissions_of([{"kind": "Service"}]) == frozenset()
    server.put({"kind": "Node", "metadata": {"name": "node-a"}})
    codes = {
        path: client.get(path).status_code
        for path in (
            "/api/v1/nodes",
            "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-a",
            "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-b",
            "/api/v1/nodes/node-a",
            SERVICES,
            "/api/v1/namespaces/shop/services",
        )
    }
    assert list(codes.values()) == [403, 200, 403, 200, 403, 200]


def test_a_service_account_is_written_as_kubelet_does(guarded: ApiServer, tmp_path: Path) -> None:
    """All files of a pod's service account change at once with the token, unless it is not yet published."""
    account = guarded.write_service_account(tmp_path / "account")
    assert (account / "token").read_text() == guarded.token
    assert (account / "ca.crt").read_bytes().startswith(b"-----BEGIN CERTIFICATE")
    assert (account / "namespace").read_text() == "kube-system"
    before = (account / "..data").readlink()
    guarded.rotate_token(publish=False)
    assert (account / "token").read_text() != guarded.token
    guarded.publish_token()
    assert (account / "token").read_text() == guarded.token
    assert (account / "..data").readlink() != before
    assert len(list(account.iterdir())) == 5
    assert guarded.environment == {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(guarded.port)}


REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def test_a_client_may_ask_what_it_may_do(guarded: ApiServer) -> None:
    """A review tells whether RBAC allows a request.  Anonymous clients and empty reviews are refused."""
    guarded.rbac = [Permission("", "services", "list"), Permission("", "nodes", "list", "node-a")]

    def ask(body: Object) -> httpx.Response:
        return client.post(REVIEWS, json=body, headers=bearer(guarded.token))

    def review(**attributes: str) -> bool:
        answer = ask({"spec": {"resourceAttributes": attributes}})
        assert answer.status_code == 201
        status = answer.json()["status"]
        assert status.get("reason", "").startswith("RBAC: allowed by ClusterRoleBinding ") == status["allowed"]
        return bool(status["allowed"])

    with client_of(guarded) as client:
        assert review(verb="list", resource="services")
        assert not review(verb="watch", resource="services")
        assert not review(verb="list", resource="nodes")
        assert review(verb="list", resource="nodes", name="node-a")
        assert not review(verb="list", resource="services", subresource="status")
        both: Object = {"resourceAttributes": {}, "nonResourceAttributes": {}}
        for body, field in (
            ({"spec": {}}, "spec.resourceAttributes"),
            ({"spec": both}, "spec.nonResourceAttributes"),
            ({"metadata": {"name": "x"}, "spec": {"resourceAttributes": {}}}, "metadata"),
        ):
            assert refusal(answer := ask(body)) == (422, "Invalid")
            assert [cause["field"] for cause in answer.json()["details"]["causes"]] == [field]
        assert refusal(client.post(REVIEWS, json={})) == (403, "Forbidden")
