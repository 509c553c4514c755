"""The control plane of a conformance run: an API server, its cluster, and the links from scratch nodes to it.

The server is in a network namespace of its own, so that it stays when nodes come and go, and no rule of a proxy is
between the proxy and the server.  The cluster changes as real clusters do: objects are created, updated and deleted,
and only differences are written.

A proxy has caught up when connections to the marker reach the marker's endpoint.  The marker is a Service whose port
changes, with its EndpointSlice, after all other writes.  A proxy gets the changes of a resource in their order.  So a
proxy that serves the marker's new port has all earlier changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nftproxy.model.addresses import FAMILIES
from nftproxy.trace.links import join
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Address, Namespace, Origin, Probe
from nftproxy_conformance.lab.node import Node
from nftproxy_conformance.subjects.manifests import Manifest

ADDRESS = "169.254.77.1"
"""The API server's address: link-local, which no Service can have."""
PORT = 6443
"""Its port, below the node ports of Services."""
_NODE_ADDRESS = "169.254.78.{}"
_INTERFACE = "api0"

MARKERS = {"198.18.0.1": "198.18.1.1", "2001:2::1": "2001:2::1:1"}
"""The marker's addresses and their endpoints, from ranges for benchmarks (RFC 2544, RFC 5180)."""
_MARKER = {"namespace": "nftproxy-conformance", "name": "marker"}
_FIRST_PORT, _LAST_PORT = 1024, 30_000


class ControlPlane:
    """An API server that scratch nodes can be linked to.

    Args:
        directory: where the kubeconfig goes.

    Raises:
        LabError: there can be no network namespace.

    Attributes:
        kubeconfig: the file by which a proxy on a linked node finds the server.
    """

    def __init__(self, directory: Path) -> None:
        self._numbers = itertools.count()
        self._ports = itertools.cycle(range(_FIRST_PORT, _LAST_PORT))
        self._present: dict[tuple[str, str, str], Manifest] = {}
        with ExitStack() as stack:
            self._namespace = stack.enter_context(Namespace("API server"))
            self._namespace.sysctl({"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0"})
            self._namespace.ip("link set lo up", f"address add {ADDRESS}/32 dev lo")
            self._server = stack.enter_context(
                ApiServer(hosts=(ADDRESS,), port=PORT, tls=True, authenticate=True, make_socket=self._namespace.socket)
            )
            self.kubeconfig = self._server.write_kubeconfig(directory / "kubeconfig")
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Stop the server."""
        self._stack.close()

    def link(self, node: Node) -> None:
        """Link a node to the server, by an interface of its own, for as long as the node exists.

        Raises:
            LabError: the link doesn't come up.
        """
        number = next(self._numbers)
        name, address = f"node{number}", _NODE_ADDRESS.format(1 + number % 250)
        join(self._namespace, name, node, _INTERFACE)
        node.ip(f"address add {address}/32 dev {_INTERFACE}", f"route add {ADDRESS} dev {_INTERFACE} src {address}")
        self._namespace.ip(f"route replace {address} dev {name}")

    def become(self, objects: Iterable[Manifest]) -> None:
        """Replace the objects of the cluster, except for the marker."""
        wanted = {_identity(each): each for each in objects}
        gone = [known for known, old in self._present.items() if not _is_update(old, wanted.get(known))]
        for kind, namespace, name in gone:
            self._server.delete(kind, namespace, name)
        self._server.put(*(each for known, each in wanted.items() if self._present.get(known) != each))
        self._present = wanted

    def move_marker(self) -> dict[Probe, Address]:
        """Change the marker, and return the endpoints that connections to it reach once the change is in force."""
        port = next(self._ports)
        self._server.put(*marker(port))
        return {Probe(Origin.POD, address, port): Address(pod, port) for address, pod in MARKERS.items()}


def _identity(given: Manifest) -> tuple[str, str, str]:
    metadata = given["metadata"]
    return given["kind"], metadata.get("namespace", ""), metadata["name"]


def _is_update(old: Manifest, new: Manifest | None) -> bool:
    """True if the API server allows the update, which must keep immutable fields."""
    return new is not None and all(_value(old, path) == _value(new, path) for path in _IMMUTABLE)


_IMMUTABLE = (("addressType",), ("spec", "clusterIPs"), ("spec", "cidrs"))


def _value(given: Mapping[str, Any], path: Iterable[str]) -> object:
    value: Any = given
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def marker(port: int) -> list[Manifest]:
    """The marker: a Service with an endpoint of each family, at a port."""
    addresses = list(MARKERS)
    made: list[Manifest] = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _MARKER,
            "spec": {
                "type": "ClusterIP",
                "clusterIP": addresses[0],
                "clusterIPs": addresses,
                "ipFamilies": list(FAMILIES),
                "ports": [{"name": "marker", "protocol": "TCP", "port": port}],
            },
        }
    ]
    for family, pod in zip(FAMILIES, MARKERS.values(), strict=True):
        labels = {"kubernetes.io/service-name": _MARKER["name"]}
        made.append(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": _MARKER | {"name": f"{_MARKER['name']}-{family.lower()}", "labels": labels},
                "addressType": family,
                "ports": [{"name": "marker", "protocol": "TCP", "port": port}],
                "endpoints": [{"addresses": [pod], "conditions": {"ready": True}}],
            }
        )
    return made
