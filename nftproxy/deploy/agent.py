"""What the agent's manifests depend on: the wishes of whoever asks for them, and what follows from these as facts.

The template (agent.yaml.j2) loops over the facts and takes no decision.  What can't be known is no blank to fill in but
an error, which names the option to give.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple

import jinja2
import msgspec

from nftproxy.api.configz import configz
from nftproxy.api.decode import show
from nftproxy.deploy.distributions import TAINT, Distribution, Setting
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.settings import (
    CANARY_HEALTHZ_PORT,
    CANARY_METRICS_PORT,
    HEALTHZ_PORT,
    METRICS_PORT,
    Config,
    DetectLocalMode,
)

TEMPLATE = "agent.yaml.j2"

OOM_SCORE_ADJ = -997
"""What the kubelet gives to pods that are system-node-critical: lowering it takes more rights than the agent has."""

Json = dict[str, Any]


class Wishes(NamedTuple):
    """What is asked for.

    `config` is kube-proxy's configuration, or the defaults with what the options say; `api_server` a URL, "" if neither
    an option nor a kubeconfig says one.  `node_labels` are what nodes must have to get the agent.
    """

    distribution: Distribution
    config: Config
    api_server: str
    image: str
    node_labels: tuple[tuple[str, str], ...] = ()
    has_monitoring: bool = False


class Right(msgspec.Struct, frozen=True):
    """What the agent may do with a resource of an API group."""

    group: str
    resource: str
    verbs: tuple[str, ...]


class Port(msgspec.Struct, frozen=True):
    """A port of the node that the agent listens on."""

    name: str
    number: int


class AgentFacts(msgspec.Struct, frozen=True):
    """What the template writes.

    `probe_hosts` has the address at which health is answered if that isn't every one of the node's.
    `remarks` are lines of the comment at the top; `config` are the lines of the configuration file.  `init_containers`
    has the name of the one that sets sysctls, or nothing.  `avoided` has the labels (name, value) of nodes that must
    not get the agent, as a list that is the only element of a list, or nothing.  `jobs` has the name that Prometheus
    knows the agents by, or nothing if it isn't to scrape them.
    """

    remarks: tuple[str, ...]
    rights: tuple[Right, ...]
    config: tuple[str, ...]
    image: str
    api_host: str
    api_port: int
    init_containers: tuple[str, ...]
    ports: tuple[Port, ...]
    probe_hosts: tuple[str, ...]
    node_labels: tuple[tuple[str, str], ...]
    avoided: tuple[tuple[tuple[str, str], ...], ...]
    jobs: tuple[str, ...]


def deployed(wishes: Wishes) -> Config:
    """The configuration of the agent as a DaemonSet.

    Its credentials are the pod's, its name is the node's, and its score is the kubelet's to set.  A canary leaves
    kube-proxy's ports to that.

    Raises:
        BadInput: something isn't known; all of it is named.
    """
    given = wishes.config
    if unknown := list(_unknown(wishes)):
        raise BadInput(unknown)
    metrics = given.metrics_bind_address
    if wishes.has_monitoring:
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
    )


def _moved(address: str, port: int, free: int) -> str:
    host, _, own = address.rpartition(":")
    return f"{host}:{free}" if int(own) == port else address


def _unknown(wishes: Wishes) -> Iterator[Problem]:
    """What nobody has said and the distribution doesn't settle."""
    distribution, config = wishes.distribution, wishes.config
    by_range = config.detect_local_mode is DetectLocalMode.CLUSTER_CIDR
    if by_range and distribution.needs_cluster_cidr and not config.cluster_cidrs:
        yield _problem("", "the range of the cluster's pods isn't known: give --cluster-cidr RANGE")
    if not (wishes.api_server or distribution.api_server):
        where = f"--api-server URL ({distribution.ask_for_api})"
        yield _problem("", f"the address of the API server isn't known: give {where}")


def _problem(option: str, why: str) -> Problem:
    return Problem(option, "", "", why, Code.MANIFESTS_INCOMPLETE)


SHOWN = frozenset(
    {"apiVersion", "kind", "mode", "clusterCIDR", "healthzBindAddress", "metricsBindAddress", "oomScoreAdj"}
)
"""The fields that are written out though they say the default."""


