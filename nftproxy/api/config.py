"""KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1): the file that kube-proxy takes, as nftproxy takes it.

It is read in two steps, like objects of the cluster: config_shapes.py says which fields are used and of what type, the
functions below which values are allowed.  Unlike there, a fault is fatal, as a proxy with half of its configuration
would be guessing; all faults are gathered and raised together.  A field that is absent, null, "" or a zero duration has
its default, as kube-proxy does (pkg/proxy/apis/config/v1alpha1/defaults.go): kubeadm writes them all out like that.

Fields that kube-proxy doesn't have are in a section of their own, `nftproxy`.

Fields that kube-proxy knows and nftproxy doesn't use are a warning that says what happens instead
(unused_fields.py); so are unknown ones, since a file for a newer version should still start an older one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from types import MappingProxyType
from typing import Any

import msgspec

from nftproxy.api.config_shapes import (
    ClientConnection,
    ConntrackSection,
    DetectLocal,
    KubeProxyConfiguration,
    LoggingSection,
    Mode,
    Nftproxy,
)
from nftproxy.api.decode import Report, convert, show
from nftproxy.api.durations import parse_duration
from nftproxy.api.unused_fields import UNKNOWN, without_effect
from nftproxy.api.validate import is_label_key, is_label_value, is_subdomain, network, node_address, several
from nftproxy.model.addresses import FAMILY_NAMES, Family, Network, family_of, host_port
from nftproxy.model.codes import Code
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
    raw: object, source: str, flags: Mapping[str, str] = MappingProxyType({})
) -> tuple[Config, list[Problem]]:
    """The configuration in a decoded file, and a warning for each field in it that isn't used or known.

    `flags` are the names of the flags that have taken a field's place, by the field's path: they are named instead.

    Raises:
        BadInput: it is no KubeProxyConfiguration v1alpha1, or has wrong types or values; every fault is listed.
    """
    faults: list[Problem] = []
    warnings: list[Problem] = []

    def problem(field: str, message: str, code: Code) -> Problem:
        flag = flags.get(field.partition("[")[0])
        return Problem(f"--{flag}", "", "", message, code) if flag else Problem(source, KIND, field, message, code)

    def report(field: str, message: str, code: Code | None = None, /) -> None:
        faults.append(problem(field, message, code or Code.CONFIGURATION_INVALID))

    def warn(field: str, message: str, code: Code | None = None, /) -> None:
        warnings.append(problem(field, message, code or Code.CONFIGURATION_UNUSED))

    if not isinstance(raw, Mapping):
        raise BadInput([Problem(source, "", "", f"{show(raw)} is not a {KIND}", Code.CONFIGURATION_INVALID)])
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if raw.get(field) != wanted:
            report(field, f"{show(raw.get(field))} is not {wanted}")
    if faults:  # whatever this is, its other fields mean something else
        raise BadInput(faults)
    given = convert(raw, KubeProxyConfiguration, report) or KubeProxyConfiguration()
    config = _config(given, report, warn)
    if faults:
        raise BadInput(faults)
    for field, message in without_effect(raw, KubeProxyConfiguration, given.mode or ""):
        warn(field, message, Code.CONFIGURATION_UNKNOWN_FIELD if message == UNKNOWN else None)
    return config, warnings


def _config(given: KubeProxyConfiguration, report: Report, warn: Report) -> Config:
    _judge_mode(given.mode or "", report, warn)
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
        node_port_addresses=_node_port_addresses(given.node_port_addresses or [], gates[_LOCALHOST], report),
        allow_service_external_ips=gates[_EXTERNAL_IPS],
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
        service_counts=bool(own.service_counts),
        agent_socket=_socket_path(own.agent_socket, "nftproxy.agentSocket", report),
    )
    _judge_ports(config, warn)
    return config


def _proxy_name(name: str, report: Report) -> str:
    if name and not is_label_value(name):
        report("nftproxy.serviceProxyName", f"{show(name)} is not the value of a label")
    return name


_KUBERNETES_OWN = re.compile(r"(?!(?:ignore|startup)-taint\.cluster-autoscaler\.)(?:.*\.)?(?:kubernetes|k8s)\.io")
"""Domains of taints that Kubernetes sets, except for those by which its autoscaler knows startup taints."""


def _taint_key(key: str, report: Report) -> str:
    """The key of a taint, which isn't one that Kubernetes sets itself: nobody else may remove those."""
    if key and not is_label_key(key):
        report("nftproxy.startupTaint", f"{show(key)} is not the key of a taint, as in nftproxy.dev/not-ready")
    elif _KUBERNETES_OWN.fullmatch(key.rpartition("/")[0]):
        report("nftproxy.startupTaint", f"{show(key)} is one of Kubernetes' own taints, which are not ours to remove")
    return key


