"""The behaviour of each Kubernetes version from 1.28 on: the features that are on by default.

From the versioned feature gates of Kubernetes 1.36 (pkg/features/kube_features.go and
k8s.io/apiserver/pkg/features/kube_features.go).  A feature that is off hides its fields, parameters and resources.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator
from enum import Enum, auto

from nftproxy_conformance.apiserver.resources import RESOURCES, Object, Resource
from nftproxy_conformance.apiserver.validation import Cause, word

_EVER = 1000  # a version after all that will be


class Feature(Enum):
    """A feature that some of the versions have by default."""

    LOAD_BALANCER_IP_MODE = auto()
    SERVICE_FIELD_SELECTORS = auto()
    SERVICE_TRAFFIC_DISTRIBUTION = auto()
    SERVICE_CIDRS = auto()
    LISTS_CHECK_VERSIONS = auto()
    PREFER_SAME_TRAFFIC_DISTRIBUTION = auto()
    WATCH_LIST = auto()
    BLUEPRINTS = auto()
    EXEC_CHECKS_CREATE = auto()


MINORS: dict[Feature, Collection[int]] = {
    Feature.LOAD_BALANCER_IP_MODE: range(30, _EVER),
    Feature.SERVICE_FIELD_SELECTORS: range(31, _EVER),  # kubernetes/kubernetes#123905, without a gate
    Feature.SERVICE_TRAFFIC_DISTRIBUTION: range(31, _EVER),
    Feature.SERVICE_CIDRS: range(33, _EVER),
    Feature.LISTS_CHECK_VERSIONS: range(33, _EVER),  # storage/cacher/delegator.go, without a gate
    Feature.PREFER_SAME_TRAFFIC_DISTRIBUTION: range(34, _EVER),
    Feature.WATCH_LIST: (32, *range(34, _EVER)),  # 1.33 turned it off again
    Feature.BLUEPRINTS: range(32, 34),  # endpoints/handlers/response.go, without a gate
    Feature.EXEC_CHECKS_CREATE: range(35, _EVER),  # AuthorizePodWebsocketUpgradeCreatePermission
}
"""The minor versions that have a feature by default."""


def minor(version: str) -> int:
    """The minor version in a version such as v1.35.0."""
    return int(version.split(".")[1])


def has(version: str, feature: Feature) -> bool:
    """True if a server of this version has a feature by default."""
    return minor(version) in MINORS[feature]


def drop_unknown_fields(document: Object, version: str) -> None:
    """Remove the fields of a written Service or EndpointSlice that a server of this version doesn't know.

    A real server ignores them too, or drops them while their gate is off (dropDisabledFields of each kind).
    """
    spec = document.get("spec") or {}
    if not has(version, Feature.SERVICE_TRAFFIC_DISTRIBUTION):
        spec.pop("trafficDistribution", None)
    if not has(version, Feature.PREFER_SAME_TRAFFIC_DISTRIBUTION):
        for hints in _hints(document):
            hints.pop("forNodes", None)
    if not has(version, Feature.LOAD_BALANCER_IP_MODE):
        status = document.get("status") or {}
        for ingress in (status.get("loadBalancer") or {}).get("ingress") or ():
            ingress.pop("ipMode", None)


def causes(document: Object, version: str) -> Iterator[Cause]:
    """Yield why a server of this version denies a Service whose values another version accepts."""
    given = (document.get("spec") or {}).get("trafficDistribution")
    has_more = has(version, Feature.PREFER_SAME_TRAFFIC_DISTRIBUTION)
    if given is not None:
        yield from word(
            "spec.trafficDistribution",
            given,
            {"PreferClose", *(("PreferSameNode", "PreferSameZone") if has_more else ())},
        )


def resources(version: str) -> tuple[Resource, ...]:
    """The resources that a server of this version has."""
    return tuple(each for each in RESOURCES if is_served(each, version))


def is_served(resource: Resource, version: str) -> bool:
    """True if a server of this version has a resource."""
    return resource.kind != "ServiceCIDR" or has(version, Feature.SERVICE_CIDRS)


def selectable_fields(resource: Resource, version: str) -> tuple[str, ...]:
    """The fields for field selectors of a resource, besides its name and namespace."""
    is_old = resource.kind == "Service" and not has(version, Feature.SERVICE_FIELD_SELECTORS)
    return () if is_old else resource.fields


def end_of_initial_events(resource: Resource, version: str) -> dict[str, str]:
    """The annotations of the bookmark after a watch's initial events.

    Some versions add an empty list, in which clients may put the objects.
    """
    annotations = {"k8s.io/initial-events-end": "true"}
    if has(version, Feature.BLUEPRINTS):
        empty = f'{{"kind":"{resource.kind}List","apiVersion":"{resource.api_version}","metadata":{{}},"items":null}}\n'
        annotations["kubernetes.io/initial-events-list-blueprint"] = base64.b64encode(empty.encode()).decode()
    return annotations


def _hints(document: Object) -> Iterator[Object]:
    return (each["hints"] for each in document.get("endpoints") or () if each.get("hints"))
