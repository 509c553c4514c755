"""A cluster that is given as manifests, and the plainest manifests for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nftproxy_conformance.lab import Lab

from nftproxy.api.parse import parse_manifest
from nftproxy.model.errors import Problem
from nftproxy.model.events import Listed
from nftproxy.model.objects import EndpointSlice, Service
from tests.support import objects
from tests.support.cluster import IP, Cluster
from tests.support.factories import INSTALLED_KINDS

Manifest = dict[str, Any]
KINDS = (Service, EndpointSlice)


class Manifests(Cluster):
    """A cluster that gets manifests, each time all there are."""

    def __init__(self, lab: Lab, *manifests: Manifest) -> None:
        super().__init__(lab)
        self.problems: list[Problem] = []
        self.relist(*manifests)

    def relist(self, *manifests: Manifest) -> None:
        """Let exactly these be the Services and EndpointSlices that there are."""
        parsed = [
            each
            for manifest in manifests
            for each in parse_manifest(manifest, "", self.problems, kinds=INSTALLED_KINDS)
        ]
        self.follow(*(Listed(kind, tuple(each for each in parsed if isinstance(each, kind))) for kind in KINDS))


def service_manifest(
    spec: Mapping[str, Any] = {},
    *,
    name: str = "web",
    vip: str = IP.vip,
    labels: Mapping[str, str] = {},
    status: Mapping[str, Any] = {},
) -> Manifest:
    """A Service with the port 80/TCP, which has no name.  `spec` overrides its fields."""
    return objects.service(name, spec, vips=[vip], ports=[{"port": 80}], labels=labels, status=status)


def slice_manifest(*endpoints: Manifest, name: str = "web", suffix: str = "1", **fields: Any) -> Manifest:
    """An IPv4 EndpointSlice with the port 8080/TCP named "".  `fields` override its fields."""
    plain = {"port": 8080, "name": ""}
    given = endpoints or (objects.endpoint(IP.here),)
    return objects.endpoint_slice(f"{name}-{suffix}", *given, service=name, ports=[plain]) | fields


def labelled(manifest: Manifest, **labels: str) -> Manifest:
    """The manifest with more labels.  A "__" in a name stands for "/", a "_" for "-"."""
    metadata = manifest["metadata"]
    more = {name.replace("__", "/").replace("_", "-"): value for name, value in labels.items()}
    return manifest | {"metadata": metadata | {"labels": metadata["labels"] | more}}