def configuration(config: Config) -> Json:
    """The configuration as a file says it: what isn't the default, and a few fields that one looks for."""
    return {
        name: value
        for name, value in _differing(_document(config), _document(Config())).items()
        if value not in ("", {})
    }


def _document(config: Config) -> Json:
    (found,) = msgspec.json.decode(configz(config)).values()
    assert isinstance(found, dict)
    return found


def _differing(given: Json, default: Json, shown: frozenset[str] = SHOWN) -> Json:
    """The fields of one document in which it differs from another one, section by section."""
    nested = {
        name: _differing(value, default[name], frozenset()) if isinstance(value, dict) else value
        for name, value in given.items()
    }
    return {name: value for name, value in nested.items() if name in shown or given[name] != default[name]}


def facts(wishes: Wishes, config: Config, text: str) -> AgentFacts:
    """What the template needs; `config` is the agent's, and `text` the same as YAML.

    Raises:
        BadInput: the API server's address is none that a node can use.
    """
    host, port = _api(wishes)
    return AgentFacts(
        remarks=tuple(_remarks(wishes, config)),
        rights=tuple(_rights(config)),
        config=tuple(text.splitlines()),
        image=wishes.image,
        api_host=host,
        api_port=port,
        init_containers=() if config.is_canary else ("sysctls",),
        ports=tuple(_ports(wishes, config)),
        probe_hosts=tuple(each for each in (_host(config.healthz_bind_address),) if each not in ("0.0.0.0", "::")),
        node_labels=wishes.node_labels,
        avoided=(wishes.distribution.avoided,) if wishes.distribution.avoided else (),
        jobs=(_CANARY_JOB if config.is_canary else _JOB,) if wishes.has_monitoring else (),
    )


_URL = re.compile(
    r"https://(?P<host>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z](?:[0-9A-Za-z.-]*[0-9A-Za-z])?)(?::(?P<port>\d{1,5}))?/?"
)


def _api(wishes: Wishes) -> tuple[str, int]:
    """Host and port of the API server."""
    text = wishes.api_server or wishes.distribution.api_server
    url = _URL.fullmatch(text)
    port = int(url["port"] or 443) if url else 0
    if not url or not 1 <= port <= 65535:
        raise BadInput([_problem("--api-server", f"{show(text)} is not a URL as in https://10.0.0.1:6443")])
    host = url["host"].strip("[]")
    if host.split(".")[0] == "kubernetes" and not _is_address(host):
        why = f"{host} is a Service, which a node reaches only once this agent runs"
        raise BadInput([_problem("--api-server", why)])
    return host, port


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _remarks(wishes: Wishes, config: Config) -> list[str]:
    """What to know before this is applied."""
    distribution = wishes.distribution
    remarks = [f"nftproxy for {distribution.title}, made by `nftproxy manifests`: make it anew instead of editing it."]
    if config.is_canary:
        name = config.service_proxy_name
        label = f"service.kubernetes.io/service-proxy-name={name}"
        return [*remarks, f"A canary beside kube-proxy: it serves just the Services with the label {label}."]
    if wishes.node_labels:
        labels = ",".join(f"{name}={value}" for name, value in wishes.node_labels)
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


def _rights(config: Config) -> list[Right]:
    """All that the agent asks of the API: it writes nothing but Events, and to Nodes only with a startup taint."""
    watch = ("list", "watch")
    cidrs = [] if config.is_canary else [Right("networking.k8s.io", "servicecidrs", watch)]
    return [
        Right("", "services", watch),
        Right("discovery.k8s.io", "endpointslices", watch),
        *cidrs,
        Right("", "nodes", ("get", *watch, *(["patch"] if config.startup_taint else []))),
        Right("events.k8s.io", "events", ("create", "patch")),
    ]


_JOB, _CANARY_JOB = "kube-proxy", "nftproxy"
"""Dashboards and alerts that ask for kube-proxy show nftproxy, except where kube-proxy is there as well."""


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _ports(wishes: Wishes, config: Config) -> list[Port]:
    addresses = {"healthz": config.healthz_bind_address}
    if wishes.has_monitoring:
        addresses["metrics"] = config.metrics_bind_address
    return [Port(name, int(address.rpartition(":")[2])) for name, address in addresses.items()]


def render(template: str, given: AgentFacts) -> str:
    """The manifests, as YAML documents."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.from_string(template).render(msgspec.structs.asdict(given))
