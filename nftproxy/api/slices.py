"""EndpointSlices: from their shape (schema.py) to their value in the model.

A bad endpoint, port or hint costs itself alone, and is reported.  Equal texts are shared, which keeps the memory of
large clusters low.

References in parentheses are to API fields and Kubernetes enhancement proposals (KEP).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from nftproxy.api import schema
from nftproxy.api.annotation_parsers import NONE_KNOWN, Known, options_of
from nftproxy.api.decode import (
    Report,
    are_subdomains,
    is_label,
    is_label_value,
    is_subdomain,
    named_port,
    numbered,
    show,
    timestamp,
    virtual_address,
)
from nftproxy.model.addresses import FAMILIES, FAMILY_NAMES, Address, Family, family_of, is_ordinary_ipv4
from nftproxy.model.annotations import PLAIN, PREFIX
from nftproxy.model.codes import Code
from nftproxy.model.objects import EndpointPort, Endpoints, EndpointSlice, EndpointState, ObjectKey

HEADLESS = "service.kubernetes.io/headless"
SERVICE_NAME = "kubernetes.io/service-name"
TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"


def why_passed_over(given: schema.RawEndpointSlice) -> str:
    """Return why a proxy ignores this EndpointSlice, or "" if it doesn't."""
    labels = (given.metadata or schema.ObjectMeta()).labels or {}
    if HEADLESS in labels:
        return f"it is of a headless Service (label {HEADLESS})"
    if labels.get(SERVICE_NAME) in (None, ""):
        return f"it has no label {SERVICE_NAME}"
    return "its addressType is FQDN" if given.address_type == "FQDN" else ""


def build_slice(
    given: schema.RawEndpointSlice, key: ObjectKey, report: Report, known: Known = NONE_KNOWN
) -> EndpointSlice | None:
    """Build an EndpointSlice, without the bad parts.  Without a readable Service or family the result is None."""
    metadata = given.metadata or schema.ObjectMeta()
    service, annotations = (metadata.labels or {})[SERVICE_NAME], metadata.annotations or {}
    family = FAMILIES.get(given.address_type or "")
    if family is None:
        report("addressType", f"{show(given.address_type)} is not IPv4, IPv6 or FQDN")
    if not isinstance(service, str) or not is_label(service):
        report(f"metadata.labels.{SERVICE_NAME}", f"{show(service)} is not the name of a Service")
    elif family is not None:
        read = (_endpoint(index, raw, family, report) for index, raw in numbered(given.endpoints))
        found = [endpoint for endpoint in read if endpoint]
        addresses, states, pods = zip(*found, strict=True) if found else ((), (), ())
        return EndpointSlice(
            key=key,
            service=ObjectKey(key.namespace, service),
            family=family,
            ports=_shared_ports(tuple(_slice_ports(given, report))),
            endpoints=Endpoints(" ".join(addresses), states),
            triggered=timestamp(annotations.get(TRIGGER_TIME), f"metadata.annotations.{TRIGGER_TIME}", report),
            options=options_of(given, known, report) if _has_own(annotations) else PLAIN,
            pods=_pods(pods, key.namespace),
        )
    return None


def _pods(given: Sequence[schema.TargetRef | None], namespace: str) -> str:
    """Return the pods' names as `EndpointSlice.pods` has them.  A pod is in the namespace of its EndpointSlice."""
    own = (None, "", namespace)
    names = [each.name or "" if each and each.kind == "Pod" and each.namespace in own else "" for each in given]
    text = " ".join(names)
    if not are_subdomains(text, len(names)):
        text = " ".join([name if is_subdomain(name) else "" for name in names])
    return "" if text.isspace() else text


def _has_own(annotations: Iterable[str]) -> bool:
    """Whether any annotation is nftproxy's own, unlike those of nearly every slice."""
    return any(name.startswith(PREFIX) for name in annotations)


