"""KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1), kube-proxy's configuration file, as nftproxy reads it.

It is read in two steps, like objects of the cluster.  shapes.py has the fields that are used, with their types.  The
functions below judge values.  Unlike there, a fault is fatal, as a proxy with half of its configuration would guess.
All faults are gathered and raised together.  A field that is absent, null, "" or a zero duration has its default, as in
kube-proxy (pkg/proxy/apis/config/v1alpha1/defaults.go): kubeadm writes all fields like that.

Fields that kube-proxy doesn't have are in a section of their own, `nftproxy`.

A field of kube-proxy that nftproxy doesn't use causes a warning with nftproxy's behaviour (unused_fields.py).  An
unknown field causes a warning too, since a file for a newer version should still start an older version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from types import MappingProxyType
from typing import Any

import msgspec

from nftproxy.api.decode import (
    Report,
    convert,
    is_label_key,
    is_label_value,
    is_subdomain,
    network,
    node_address,
    several,
    show,
)
from nftproxy.config.declared_fields import Fields, declared_values, shape_with
from nftproxy.config.durations import parse_duration
from nftproxy.config.shapes import (
    ClientConnection,
    ConntrackSection,
    DetectLocal,
    KubeProxyConfiguration,
    LoggingSection,
    Mode,
    Nftproxy,
)
from nftproxy.config.unused_fields import UNKNOWN, without_effect
from nftproxy.config.values import INTERFACE, member
from nftproxy.model.addresses import FAMILY_NAMES, Family, Network, family_of, host_port
from nftproxy.model.codes import NOTES, Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.settings import (
    CANARY_HEALTHZ_PORT,
    CANARY_METRICS_PORT,
    HEALTHZ_PORT,
    METRICS_PORT,
    Config,
    Conntrack,
    DetectLocalMode,
    LogFormat,
    Logging,
    NodePortAddresses,
    PortRange,
)

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"
EMPTY_CONFIG = {"apiVersion": API_VERSION, "kind": KIND}

_DEFAULT = Config()


def parse_config(
    raw: object, source: str, declared: Fields, flags: Mapping[str, str] = MappingProxyType({})
) -> tuple[Config, list[Problem]]:
    """Parse a decoded file.  Return the configuration, and a warning for each field that is unused or unknown.

    Args:
        raw: the decoded file.
        source: its name in problems.
        declared: the fields that extensions declare (installed.py).
        flags: the names of the flags that have overridden fields, by the paths of these fields.  Problems name them.

    Raises:
        BadInput: it is no KubeProxyConfiguration v1alpha1, or has wrong types or values.  Every fault is listed.
    """
    faults: list[Problem] = []
    warnings: list[Problem] = []

    def problem(field: str, message: str, code: Code) -> Problem:
        flag = flags.get(field.partition("[")[0])
        return Problem(f"--{flag}", "", "", message, code) if flag else Problem(source, KIND, field, message, code)

    def report(field: str, message: str, code: Code | None = None, /) -> None:
        (warnings if code in NOTES else faults).append(problem(field, message, code or Code.CONFIGURATION_INVALID))

    def warn(field: str, message: str, code: Code | None = None, /) -> None:
        warnings.append(problem(field, message, code or Code.CONFIGURATION_UNUSED))

    if not isinstance(raw, Mapping):
        raise BadInput(Problem(source, "", "", f"{show(raw)} is not a {KIND}", Code.CONFIGURATION_INVALID))
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if raw.get(field) != wanted:
            report(field, f"{show(raw.get(field))} is not {wanted}")
    if faults:  # of another kind, where the other fields mean something else
        raise BadInput(*faults)
    shape = shape_with(tuple(declared))
    given = convert(raw, shape, report) or shape()
    config = _config(given, declared, report, warn)
    if faults:
        raise BadInput(*faults)
    for field, message in without_effect(raw, shape, _mode(given)):
        warn(field, message, Code.CONFIGURATION_UNKNOWN_FIELD if message == UNKNOWN else None)
    return config, warnings


def _config(given: KubeProxyConfiguration, declared: Fields, report: Report, warn: Report) -> Config:
    _judge_mode(given.mode, report, warn)
    local = given.detect_local or DetectLocal()
    own = given.nftproxy or Nftproxy()
    bind_address = node_address(given.bind_address, "bindAddress", report) if given.bind_address else None
    any_host, loopback = _HOSTS[family_of(bind_address) if bind_address else Family.IPV4]
    sync_period, min_sync_period = _sync_periods(given, report)
    masquerade_bit, path_of_bit = _of_mode(given, "masquerade_bit")
    mode = _detect_local_mode(given.detect_local_mode, local, report)
    gates = _feature_gates(given.feature_gates or {}, report, warn)
    config = Config(
        masquerade_all=bool(_of_mode(given, "masquerade_all")[0]),
        masquerade_bit=_integer(masquerade_bit, _DEFAULT.masquerade_bit, range(32), path_of_bit, report),
        masquerade_fully_random=bool(own.masquerade_fully_random),
        detect_local_mode=mode,
        cluster_cidrs=_cluster_cidrs(given.cluster_cidr or "", report),
        bridge_interface=_interface(local.bridge_interface, "detectLocal.bridgeInterface", report),
        interface_name_prefix=_interface(
            local.interface_name_prefix, "detectLocal.interfaceNamePrefix", report, longest=14
        ),
        node_port_addresses=_node_port_addresses(given.node_port_addresses or [], gates[LOCALHOST_GATE], report),
        allow_localhost_node_ports=gates[LOCALHOST_GATE],
        allow_service_external_ips=gates[EXTERNAL_IPS_GATE],
        hostname_override=_hostname(given.hostname_override or "", report),
        bind_address=None if bind_address in _ANY else bind_address,
        kubeconfig=(given.client_connection or ClientConnection()).kubeconfig or "",
        sync_period=sync_period,
        min_sync_period=min_sync_period,
        healthz_bind_address=_address_and_port(
            given.healthz_bind_address or any_host, HEALTHZ_PORT, "healthzBindAddress", report
        ),
        metrics_bind_address=_address_and_port(
            given.metrics_bind_address or loopback, METRICS_PORT, "metricsBindAddress", report
        ),
        bind_address_hard_fail=bool(given.bind_address_hard_fail),
        oom_score_adj=_integer(given.oom_score_adj, _DEFAULT.oom_score_adj, range(-1000, 1001), "oomScoreAdj", report),
        conntrack=_conntrack(given.conntrack or ConntrackSection(), report),
        logging=_logging(given.logging or LoggingSection(), report),
        protected_ports=_port_ranges(own.protected_ports, "nftproxy.protectedPorts", report),
        external_ip_cidrs=several(own.external_ip_cidrs, network, "nftproxy.externalIPCIDRs", report),
        service_proxy_name=_proxy_name(own.service_proxy_name or "", report),
        startup_taint=_taint_key(own.startup_taint or "", report),
        element_budget=_integer(
            own.element_budget, _DEFAULT.element_budget, range(1_000, 1_000_000_001), "nftproxy.elementBudget", report
        ),
        agent_socket=_socket_path(own.agent_socket, "nftproxy.agentSocket", report),
        declared=declared_values(given, declared, report, warn),
    )
    _judge_ports(config, warn)
    return config


def _proxy_name(name: str, report: Report) -> str:
    if name and not is_label_value(name):
        report("nftproxy.serviceProxyName", f"{show(name)} is not the value of a label")
    return name


_KUBERNETES_OWN = re.compile(r"(?!(?:ignore|startup)-taint\.cluster-autoscaler\.)(?:.*\.)?(?:kubernetes|k8s)\.io")
"""Domains of taints that Kubernetes sets itself, except for the names of startup taints for its autoscaler."""


def _taint_key(key: str, report: Report) -> str:
    """Parse the key of a taint.  Only Kubernetes itself may remove its own taints."""
    if key and not is_label_key(key):
        report("nftproxy.startupTaint", f"{show(key)} is not the key of a taint, as in nftproxy.dev/not-ready")
    elif _KUBERNETES_OWN.fullmatch(key.rpartition("/")[0]):
        report("nftproxy.startupTaint", f"{show(key)} is one of Kubernetes' own taints, which nftproxy may not remove")
    return key


def _judge_ports(config: Config, warn: Report) -> None:
    """Warn if nftproxy runs beside kube-proxy and has kube-proxy's default port."""
    for field, address, port, free in (
        ("healthzBindAddress", config.healthz_bind_address, HEALTHZ_PORT, CANARY_HEALTHZ_PORT),
        ("metricsBindAddress", config.metrics_bind_address, METRICS_PORT, CANARY_METRICS_PORT),
    ):
        host, _, own = address.rpartition(":")
        if config.is_canary and int(own) == port:
            text = f"{address} is kube-proxy's, and nftproxy runs beside kube-proxy: set it to {host}:{free}"
            warn(field, text, Code.PORT_OF_KUBE_PROXY)


