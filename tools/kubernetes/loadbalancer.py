"""The cluster's load balancer: `python -m tools.kubernetes.loadbalancer KUBECONFIG`, as MetalLB in BGP mode would be.

Each Service of type LoadBalancer gets an address, which is routed to the nodes that say that they are healthy.  The
kernel chooses a node for each connection.  A Service with session affinity has a single node, as cloud load balancers
keep a client at its node.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from nftproxy.model.settings import HEALTHZ_PORT
from tools.kubernetes.api import client, get, patch
from tools.kubernetes.layout import CLIENT, LOAD_BALANCER

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
PAUSE = 0.5
"""Seconds between two looks."""
Manifest = dict[str, Any]


class Balanced(NamedTuple):
    """A Service of type LoadBalancer."""

    path: str
    uid: str
    port: int
    """The port of the health check on each node."""
    has_affinity: bool


def path_of(service: Manifest) -> str:
    """The path of a Service in the API."""
    return f"/api/v1/namespaces/{service['metadata']['namespace']}/services/{service['metadata']['name']}"


def balanced(service: Manifest) -> Balanced | None:
    """A Service as the load balancer sees it, None if it isn't the load balancer's."""
    metadata, spec = service["metadata"], service["spec"]
    is_ours = spec["type"] == "LoadBalancer" and not spec.get("loadBalancerClass")
    if not is_ours or metadata.get("deletionTimestamp"):
        return None
    port = spec.get("healthCheckNodePort") if spec.get("externalTrafficPolicy") == "Local" else HEALTHZ_PORT
    return Balanced(path_of(service), metadata["uid"], port, spec["sessionAffinity"] == "ClientIP")


def hops(each: Balanced, healthy: list[str]) -> list[str]:
    """The addresses of the nodes that a Service's address is routed to."""
    return healthy[:1] if each.has_affinity else healthy


class LoadBalancer:
    """The addresses that have been given, and their routes."""

    def __init__(self, api: httpx.Client) -> None:
        self._api = api
        self._addresses: dict[str, str] = {}
        self._routes: dict[str, list[str]] = {}

    def look(self) -> None:
        """Look at all Services once."""
        nodes = list(self._nodes())
        wanted = {}
        for service in get(self._api, "/api/v1/services")["items"]:
            finalizers = service["metadata"].get("finalizers", [])
            if each := balanced(service):
                address = self._address(each, service, finalizers)
                wanted[address] = hops(each, [node for node in nodes if is_healthy(node, each.port)])
            elif FINALIZER in finalizers:
                self._release(service, finalizers)
        for address, nexthops in wanted.items():
            self._route(address, nexthops)
        for address in self._routes.keys() - wanted.keys():
            del self._routes[address]
            _ip("route", "del", address)

    def _nodes(self) -> Iterator[str]:
        for node in get(self._api, "/api/v1/nodes")["items"]:
            found = [each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
            yield from found[:1]

    def _address(self, each: Balanced, service: Manifest, finalizers: list[str]) -> str:
        """The address of a Service, which is written to its status."""
        taken = set(self._addresses.values())
        free = (address for number in range(1, 255) if (address := LOAD_BALANCER.format(number)) not in taken)
        address = self._addresses.setdefault(each.uid, next(free))
        if FINALIZER not in finalizers:
            patch(self._api, each.path, {"metadata": {"finalizers": [*finalizers, FINALIZER]}})
        if [given["ip"] for given in service["status"]["loadBalancer"].get("ingress", [])] != [address]:
            ingress = [{"ip": address, "ipMode": "VIP"}]
            patch(self._api, f"{each.path}/status", {"status": {"loadBalancer": {"ingress": ingress}}})
        return address

    def _release(self, service: Manifest, finalizers: list[str]) -> None:
        path = path_of(service)
        self._addresses.pop(service["metadata"]["uid"], None)
        patch(self._api, f"{path}/status", {"status": {"loadBalancer": None}})
        left = [each for each in finalizers if each != FINALIZER]
        patch(self._api, path, {"metadata": {"finalizers": left}})

    def _route(self, address: str, nexthops: list[str]) -> None:
        if self._routes.get(address) != nexthops:
            ways = ["src", CLIENT, *(word for hop in nexthops for word in ("nexthop", "via", hop))]
            _ip("route", "replace", *([address, *ways] if nexthops else ["unreachable", address]))
            self._routes[address] = nexthops


def is_healthy(node: str, port: int) -> bool:
    """Whether a node's health check says so."""
    try:
        return httpx.get(f"http://{node}:{port}/healthz", timeout=0.5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def main(kubeconfig: Path) -> None:
    """Look again and again."""
    balancer = LoadBalancer(client(kubeconfig))
    while True:
        try:
            balancer.look()
        except (httpx.HTTPError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201 -- its log
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