def _slice_ports(given: schema.RawEndpointSlice, report: Report) -> Iterator[EndpointPort]:
    """Parse the ports of a slice.  A port without a name or number (null) is for no Service port, and is left out."""
    taken = set()
    for index, wired in numbered(given.ports):
        if wired.name is None or wired.port is None:
            continue
        port = named_port(wired.name, wired.protocol, wired.port, f"ports[{index}]", report)
        if port is None:
            continue
        if (port.name, port.protocol) in taken:
            report(f"ports[{index}]", "repeats the name of an earlier port with the same protocol", Code.PORT_REPEATED)
            continue
        taken.add((port.name, port.protocol))
        yield port


@functools.lru_cache(maxsize=1024)
def _shared_ports(ports: tuple[EndpointPort, ...]) -> tuple[EndpointPort, ...]:
    """Return these ports as the tuple that all slices with them share, unless many have others."""
    return ports


def _endpoint(
    index: int, given: schema.RawEndpoint, family: Family, report: Report
) -> tuple[Address, EndpointState, schema.TargetRef | None] | None:
    """Parse an endpoint, all but its pod.  Only its first address counts, as all are the same pod's (addresses)."""
    first = given.addresses[0] if given.addresses else None
    if family is Family.IPV4 and isinstance(first, str) and is_ordinary_ipv4(first):
        address: Address | None = first  # type: ignore[assignment]  # without the call of a NewType
    else:
        address = _address(given.addresses, family, f"endpoints[{index}]", report)
    if address is None:
        return None
    state = None if given.hints else _plain_state(given.conditions, given.node_name, given.zone)
    if state is None:
        state = _state(given, f"endpoints[{index}]", report)
    return (address, state, given.target_ref) if state else None


def _address(given: list[object] | None, family: Family, path: str, report: Report) -> Address | None:
    if not given:
        report(f"{path}.addresses", "is empty")
        return None
    address = virtual_address(given[0], f"{path}.addresses[0]", report)
    if address is not None and family_of(address) is not family:
        report(f"{path}.addresses[0]", f"{address} is not an {FAMILY_NAMES[family]} address")
        return None
    return address


def _state(given: schema.RawEndpoint, path: str, report: Report) -> EndpointState | None:
    """Judge all of an endpoint but its address and pod.  Return None if the name of its node can't be right."""
    node_name = given.node_name or ""
    if node_name and not is_subdomain(node_name):
        report(f"{path}.nodeName", f"{show(node_name)} is not the name of a Node")
        return None
    zone = given.zone or ""
    if zone and not is_label_value(zone):  # it costs only its weight
        report(f"{path}.zone", f"{show(zone)} is not the name of a zone")
        zone = ""
    hints = given.hints or schema.EndpointHints()
    node_hints = _hints(hints.for_nodes, is_subdomain, f"{path}.hints.forNodes", report)
    zone_hints = _hints(hints.for_zones, is_label_value, f"{path}.hints.forZones", report)
    return _shared_state(*_conditions(given.conditions), node_name, node_hints, zone_hints, zone)


_shared_state = functools.lru_cache(maxsize=16384)(EndpointState)
"""Returns the state that all endpoints share whose fields are the same: most endpoints of a node."""


@functools.lru_cache(maxsize=16384)
def _plain_state(
    conditions: schema.EndpointConditions | None, node_name: str | None, zone: str | None
) -> EndpointState | None:
    """Return the state of endpoints with these fields and no hints.  If a field is bad, return None."""
    faults: list[str] = []
    given = schema.RawEndpoint(conditions=conditions, node_name=node_name, zone=zone)
    state = _state(given, "", lambda field, *_: faults.append(field))
    return None if faults else state


def _conditions(given: schema.EndpointConditions | None) -> tuple[bool, bool, bool]:
    """Return ready, serving and terminating.  By default ready is true, and serving is ready (KEP-1672)."""
    if given is None:
        return True, True, False
    ready = given.ready is not False
    return ready, ready if given.serving is None else given.serving, given.terminating is True


def _hints(
    given: list[schema.Hint] | None, is_name: Callable[[str], bool], path: str, report: Report
) -> tuple[str, ...] | None:
    """Return the names in hints.forZones or hints.forNodes, None without any."""
    if not given:
        return None
    names = []
    for index, hint in numbered(given):
        if hint.name and is_name(hint.name):
            names.append(hint.name)
        else:
            report(f"{path}[{index}].name", f"{show(hint.name)} is not the name of a zone or Node")
    return tuple(names) or None
