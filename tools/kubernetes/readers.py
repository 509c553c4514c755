"""The rights of `nftproxy manifests --reader` at a real API server: each verb of each resource, and commands to exec.

A policy of admission is checked before the API server calls a kubelet.  So a command that is admitted fails with
another error than one that is denied, as the pod here is on no node.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

from nftproxy.deploy.reader import reader_objects
from nftproxy.sources.documents import yaml_documents
from nftproxy.templates_dir import deploy_templates_dir
from tests.support.waiting import wait_until
from tools.kubernetes.api import client
from tools.kubernetes.binaries import Binaries
from tools.kubernetes.control_plane import RealControlPlane, free_ports

READERS_HEADER = ("namespace of the agents", "wrong")
READER, GROUP = "reader", "nftproxy-readers"
VERBS = "get list watch create update patch delete deletecollection bind escalate impersonate approve use".split()
POD = "nftproxy-x"
GOOD = (
    "nftproxy status -o json",
    "nftproxy list conflicts -o json -A",
    "nftproxy list services -o json --namespace=shop --selector=app=web",
    "nftproxy explain svc/shop/web:http/UDP -o json --from=10.1.0.4",
    "nftproxy explain [fd00::1]:80 -o json",
    "nftproxy top -o json --timeout=1.5",
    "nftproxy doctor -o json --agent-socket=/run/nftproxy/x.sock",
    "/venv/bin/python-net-admin -m nftproxy diff --live -",
)
"""Commands that readers may run."""
BAD = (
    "sh",
    "nftproxy",
    "nftproxy run",
    "nftproxy cleanup",
    "nftproxy list services --agent-socket=/etc/x",
    "nftproxy doctor --config=/etc/passwd",
    "nftproxy render /etc/passwd",
    "/venv/bin/python-net-admin -m nftproxy cleanup",
    "/venv/bin/python-net-admin -m nftproxy diff --live /etc/passwd",
    "/venv/bin/python-net-admin -m nftproxy diff -",
    "/venv/bin/python-net-admin -c print(1)",
)
"""Commands that they may not run."""


def wrong_rights(binaries: Binaries, directory: Path) -> Iterator[tuple[str, str]]:
    """Yield each right too much or too little, with the namespace of the agents."""
    for namespace in ("kube-system", "network"):
        yield from ((namespace, wrong) for wrong in _wrong_rights(binaries, directory, namespace))


def _wrong_rights(binaries: Binaries, directory: Path, namespace: str) -> Iterator[str]:
    """Yield each right that a reader of agents in a namespace has too much or too little, at a real API server."""
    (port,) = free_ports(1)
    with RealControlPlane(binaries, directory / f"reader-{namespace}", "127.0.0.1", port, {READER: GROUP}) as control:
        control.start()
        with client(control.kubeconfig) as administrator, client(control.kubeconfig_of(READER)) as reader:
            _create(administrator, namespace)
            yield from _of_resources(administrator, reader, namespace)
            wait_until(lambda: _is_denied(reader, namespace, "sh"), lambda: "the policy isn't in force")
            for stdin in ("false", "true"):
                yield from (f"denied: {each}" for each in _good(stdin) if _is_denied(reader, namespace, each, stdin))
                yield from (f"admitted: {each}" for each in BAD if not _is_denied(reader, namespace, each, stdin))
            for good in GOOD:
                if not _is_denied(reader, namespace, good, pod="other"):
                    yield f"admitted in another pod: {good}"
                if not _is_denied(reader, namespace, good, container="other"):
                    yield f"admitted in another container: {good}"


def _good(stdin: str) -> Iterable[str]:
    return GOOD if stdin == "false" else GOOD[-1:]


def _create(administrator: httpx.Client, namespace: str) -> None:
    """Create the reader's objects and two pods of no node."""
    text = reader_objects((deploy_templates_dir() / "reader.yaml").read_text(), namespace)
    answer = administrator.post("/api/v1/namespaces", json={"metadata": {"name": namespace}})
    assert answer.status_code in (201, 409), answer.text
    account = administrator.post(
        f"/api/v1/namespaces/{namespace}/serviceaccounts", json={"metadata": {"name": "default"}}
    )
    assert account.status_code in (201, 409), account.text
    for value in (document.value for document in yaml_documents(text)):
        assert isinstance(value, dict)
        _post(administrator, _path_of(value), value)
    for name in (POD, "other"):
        containers = [{"name": each, "image": "none"} for each in ("nftproxy", "other")]
        pod = {"metadata": {"name": name}, "spec": {"containers": containers, "automountServiceAccountToken": False}}
        _post(administrator, f"/api/v1/namespaces/{namespace}/pods", pod)


def _path_of(value: Any) -> str:
    group = "/api" if value["apiVersion"] == "v1" else "/apis"
    namespace = value["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    plural = value["kind"].lower().removesuffix("y") + ("ies" if value["kind"].endswith("y") else "s")
    return f"{group}/{value['apiVersion']}{scope}/{plural}"


def _post(administrator: httpx.Client, path: str, value: Mapping[str, Any]) -> None:
    answer = administrator.post(path, json=value)
    assert answer.status_code == 201, f"{path}: {answer.text}"


def _of_resources(administrator: httpx.Client, reader: httpx.Client, namespace: str) -> Iterator[str]:
    """Ask for each verb of each resource that the API server has, in several namespaces."""
    for (group, name), verb, where in itertools.product(_resources(administrator), VERBS, _namespaces(namespace)):
        main, _, sub = name.partition("/")
        asked = {"group": group, "resource": main, "subresource": sub, "verb": verb, "namespace": where}
        found = reader.post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            content=json.dumps({"spec": {"resourceAttributes": asked}}),
            headers={"Content-Type": "application/json"},
        ).json()
        if found["status"]["allowed"] is not _may((group, name, verb), where, namespace):
            yield f"{'too much' if found['status']['allowed'] else 'too little'}: {group} {name} {verb} in {where!r}"


def _namespaces(namespace: str) -> list[str]:
    return list(dict.fromkeys([namespace, "kube-system", "default", ""]))


def _may(asked: tuple[str, str, str], where: str, namespace: str) -> bool:
    match asked:
        case ("", "nodes", "list"):
            return True
        case ("", "pods", "list"):
            return where in (namespace, "kube-system")
        case ("", "pods/exec", "get" | "create"):
            return where == namespace
        case ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews", "create"):
            return True  # of every user, as the next (system:basic-user)
        case ("authentication.k8s.io", "selfsubjectreviews", "create"):
            return True
    return False


def _resources(administrator: httpx.Client) -> Iterator[tuple[str, str]]:
    """Yield the group and the name of each resource and subresource, by discovery."""
    groups = administrator.get("/apis").json()["groups"]
    versions = [each["preferredVersion"]["groupVersion"] for each in groups]
    for path in ("/api/v1", *(f"/apis/{each}" for each in versions)):
        group = path.split("/")[2] if path != "/api/v1" else ""
        yield from ((group, each["name"]) for each in administrator.get(path).json()["resources"])


def _is_denied(
    reader: httpx.Client,
    namespace: str,
    command: str,
    stdin: str = "false",
    *,
    pod: str = POD,
    container: str = "nftproxy",
) -> bool:
    """Whether the API server denies an exec, instead of failing to find the pod's node."""
    given = [("command", word) for word in command.split()]
    query = urlencode([("container", container), ("stdin", stdin), ("stdout", "true"), *given])
    answer = reader.get(f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?{query}")
    denied = "readers may only ask the agents" in answer.text
    assert denied or answer.status_code in (400, 500), f"{command}: {answer.status_code} {answer.text}"
    return denied
