"""Clients for the tests of the server: short requests, and short forms of answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from nftproxy_conformance.apiserver.server import ApiServer

from tests.support import objects
from tests.support.waiting import PATIENCE

Object = dict[str, Any]

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
WEB = "/api/v1/namespaces/default/services/web"


class Event(NamedTuple):
    """An event of a watch, in short and in full."""

    type: str
    name: str
    version: int
    object: Object


def service(name: str = "web", namespace: str = "default", *, labels: Object | None = None, **spec: Any) -> Object:
    """A ClusterIP Service."""
    ports = [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    return objects.service(name, {"clusterIP": "10.96.0.10"} | spec, namespace=namespace, ports=ports, labels=labels)


def client_of(server: ApiServer, certificate: Path | None = None) -> httpx.Client:
    """A client that trusts the server, optionally with client.crt and client.key."""
    context = server.authority.client_context() if server.authority else None
    if context is not None and certificate is not None:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    return httpx.Client(base_url=server.url, verify=context or False, timeout=PATIENCE, trust_env=False)


def event_of(line: str) -> Event:
    """An event from its line."""
    event = httpx.Response(200, text=line).json()
    metadata = event["object"]["metadata"]
    return Event(event["type"], metadata.get("name", ""), int(metadata.get("resourceVersion", 0)), event["object"])


@contextmanager
def watching(client: httpx.Client, path: str = SERVICES, **query: str | int) -> Iterator[Iterator[Event]]:
    """The events of a watch, from when the server has begun it."""
    with client.stream("GET", path, params={"watch": "1", **query}) as response:
        assert response.status_code == 200
        yield (event_of(line) for line in response.iter_lines())


def short(events: Iterator[Event]) -> list[tuple[str, str]]:
    """All events until the stream ends, each as its type and name."""
    return [(event.type, event.name) for event in events]


def listed(client: httpx.Client, path: str = SERVICES, **query: str | int) -> Object:
    """A list that must succeed."""
    response = client.get(path, params=query)
    assert response.status_code == 200, response.text
    content: Object = response.json()
    return content


def names(content: Object) -> list[str]:
    """The names in a list."""
    return [item["metadata"]["name"] for item in content["items"]]


def refusal(response: httpx.Response) -> tuple[int, str]:
    """The status and the reason of an answer that must be a Status with that very code."""
    status = response.json()
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert status["code"] == response.status_code
    return response.status_code, status["reason"]


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"authorization": f"Bearer {token}"}
