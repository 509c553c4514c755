"""Which pod has which address: from Pods, and from the EndpointSlices that refer to them (endpoints[].targetRef).

What isn't right is passed over without a word: nothing but the wording of an explanation depends on it, and parse.py
reports what is wrong with EndpointSlices.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nftproxy.api.parse import DEFAULT_NAMESPACE
from nftproxy.api.validate import is_label, is_subdomain
from nftproxy.model.addresses import Address, parse_address
from nftproxy.model.objects import ObjectKey


class _Names(msgspec.Struct):
    name: str | None = None
    namespace: str | None = None
    kind: str | None = None


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] | None = None
    target_ref: _Names | None = None


class _PodAddress(msgspec.Struct):
    ip: str | None = None


class _Status(msgspec.Struct):
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    pod_ips: list[_PodAddress] | None = msgspec.field(name="podIPs", default=None)


class _Object(msgspec.Struct):
    metadata: _Names | None = None
    status: _Status | None = None
    endpoints: list[_Endpoint] | None = None


def pods_in(value: object) -> Iterator[tuple[ObjectKey, Address]]:
    """The names and addresses of pods in one document: an object or a list, in Python's types for JSON."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind.endswith("List"):
        items = value.get("items") if isinstance(value, dict) else None
        item_kind = kind.removesuffix("List")
        for item in items if isinstance(items, list) else ():
            yield from pods_in({"kind": item_kind, **item} if isinstance(item, dict) else item)
    elif kind in ("Pod", "EndpointSlice"):
        try:
            given = msgspec.convert(value, _Object)
        except msgspec.ValidationError:
            return
        yield from _of_pod(given) if kind == "Pod" else _of_slice(given)


def _of_pod(given: _Object) -> Iterator[tuple[ObjectKey, Address]]:
    status, names = given.status or _Status(), given.metadata or _Names()
    for text in (status.pod_ip, *(each.ip for each in status.pod_ips or ())):
        yield from _known(names, None, text)


def _of_slice(given: _Object) -> Iterator[tuple[ObjectKey, Address]]:
    namespace = given.metadata.namespace if given.metadata else None
    for endpoint in given.endpoints or ():
        if endpoint.target_ref and endpoint.target_ref.kind == "Pod" and endpoint.addresses:
            yield from _known(endpoint.target_ref, namespace, endpoint.addresses[0])


def _known(names: _Names, namespace: str | None, text: str | None) -> Iterator[tuple[ObjectKey, Address]]:
    key = ObjectKey(names.namespace or namespace or DEFAULT_NAMESPACE, names.name or "")
    try:
        if text and is_label(key.namespace) and is_subdomain(key.name):
            yield key, parse_address(text)
    except ValueError:
        return