_LONGEST_SOCKET_PATH = 90
"""Bytes: a Unix socket's address may have 107 (unix(7)), and the rest is for the temporary name of the new socket."""


def _socket_path(given: str | None, path: str, report: Report) -> str:
    """Parse an absolute path for a socket.  "" means no socket, and null the default."""
    if given is None:
        return _DEFAULT.agent_socket
    is_path = given.startswith("/") and given.isprintable() and len(given.encode()) <= _LONGEST_SOCKET_PATH
    if given and not is_path:
        report(path, f"{show(given)} is not an absolute path of at most {_LONGEST_SOCKET_PATH} bytes")
    return given


_PORT_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def _port_ranges(given: list[object] | None, path: str, report: Report) -> tuple[PortRange, ...]:
    """Parse ports and ranges, as 22 or "2379-2380".  An empty list protects no port, and null means the default."""
    if given is None:
        return _DEFAULT.protected_ports
    judged = (_port_range(item, f"{path}[{index}]", report) for index, item in enumerate(given))
    return tuple(dict.fromkeys(ports for ports in judged if ports is not None))


def _port_range(value: object, path: str, report: Report) -> PortRange | None:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    parts = _PORT_RANGE.fullmatch(text)
    ports = PortRange(int(parts[1]), int(parts[2] or parts[1])) if parts else None
    if ports is None or not 1 <= ports.first <= ports.last <= 65535:
        report(path, f"{show(value)} is not a port from 1 to 65535, or a range of ports as in 2379-2380")
        return None
    return ports


