"""Read kube-proxy's own statements: its configuration (a file, a ConfigMap, /configz) and two of its metrics.

/configz shows internal values, whose fields have Go's names (`NodePortAddresses`, `Linux.Conntrack`, as of 1.31).  So
names are compared without regard to capitals, and conntrack is looked for in both places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nftproxy.config.declared_fields import Fields
from nftproxy.config.flags import FLAGS, other_warnings, override
from nftproxy.config.parse_config import API_VERSION, parse_config
from nftproxy.doctor.observations import KubeProxyConfigFacts, KubeProxyMetrics
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput

CONFIGZ = API_VERSION.partition("/")[0]
"""The name of kube-proxy's configuration in /configz."""
DEFAULT_MODE = "iptables"
"""kube-proxy's mode on Linux where the configuration has none."""
INVALID_DROPPED = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
LOCALHOST_ACCEPTED = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"
"""Metrics of kube-proxy 1.31 and later, in iptables mode (pkg/proxy/metrics)."""


def read_configuration(
    document: Mapping[str, object], source: str, flags: Mapping[str, str], declared: Fields
) -> KubeProxyConfigFacts:
    """Read a KubeProxyConfiguration, overridden by flags (text by name), with the fields that extensions declare."""
    laid = override(document, {name: text for name, text in flags.items() if name != "config"})
    try:
        _, problems = parse_config(laid, source, declared)
        faults: Iterable[object] = ()
    except BadInput as error:
        problems, faults = [], error.problems
    covered = (Code.MODE_AS_NFTABLES, Code.IPVS_SCHEDULER)  # by other findings
    others = (each for each in problems if each.code not in covered)
    return _configuration(laid, source, map(str, (*others, *other_warnings(flags))), faults)


def read_configz(document: object) -> Mapping[str, object] | None:
    """Return kube-proxy's values in an answer of /configz, None if another program has answered."""
    values = document.get(CONFIGZ) if isinstance(document, Mapping) else None
    return values if isinstance(values, Mapping) and "nftproxy" not in values else None


def of_configz(values: Mapping[str, object], source: str) -> KubeProxyConfigFacts:
    """Read the values of /configz.  As they are no file, nftproxy's warnings about them are unknown."""
    return _configuration(values, source, (), ())


def flags_of(arguments: Iterable[str]) -> dict[str, str]:
    """Return the flags of kube-proxy's command line: text by name."""
    booleans = {flag.name for flag in FLAGS if flag.is_boolean}
    found: dict[str, str] = {}
    waiting = ""
    for word in arguments:
        if word.startswith("--"):
            name, equals, text = word.removeprefix("--").partition("=")
            name = name.replace("_", "-")
            waiting = "" if equals or name in booleans else name
            found[name] = text if equals else "true"
        elif waiting:
            found[waiting], waiting = word, ""
    return found


def _configuration(
    given: Mapping[str, object], source: str, problems: Iterable[str], faults: Iterable[object]
) -> KubeProxyConfigFacts:
    addresses = _at(given, "nodeportaddresses")
    liberal = _at(given, "conntrack.tcpbeliberal") or _at(given, "linux.conntrack.tcpbeliberal")
    return KubeProxyConfigFacts(
        source=source,
        mode=str(_at(given, "mode") or DEFAULT_MODE),
        node_port_addresses=tuple(map(str, addresses)) if isinstance(addresses, list) else (),
        tcp_be_liberal=liberal is True,
        localhost_node_ports=_at(given, "iptables.localhostnodeports") is not False,
        scheduler=str(_at(given, "ipvs.scheduler") or ""),
        bridge=str(_at(given, "detectlocal.bridgeinterface") or ""),
        knows_local_sources=bool(_at(given, "clustercidr"))
        or _at(given, "detectlocalmode") not in (None, "", "ClusterCIDR"),
        takes_node_range=_at(given, "detectlocalmode") == "NodeCIDR",
        problems=tuple(problems),
        faults=tuple(map(str, faults)),
    )


def _at(given: object, path: str) -> object:
    """The value at a path of names without capitals, None if it is missing."""
    for step in path.split("."):
        values = given if isinstance(given, Mapping) else {}
        given = next((value for name, value in values.items() if str(name).lower() == step), None)
    return given


def read_metrics(source: str, text: str) -> KubeProxyMetrics:
    """Read two metrics from the Prometheus text format, None if absent or no number."""
    return KubeProxyMetrics(source, _total(text, INVALID_DROPPED), _total(text, LOCALHOST_ACCEPTED))


def _total(text: str, name: str) -> int | None:
    """The sum over all labels: today the metrics have none, and may get one for each IP family."""
    values = re.findall(rf"^{name}(?:\{{[^}}\n]*\}})? ([0-9.]+(?:e\+?[0-9]+)?)", text, re.MULTILINE)
    try:
        return int(sum(map(float, values))) if values else None
    except (OverflowError, ValueError):
        return None
