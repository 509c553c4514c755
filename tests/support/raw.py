"""API objects as they come in, and the values that parsing returns.

Every example goes both ways in, as decoded JSON and as bytes, which must agree.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from nftproxy.api.parse import Outcome, parse_json, parse_object
from nftproxy.model.errors import Problem
from nftproxy.model.objects import EndpointSlice, ObjectKey, Service
from tests.support import objects
from tests.support.factories import INSTALLED_KINDS

Raw = dict[str, Any]

SERVICE: Raw = objects.service(
    "web",
    {
        "type": "LoadBalancer",
        "externalIPs": ["203.0.113.7"],
        "loadBalancerSourceRanges": ["198.51.100.0/24"],
        "internalTrafficPolicy": "Cluster",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 32000,
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}},
    },
    vips=["10.96.0.10", "fd00:96::10"],
    ports=[
        {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080, "targetPort": "http"},
        {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053, "targetPort": 5353},
    ],
    labels={"app": "web"},
    status=objects.balancer("203.0.113.80"),
    metadata={"creationTimestamp": "2024-05-01T10:20:30Z"},
)

_HINTS = {"forZones": [{"name": "a"}], "forNodes": [{"name": "node-a"}]}
_TWO_ADDRESSES = {"addresses": ["10.1.0.4", "10.1.0.5"]}

SLICE: Raw = objects.endpoint_slice(
    "web-abcde",
    objects.endpoint("", "node-a", "ready", zone="a", hints=_HINTS) | _TWO_ADDRESSES,
    ports=["http:8080"],
)

NODE: Raw = objects.node(
    "node-a", zone="a", spec={"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"]}
) | {
    "status": {
        "addresses": [
            {"type": "Hostname", "address": "node-a"},
            {"type": "ExternalIP", "address": "203.0.113.2"},
            {"type": "InternalIP", "address": "192.168.0.2"},
            {"type": "InternalIP", "address": "fd00:c0a8::2"},
        ]
    }
}

CIDR: Raw = objects.service_cidr("10.96.0.0/12", "fd00:96::/112")

WEB = ObjectKey("shop", "web")


def read(raw: object) -> tuple[Outcome, list[str]]:
    """The value that an object is parsed to, and the problems with it.  Both ways in must agree."""
    problems: list[Problem] = []
    outcome = parse_object(raw, "", problems, kinds=INSTALLED_KINDS)
    from_bytes: list[Problem] = []
    assert parse_json(json.dumps(raw).encode(), "", from_bytes, kinds=INSTALLED_KINDS) == outcome
    assert from_bytes == problems
    return outcome, list(map(str, problems))


def changed(raw: Raw, path: str, value: object) -> Raw:
    """The object with the value at a dotted path replaced.  "-" as the last step appends to a list."""
    made = copy.deepcopy(raw)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("|" if "|" in path else "."))
    inner: Any = made
    for step in way:
        inner = inner[step]
    if last == "-":
        inner.append(value)
    else:
        inner[last] = value
    return made


def shown(path: str) -> str:
    """Return a path that `changed` takes as problems show it."""
    return re.sub(r"\.(\d+)\b", r"[\1]", path.replace("|", "."))


def service(path: str = "", value: object = None) -> tuple[Service, list[str]]:
    """SERVICE with a single value changed, and the problems."""
    outcome, problems = read(changed(SERVICE, path, value) if path else SERVICE)
    assert isinstance(outcome, Service)
    return outcome, problems


def endpoint_slice(path: str = "", value: object = None) -> tuple[EndpointSlice, list[str]]:
    """SLICE with a single value changed, and the problems."""
    outcome, problems = read(changed(SLICE, path, value) if path else SLICE)
    assert isinstance(outcome, EndpointSlice)
    return outcome, problems