def _judge_ports(config: Config, warn: Report) -> None:
    """Beside another proxy the ports that every proxy has by default are that one's."""
    for field, address, port, free in (
        ("healthzBindAddress", config.healthz_bind_address, HEALTHZ_PORT, CANARY_HEALTHZ_PORT),
        ("metricsBindAddress", config.metrics_bind_address, METRICS_PORT, CANARY_METRICS_PORT),
    ):
        host, _, own = address.rpartition(":")
        if config.is_canary and int(own) == port:
            text = f"{address} is where kube-proxy listens, beside which this is to run: set it to {host}:{free}"
            warn(field, text, Code.PORT_OF_KUBE_PROXY)


_LONGEST_SOCKET_PATH = 90
"""Bytes: of the 107 that a Unix socket's address may have (unix(7)), the rest is for the name that it is made under."""


def _socket_path(given: str | None, path: str, report: Report) -> str:
    """An absolute path that a socket can have; "" for no socket, and null the default."""
    if given is None:
        return _DEFAULT.agent_socket
    is_path = given.startswith("/") and given.isprintable() and len(given.encode()) <= _LONGEST_SOCKET_PATH
    if given and not is_path:
        report(path, f"{show(given)} is not an absolute path of at most {_LONGEST_SOCKET_PATH} bytes")
    return given


_PORT_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def _port_ranges(given: list[object] | None, path: str, report: Report) -> tuple[PortRange, ...]:
    """Ports and ranges of ports, as 22 or "2379-2380"; an empty list is none at all, and null the default."""
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
    """The section conntrack; its timeouts differ from other durations in that 0 is a value, and null the default."""
    default = _DEFAULT.conntrack

    def timeout(value: object, otherwise: float, field: str) -> float:
        found = _duration(value, f"conntrack.{field}", report)
        return otherwise if found is None else found

    return Conntrack(
        max_per_core=_integer(given.max_per_core, default.max_per_core, _COUNTS, "conntrack.maxPerCore", report),
        min=_integer(given.min, default.min, _COUNTS, "conntrack.min", report),
        tcp_established_timeout=timeout(
            given.tcp_established_timeout, default.tcp_established_timeout, "tcpEstablishedTimeout"
        ),
        tcp_close_wait_timeout=timeout(
            given.tcp_close_wait_timeout, default.tcp_close_wait_timeout, "tcpCloseWaitTimeout"
        ),
        udp_timeout=timeout(given.udp_timeout, default.udp_timeout, "udpTimeout"),
        udp_stream_timeout=timeout(given.udp_stream_timeout, default.udp_stream_timeout, "udpStreamTimeout"),
        tcp_be_liberal=bool(given.tcp_be_liberal),
    )


_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "": ("nftables", "iptables"),
    "nftables": ("nftables",),
    "iptables": ("iptables", "nftables"),
    "ipvs": ("ipvs", "iptables", "nftables"),
}
"""By mode, the sections that what all modes have is looked for in; the first that says something counts.

In IPVS mode kube-proxy takes the periods from its own section and all else from that of iptables (conversion.go).  An
empty mode is nftables here and iptables there."""


def _judge_mode(mode: str, report: Report, warn: Report) -> None:
    if mode not in _SECTIONS:
        report("mode", f"{show(mode)} is not a mode of Linux: set it to nftables, or leave it out")
    elif mode not in ("", "nftables"):
        warn(
            "mode",
            f"{mode} runs as nftables: by default node ports are served on the node's primary addresses alone",
            Code.MODE_AS_NFTABLES,
        )


def _of_mode(given: KubeProxyConfiguration, name: str) -> tuple[Any, str]:
    """What the mode's section says of a field, and its path."""
    for section in _SECTIONS.get(given.mode or "", _SECTIONS[""]):
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
    modes = {mode.value: mode for mode in DetectLocalMode}
    mode = modes.get(value or DetectLocalMode.CLUSTER_CIDR.value)
    if mode is None:
        report("detectLocalMode", f"{show(value)} is not one of {', '.join(modes)}")
    if mode is DetectLocalMode.BRIDGE_INTERFACE and not local.bridge_interface:
        report("detectLocal.bridgeInterface", "is missing, and detectLocalMode BridgeInterface needs it")
    if mode is DetectLocalMode.INTERFACE_NAME_PREFIX and not local.interface_name_prefix:
        report("detectLocal.interfaceNamePrefix", "is missing, and detectLocalMode InterfaceNamePrefix needs it")
    return mode or DetectLocalMode.CLUSTER_CIDR