_ANY = ("0.0.0.0", "::")
_HOSTS = {Family.IPV4: ("0.0.0.0", "127.0.0.1"), Family.IPV6: ("::", "::1")}
"""Where the health and metrics servers listen by default, by the family of bindAddress."""


def _conntrack(given: ConntrackSection, report: Report) -> Conntrack:
    """Parse the section conntrack.  Unlike for other durations, 0 is a value here, and null the default."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(ConntrackSection):
        value, path = getattr(given, field.name), f"conntrack.{field.encode_name}"
        if field.name.endswith("_timeout"):
            value = _duration(value, path, report)
        elif field.name != "tcp_be_liberal" and value is not None:
            value = _integer(value, 0, _COUNTS, path, report)
        found |= {} if value is None else {field.name: value}
    return Conntrack(**found)


_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "": ("nftables", "iptables"),
    "nftables": ("nftables",),
    "iptables": ("iptables", "nftables"),
    "ipvs": ("ipvs", "iptables", "nftables"),
}
"""The sections that may have the common fields of all modes, by mode.  The first section with a value counts.

In IPVS mode kube-proxy takes the periods from its own section, and all else from the section iptables (conversion.go).
Without a mode it is nftables.  An empty text, as kubeadm writes it up to 1.36, is iptables, as kube-proxy takes it
(cmd/kube-proxy/app/server_linux.go, platformApplyDefaults).  Kubernetes 1.40 is to make it nftables (KEP-5343)."""


def _mode(given: KubeProxyConfiguration) -> str:
    """Return the mode, "" without one."""
    return "iptables" if given.mode == "" else given.mode or ""


def _judge_mode(mode: str | None, report: Report, warn: Report) -> None:
    if (mode or "") not in _SECTIONS:
        report("mode", f"{show(mode)} is not a mode of Linux: set it to nftables, or leave it out")
    elif mode not in (None, "nftables"):
        given = mode or "iptables, kube-proxy's default,"
        warn(
            "mode",
            f"{given} runs as nftables: by default node ports are served on the node's primary addresses alone",
            Code.MODE_AS_NFTABLES,
        )


def _of_mode(given: KubeProxyConfiguration, name: str) -> tuple[Any, str]:
    """Return the value of a common field for the mode, and its path."""
    for section in _SECTIONS.get(_mode(given), _SECTIONS[""]):
        value = getattr(getattr(given, section), name, None)
        if value is not None and value is not False and value not in ("", "0", "0s"):
            return value, f"{section}.{_API_NAMES[name]}"
    return None, f"nftables.{_API_NAMES[name]}"


_API_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(Mode)}


def _sync_periods(given: KubeProxyConfiguration, report: Report) -> tuple[float, float]:
    longest = _duration(*_of_mode(given, "sync_period"), report) or _DEFAULT.sync_period
    value, path = _of_mode(given, "min_sync_period")
    shortest = _duration(value, path, report) or _DEFAULT.min_sync_period
    if shortest > longest:
        report(path, f"{shortest:g} s is longer than syncPeriod, {longest:g} s")
    return longest, shortest


def _detect_local_mode(value: str | None, local: DetectLocal, report: Report) -> DetectLocalMode:
    mode = member(value, DetectLocalMode.CLUSTER_CIDR, "detectLocalMode", report)
    if mode is DetectLocalMode.BRIDGE_INTERFACE and not local.bridge_interface:
        report("detectLocal.bridgeInterface", "is missing, and detectLocalMode BridgeInterface needs it")
    if mode is DetectLocalMode.INTERFACE_NAME_PREFIX and not local.interface_name_prefix:
        report("detectLocal.interfaceNamePrefix", "is missing, and detectLocalMode InterfaceNamePrefix needs it")
    return mode


def _cluster_cidrs(text: str, report: Report) -> tuple[Network, ...]:
    found: dict[Family, Network] = {}
    for part in text.split(",") if text else ():
        cidr = network(part.strip(), "clusterCIDR", report)
        if cidr is not None and found.setdefault(family_of(cidr), cidr) != cidr:
            report("clusterCIDR", f"{cidr} is a second {FAMILY_NAMES[family_of(cidr)]} range: at most one is allowed")
    return tuple(found.values())


_EVERY_ADDRESS = (ip_network("0.0.0.0/0"), ip_network("::/0"))


def _node_port_addresses(given: list[object], allows_localhost: bool, report: Report) -> NodePortAddresses:
    """Parse CIDRs and the words primary, localhost and all in any mix (KEP-6032).  No entry means primary (KEP-3866).

    A CIDR of loopback addresses asks for localhost in its family.  A wider CIDR does not: it is meant for the addresses
    on the node's interfaces.
    """
    words = [word for word in ("primary", "localhost", "all") if word in given]
    networks = list(_EVERY_ADDRESS) if "all" in words else []

    def fault(path: str, message: str, code: Code | None = None, /) -> None:
        report(path, message if code else f"{message}, nor primary, localhost or all", code)

    for i, item in enumerate(given):
        if item not in words and (cidr := network(item, f"nodePortAddresses[{i}]", fault)) is not None:
            networks.append(cidr)
    localhost = set(Family) if "localhost" in words else {family_of(cidr) for cidr in networks if cidr.is_loopback}
    return NodePortAddresses(
        primary="primary" in words or not given,
        networks=tuple(dict.fromkeys(cidr for cidr in networks if not cidr.is_loopback)),
        localhost=frozenset(localhost) if allows_localhost else frozenset(),
    )


EXTERNAL_IPS_GATE, LOCALHOST_GATE = _GATES = ("AllowServiceExternalIPs", "KubeProxyNFTablesLocalhostNodePorts")


def _feature_gates(given: dict[str, object], report: Report, warn: Report) -> dict[str, bool]:
    """Parse the two feature gates that count, on by default.  All other gates are named in a single warning."""
    if others := ", ".join(sorted(show(name).strip("'\"") for name in given if name not in _GATES)):
        warn("featureGates", f"these gates have no effect, as no feature here has a gate: {others}")
    for name in _GATES:
        if not isinstance(given.get(name), bool | None):
            report(f"featureGates.{name}", f"{show(given[name])} is not true or false")
    return {name: given.get(name) is not False for name in _GATES}


def _logging(given: LoggingSection, report: Report) -> Logging:
    return Logging(
        member(given.format, LogFormat.TEXT, "logging.format", report),
        _integer(given.verbosity, _DEFAULT.logging.verbosity, _COUNTS, "logging.verbosity", report),
    )


def _hostname(text: str, report: Report) -> str:
    """Parse a node's name, without blanks around it and in lower case, as kube-proxy does (GetHostname)."""
    name = text.strip().lower()
    if name and not is_subdomain(name):
        report("hostnameOverride", f"{show(text)} is not a node's name")
    return name


