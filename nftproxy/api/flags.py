"""kube-proxy's command-line flags, as fields of the configuration file that they override.

Only flags whose fields nftproxy uses are known (cmd/kube-proxy/app/options.go).  A flag's text goes to where the file
would have said the same, and is judged there by config.py, so that file and flags can't differ in what they accept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Flag(NamedTuple):
    """One flag: its field's path, and how its text becomes what the file would have there."""

    name: str
    path: str
    read: Callable[[str], object]
    help: str


def _number(text: str) -> object:
    """A whole number; what is none is left for config.py to refuse."""
    return int(text) if text.lstrip("-").isdecimal() else text


def _truth(text: str) -> object:
    return {"true": True, "false": False}.get(text.lower(), text)


def _words(text: str) -> object:
    return [word.strip() for word in text.split(",") if word.strip()]


def _gates(text: str) -> object:
    """Feature gates from "Name=true,Other=false"."""
    return {name: _truth(value) for name, _, value in (gate.partition("=") for gate in text.split(",") if gate)}


FLAGS = (
    Flag("bind-address", "bindAddress", str, "A hint for the node's address."),
    Flag("bind-address-hard-fail", "bindAddressHardFail", _truth, "Whether a port that is taken is fatal."),
    Flag("cluster-cidr", "clusterCIDR", str, "The range of the cluster's pods, one a family."),
    Flag("config-sync-period", "configSyncPeriod", str, "A duration."),
    Flag("conntrack-max-per-core", "conntrack.maxPerCore", _number, "A number; 0 leaves the limit alone."),
    Flag("conntrack-min", "conntrack.min", _number, "A number."),
    Flag("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", _truth, "true or false."),
    Flag("conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", str, "A duration."),
    Flag("conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", str, "A duration."),
    Flag("conntrack-udp-timeout", "conntrack.udpTimeout", str, "A duration."),
    Flag("conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", str, "A duration."),
    Flag("detect-local-mode", "detectLocalMode", str, "How local sources are told."),
    Flag("feature-gates", "featureGates", _gates, "AllowServiceExternalIPs=true|false."),
    Flag("healthz-bind-address", "healthzBindAddress", str, "Where health is answered."),
    Flag("hostname-override", "hostnameOverride", str, "This node's name in the cluster."),
    Flag("kubeconfig", "clientConnection.kubeconfig", str, "How to reach the API server."),
    Flag("masquerade-all", "nftables.masqueradeAll", _truth, "true or false."),
    Flag("metrics-bind-address", "metricsBindAddress", str, "Where metrics are answered."),
    Flag("nodeport-addresses", "nodePortAddresses", _words, "CIDRs, or primary."),
    Flag("oom-score-adj", "oomScoreAdj", _number, "A number."),
    Flag("pod-bridge-interface", "detectLocal.bridgeInterface", str, "An interface."),
    Flag("pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", str, "What pods' interfaces begin with."),
    Flag("proxy-mode", "mode", str, "nftables."),
)


def override(raw: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """A decoded configuration file with flags laid over it; `given` has flags' texts by their names."""
    laid = copy.deepcopy(dict(raw))
    for flag in FLAGS:
        if flag.name in given:
            *sections, field = flag.path.split(".")
            place = laid
            for section in sections:
                inner = place.get(section)
                place[section] = inner = dict(inner) if isinstance(inner, Mapping) else {}
                place = inner
            place[field] = flag.read(given[flag.name])
    return laid
