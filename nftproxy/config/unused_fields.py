"""The fields of KubeProxyConfiguration that nftproxy knows and doesn't use, each with its replacement.

A file written for kube-proxy starts this proxy, and the log has a warning for each field without effect.  kubeadm and
`kube-proxy --write-config-to` write all fields, so a field with its default causes no warning.

The list is from Kubernetes 1.36 (staging/src/k8s.io/kube-proxy/config/v1alpha1/types.go, and logs/api/v1/types.go in
component-base), with the new fields of 1.37 and the former fields of versions before 1.27.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nftproxy.api.decode import Shape, inner_shapes, join, show

UNKNOWN = "unknown field"


class Unused(NamedTuple):
    """A field that isn't used."""

    instead: str  # nftproxy's behaviour instead
    default: tuple[object, ...] = ()  # the values that count as absent, beside null, zero, "" and empty lists
    used_in: frozenset[str] = frozenset()  # the modes in which the field is used after all


_NO_WINDOWS = Unused("it is for Windows")
_UNBUFFERED = Unused("each line of the log is written to standard error at once", ("0", "5s", 5 * 10**9))
_IN_OLDER_MODES = frozenset({"", "iptables", "ipvs"})
_IPVS_TIMEOUT = Unused("connections are followed by conntrack, whose timeouts are in the section conntrack")


def _of_another_mode(field: str, default: object, used_in: frozenset[str] = _IN_OLDER_MODES) -> Unused:
    return Unused(f"in this mode nftables.{field} is used", (default,), used_in)


UNUSED: Mapping[str, Unused] = {
    "clientConnection.acceptContentTypes": Unused("the API is asked for JSON"),
    "clientConnection.contentType": Unused("the API is asked for JSON", ("application/vnd.kubernetes.protobuf",)),
    "clientConnection.qps": Unused("there is one watch for each resource, and nothing to limit", (5, 5.0)),
    "clientConnection.burst": Unused("there is one watch for each resource, and nothing to limit", (10,)),
    "configSyncPeriod": Unused("objects are listed anew when a watch has missed something", ("15m0s", "15m")),
    "enableProfiling": Unused("there is nothing at /debug/pprof"),
    "showHiddenMetricsForVersion": Unused("no metric is hidden"),
    "iptables.localhostNodePorts": Unused("node ports are served on 127.0.0.1 only as nodePortAddresses says"),
    "iptables.snatNodeInternalIP": Unused("packets are masqueraded with the address of the interface they leave by"),
    "iptables.masqueradeAll": _of_another_mode("masqueradeAll", False),
    "iptables.masqueradeBit": _of_another_mode("masqueradeBit", 14),
    "iptables.syncPeriod": _of_another_mode("syncPeriod", "30s"),
    "iptables.minSyncPeriod": _of_another_mode("minSyncPeriod", "1s"),
    "ipvs.syncPeriod": _of_another_mode("syncPeriod", "30s", frozenset({"ipvs"})),
    "ipvs.minSyncPeriod": _of_another_mode("minSyncPeriod", "1s", frozenset({"ipvs"})),
    "ipvs.scheduler": Unused("nftproxy.algorithm says how endpoints are chosen", (), frozenset({"ipvs"})),
    "ipvs.excludeCIDRs": Unused("no virtual server of IPVS is touched"),
    "ipvs.strictARP": Unused("no interface gets the Services' addresses, so nobody answers ARP requests for them"),
    "ipvs.tcpTimeout": _IPVS_TIMEOUT,
    "ipvs.tcpFinTimeout": _IPVS_TIMEOUT,
    "ipvs.udpTimeout": _IPVS_TIMEOUT,
    "winkernel.networkName": _NO_WINDOWS,
    "winkernel.sourceVip": _NO_WINDOWS,
    "winkernel.enableDSR": _NO_WINDOWS,
    "winkernel.rootHnsEndpointName": _NO_WINDOWS,
    "winkernel.forwardHealthCheckVip": _NO_WINDOWS,
    "windowsRunAsService": _NO_WINDOWS,
    "logging.flushFrequency": _UNBUFFERED,
    "logging.vmodule": Unused("logging.verbosity counts for all modules alike"),
    "logging.options.text.splitStream": _UNBUFFERED,
    "logging.options.text.infoBufferSize": _UNBUFFERED,
    "logging.options.json.splitStream": _UNBUFFERED,
    "logging.options.json.infoBufferSize": _UNBUFFERED,
    "portRange": Unused("no port is opened on behalf of Services"),
    "metadata": Unused("a configuration has no name"),
    "conntrack.max": Unused("kube-proxy has not had it since Kubernetes 1.18: see conntrack.maxPerCore"),
    "resourceContainer": Unused("kube-proxy has not had it since Kubernetes 1.16"),
    "udpIdleTimeout": Unused("kube-proxy has not had it since Kubernetes 1.26: see conntrack.udpTimeout"),
}

_SECTIONS = frozenset(
    ".".join(steps[:depth]) for steps in (path.split(".") for path in UNUSED) for depth in range(1, len(steps))
)


def without_effect(
    value: Mapping[object, object], shape: type[Shape] | None, mode: str, path: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the path of each field without effect in a decoded configuration, and the reason.

    Args:
        value: the configuration, or its section at `path`.
        shape: the fields that are used, None for a section of which no field is used.
        mode: the proxy mode in the configuration.
        path: the path of the section, "" for all.
    """
    used = inner_shapes(shape) if shape else {}
    for name, inner in value.items():
        here = join(path, name if isinstance(name, str) and name.isidentifier() else show(name))
        section = used.get(str(name))
        if row := UNUSED.get(here):
            if _says_something(inner, row) and mode not in row.used_in:
                yield here, f"has no effect: {row.instead}"
        elif section or here in _SECTIONS:
            yield from without_effect(inner, section, mode, here) if isinstance(inner, Mapping) else ()
        elif name not in used:
            yield here, UNKNOWN


_NOTHING: tuple[object, ...] = (None, False, 0, "", "0s", "0", [], {})


def _says_something(value: object, row: Unused) -> bool:
    return value not in _NOTHING and value not in row.default