def _cluster_cidrs(text: str, report: Report) -> tuple[Network, ...]:
    found: dict[Family, Network] = {}
    for part in text.split(",") if text else ():
        cidr = network(part.strip(), "clusterCIDR", report)
        if cidr is not None and found.setdefault(family_of(cidr), cidr) != cidr:
            report("clusterCIDR", f"{cidr} is a second {FAMILY_NAMES[family_of(cidr)]} range: at most one is allowed")
    return tuple(found.values())


_EVERY_ADDRESS = (ip_network("0.0.0.0/0"), ip_network("::/0"))


def _node_port_addresses(given: list[object], allows_localhost: bool, report: Report) -> NodePortAddresses:
    """CIDRs and the words primary, localhost and all in any mix (KEP-6032); nothing means primary (KEP-3866).

    A CIDR of loopback addresses asks for localhost in its family.  A wider one does not: what that is meant for is the
    addresses on the node's interfaces.
    """
    words = [word for word in ("primary", "localhost", "all") if word in given]
    networks = list(_EVERY_ADDRESS) if "all" in words else []

    def fault(path: str, message: str, code: Code | None = None, /) -> None:
        report(path, f"{message}, nor primary, localhost or all", code)

    for i, item in enumerate(given):
        if item not in words and (cidr := network(item, f"nodePortAddresses[{i}]", fault)) is not None:
            networks.append(cidr)
    localhost = set(Family) if "localhost" in words else {family_of(cidr) for cidr in networks if cidr.is_loopback}
    return NodePortAddresses(
        primary="primary" in words or not given,
        networks=tuple(dict.fromkeys(cidr for cidr in networks if not cidr.is_loopback)),
        localhost=frozenset(localhost) if allows_localhost else frozenset(),
    )


_EXTERNAL_IPS, _LOCALHOST = _GATES = ("AllowServiceExternalIPs", "KubeProxyNFTablesLocalhostNodePorts")


def _feature_gates(given: dict[str, object], report: Report, warn: Report) -> dict[str, bool]:
    """The feature gates that count, all on by default; the others are named in one warning."""
    if others := ", ".join(sorted(show(name).strip("'\"") for name in given if name not in _GATES)):
        warn("featureGates", f"these have no effect, as nothing here waits for a gate: {others}")
    for name in _GATES:
        if not isinstance(given.get(name), bool | None):
            report(f"featureGates.{name}", f"{show(given[name])} is not true or false")
    return {name: given.get(name) is not False for name in _GATES}


def _logging(given: LoggingSection, report: Report) -> Logging:
    formats = {each.value: each for each in LogFormat}
    if given.format and given.format not in formats:
        report("logging.format", f"{show(given.format)} is not one of {', '.join(formats)}")
    return Logging(
        formats.get(given.format or "", LogFormat.TEXT),
        _integer(given.verbosity, _DEFAULT.logging.verbosity, _COUNTS, "logging.verbosity", report),
    )


def _hostname(text: str, report: Report) -> str:
    """A node's name, without blanks around it and in lower case, as kube-proxy has it (GetHostname)."""
    name = text.strip().lower()
    if name and not is_subdomain(name):
        report("hostnameOverride", f"{show(text)} is not a node's name")
    return name


_INTERFACE = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.@-]{1,15}")
"""What the kernel takes for an interface's name (IFNAMSIZ, dev_valid_name), except what nft or a shell would read
otherwise: quotes, stars, other signs, anything beyond ASCII."""


def _interface(value: str | None, path: str, report: Report, *, longest: int = 15) -> str:
    """An interface's name, or the beginning of one: this has to leave room for the star that nft writes after it."""
    if value and (not _INTERFACE.fullmatch(value) or len(value) > longest):
        report(path, f"{show(value)} is not an interface's name (1 to {longest} of A-Z a-z 0-9 _ . @ -)")
    return value or ""


_HOST_PORT = re.compile(r"(?:\[(?P<ipv6>[^\]]*)\]|(?P<ipv4>[^:]*)):(?P<port>[0-9]{1,5})")


def _address_and_port(text: str, default_port: int, path: str, report: Report) -> str:
    """An address and port as "address:port"; the port may be left out (AppendPortIfNeeded)."""
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
    """A duration in seconds; None for null and, reported, for what is none."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return parse_duration(value)
        report(path, f"{show(value)} is not a duration as in 1h30m or 2.5s")
    except ValueError as error:
        report(path, str(error))
    return None
