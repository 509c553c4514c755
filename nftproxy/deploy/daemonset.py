"""Make the manifests that run the agent on a cluster, from options, a configuration and a distribution.

The template (agent.yaml.j2) loops over values and takes no decision.  An unknown value is no blank to fill in but an
error, which names the option to give.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple

import jinja2
import msgspec

from nftproxy.api.decode import show
from nftproxy.config.configz import configz
from nftproxy.deploy.distributions import AVOIDED, TAINT, Distribution, Setting
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.settings import (
    CANARY_HEALTHZ_PORT,
    CANARY_METRICS_PORT,
    HEALTHZ_PORT,
    METRICS_PORT,
    PROXY_NAME,
    Config,
    Conntrack,
    DetectLocalMode,
)

TEMPLATE = "agent.yaml.j2"
ALERTS = "alerts.yaml"
"""The alerts, a PrometheusRule."""

NO_SYSCTLS = Conntrack(max_per_core=0, min=0, tcp_established_timeout=0, tcp_close_wait_timeout=0)
"""The settings of connection tracking that leave each sysctl as it is."""

OOM_SCORE_ADJ = -997
"""The kubelet's value for system-node-critical pods: the agent has no right to lower it."""

Json = dict[str, Any]


NAMESPACE = "kube-system"

RESOURCES: Json = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
"""The default resources of each container."""

TOLERATIONS: list[Json] = [{"operator": "Exists"}]
"""The default tolerations: every node needs its agent."""


class DaemonSetOptions(NamedTuple):
    """The options of the command, with the configuration that they result in."""

    distribution: Distribution
    config: Config
    """kube-proxy's configuration, or the defaults, with the command's options laid over it."""
    api_server: str
    """A URL, "" if neither an option nor a kubeconfig has one."""
    image: str
    node_labels: tuple[tuple[str, str], ...] = ()
    """Labels (name, value) that a node must have to get the agent."""
    has_monitoring: bool = False
    sets_sysctls: bool = True
    """Whether a privileged init container sets the node's sysctls."""
    has_pod_monitor: bool = True
    """Whether monitoring has a PodMonitor of the Prometheus operator."""
    namespace: str = NAMESPACE
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets that the image's registry asks for."""
    pod_labels: tuple[tuple[str, str], ...] = ()
    pod_annotations: tuple[tuple[str, str], ...] = ()
    resources: Json = RESOURCES
    tolerations: list[Json] = TOLERATIONS
    affinity: Json | None = None
    """The pods' affinity, by default one that avoids nodes that can't run the agent."""


class PolicyRule(NamedTuple):
    """The verbs that the agent may use with a resource of an API group."""

    group: str
    resource: str
    verbs: tuple[str, ...]


def deployed(options: DaemonSetOptions) -> Config:
    """Return the configuration of the agent as a DaemonSet.

    Credentials are the pod's, the name is the node's, and the kubelet sets the score.  A canary leaves kube-proxy's
    ports to kube-proxy.

    Raises:
        BadInput: values are unknown, and all of them are named.
    """
    given = options.config
    if unknown := list(_unknown(options)):
        raise BadInput(*unknown)
    metrics = given.metrics_bind_address
    if options.has_monitoring:
        metrics = metrics.replace("127.0.0.1:", "0.0.0.0:").replace("[::1]:", "[::]:")
    healthz = given.healthz_bind_address
    if given.is_canary:
        healthz = _moved(healthz, HEALTHZ_PORT, CANARY_HEALTHZ_PORT)
        metrics = _moved(metrics, METRICS_PORT, CANARY_METRICS_PORT)
    return msgspec.structs.replace(
        given,
        kubeconfig="",
        hostname_override="",
        oom_score_adj=OOM_SCORE_ADJ,
        healthz_bind_address=healthz,
        metrics_bind_address=metrics,
        conntrack=given.conntrack if options.sets_sysctls else NO_SYSCTLS,
    )


def _moved(address: str, port: int, free: int) -> str:
    host, _, own = address.rpartition(":")
    return f"{host}:{free}" if int(own) == port else address


def _unknown(options: DaemonSetOptions) -> Iterator[Problem]:
    """The values that neither options nor the distribution have."""
    distribution, config = options.distribution, options.config
    by_range = config.detect_local_mode is DetectLocalMode.CLUSTER_CIDR
    if by_range and not config.cluster_cidrs:
        yield _problem("", "the range of the cluster's pods isn't known: give --cluster-cidr RANGE, or --cni PLUGIN")
    if not (options.api_server or distribution.api_server):
        where = f"--api-server URL ({distribution.ask_for_api})"
        yield _problem("", f"the address of the API server isn't known: give {where}")


def _problem(option: str, why: str) -> Problem:
    return Problem(option, "", "", why, Code.MANIFESTS_INCOMPLETE)


SHOWN = frozenset(
    {"apiVersion", "kind", "mode", "clusterCIDR", "healthzBindAddress", "metricsBindAddress", "oomScoreAdj"}
)
"""The fields that are written out even where they have the default."""


def configuration(config: Config) -> Json:
    """Return the configuration as a file has it: the fields that differ from the default, and those in `SHOWN`."""
    default = Config(declared=tuple((field, field.default) for field, _ in config.declared))
    found = _differing(_document(config), _document(default))
    return {name: value for name, value in found.items() if value not in ("", {})}


def _document(config: Config) -> Json:
    (found,) = msgspec.json.decode(configz(config)).values()
    assert isinstance(found, dict)
    return found


def _differing(given: Json, default: Json, shown: frozenset[str] = SHOWN) -> Json:
    """The fields of a document that differ from the default's, section by section."""
    nested = {
        name: _differing(value, default[name], frozenset()) if isinstance(value, dict) else value
        for name, value in given.items()
    }
    return {name: value for name, value in nested.items() if name in shown or given[name] != default[name]}


