"""Services over HTTP: defaults, validation, and allocation of addresses and ports.

`complete` is core/v1's defaulting, `causes` its validation (pkg/apis/core/validation).  `allocate` does the storage's
work (pkg/registry/core/service): it takes ClusterIPs and node ports from their ranges.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator

from nftproxy_conformance.apiserver.resources import Object
from nftproxy_conformance.apiserver.settings import Settings
from nftproxy_conformance.apiserver.slices import PROTOCOLS
from nftproxy_conformance.apiserver.validation import (
    Cause,
    address,
    duplicate,
    forbidden,
    invalid,
    label,
    network,
    ordinary_address,
    port,
    required,
    service_name,
    subdomain,
    word,
)

TYPES = {"ClusterIP", "NodePort", "LoadBalancer", "ExternalName"}
WITH_NODE_PORTS = {"NodePort", "LoadBalancer"}
POLICIES = {"Cluster", "Local"}
FAMILY_POLICIES = {"SingleStack", "PreferDualStack", "RequireDualStack"}
AFFINITY_TIMEOUT = 10800
"""Seconds (core/v1 DefaultClientIPServiceAffinitySeconds)."""
MAX_AFFINITY_TIMEOUT = 86400
"""Seconds (core/v1 MaxClientIPServiceAffinitySeconds)."""


def warning(document: Object) -> str:
    """The text of a Warning header for a Service that is accepted, or ""."""
    return "spec.externalIPs is deprecated" if document["spec"].get("externalIPs") else ""


def complete(document: Object) -> None:
    """Fill in defaults."""
    spec: Object = document.setdefault("spec", {})
    kind = spec.setdefault("type", "ClusterIP")
    affinity = spec.setdefault("sessionAffinity", "None")
    if affinity == "ClientIP":
        client = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        client.setdefault("timeoutSeconds", AFFINITY_TIMEOUT)
    for each in spec.get("ports") or ():
        each.setdefault("protocol", "TCP")
        each.setdefault("targetPort", each.get("port"))
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if kind in WITH_NODE_PORTS:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    document.setdefault("status", {"loadBalancer": {}})


def keep_allocated(document: Object, old: Object) -> None:
    """Keep allocated ClusterIPs, families and node ports that an update leaves out."""
    spec, before = document.setdefault("spec", {}), old.get("spec", {})
    if spec.get("type", "ClusterIP") == "ExternalName":
        return
    for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if not spec.get(field) and field in before:
            spec[field] = before[field]
    given = {(each.get("protocol", "TCP"), each["port"]): each.get("nodePort") for each in before.get("ports") or ()}
    for each in spec.get("ports") or ():
        had = given.get((each.get("protocol", "TCP"), each.get("port")))
        if had and spec.get("type") in WITH_NODE_PORTS and not each.get("nodePort"):
            each["nodePort"] = had


def causes(document: Object, old: Object | None) -> Iterator[Cause]:
    """Yield why a Service is denied."""
    spec = document["spec"]
    kind, ports = spec["type"], spec.get("ports") or []
    yield from service_name("metadata.name", document["metadata"]["name"])
    yield from word("spec.type", kind, TYPES)
    if not ports and kind != "ExternalName" and not _is_headless(spec):
        yield required("spec.ports")
    if kind == "ExternalName":
        yield from subdomain("spec.externalName", (spec.get("externalName") or "").removesuffix("."))
    yield from _ports(ports, kind)
    yield from _affinity(spec)
    yield from _cluster_ips(spec, (old or {}).get("spec", {}))
    for index, value in enumerate(spec.get("externalIPs") or ()):
        yield from ordinary_address(f"spec.externalIPs[{index}]", value)
    yield from _source_ranges(spec)
    yield from _policies(spec)


def _is_headless(spec: Object) -> bool:
    return spec.get("clusterIP") == "None" or spec.get("clusterIPs") == ["None"]


def _ports(ports: list[Object], kind: str) -> Iterator[Cause]:
    names: set[str] = set()
    for index, given in enumerate(ports):
        path, name = f"spec.ports[{index}]", given.get("name") or ""
        if name:
            yield from label(f"{path}.name", name)
        elif len(ports) > 1:
            yield required(f"{path}.name")
        if name and name in names:
            yield duplicate(f"{path}.name", name)
        names.add(name)
        yield from port(f"{path}.port", given.get("port"))
        yield from word(f"{path}.protocol", given["protocol"], PROTOCOLS)
        if not isinstance(given["targetPort"], str):
            yield from port(f"{path}.targetPort", given["targetPort"])
        if given.get("nodePort") and kind not in WITH_NODE_PORTS:
            yield forbidden(f"{path}.nodePort", f"may not be used when `type` is '{kind}'")
    yield from _repeated(ports, "port", "")
    yield from _repeated(ports, "nodePort", ".nodePort")


def _repeated(ports: list[Object], field: str, suffix: str) -> Iterator[Cause]:
    taken: set[tuple[str, int]] = set()
    for index, given in enumerate(ports):
        key = (given["protocol"], given.get(field) or 0)
        if key[1] and key in taken:
            yield duplicate(f"spec.ports[{index}]{suffix}", key[1])
        taken.add(key)


def _affinity(spec: Object) -> Iterator[Cause]:
    yield from word("spec.sessionAffinity", spec["sessionAffinity"], {"None", "ClientIP"})
    if spec["sessionAffinity"] == "ClientIP":
        timeout = spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]
        if not 0 < timeout <= MAX_AFFINITY_TIMEOUT:
            why = f"must be greater than 0 and less than {MAX_AFFINITY_TIMEOUT}"
            yield invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", timeout, why)


def _cluster_ips(spec: Object, before: Object) -> Iterator[Cause]:
    several = spec.get("clusterIPs") or [ip for ip in [spec.get("clusterIP")] if ip]
    if spec["type"] == "ExternalName":
        if several:
            yield forbidden("spec.clusterIPs", "may not be set when `type` is 'ExternalName'")
        return
    if spec.get("clusterIP") and spec.get("clusterIPs") and spec["clusterIP"] != spec["clusterIPs"][0]:
        yield invalid("spec.clusterIPs[0]", spec["clusterIPs"][0], "must match `clusterIP`")
    for index, value in enumerate(several):
        if value != "None":
            yield from address(f"spec.clusterIPs[{index}]", value)
    if len(several) > 2 or (len(several) == 2 and len({":" in str(value) for value in several}) == 1):
        yield invalid("spec.clusterIPs", several, "may only hold up to 2 values, one of each family")
    if before.get("type", "ClusterIP") != "ExternalName" and before.get("clusterIP") not in {None, *several[:1]}:
        yield invalid("spec.clusterIPs[0]", several[:1], "may not change once set")
    if "ipFamilyPolicy" in spec:
        yield from word("spec.ipFamilyPolicy", spec["ipFamilyPolicy"], FAMILY_POLICIES)


def _source_ranges(spec: Object) -> Iterator[Cause]:
    path = "spec.LoadBalancerSourceRanges"  # with a capital letter, as kube-apiserver has it
    ranges = spec.get("loadBalancerSourceRanges") or []
    if ranges and spec["type"] != "LoadBalancer":
        yield forbidden(path, "may only be used when `type` is 'LoadBalancer'")
    for index, value in enumerate(ranges):
        yield from network(f"{path}[{index}]", value.strip())


def _policies(spec: Object) -> Iterator[Cause]:
    if "internalTrafficPolicy" in spec:
        yield from word("spec.internalTrafficPolicy", spec["internalTrafficPolicy"], POLICIES)
    external = spec.get("externalTrafficPolicy")
    if external and not (spec["type"] in WITH_NODE_PORTS or spec.get("externalIPs")):
        yield invalid("spec.externalTrafficPolicy", external, "may only be set for externally-accessible services")
    elif external:
        yield from word("spec.externalTrafficPolicy", external, POLICIES)
    health = spec.get("healthCheckNodePort")
    if health and not (spec["type"] == "LoadBalancer" and external == "Local"):
        yield invalid("spec.healthCheckNodePort", health, "may only be set for type LoadBalancer with policy Local")


class Allocator:
    """Allocates addresses and ports for a Service, and checks requested values against other Services.

    Args:
        settings: the ranges.
        others: returns the specs of all other Services, called only for an allocation.
    """

    def __init__(self, settings: Settings, others: Callable[[], Iterable[Object]]) -> None:
        self._networks = [ipaddress.ip_network(each) for each in settings.service_cidrs]
        self._first, self._last = settings.node_ports
        self._others = others
        self._addresses: set[str] | None = None
        self._ports: set[tuple[str, int]] | None = None

    def allocate(self, spec: Object, before: Object) -> Iterator[Cause]:
        """Change the spec, and yield the values that aren't available.  The Service keeps its earlier values."""
        if spec["type"] == "ExternalName":
            return
        if not _is_headless(spec):
            yield from self._cluster_ips(spec, before.get("clusterIPs") or [])
        else:
            spec["clusterIP"], spec["clusterIPs"] = "None", ["None"]
            families = [family for family, _ in self._families()]
            if "selector" in spec or len(families) == 1:
                spec.setdefault("ipFamilies", families[:1])
                spec.setdefault("ipFamilyPolicy", "SingleStack")
            else:
                spec.setdefault("ipFamilies", families)
                spec.setdefault("ipFamilyPolicy", "RequireDualStack")
        if spec["type"] in WITH_NODE_PORTS and spec.get("allocateLoadBalancerNodePorts") is not False:
            yield from self._node_ports(spec, before)
        if spec["type"] == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local":
            number = spec.get("healthCheckNodePort") or self._free_port({"TCP"})
            yield from self._claim("spec.healthCheckNodePort", number, "TCP", before.get("healthCheckNodePort"))
            spec["healthCheckNodePort"] = number

    def _families(self) -> list[tuple[str, ipaddress.IPv4Network | ipaddress.IPv6Network]]:
        return [(f"IPv{each.version}", each) for each in self._networks]

    def _cluster_ips(self, spec: Object, had: list[str]) -> Iterator[Cause]:
        given = spec.get("clusterIPs") or [ip for ip in [spec.get("clusterIP")] if ip]
        for text in given:
            if text in had:
                continue
            if not any(ipaddress.ip_address(text) in network for network in self._networks):
                yield invalid("spec.clusterIPs", given, f"failed to allocate IP {text}: it is not in the valid range")
            elif text in self._taken_addresses():
                yield invalid(
                    "spec.clusterIPs", given, f"failed to allocate IP {text}: provided IP is already allocated"
                )
        families = spec.get("ipFamilies") or [f"IPv{ipaddress.ip_address(text).version}" for text in given]
        policy = spec.setdefault("ipFamilyPolicy", "SingleStack" if len(families) < 2 else "RequireDualStack")
        missing = [family for family, _ in self._families() if family not in families]
        if not families:
            families.append(missing.pop(0))
        if policy != "SingleStack":
            families += missing
        spec["ipFamilies"] = families
        spec["clusterIPs"] = given + [self._free_address(family) for family in families[len(given) :]]
        spec["clusterIP"] = spec["clusterIPs"][0]

    def _node_ports(self, spec: Object, before: Object) -> Iterator[Cause]:
        had = {(each.get("protocol", "TCP"), each.get("nodePort")) for each in before.get("ports") or ()}
        by_port: dict[int, int] = {}
        for index, given in enumerate(spec.get("ports") or ()):
            protocol = given["protocol"]
            number = given.get("nodePort") or by_port.get(given["port"]) or self._free_port(set(PROTOCOLS))
            own = number if (protocol, number) in had else None
            yield from self._claim(f"spec.ports[{index}].nodePort", number, protocol, own)
            by_port[given["port"]] = given["nodePort"] = number

    def _claim(self, path: str, number: int, protocol: str, own: int | None) -> Iterator[Cause]:
        if number == own:
            return
        if not self._first <= number <= self._last:
            yield invalid(path, number, "provided port is not in the valid range")
        elif (protocol, number) in self._taken_ports():
            yield invalid(path, number, "provided port is already allocated")
        self._taken_ports().add((protocol, number))

    def _free_address(self, family: str) -> str:
        network = dict(self._families())[family]
        found = next(str(host) for host in network.hosts() if str(host) not in self._taken_addresses())
        self._taken_addresses().add(found)
        return found

    def _free_port(self, protocols: set[str]) -> int:
        taken = self._taken_ports()
        ports = range(self._first, self._last + 1)
        return next(number for number in ports if not any((protocol, number) in taken for protocol in protocols))

    def _taken_addresses(self) -> set[str]:
        if self._addresses is None:
            self._addresses = {
                text
                for spec in self._others()
                for text in spec.get("clusterIPs") or [spec.get("clusterIP")]
                if text not in {None, "", "None"}
            }
        return self._addresses

    def _taken_ports(self) -> set[tuple[str, int]]:
        if self._ports is None:
            self._ports = set()
            for spec in self._others():
                given = spec.get("ports") or ()
                self._ports |= {(each.get("protocol", "TCP"), each["nodePort"]) for each in given if "nodePort" in each}
                if spec.get("healthCheckNodePort"):
                    self._ports.add(("TCP", spec["healthCheckNodePort"]))
        return self._ports
