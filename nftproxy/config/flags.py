"""kube-proxy's command-line flags: the configuration field of each, or the reason why it has no effect.

All flags of kube-proxy 1.36 are here (cmd/kube-proxy/app/options.go, logs/api/v1/options.go in component-base, klog's
own, and the flags of its Windows build).  A flag's text is put into the decoded file, where parse_config.py judges it.
So file and flags accept the same values, and warn of the same fields.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nftproxy.model.annotations import Word
from nftproxy.model.codes import Code
from nftproxy.model.config_fields import ConfigField, FieldForm
from nftproxy.model.errors import Problem


class Flag(NamedTuple):
    """A flag of `run` and the field of the configuration that it sets."""

    name: str
    path: str  # of the configuration field that the flag sets, "" for a flag without effect
    read: Callable[[str], object]  # turns the flag's text into the field's value in the file
    help: str  # for a flag without effect, the reason

    @property
    def is_boolean(self) -> bool:
        """Whether the flag alone means true, as in Go."""
        return self.read is truth

    @property
    def is_list(self) -> bool:
        """Whether the flag may be repeated, which adds to its list."""
        return self.read in (_words, _gates)


_WHOLE = re.compile(r"-?[0-9]{1,18}")
"""Texts of 64-bit numbers."""


def _number(text: str) -> object:
    """Return a whole number.  Other text is left for parse_config.py to judge.  Go's -v=4 arrives as the text "=4"."""
    text = text.removeprefix("=")
    return int(text) if _WHOLE.fullmatch(text) else text


_TRUTHS = dict.fromkeys("1 t T true TRUE True".split(), True) | dict.fromkeys("0 f F false FALSE False".split(), False)
"""Go's booleans (strconv.ParseBool)."""


def truth(text: str) -> object:
    """Return a boolean in Go's notation.  Other text is left for parse_config.py to judge."""
    return _TRUTHS.get(text, text)


def _words(text: str) -> object:
    return [word.strip() for word in text.split(",") if word.strip()]


def _gates(text: str) -> object:
    """Return feature gates from "Name=true,Other=false"."""
    return {name.strip(): truth(value) for name, _, value in (gate.partition("=") for gate in text.split(",") if gate)}


FLAGS = (
    Flag("bind-address", "bindAddress", str, "Its family is that of the default addresses of health and metrics."),
    Flag("bind-address-hard-fail", "bindAddressHardFail", truth, "Whether a port in use ends the agent."),
    Flag("cluster-cidr", "clusterCIDR", str, "The ranges of the cluster's pods, at most one for each family."),
    Flag("config-sync-period", "configSyncPeriod", str, "Without effect."),
    Flag("conntrack-max-per-core", "conntrack.maxPerCore", _number, "A number.  0 leaves the limit alone."),
    Flag("conntrack-min", "conntrack.min", _number, "A number."),
    Flag("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", truth, "Whether packets outside the TCP window pass."),
    Flag("conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", str, "A duration."),
    Flag("conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", str, "A duration."),
    Flag("conntrack-udp-timeout", "conntrack.udpTimeout", str, "A duration."),
    Flag("conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", str, "A duration."),
    Flag("detect-local-mode", "detectLocalMode", str, "How to recognise local sources."),
    Flag("enable-dsr", "winkernel.enableDSR", truth, "Without effect."),
    Flag("feature-gates", "featureGates", _gates, "AllowServiceExternalIPs=true|false."),
    Flag("forward-healthcheck-vip", "winkernel.forwardHealthCheckVip", truth, "Without effect."),
    Flag("healthz-bind-address", "healthzBindAddress", str, "The address of the health server."),
    Flag("hostname-override", "hostnameOverride", str, "This node's name in the cluster."),
    Flag("iptables-localhost-nodeports", "iptables.localhostNodePorts", truth, "Without effect."),
    Flag("iptables-masquerade-bit", "iptables.masqueradeBit", _number, "For mode iptables or ipvs."),
    Flag("iptables-min-sync-period", "nftables.minSyncPeriod", str, "A duration, for every mode but ipvs."),
    Flag("iptables-sync-period", "nftables.syncPeriod", str, "A duration, for every mode but ipvs."),
    Flag("ipvs-exclude-cidrs", "ipvs.excludeCIDRs", _words, "Without effect."),
    Flag("ipvs-min-sync-period", "ipvs.minSyncPeriod", str, "A duration, for mode ipvs."),
    Flag("ipvs-scheduler", "ipvs.scheduler", str, "For mode ipvs, the default of --algorithm."),
    Flag("ipvs-strict-arp", "ipvs.strictARP", truth, "Without effect."),
    Flag("ipvs-sync-period", "ipvs.syncPeriod", str, "A duration, for mode ipvs."),
    Flag("ipvs-tcp-timeout", "ipvs.tcpTimeout", str, "Without effect."),
    Flag("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", str, "Without effect."),
    Flag("ipvs-udp-timeout", "ipvs.udpTimeout", str, "Without effect."),
    Flag("kube-api-burst", "clientConnection.burst", _number, "Without effect."),
    Flag("kube-api-content-type", "clientConnection.contentType", str, "Without effect."),
    Flag("kube-api-qps", "clientConnection.qps", str, "Without effect."),
    Flag("kubeconfig", "clientConnection.kubeconfig", str, "The kubeconfig for the API server."),
    Flag("log-flush-frequency", "logging.flushFrequency", str, "Without effect."),
    Flag("log-json-info-buffer-size", "logging.options.json.infoBufferSize", str, "Without effect."),
    Flag("log-json-split-stream", "logging.options.json.splitStream", truth, "Without effect."),
    Flag("log-text-info-buffer-size", "logging.options.text.infoBufferSize", str, "Without effect."),
    Flag("log-text-split-stream", "logging.options.text.splitStream", truth, "Without effect."),
    Flag("logging-format", "logging.format", str, "text or json."),
    Flag("masquerade-all", "nftables.masqueradeAll", truth, "Whether all packets to ClusterIPs are masqueraded."),
    Flag("metrics-bind-address", "metricsBindAddress", str, "The address of the metrics server."),
    Flag("network-name", "winkernel.networkName", str, "Without effect."),
    Flag("nodeport-addresses", "nodePortAddresses", _words, "CIDRs, primary, localhost, all."),
    Flag("oom-score-adj", "oomScoreAdj", _number, "A number."),
    Flag("pod-bridge-interface", "detectLocal.bridgeInterface", str, "An interface."),
    Flag("pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", str, "How names of pods' interfaces begin."),
    Flag("profiling", "enableProfiling", truth, "Without effect."),
    Flag("proxy-mode", "mode", str, "nftables.  iptables and ipvs run as nftables."),
    Flag("proxy-port-range", "portRange", str, "Without effect."),
    Flag("root-hnsendpoint-name", "winkernel.rootHnsEndpointName", str, "Without effect."),
    Flag("show-hidden-metrics-for-version", "showHiddenMetricsForVersion", str, "Without effect."),
    Flag("source-vip", "winkernel.sourceVip", str, "Without effect."),
    Flag("v", "logging.verbosity", _number, "The log's verbosity: 4 each step, 6 each request, 8 everything."),
    Flag("vmodule", "logging.vmodule", _words, "Without effect."),
    Flag("windows-run-as-service", "windowsRunAsService", truth, "Without effect."),
)
"""The flags that set a field of kube-proxy's configuration."""