def render(template: str, options: DaemonSetOptions, config: Config, text: str) -> str:
    """Return the manifests, as YAML documents.

    Args:
        template: the text of `TEMPLATE`.
        options: of the command.
        config: the agent's configuration (`deployed`).
        text: that configuration as YAML.

    Raises:
        BadInput: a node can't use the API server's address.
    """
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    host, port = _api(options)
    # The template can only loop, so an optional value is a list.
    return environment.from_string(template).render(
        remarks=_remarks(options, config),
        rules=_policy_rules(config),
        config=text.splitlines(),
        image=options.image,
        api_host=host,
        api_port=port,
        init_containers=["sysctls"] if _asks_for_sysctls(config) else [],
        ports=_ports(options, config),
        probe_hosts=[host for host in [_host(config.healthz_bind_address)] if host not in ("0.0.0.0", "::")],
        node_labels=options.node_labels,
        jobs=[_CANARY_JOB if config.is_canary else _JOB] if options.has_monitoring and options.has_pod_monitor else [],
        namespace=options.namespace,
        pull_secrets=_given([{"name": name} for name in options.pull_secrets]),
        pod_labels=options.pod_labels,
        pod_annotations=_given(dict(options.pod_annotations)),
        resources=options.resources,
        tolerations=options.tolerations,
        affinities=_given(options.affinity or _AVOIDING),
    )


_AVOIDING: Json = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": label, "operator": "NotIn", "values": list(values)} for label, values in AVOIDED.items()
                    ]
                }
            ]
        }
    }
}
"""The affinity of pods that avoid the nodes with one of these labels."""


def _given(value: Json | list[Json]) -> list[Json | list[Json]]:
    """A value that the template has only if there is one."""
    return [value] if value else []


def alerts_of(options: DaemonSetOptions, text: str) -> str:
    """Return the text of `ALERTS` in the namespace of the objects, and for a canary with the name of its job."""
    text = text.replace(f"namespace: {NAMESPACE}", f"namespace: {options.namespace}")
    return text.replace(f'job="{_JOB}"', f'job="{_CANARY_JOB}"') if options.config.is_canary else text


def _asks_for_sysctls(config: Config) -> bool:
    """Whether there is a sysctl to set.  A canary leaves sysctls to the other proxy.  `min` alone sets none."""
    return not config.is_canary and msgspec.structs.replace(config.conntrack, min=0) != NO_SYSCTLS


_URL = re.compile(
    r"https://(?P<host>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z](?:[0-9A-Za-z.-]*[0-9A-Za-z])?)(?::(?P<port>\d{1,5}))?/?"
)


def _api(options: DaemonSetOptions) -> tuple[str, int]:
    """Host and port of the API server."""
    text = options.api_server or options.distribution.api_server
    url = _URL.fullmatch(text)
    port = int(url["port"] or 443) if url else 0
    if not url or not 1 <= port <= 65535:
        raise BadInput(_problem("--api-server", f"{show(text)} is not a URL as in https://10.0.0.1:6443"))
    host = url["host"].strip("[]")
    if host.split(".")[0] == "kubernetes" and not _is_address(host):
        why = f"{host} is a Service, which a node reaches only once this agent runs"
        raise BadInput(_problem("--api-server", why))
    return host, port


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _remarks(options: DaemonSetOptions, config: Config) -> list[str]:
    """The lines of the comment at the top: steps before applying the manifests."""
    distribution = options.distribution
    remarks = [
        f"nftproxy for {distribution.title}, made by `nftproxy manifests`: generate it again instead of editing it."
    ]
    if config.is_canary:
        label = f"{PROXY_NAME}={config.service_proxy_name}"
        return [*remarks, f"A canary beside kube-proxy: it serves just the Services with the label {label}."]
    if options.node_labels:
        labels = ",".join(f"{name}={value}" for name, value in options.node_labels)
        remarks.append(f"Only nodes with the label {labels} get it, and kube-proxy must not be there.")
    else:
        remarks.append("Every node gets it, and kube-proxy must not be there.")
    remarks += [*_shown("kube-proxy is turned off in", distribution.off), f"Then: {distribution.then}"]
    if config.startup_taint:
        where, text = distribution.taint
        remarks += _shown("Nodes get the startup taint in", Setting(where, text.replace(TAINT, config.startup_taint)))
    return remarks


def _shown(what: str, setting: Setting) -> list[str]:
    return [f"{what} {setting.where}:", *(f"    {line}" for line in setting.text.splitlines())]


def _policy_rules(config: Config) -> list[PolicyRule]:
    """All that the agent asks of the API: it writes nothing but Events, and to Nodes only with a startup taint."""
    watch = ("list", "watch")
    cidrs = [] if config.is_canary else [PolicyRule("networking.k8s.io", "servicecidrs", watch)]
    return [
        PolicyRule("", "services", watch),
        PolicyRule("discovery.k8s.io", "endpointslices", watch),
        *cidrs,
        PolicyRule("", "nodes", (*watch, *(["get", "patch"] if config.startup_taint else []))),
        PolicyRule("events.k8s.io", "events", ("create", "patch")),
    ]


_JOB, _CANARY_JOB = "kube-proxy", "nftproxy"
"""The job's name in Prometheus: dashboards and alerts for kube-proxy show nftproxy, unless kube-proxy is there too."""


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _ports(options: DaemonSetOptions, config: Config) -> dict[str, int]:
    """The ports of the node that the agent listens on, by name."""
    addresses = {"healthz": config.healthz_bind_address}
    if options.has_monitoring:
        addresses["metrics"] = config.metrics_bind_address
    return {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}
