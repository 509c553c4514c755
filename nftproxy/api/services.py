"""Services: from their shape (schema.py) to their value in the model.

A bad element costs that element alone, and is reported.  If the loss of an element would open access that it
restricted, the loss closes access instead (`_source_ranges`).

References in parentheses are to API fields and Kubernetes enhancement proposals (KEP).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from enum import Enum

from nftproxy.api import schema
from nftproxy.api.annotation_parsers import NONE_KNOWN, Known, options_of
from nftproxy.api.decode import (
    Report,
    is_label_key,
    is_label_value,
    named_port,
    network,
    numbered,
    port_number,
    several,
    show,
    timestamp,
    virtual_address,
    word,
)
from nftproxy.model.addresses import (
    FAMILY_NAMES,
    Address,
    Family,
    Network,
    Protocol,
    family_of,
    modern_spelling,
    parse_network,
)
from nftproxy.model.codes import Code
from nftproxy.model.objects import (
    Label,
    ObjectKey,
    Service,
    ServicePort,
    ServiceType,
    TrafficDistribution,
    TrafficPolicy,
)
from nftproxy.model.settings import PROXY_NAME

PROXIED = "Proxy"
"""The ipMode of addresses whose packets the load balancer sends to node ports or pods by itself."""
ANOTHERS = f"it is for another proxy (label {PROXY_NAME})"
"""The reason for which an object with the label is ignored."""

DEFAULT_AFFINITY_TIMEOUT = 10800
"""Seconds (core/v1 DefaultClientIPServiceAffinitySeconds)."""
MAX_AFFINITY_TIMEOUT = 86400
"""Seconds (core/v1 MaxClientIPServiceAffinitySeconds)."""

MOST_LABELS = 64
"""Labels of a Service that are kept: the API has no limit, and charts set some ten."""

NOBODY = {Family.IPV4: parse_network("0.0.0.0/32"), Family.IPV6: parse_network("::/128")}
"""Source ranges that admit no client: the unspecified address is never a source."""


class SessionAffinity(Enum):
    """spec.sessionAffinity."""

    NONE = "None"
    CLIENT_IP = "ClientIP"


def why_not_ours(given: schema.RawService, proxy_name: str = "") -> str:
    """Return why the proxy of a name ("" for no name) ignores this Service, or "" if it serves it."""
    spec = given.spec or schema.ServiceSpec()
    first, *_ = spec.cluster_ips or [spec.cluster_ip]
    if other := why_anothers(given.labels, proxy_name):
        return other
    if spec.type == "ExternalName":
        return "its type is ExternalName"
    if "None" in (spec.cluster_ip, first):
        return "it is headless (clusterIP None)"
    return "" if first else "it has no clusterIP"


def why_anothers(labels: Mapping[str, object], proxy_name: str) -> str:
    """Return why an object with these labels is not for the proxy of a name ("" for no name), or "" if it is."""
    if not proxy_name:
        return ANOTHERS if PROXY_NAME in labels else ""
    has_it = labels.get(PROXY_NAME) == proxy_name
    return "" if has_it else f"it is for another proxy (no label {PROXY_NAME}={proxy_name})"


def addresses_of_ignored(given: schema.RawService) -> tuple[Address, ...]:
    """Return the ClusterIPs of a Service that is not for this proxy, as far as they can be read."""
    return _cluster_ips(given.spec or schema.ServiceSpec(), _unreported)


def _unreported(_field: str, _message: str, _code: Code | None = None, /) -> None:
    """Report nothing: a fault in another proxy's Service is no fault here."""