_ONE_LOG = "the log goes to standard error, with the time and level in each line"
_NO_MACHINE = "nftproxy doesn't need to identify the machine"

OTHER_FLAGS = (
    Flag("add-dir-header", "", truth, _ONE_LOG),
    Flag("alsologtostderr", "", truth, _ONE_LOG),
    Flag("boot-id-file", "", str, _NO_MACHINE),
    Flag("healthz-port", "", _number, "health is served at --healthz-bind-address"),
    Flag("log-backtrace-at", "", str, _ONE_LOG),
    Flag("log-dir", "", str, _ONE_LOG),
    Flag("log-file", "", str, _ONE_LOG),
    Flag("log-file-max-size", "", _number, _ONE_LOG),
    Flag("logtostderr", "", truth, _ONE_LOG),
    Flag("machine-id-file", "", str, _NO_MACHINE),
    Flag("metrics-port", "", _number, "metrics are served at --metrics-bind-address"),
    Flag("one-output", "", truth, _ONE_LOG),
    Flag("skip-headers", "", truth, _ONE_LOG),
    Flag("skip-log-headers", "", truth, _ONE_LOG),
    Flag("stderrthreshold", "", str, _ONE_LOG),
)
"""The flags without a field, each with nftproxy's behaviour instead."""

OWN_FLAGS = (
    Flag("agent-socket", "nftproxy.agentSocket", str, "The socket for `nftproxy status` and `list`."),
    Flag("element-budget", "nftproxy.elementBudget", _number, "Elements of all Services together."),
    Flag("external-ip-cidrs", "nftproxy.externalIPCIDRs", _words, "The CIDRs in which externalIPs are served."),
    Flag("masquerade-fully-random", "nftproxy.masqueradeFullyRandom", truth, "Random source ports for TCP, too."),
    Flag("service-proxy-name", "nftproxy.serviceProxyName", str, "Serve just the Services with this label value."),
    Flag("startup-taint", "nftproxy.startupTaint", str, "The key of a taint to remove once all rules are loaded."),
    Flag("protected-ports", "nftproxy.protectedPorts", _words, "The node's own ports that Services can't claim."),
)
"""The flags that kube-proxy doesn't have, without those of declared fields."""


def flag_of(field: ConfigField[Any]) -> Flag:
    """Return the flag of a declared field: --fast-path-interfaces for fastPath.interfaces."""
    name = re.sub(r"\.|(?=[A-Z])", "-", field.name).lower()
    if field.form is FieldForm.TRUTH:
        return Flag(name, field.path, truth, field.help)
    is_list = not isinstance(field.form, Word) or field.form.is_list
    return Flag(name, field.path, _words if is_list else str, field.help)


def override(
    raw: Mapping[str, Any], given: Mapping[str, str], declared: Sequence[ConfigField[Any]] = ()
) -> dict[str, Any]:
    """Return a decoded configuration file with flags laid over it.

    Args:
        raw: the file.
        given: flags' texts by their names.
        declared: the fields that extensions declare.
    """
    laid = copy.deepcopy(dict(raw))
    for flag in (*FLAGS, *OWN_FLAGS, *map(flag_of, declared)):
        if flag.name in given:
            *sections, field = flag.path.split(".")
            place = laid
            for section in sections:
                inner = place.get(section)
                place[section] = inner = dict(inner) if isinstance(inner, Mapping) else {}
                place = inner
            place[field] = flag.read(given[flag.name])
    return laid


def flags_by_path(given: Mapping[str, str], declared: Sequence[ConfigField[Any]] = ()) -> dict[str, str]:
    """Return the names of the flags that are given, by the paths of the fields that they override."""
    flags = (*FLAGS, *OWN_FLAGS, *map(flag_of, declared))
    return {flag.path: flag.name for flag in flags if flag.name in given}


def other_warnings(given: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a warning for each given flag without a field."""
    given_ones = (flag for flag in OTHER_FLAGS if flag.name in given)
    return (Problem(f"--{flag.name}", "", "", flag.help, Code.CONFIGURATION_UNUSED) for flag in given_ones)
