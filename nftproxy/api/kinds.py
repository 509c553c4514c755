"""The kinds of objects that matter to a service proxy: `KINDS`, the table of them, and `kinds_for` one with a name.

For each kind there is a reason why an object may not be for this proxy (`ignored`), and a way to build its value from
its shape (`build`), which reports what it leaves out: a bad element costs that element alone.  Each has a module of its
own: services.py, slices.py, nodes.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nftproxy.api import schema
from nftproxy.api.decode import Report
from nftproxy.api.nodes import build_node, build_service_cidr
from nftproxy.api.services import build_service, why_anothers, why_not_ours
from nftproxy.api.slices import build_slice, why_passed_over
from nftproxy.api.validate import is_label, is_subdomain
from nftproxy.model.codes import Code
from nftproxy.model.objects import ClusterObject, ObjectKey


def _never_ignored(_given: schema.ApiObject) -> str:
    return ""


class Kind(NamedTuple):
    """A kind of object that matters, and how to read one.

    `api_versions` are those understood, all of one group.  `is_name` judges metadata.name.  `ignored` says why an
    object is not for this proxy ("" if it is); `build` makes the value, or None where too little can be read.
    `code` is that of a fault in a part of one.
    """

    name: str
    api_versions: tuple[str, ...]
    is_namespaced: bool
    is_name: Callable[[str], bool]
    shape: type[schema.ApiObject]
    code: Code
    # Each takes what `shape` says; a table of several such pairs can't be typed any closer.
    ignored: Callable[[Any], str]
    build: Callable[[Any, ObjectKey, Report], ClusterObject | None]


_ALL = (
    Kind("Service", ("v1",), True, is_label, schema.Service, Code.SERVICE_FIELD, why_not_ours, build_service),
    Kind(
        "EndpointSlice",
        ("discovery.k8s.io/v1",),
        True,
        is_subdomain,
        schema.EndpointSlice,
        Code.SLICE_FIELD,
        why_passed_over,
        build_slice,
    ),
    Kind("Node", ("v1",), False, is_subdomain, schema.Node, Code.NODE_FIELD, _never_ignored, build_node),
    Kind(
        "ServiceCIDR",
        ("networking.k8s.io/v1", "networking.k8s.io/v1beta1"),
        False,
        is_subdomain,
        schema.ServiceCIDR,
        Code.SERVICE_CIDR_FIELD,
        _never_ignored,
        build_service_cidr,
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
"""Every kind that matters, by name."""


def kinds_for(proxy_name: str) -> Mapping[str, Kind]:
    """Every kind, by name, as it matters to a proxy that serves just the Services that are labelled with its name.

    An EndpointSlice has the labels of its Service, since the controller copies them (k/k#94443, Kubernetes 1.20).
    Which ClusterIPs belong to no Service is for the proxy to say that serves the others: ServiceCIDRs are ignored.
    """
    if not proxy_name:
        return KINDS
    ignored: dict[str, Callable[[Any], str]] = {
        "Service": functools.partial(why_not_ours, proxy_name=proxy_name),
        "EndpointSlice": functools.partial(_why_no_slice_of_ours, proxy_name=proxy_name),
        "ServiceCIDR": lambda _given: "another proxy rejects what goes to ClusterIPs that no Service has",
    }
    return {name: kind._replace(ignored=ignored.get(name, kind.ignored)) for name, kind in KINDS.items()}


def _why_no_slice_of_ours(given: schema.EndpointSlice, proxy_name: str) -> str:
    return why_passed_over(given) or why_anothers(given.labels, proxy_name)