def build_service(
    given: schema.RawService, key: ObjectKey, report: Report, known: Known = NONE_KNOWN
) -> Service | None:
    """Build a Service, without the parts that are bad.  Without a readable ClusterIP the result is None."""
    spec = given.spec or schema.ServiceSpec()
    cluster_ips = _cluster_ips(spec, report)
    if not cluster_ips:
        return None
    kind = word(spec.type, ServiceType.CLUSTER_IP, "spec.type", report)
    balanced = kind is ServiceType.LOAD_BALANCER
    ingress = list(_ingress_ips(given.status, report)) if balanced else []
    external_ips = several(spec.external_ips, virtual_address, "spec.externalIPs", report)
    load_balancer_ips = tuple(dict.fromkeys(ip for ip, mode in ingress if mode != PROXIED))
    source_ranges = _source_ranges(spec.load_balancer_source_ranges, report) if balanced else ()
    _note_open_family(source_ranges, load_balancer_ips, report)
    internal, external = _policies(spec, report)
    if kind is ServiceType.CLUSTER_IP and not external_ips:
        external = TrafficPolicy.CLUSTER
    return Service(
        key=key,
        created=int(
            timestamp((given.metadata or schema.ObjectMeta()).creation_timestamp, "metadata.creationTimestamp", report)
        ),
        type=kind,
        cluster_ips=cluster_ips,
        ports=_shared_ports(tuple(_service_ports(spec, kind, report))),
        external_ips=external_ips,
        load_balancer_ips=load_balancer_ips,
        proxied_ips=tuple(dict.fromkeys(ip for ip, mode in ingress if mode == PROXIED)),
        source_ranges=source_ranges,
        internal_policy=internal,
        external_policy=external,
        affinity_timeout=_affinity_timeout(spec, report),
        health_check_node_port=(
            _optional_port(spec.health_check_node_port, "spec.healthCheckNodePort", report)
            if balanced and external is TrafficPolicy.LOCAL
            else 0
        ),
        traffic_distribution=word(
            spec.traffic_distribution, TrafficDistribution.NONE, "spec.trafficDistribution", report
        ),
        labels=tuple(_labels(given.labels, report)),
        options=options_of(given, known, report),
    )


def _labels(given: Mapping[str, object], report: Report) -> Iterator[Label]:
    for key, value in itertools.islice(given.items(), MOST_LABELS):
        found = _label(key, value) if isinstance(value, str) else None
        if found:
            yield found
        else:
            report("metadata.labels", f"{show(key)}: {show(value)} is not a label")
    if len(given) > MOST_LABELS:
        report("metadata.labels", f"only {MOST_LABELS} of {len(given)} labels are known to `nftproxy list`")


@functools.lru_cache(maxsize=1024)  # frequent labels stay in it, and rare labels pass through
def _label(key: str, value: str) -> Label | None:
    """Return a label, as a tuple that all Services with it share.  For a text that can't be a label, return None."""
    return (key, value) if is_label_key(key) and (not value or is_label_value(value)) else None


def _cluster_ips(spec: schema.ServiceSpec, report: Report) -> tuple[Address, ...]:
    """Parse spec.clusterIPs, at most one of each family, or spec.clusterIP without them (KEP-563)."""
    if not spec.cluster_ips:
        single = virtual_address(spec.cluster_ip, "spec.clusterIP", report)
        return (single,) if single else ()
    found: dict[Family, Address] = {}
    for index, value in enumerate(spec.cluster_ips):
        path = f"spec.clusterIPs[{index}]"
        address = virtual_address(value, path, report)
        if address and found.setdefault(family_of(address), address) != address:
            report(path, f"{address} is a second {FAMILY_NAMES[family_of(address)]} address: only the first counts")
    return tuple(found.values())


def _policies(spec: schema.ServiceSpec, report: Report) -> tuple[TrafficPolicy, TrafficPolicy]:
    """Parse spec.internalTrafficPolicy (KEP-2086) and spec.externalTrafficPolicy."""
    default = TrafficPolicy.CLUSTER
    return (
        word(spec.internal_traffic_policy, default, "spec.internalTrafficPolicy", report),
        word(spec.external_traffic_policy, default, "spec.externalTrafficPolicy", report),
    )


def _service_ports(spec: schema.ServiceSpec, kind: ServiceType, report: Report) -> Iterator[ServicePort]:
    """Parse spec.ports.  A port that repeats an earlier port's name or number with the same protocol is left out."""
    taken: set[tuple[str | int, Protocol]] = set()
    taken_on_nodes: set[tuple[int, Protocol]] = set()
    for index, given in numbered(spec.ports):
        path = f"spec.ports[{index}]"
        port = named_port(given.name, given.protocol, given.port, path, report)
        if port is None:
            continue
        claims: set[tuple[str | int, Protocol]] = {(port.name, port.protocol), (port.port, port.protocol)}
        if taken & claims:
            report(path, "repeats the name or the number of an earlier port with the same protocol", Code.PORT_REPEATED)
            continue
        taken |= claims
        node_port = 0 if kind is ServiceType.CLUSTER_IP else _optional_port(given.node_port, f"{path}.nodePort", report)
        if node_port and (node_port, port.protocol) in taken_on_nodes:
            report(f"{path}.nodePort", f"{node_port} is already a port's with the same protocol", Code.PORT_REPEATED)
            node_port = 0
        taken_on_nodes.add((node_port, port.protocol))
        yield ServicePort(port.name, port.protocol, port.port, node_port)


@functools.lru_cache(maxsize=1024)
def _shared_ports(ports: tuple[ServicePort, ...]) -> tuple[ServicePort, ...]:
    """Return these ports as the tuple that all Services with them share, unless many have others."""
    return ports