def _interface(value: str | None, path: str, report: Report, *, longest: int = 15) -> str:
    """Parse an interface's name or its prefix, which has to leave room for the star that nft writes after it."""
    if value and (not INTERFACE.fullmatch(value) or len(value) > longest):
        report(path, f"{show(value)} is not an interface's name (1 to {longest} of A-Z a-z 0-9 _ . @ -)")
    return value or ""


_HOST_PORT = re.compile(r"(?:\[(?P<ipv6>[^\]]*)\]|(?P<ipv4>[^:]*)):(?P<port>[0-9]{1,5})")


def _address_and_port(text: str, default_port: int, path: str, report: Report) -> str:
    """Parse an address and port as "address:port".  The port is optional (AppendPortIfNeeded)."""
    parts = _HOST_PORT.fullmatch(text)
    port = int(parts["port"]) if parts else default_port
    host = node_address((parts["ipv6"] or parts["ipv4"] or "") if parts else text, path, report)
    if not 1 <= port <= 65535:
        report(path, f"{port} is not a port from 1 to 65535")
    return host_port(host or "", port)


_COUNTS = range(2**31)


def _integer(value: int | None, default: int, allowed: range, path: str, report: Report) -> int:
    if value is not None and value not in allowed:
        report(path, f"{show(value)} is not from {allowed[0]} to {allowed[-1]}")
    return default if value is None else value


def _duration(value: object, path: str, report: Report) -> float | None:
    """Parse a duration, and return seconds.  Null and bad durations are None."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return parse_duration(value)
        report(path, f"{show(value)} is not a duration as in 1h30m or 2.5s")
    except ValueError as error:
        report(path, str(error))
    return None
