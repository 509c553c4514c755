"""The kinds of objects that a service proxy reads: `KINDS`, a table of all, and `kinds_for` the proxy of a name.

For each kind there are two functions.  `ignored` says why an object is not for this proxy.  `build` makes the value
from its shape, and reports the parts that it leaves out.  They are in services.py, slices.py and nodes.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from nftproxy.api import schema
from nftproxy.api.decode import Report, is_label, is_subdomain
from nftproxy.api.nodes import build_node, build_service_cidr
from nftproxy.api.services import addresses_of_ignored, build_service, why_anothers, why_not_ours
from nftproxy.api.slices import build_slice, why_passed_over
from nftproxy.model.addresses import Address
from nftproxy.model.annotations import Option
from nftproxy.model.codes import Code
from nftproxy.model.objects import ClusterObject, ObjectKey


def _never_ignored(_given: schema.ApiObject) -> str:
    return ""


def _no_addresses(_given: schema.ApiObject) -> tuple[Address, ...]:
    return ()


class ObjectKind(NamedTuple):
    """A kind of object that a service proxy reads, and how to read it."""

    name: str
    api_versions: tuple[str, ...]  # all of the same group
    is_namespaced: bool
    is_name: Callable[[str], bool]  # judges metadata.name
    shape: type[schema.ApiObject]
    code: Code  # of a fault in a part of the object
    # These two take a value of `shape`.  A table of several such pairs can't be typed any closer.
    ignored: Callable[[Any], str]  # says why an object is not for this proxy, "" if it is
    build: Callable[[Any, ObjectKey, Report], ClusterObject | None]  # None if too little can be read
    addresses: Callable[[Any], tuple[Address, ...]] = _no_addresses  # the ClusterIPs of an ignored Service


_ALL = (
    ObjectKind(
        "Service",
        ("v1",),
        True,
        is_label,
        schema.RawService,
        Code.SERVICE_FIELD,
        why_not_ours,
        build_service,
        addresses_of_ignored,
    ),
    ObjectKind(
        "EndpointSlice",
        ("discovery.k8s.io/v1",),
        True,
        is_subdomain,
        schema.RawEndpointSlice,
        Code.SLICE_FIELD,
        why_passed_over,
        build_slice,
    ),
    ObjectKind("Node", ("v1",), False, is_subdomain, schema.RawNode, Code.NODE_FIELD, _never_ignored, build_node),
    ObjectKind(
        "ServiceCIDR",
        ("networking.k8s.io/v1", "networking.k8s.io/v1beta1"),
        False,
        is_subdomain,
        schema.RawServiceCIDR,
        Code.SERVICE_CIDR_FIELD,
        _never_ignored,
        build_service_cidr,
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
"""Every kind, by name, without options."""


def kinds_for(proxy_name: str, options: Iterable[Option[Any]] = ()) -> Mapping[str, ObjectKind]:
    """Return the kinds for a proxy that serves only the Services that are labelled with its name.

    An EndpointSlice has the labels of its Service, since the controller copies them (k/k#94443, Kubernetes 1.20).  The
    proxy that serves the other Services rejects connections to unused ClusterIPs, so ServiceCIDRs are ignored.

    Args:
        proxy_name: the name, "" for the proxy of Services without the label.
        options: the annotations of ours that the proxy knows.
    """
    known = _with_options(options)
    if not proxy_name:
        return known
    ignored: dict[str, Callable[[Any], str]] = {
        "Service": functools.partial(why_not_ours, proxy_name=proxy_name),
        "EndpointSlice": functools.partial(_why_no_slice_of_ours, proxy_name=proxy_name),
        "ServiceCIDR": lambda _given: "another proxy rejects connections to ClusterIPs that no Service has",
    }
    return {name: kind._replace(ignored=ignored.get(name, kind.ignored)) for name, kind in known.items()}


def _with_options(options: Iterable[Option[Any]]) -> Mapping[str, ObjectKind]:
    """The kinds, with the options of Services and EndpointSlices."""
    known: dict[bool, dict[str, Option[Any]]] = {True: {}, False: {}}
    for option in options:
        known[option.is_of_slices][option.annotation] = option
    service, endpoint_slice = KINDS["Service"], KINDS["EndpointSlice"]
    return {
        **KINDS,
        service.name: service._replace(build=functools.partial(build_service, known=known[False])),
        endpoint_slice.name: endpoint_slice._replace(build=functools.partial(build_slice, known=known[True])),
    }


def _why_no_slice_of_ours(given: schema.RawEndpointSlice, proxy_name: str) -> str:
    return why_passed_over(given) or why_anothers(given.labels, proxy_name)
