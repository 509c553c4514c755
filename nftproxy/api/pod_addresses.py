"""The addresses of pods: from Pods, and from EndpointSlices that refer to pods (endpoints[].targetRef).

Faults are left out silently: only the wording of an explanation depends on these names, and parse.py reports faults in
EndpointSlices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from nftproxy.api.decode import is_label, is_subdomain
from nftproxy.api.parse import DEFAULT_NAMESPACE, objects_in
from nftproxy.model.addresses import Address, parse_address
from nftproxy.model.objects import ObjectKey


class _Reference(msgspec.Struct):
    name: str | None = None
    namespace: str | None = None
    kind: str | None = None


class _Target(msgspec.Struct, rename="camel"):
    addresses: list[str] | None = None
    target_ref: _Reference | None = None


class _PodAddress(msgspec.Struct):
    ip: str | None = None


class _PodStatus(msgspec.Struct):
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    pod_ips: list[_PodAddress] | None = msgspec.field(name="podIPs", default=None)


class _PodOrSlice(msgspec.Struct):
    metadata: _Reference | None = None
    status: _PodStatus | None = None
    endpoints: list[_Target] | None = None


def pods_in(document: object) -> Iterator[tuple[ObjectKey, Address]]:
    """Yield the names and addresses of pods in one document: an object or a list, in Python's types for JSON."""
    for each in objects_in(document):
        if each.get("kind") in ("Pod", "EndpointSlice"):
            with contextlib.suppress(msgspec.ValidationError):
                given = msgspec.convert(each, _PodOrSlice)
                yield from _of_pod(given) if each["kind"] == "Pod" else _of_slice(given)


def _of_pod(given: _PodOrSlice) -> Iterator[tuple[ObjectKey, Address]]:
    status, names = given.status or _PodStatus(), given.metadata or _Reference()
    for text in (status.pod_ip, *(each.ip for each in status.pod_ips or ())):
        yield from _known(names, None, text)


def _of_slice(given: _PodOrSlice) -> Iterator[tuple[ObjectKey, Address]]:
    namespace = given.metadata.namespace if given.metadata else None
    for endpoint in given.endpoints or ():
        if endpoint.target_ref and endpoint.target_ref.kind == "Pod" and endpoint.addresses:
            yield from _known(endpoint.target_ref, namespace, endpoint.addresses[0])


def _known(names: _Reference, namespace: str | None, text: str | None) -> Iterator[tuple[ObjectKey, Address]]:
    key = ObjectKey(names.namespace or namespace or DEFAULT_NAMESPACE, names.name or "")
    try:
        if text and is_label(key.namespace) and is_subdomain(key.name):
            yield key, parse_address(text)
    except ValueError:
        return