def _optional_port(value: int | None, path: str, report: Report) -> int:
    """Parse a port.  Both null and 0 mean no port."""
    return (port_number(value, path, report) or 0) if value else 0


def _ingress_ips(status: schema.ServiceStatus | None, report: Report) -> Iterator[tuple[Address, str]]:
    """Parse status.loadBalancer.ingress[].ip, each with its ipMode (KEP-1860).  Hostnames are ignored."""
    balancer = (status or schema.ServiceStatus()).load_balancer or schema.LoadBalancerStatus()
    for index, ingress in numbered(balancer.ingress):
        path = f"status.loadBalancer.ingress[{index}]"
        if ingress.ip_mode not in (None, "", "VIP", PROXIED):
            report(f"{path}.ipMode", f"{show(ingress.ip_mode)} is not VIP or {PROXIED}")
        elif ingress.ip:
            address = virtual_address(ingress.ip, f"{path}.ip", report)
            if address:
                yield address, ingress.ip_mode or ""


def _source_ranges(value: object, report: Report) -> tuple[Network, ...]:
    """Parse spec.loadBalancerSourceRanges, without blanks around a range.

    An unreadable range is skipped, as in kube-proxy.  That is safe while another range of its family restricts access.
    If none is left, kube-proxy admits everyone.  Here nobody is admitted until the range is corrected.

    The annotation service.beta.kubernetes.io/load-balancer-source-ranges is for cloud providers, and kube-proxy doesn't
    read it either.
    """
    path = "spec.loadBalancerSourceRanges"
    if value is None:
        return ()
    if not isinstance(value, list):
        report(path, f"{show(value)} is not a list")
        return tuple(_closed(set(Family), path, report))
    ranges: list[Network] = []
    unread: set[Family] = set()
    for index, item in enumerate(value):
        found = network(item.strip() if isinstance(item, str) else item, f"{path}[{index}]", report)
        if found is None:
            unread |= _families_meant(item)
        else:
            ranges.append(found)
    return (*dict.fromkeys(ranges), *_closed(unread - {family_of(item) for item in ranges}, path, report))


def _closed(families: set[Family], path: str, report: Report) -> Iterator[Network]:
    for family in Family:
        if family in families:
            report(
                path,
                f"no {FAMILY_NAMES[family]} range can be read: the load balancer's addresses admit nobody",
                Code.SOURCE_RANGES_CLOSED,
            )
            yield NOBODY[family]


def _note_open_family(ranges: tuple[Network, ...], guarded: tuple[Address, ...], report: Report) -> None:
    """Report a family of load balancer addresses that is open to all because only the other family has ranges.

    The API says that the field restricts traffic "to the specified client IPs", and kube-proxy opens that family too.
    """
    open_families = set(map(family_of, guarded)) - set(map(family_of, ranges)) if ranges else set()
    for family in open_families:
        name = FAMILY_NAMES[family]
        report(
            "spec.loadBalancerSourceRanges",
            f"has no {name} range: the load balancer's {name} addresses are open to all",
            Code.ONE_FAMILY_GUARDED,
        )


def _families_meant(item: object) -> set[Family]:
    """Return the family that an invalid CIDR was probably meant for, or both if that is unclear.

    An IPv4-mapped range that is wider than IPv4 is unclear.
    """
    text = item if isinstance(item, str) else ""
    signs = {"."} & set(text) | {":"} & set(text)
    if len(signs) != 1 or "." in modern_spelling(text.partition("/")[0]):
        return {Family.IPV4} if signs == {"."} else set(Family)
    return {Family.IPV6}


def _affinity_timeout(spec: schema.ServiceSpec, report: Report) -> int | None:
    """Parse spec.sessionAffinityConfig.clientIP.timeoutSeconds.  Without spec.sessionAffinity ClientIP, return None."""
    if word(spec.session_affinity, SessionAffinity.NONE, "spec.sessionAffinity", report) is SessionAffinity.NONE:
        return None
    config = (spec.session_affinity_config or schema.SessionAffinityConfig()).client_ip or schema.ClientIPConfig()
    timeout = config.timeout_seconds
    if timeout is None:
        return DEFAULT_AFFINITY_TIMEOUT
    if 1 <= timeout <= MAX_AFFINITY_TIMEOUT:
        return timeout
    wanted = f"from 1 to {MAX_AFFINITY_TIMEOUT} seconds: taken as {DEFAULT_AFFINITY_TIMEOUT}"
    report("spec.sessionAffinityConfig.clientIP.timeoutSeconds", f"{show(timeout)} is not {wanted}")
    return DEFAULT_AFFINITY_TIMEOUT
