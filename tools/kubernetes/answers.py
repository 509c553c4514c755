"""The answers of a real API server and of the test API server to the same requests."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.settings import Settings

from tests.support import objects
from tools.kubernetes.binaries import Binaries
from tools.kubernetes.control_plane import RealControlPlane, free_ports

NAMESPACE = objects.NAMESPACE
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
GROUP = "/apis/networking.k8s.io/v1"
INITIAL = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
MERGE_PATCH = "application/merge-patch+json"
FUTURE = 1 << 40
"""A version that no server has reached."""


HEADER = ("request", "real", "tests")


class Probe(NamedTuple):
    """A request, and the facts of a good answer."""

    method: str
    path: str
    facts: Callable[[Any], Any] = len
    body: objects.Object | None = None

    def facts_of(self, server: httpx.Client) -> tuple[int, Any]:
        """The status of a server's answer, and its facts: the reason and the causes if it is an error."""
        kind = MERGE_PATCH if self.method == "PATCH" else "application/json"
        content = None if self.body is None else json.dumps(self.body)
        answer = server.request(self.method, self.path, content=content, headers={"Content-Type": kind})
        if answer.is_error:
            return answer.status_code, _error(answer)
        if "watch=1" in self.path:
            # The first events of older servers come in no order.
            return answer.status_code, sorted(_event(json.loads(line)) for line in answer.text.splitlines())
        return answer.status_code, self.facts(answer.json())


def _error(answer: httpx.Response) -> Any:
    if not answer.headers["content-type"].startswith("application/json"):
        return answer.text
    status = answer.json()
    causes = status.get("details", {}).get("causes", [])
    return status.get("reason"), [(each["reason"], each.get("field")) for each in causes]


def _event(event: Any) -> tuple[str, str, str]:
    metadata = event["object"]["metadata"]
    return event["type"], metadata.get("name", ""), str(metadata.get("annotations"))


def _names(answer: Any) -> tuple[list[str], Any, bool]:
    metadata = answer["metadata"]
    listed = [each["metadata"]["name"] for each in answer["items"]]
    return listed, metadata.get("remainingItemCount"), "continue" in metadata


def _kind(answer: Any) -> Any:
    return answer["kind"]


def _plurals(answer: Any) -> list[str]:
    """The resources of ours that a group has."""
    return [each["name"] for each in answer["resources"] if each["name"].startswith("servicecidrs")]


def _distribution(answer: Any) -> Any:
    return answer["spec"].get("trafficDistribution")


def _hints(answer: Any) -> Any:
    return [each.get("hints") for each in answer["endpoints"]]


def _ingress(answer: Any) -> Any:
    return answer["status"]["loadBalancer"]


def _service(name: str, **spec: Any) -> Probe:
    return Probe("POST", SERVICES, _distribution, objects.service(name, spec))


def _slice(name: str, hints: objects.Object) -> Probe:
    made = objects.endpoint_slice(name, objects.endpoint("10.1.0.4", "node-a", "ready", hints=hints))
    return Probe("POST", SLICES, _hints, made)


PROBES = {
    "a namespace": Probe("POST", "/api/v1/namespaces", body={"metadata": {"name": NAMESPACE}}),
    "a Service": _service("a"),
    "a headless Service": _service("b", clusterIP="None"),
    "a load balancer": _service("c", type="LoadBalancer"),
    **{
        f"trafficDistribution {value}": _service(f"d{number}", trafficDistribution=value)
        for number, value in enumerate(("PreferClose", "PreferSameZone", "PreferSameNode", "Nowhere"))
    },
    "ipMode": Probe(
        "PATCH",
        f"{SERVICES}/c/status",
        _ingress,
        {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "Proxy"}]}}},
    ),
    "hints for zones": _slice("zones", {"forZones": [{"name": "a"}]}),
    "hints for nodes": _slice("nodes", {"forNodes": [{"name": "node-a"}]}),
    "all Services": Probe("GET", SERVICES, _names),
    "a page": Probe("GET", f"{SERVICES}?limit=1", _names),
    "by ClusterIP": Probe("GET", f"{SERVICES}?fieldSelector=spec.clusterIP!=None", _names),
    "by type": Probe("GET", f"{SERVICES}?fieldSelector=spec.type=LoadBalancer", _names),
    "by another field": Probe("GET", f"{SERVICES}?fieldSelector=spec.nothing=a", _names),
    "by a selector without sense": Probe("GET", f"{SERVICES}?labelSelector=a%20b", _names),
    "a page of a selection": Probe("GET", f"{SERVICES}?limit=1&labelSelector=!a", _names),
    "a list of the future": Probe("GET", f"{SERVICES}?resourceVersion={FUTURE}", _names),
    "a list of no version": Probe("GET", f"{SERVICES}?resourceVersion=a", _names),
    "a list with initial events": Probe("GET", f"{SERVICES}?{INITIAL}", _names),
    "ServiceCIDRs": Probe("GET", f"{GROUP}/servicecidrs", _kind),
    "resources of a group": Probe("GET", GROUP, _plurals),
    "an unknown resource": Probe("GET", f"{GROUP}/nothings"),
    "an unknown group": Probe("GET", "/apis/nothing.k8s.io/v1/nothings"),
    "a watch": Probe("GET", f"{SERVICES}?watch=1&timeoutSeconds=1"),
    "a watch with initial events": Probe("GET", f"{SERVICES}?watch=1&timeoutSeconds=1&{INITIAL}"),
    "a watch of no version": Probe("GET", f"{SERVICES}?watch=1&timeoutSeconds=1&resourceVersion=a"),
    "a watch by ClusterIP": Probe("GET", f"{SERVICES}?watch=1&timeoutSeconds=1&fieldSelector=spec.clusterIP!=None"),
}
"""Requests by name, in the order in which they are sent."""


def client(kubeconfig: Path) -> httpx.Client:
    """A client with the credentials of a kubeconfig that `RealControlPlane` has written."""
    document = yaml.safe_load(kubeconfig.read_text())
    (cluster,), (user,) = document["clusters"], document["users"]
    context = ssl.create_default_context(cafile=cluster["cluster"]["certificate-authority"])
    headers = {"Authorization": f"Bearer {user['user']['token']}"}
    return httpx.Client(base_url=cluster["cluster"]["server"], headers=headers, verify=context, trust_env=False)


def differences(binaries: Binaries, directory: Path) -> Iterator[tuple[str, ...]]:
    """Yield the name of each request that the test API server answers differently, and the facts of both answers."""
    (port,) = free_ports(1)
    settings = Settings(version=f"v{binaries.version('kube-apiserver')}")
    with (
        RealControlPlane(binaries, directory / "control-plane", "127.0.0.1", port) as control,
        ApiServer(settings=settings) as server,
    ):
        control.start()
        with client(control.kubeconfig) as real, httpx.Client(base_url=server.url, trust_env=False) as test:
            for name, probe in PROBES.items():
                ours, theirs = probe.facts_of(test), probe.facts_of(real)
                if ours != theirs:
                    yield name, str(theirs), str(ours)
