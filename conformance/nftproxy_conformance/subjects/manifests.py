"""A world as the files that `nftproxy render` takes, which api/parse.py and config/parse_config.py read."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from nftproxy.api.nodes import ZONE
from nftproxy.api.slices import SERVICE_NAME
from nftproxy.config.configz import node_port_addresses_texts
from nftproxy.config.declared_fields import declared_texts
from nftproxy.config.parse_config import API_VERSION, KIND
from nftproxy.model.addresses import FAMILY_NAMES, family_of
from nftproxy.model.annotations import NONE, PREFIX, Options, Rate
from nftproxy.model.objects import (
    Endpoint,
    EndpointSlice,
    Node,
    ObjectKey,
    Service,
    ServiceCIDR,
    ServicePort,
    TrafficDistribution,
)
from nftproxy.model.settings import Config
from nftproxy.sources.documents import to_yaml
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.subjects.spellings import respelt

Manifest = dict[str, Any]


def manifests(world: World) -> str:
    """The objects of a world as YAML, without the addresses on the node's interfaces."""
    return to_yaml(objects(world))


def objects(world: World) -> list[Manifest]:
    """The objects of a world, as the API has them."""
    made = [
        _node(world.node),
        *map(_service_cidr, world.service_cidrs),
        *map(_service, world.services),
        *map(_slice, world.slices),
    ]
    return list(map(respelt, made)) if world.old_spellings else made


def stamped(document: Manifest) -> Manifest:
    """An object with a creation time, by default the epoch.  An API server would add the present time."""
    return document | {"metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"} | document["metadata"]}


def configuration(config: Config) -> str:
    """A configuration as a KubeProxyConfiguration in YAML, as far as connections depend on it."""
    return to_yaml([settings(config)])


def settings(config: Config) -> Manifest:
    """A configuration as a KubeProxyConfiguration, as far as connections depend on it."""
    given = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "clusterCIDR": ",".join(map(str, config.cluster_cidrs)),
        "detectLocalMode": config.detect_local_mode.value,
        "detectLocal": _given(
            bridgeInterface=config.bridge_interface, interfaceNamePrefix=config.interface_name_prefix
        ),
        "nodePortAddresses": node_port_addresses_texts(config.node_port_addresses),
        "nftables": {"masqueradeAll": config.masquerade_all, "masqueradeBit": config.masquerade_bit},
        "featureGates": {"AllowServiceExternalIPs": config.allow_service_external_ips},
        "nftproxy": {
            "protectedPorts": list(map(str, config.protected_ports)),
            "externalIPCIDRs": list(map(str, config.external_ip_cidrs)),
            **declared_texts(config),
        },
    }
    return _given(**given)


def _given(**fields: object) -> Manifest:
    """The fields that aren't empty."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {}, 0) or value is False}


def _metadata(key: ObjectKey, labels: Mapping[str, str] | None = None, **more: object) -> Manifest:
    return {"namespace": key.namespace, "name": key.name} | _given(labels=labels, **more)


def _node(node: Node) -> Manifest:
    kinds = {"InternalIP": node.internal_ips, "ExternalIP": node.external_ips}
    addresses = [{"type": kind, "address": str(address)} for kind, given in kinds.items() for address in given]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name} | ({"labels": {ZONE: node.zone}} if node.zone else {}),
        "spec": _given(podCIDRs=_texts(node.pod_cidrs)),
        "status": _given(addresses=addresses),
    }


def _service_cidr(cidr: ServiceCIDR) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": cidr.name},
        "spec": {"cidrs": _texts(cidr.cidrs)},
    }


def _service(service: Service) -> Manifest:
    created = datetime.datetime.fromtimestamp(service.created, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    remembers = service.affinity_timeout is not None
    prefers = service.traffic_distribution
    spec = _given(
        type=service.type.value,
        clusterIP=str(service.cluster_ips[0]),
        clusterIPs=_texts(service.cluster_ips),
        ipFamilies=[FAMILY_NAMES[family_of(address)] for address in service.cluster_ips],
        ports=list(map(_service_port, service.ports)),
        externalIPs=_texts(service.external_ips),
        loadBalancerSourceRanges=_texts(service.source_ranges),
        internalTrafficPolicy=service.internal_policy.value,
        externalTrafficPolicy=service.external_policy.value,
        healthCheckNodePort=service.health_check_node_port,
        sessionAffinity="ClientIP" if remembers else "None",
        trafficDistribution=None if prefers is TrafficDistribution.NONE else prefers.value,
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": service.affinity_timeout}} if remembers else None,
    )
    ingress = [
        *({"ip": str(address)} for address in service.load_balancer_ips),
        *({"ip": str(address), "ipMode": "Proxy"} for address in service.proxied_ips),
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(
            service.key,
            creationTimestamp=created if service.created else None,
            annotations=_annotations(service.options),
        ),
        "spec": spec,
        "status": {"loadBalancer": {"ingress": ingress}} if ingress else {},
    }


def _annotations(options: Options) -> Manifest:
    """The annotations that set these options."""
    return {PREFIX + name: _annotation(value) for name, value in options.given if value not in (None, ())}


def _annotation(value: object) -> str:
    """A value as an annotation has it."""
    match value:
        case Enum():
            return str(value.value)
        case Rate():
            return f"{value.per_second},burst={value.burst}"
        case frozenset():
            return ",".join(sorted(map(_annotation, value))) or NONE
        case (str(zone), int(weight)):
            return f"zone:{zone}={weight}"
        case tuple():
            return ",".join(map(_annotation, value))
        case _:
            return str(value)


def _service_port(port: ServicePort) -> Manifest:
    return _given(name=port.name, protocol=port.protocol.name, port=port.port, nodePort=port.node_port)


def _slice(given: EndpointSlice) -> Manifest:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": _metadata(given.key, {SERVICE_NAME: given.service.name}, annotations=_annotations(given.options)),
        "addressType": FAMILY_NAMES[given.family],
        "ports": [{"name": port.name, "protocol": port.protocol.name, "port": port.port} for port in given.ports],
        "endpoints": list(map(_endpoint, given.endpoints)),
    }


def _endpoint(endpoint: Endpoint) -> Manifest:
    hints = _given(forNodes=_names(endpoint.node_hints), forZones=_names(endpoint.zone_hints))
    return _given(
        addresses=[str(endpoint.address)],
        conditions={"ready": endpoint.ready, "serving": endpoint.serving, "terminating": endpoint.terminating},
        nodeName=endpoint.node_name,
        zone=endpoint.zone,
        hints=hints,
    )


def _names(names: Iterable[str] | None) -> list[Manifest]:
    return [{"name": name} for name in names or ()]


def _texts(values: Iterable[object]) -> list[str]:
    return list(map(str, values))
