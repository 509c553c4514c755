"""API objects as they come in, and what parsing makes of them.

Every example goes both ways in, as decoded JSON and as bytes, which must agree.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from nftproxy.api.parse import Outcome, parse_json, parse_object
from nftproxy.model.errors import Problem
from nftproxy.model.objects import EndpointSlice, ObjectKey, Service

Raw = dict[str, Any]

SERVICE: Raw = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {
        "namespace": "shop",
        "name": "web",
        "labels": {"app": "web"},
        "creationTimestamp": "2024-05-01T10:20:30Z",
    },
    "spec": {
        "type": "LoadBalancer",
        "clusterIP": "10.96.0.10",
        "clusterIPs": ["10.96.0.10", "fd00:96::10"],
        "externalIPs": ["203.0.113.7"],
        "ports": [
            {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080, "targetPort": "http"},
            {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053, "targetPort": 5353},
        ],
        "loadBalancerSourceRanges": ["198.51.100.0/24"],
        "internalTrafficPolicy": "Cluster",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 32000,
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}},
    },
    "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.80", "ipMode": "VIP"}]}},
}

SLICE: Raw = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"namespace": "shop", "name": "web-abcde", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    "endpoints": [
        {
            "addresses": ["10.1.0.4", "10.1.0.5"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": "node-a",
            "zone": "a",
            "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "node-a"}]},
        }
    ],
}

NODE: Raw = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": "a"}},
    "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"]},
    "status": {
        "addresses": [
            {"type": "Hostname", "address": "node-a"},
            {"type": "ExternalIP", "address": "203.0.113.2"},
            {"type": "InternalIP", "address": "192.168.0.2"},
            {"type": "InternalIP", "address": "fd00:c0a8::2"},
        ]
    },
}

CIDR: Raw = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "ServiceCIDR",
    "metadata": {"name": "kubernetes"},
    "spec": {"cidrs": ["10.96.0.0/12", "fd00:96::/112"]},
}

WEB = ObjectKey("shop", "web")


def read(raw: object) -> tuple[Outcome, list[str]]:
    """What an object is read as, and the problems with it; both ways in must agree."""
    problems: list[Problem] = []
    outcome = parse_object(raw, "", problems)
    from_bytes: list[Problem] = []
    assert parse_json(json.dumps(raw).encode(), "", from_bytes) == outcome
    assert from_bytes == problems
    return outcome, list(map(str, problems))


def changed(raw: Raw, path: str, value: object) -> Raw:
    """The object with the value at a dotted path replaced; "-" as the last step appends to a list."""
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


def service(path: str = "", value: object = None) -> tuple[Service, list[str]]:
    """SERVICE with one value changed, and the problems."""
    outcome, problems = read(changed(SERVICE, path, value) if path else SERVICE)
    assert isinstance(outcome, Service)
    return outcome, problems


def endpoint_slice(path: str = "", value: object = None) -> tuple[EndpointSlice, list[str]]:
    """SLICE with one value changed, and the problems."""
    outcome, problems = read(changed(SLICE, path, value) if path else SLICE)
    assert isinstance(outcome, EndpointSlice)
    return outcome, problems
