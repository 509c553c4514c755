"""EndpointSlices over HTTP: defaults and validation.

Rules are those of pkg/apis/discovery/validation.
"""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy_conformance.apiserver.resources import Object
from nftproxy_conformance.apiserver.validation import (
    Cause,
    duplicate,
    invalid,
    label,
    label_value,
    ordinary_address,
    qualified_name,
    required,
    subdomain,
    too_many,
    word,
)

MAX_ENDPOINTS = 1000
MAX_PORTS = 20000
"""The most endpoints and ports of a slice (discovery/validation)."""
MAX_ADDRESSES = 100
MAX_HINTS = 8
PROTOCOLS = ("TCP", "UDP", "SCTP")
_VERSIONS = {"IPv4": 4, "IPv6": 6}


def complete(document: Object) -> None:
    """Fill in defaults: a port's name and protocol."""
    for port in document.get("ports") or ():
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")
    document.setdefault("endpoints", None)
    document.setdefault("ports", None)


def causes(document: Object, old: Object | None) -> Iterator[Cause]:
    """Yield why a slice is denied."""
    kind = document.get("addressType") or ""
    yield from subdomain("metadata.name", document["metadata"]["name"])
    if kind:
        yield from word("addressType", kind, {"IPv4", "IPv6", "FQDN"})
    else:
        yield required("addressType")
    if old is not None and kind != old.get("addressType"):
        yield invalid("addressType", kind, "field is immutable")
    endpoints = document.get("endpoints") or []
    if len(endpoints) > MAX_ENDPOINTS:
        yield too_many("endpoints", MAX_ENDPOINTS)
    else:
        for index, endpoint in enumerate(endpoints):
            yield from _endpoint(f"endpoints[{index}]", endpoint, kind)
    yield from _ports(document.get("ports") or [])


def _endpoint(path: str, endpoint: Object, kind: str) -> Iterator[Cause]:
    addresses = endpoint.get("addresses") or []
    if not addresses:
        yield required(f"{path}.addresses")
    if len(addresses) > MAX_ADDRESSES:
        yield too_many(f"{path}.addresses", MAX_ADDRESSES)
    for index, value in enumerate(addresses):
        if kind in _VERSIONS:
            yield from ordinary_address(f"{path}.addresses[{index}]", value, _VERSIONS[kind])
    if endpoint.get("nodeName") is not None:
        yield from subdomain(f"{path}.nodeName", endpoint["nodeName"])
    hints = endpoint.get("hints") or {}
    for name, check in (("forZones", label_value), ("forNodes", subdomain)):
        given = hints.get(name) or []
        if len(given) > MAX_HINTS:
            yield too_many(f"{path}.hints.{name}", MAX_HINTS)
        for index, hint in enumerate(given):
            yield from check(f"{path}.hints.{name}[{index}].name", hint.get("name"))


def _ports(ports: list[Object]) -> Iterator[Cause]:
    if len(ports) > MAX_PORTS:
        yield too_many("ports", MAX_PORTS)
        return
    names: set[str] = set()
    for index, port in enumerate(ports):
        path = f"ports[{index}]"
        if port["name"]:
            yield from label(f"{path}.name", port["name"])
        if port["name"] in names:
            yield duplicate(f"{path}.name", port["name"])
        names.add(port["name"])
        yield from word(f"{path}.protocol", port["protocol"], PROTOCOLS)
        if port.get("appProtocol") is not None:
            yield from qualified_name(f"{path}.appProtocol", port["appProtocol"])
