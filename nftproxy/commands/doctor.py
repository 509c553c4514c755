"""`nftproxy doctor`: inspect a node before, while and after it changes from kube-proxy, and print findings.

This module gathers observations, and `nftproxy/doctor` judges them.  It changes nothing.  It needs no agent, but
asks it for its configuration.  The output names everything that couldn't be inspected, with the reason.
"""

from __future__ import annotations

import functools
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from nftproxy.agent.pod_routes import sample
from nftproxy.agent.socket.answers import AgentState, NodeInputs
from nftproxy.api.access_reviews import PERMISSIONS, TAINT_PERMISSIONS, Permission
from nftproxy.commands.agent_client import LIVE, AgentClient, ElsewhereAgent, NoAnswer, NoAnswerInTime
from nftproxy.commands.articles import articles
from nftproxy.commands.offline import refuse_given
from nftproxy.commands.other_nodes import NODES_BESIDE_KUBECONFIG, NodesAsked, is_plugin, nodes_asked, report_failures
from nftproxy.commands.output import STRUCTURED, structured
from nftproxy.config.parse_config import EMPTY_CONFIG, parse_config
from nftproxy.doctor.diagnosis import as_text, as_values, diagnose
from nftproxy.doctor.kube_proxy_checks import schedulers
from nftproxy.doctor.kube_proxy_readers import flags_of, of_configz, read_configuration, read_configz, read_metrics
from nftproxy.doctor.node_checks import SHORTEST_TIMEOUTS, forwarding_of
from nftproxy.doctor.observations import (
    AgentFacts,
    ApiAccess,
    ConntrackUsage,
    KubeProxyConfigFacts,
    Observations,
    Unseen,
)
from nftproxy.doctor.saved_iptables import SavedTables, read_saved
from nftproxy.installed import CODES, checks
from nftproxy.installed_fields import FIELDS
from nftproxy.kernel import agent_lock, capabilities, sysctl
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.nfnetlink.foreign_chains import foreign_chains
from nftproxy.kernel.others import iptables_tools, ipvs, nfacct, processes
from nftproxy.kernel.others.other_proxies import other_proxies
from nftproxy.model.addresses import TABLE, Address, Family
from nftproxy.model.codes import AnyCode
from nftproxy.model.errors import BadInput, Unavailable
from nftproxy.model.route import Route
from nftproxy.model.settings import AGENT_SOCKET, Config
from nftproxy.model.texts import printable
from nftproxy.rules.transaction import BESIDE_ANOTHER
from nftproxy.sources.config_documents import config_document, unusable
from nftproxy.sources.credentials import is_in_pod
from nftproxy.sources.interfaces import host_addresses, links
from nftproxy.sources.routes import route_to

T = TypeVar("T")
GivenConfig = tuple[Mapping[str, Any], str]
"""A configuration, and its source."""

INSPECTION = 20.0
"""Seconds for the inspection of a node, which asks its API server and its kernel."""
AGENT = "the agent's configuration"
PROGRAM = "kube-proxy"
LEGACY_TABLES = ("filter", "mangle", "raw", "security")
"""The tables of legacy iptables in which rules drop packets or exempt them from connection tracking."""
METRICS = "http://127.0.0.1:10249"
"""kube-proxy's metrics on its node, unless its configuration says otherwise."""
SYSCTLS = (
    *sysctl.FORWARDING.values(),
    "ipv4/conf/all/route_localnet",
    "bridge/bridge-nf-call-iptables",
    "bridge/bridge-nf-call-ip6tables",
    "netfilter/nf_conntrack_tcp_be_liberal",
    sysctl.CONNTRACK_ENTRIES,
    sysctl.CONNTRACK_LIMIT,
    "netfilter/nf_conntrack_buckets",
)


@click.command("doctor")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="kube-proxy's configuration, or the ConfigMap that holds it.  - is standard input.",
    metavar="FILE",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="The agent's credentials for the API.  The default is --config's, or a pod's service account.  For other "
    "nodes, those for asking their agents.",
    metavar="FILE",
)
@click.option(
    "--hostname-override",
    "node",
    default="",
    help="This node's name in the cluster.  The default is --config's, or its host name.",
    metavar="NAME",
)
@click.option(
    "--kube-proxy-metrics",
    default="",
    help=f"The URL of kube-proxy's metrics.  The default is --config's metricsBindAddress, or {METRICS}.",
    metavar="URL",
)
@click.option("-o", "--output", type=click.Choice(["text", *STRUCTURED]), default="text", show_default=True)
@NODES_BESIDE_KUBECONFIG
@LIVE
def doctor_command(
    config_file: Path | None,
    kubeconfig: Path | None,
    node: str,
    kube_proxy_metrics: str,
    output: str,
    agent_socket: str,
    timeout: float,
    **fleet: Any,
) -> None:
    """Find the consequences of leaving kube-proxy on this node.

    Run it before the change, while both proxies are there, and afterwards for leftovers.  It changes nothing.  Exit
    status 1 if there are errors or warnings, 0 if there are notes at most.

    With --all-nodes, --node or -l it runs in the agents' pods of these nodes, and prints each finding once, with its
    nodes.  A pod has no right to see all of its node.
    """
    if asked_nodes := _asked_nodes(kubeconfig, agent_socket=agent_socket, timeout=timeout, **fleet):
        refuse_given(("config_file", "node", "kube_proxy_metrics"), "is for this node")
        sys.exit(_of_nodes(asked_nodes, output))
    given = _given(config_file) if config_file else None
    asked = _config(*given) if given else Config()
    name = node or asked.hostname_override or platform.node().lower()
    path = asked.agent_socket if agent_socket == AGENT_SOCKET else agent_socket
    url = kube_proxy_metrics.rstrip("/") or _metrics_of(asked)
    inspection = NodeInspection(name, url, AgentClient(path, timeout, only_here=True))
    observed = inspection.observations(given, kubeconfig or _kubeconfig_here(asked))
    diagnosis = diagnose(observed, (functools.partial(schedulers, FIELDS), *checks()), CODES)
    if output in STRUCTURED:
        click.echo(structured(as_values(diagnosis, _advice), output))
    else:
        click.echo("\n".join(as_text(diagnosis, _advice)))
    sys.exit(1 if diagnosis.needs_attention else 0)


def _metrics_of(config: Config) -> str:
    """The URL of kube-proxy's metrics by its configuration.  Linux takes 0.0.0.0 and [::] for the machine itself."""
    is_canarys = bool(config.service_proxy_name)
    return METRICS if is_canarys else f"http://{config.metrics_bind_address}"


def _given(path: Path) -> GivenConfig:
    """Read the configuration of --config.  Where kubectl has found none, the error says how to go on.

    Raises:
        BadInput: there isn't a single configuration.
    """
    try:
        return _mapping(path), str(path)
    except BadInput as error:
        hint = "if the cluster has no ConfigMap of kube-proxy, leave --config out: a running kube-proxy is asked"
        hints = [unusable(path, hint)] if str(path) == "-" else []
        raise BadInput(*error.problems, *hints) from error


def _kubeconfig_here(config: Config) -> Path | None:
    """The kubeconfig that a configuration names, None if this node lacks it: a pod may have its own."""
    path = Path(config.kubeconfig)
    return path if config.kubeconfig and path.is_file() else None


def _asked_nodes(kubeconfig: Path | None, **given: Any) -> NodesAsked | None:
    """The nodes to ask.  With --kubeconfig alone, which is for this node, there are none."""
    is_here = not (given["nodes"] or given["node_selector"] or given["all_nodes"] or given["context"])
    return nodes_asked(kubeconfig=None if is_here and not is_plugin() else kubeconfig, **given)


def _of_nodes(asked: NodesAsked, output: str) -> int:
    """Print the merged findings of many nodes, and return the exit status: 1 for a node without an answer, too."""
    from nftproxy.fleet.merged_findings import MergedFindings

    merged = MergedFindings()
    outcomes = asked._replace(start=INSPECTION).answers(("nftproxy", "doctor", "-o", "json"), merged.take)
    if output in STRUCTURED:
        click.echo(structured({"findings": merged.findings()}, output))
    else:
        click.echo("\n".join(map(printable, merged.text())))
    return 0 if report_failures(outcomes) and not merged.needs_attention else 1


class NodeInspection:
    """Gathers observations of a node, and records the missing ones.

    Args:
        node: the node's name.
        url: of kube-proxy's metrics server, without a path.
        agent: how to ask this node's agent, if it has one.
    """

    def __init__(self, node: str, url: str, agent: AgentClient) -> None:
        self._node = node
        self._url = url
        self._unseen: list[Unseen] = []
        self._has_agent = self._observe("another agent", lambda: agent_lock.holder() is not None, False)
        self._delay = ""  # of the agent's answer, in words
        self._agent = self._inputs(agent)
        self._warnings = self._present_warnings(agent)

    def observations(self, given: GivenConfig | None, kubeconfig: Path | None) -> Observations:
        """Return everything that can be seen.  `given` is the configuration of --config."""
        configuration, wanted = self._configuration(given)
        values, url = self._settings(), f"{self._url}/metrics"
        ours: list[str] = self._observe("nftproxy's rules", _our_comments, [])
        found = Observations(
            node=self._node,
            kernel=os.uname().release,
            configuration=configuration,
            agent=_agent_facts(self._agent) if self._agent else None,
            metrics=self._observe("kube-proxy's metrics", lambda: read_metrics(url, _fetch(url)), None),
            saved=tuple(self._saved()),
            accounts=self._observe("kube-proxy's counters", nfacct.packets, {}),
            base_chains=tuple(self._observe("nftables' chains", nft_queries.base_chains, [])),
            foreign_chains=tuple(self._observe("other programs' chains", foreign_chains, []) if ours else ()),
            nft_tables=tuple(self._observe("nftables' tables", nft_queries.tables, [])),
            flowtables=tuple(self._observe("nftables' flowtables", nft_queries.flowtables, [])),
            schedulers=tuple(self._observe("IPVS' virtual servers", ipvs.schedulers, [])),
            traces=self._observe("other proxies' rules", other_proxies, {}),
            interfaces=tuple(name for _, name in socket.if_nameindex()),
            links=self._observe("this node's interfaces", links, ()),
            addresses=self._observe("this node's addresses", lambda: tuple(sorted(host_addresses().addresses)), None),
            has_our_rules=bool(ours),
            is_canary=any(comment.endswith(BESIDE_ANOTHER) for comment in ours),
            has_agent=self._has_agent,
            agent_warnings=self._warnings,
            agent_delay=self._delay,
            sysctls=values,
            conntrack=self._conntrack(values, wanted),
            families=self._observe("nftables' families", _families, None),
            missing_features=tuple(self._observe("the kernel's features", capabilities.missing_features, [])),
            affinity_by_hash=capabilities.probe().reason,
            api=self._api(kubeconfig, PERMISSIONS + (TAINT_PERMISSIONS if wanted.startup_taint else ())),
        )
        routes: dict[Address, Route] = self._observe(
            "the routes to endpoints", lambda: self._routes(found.api, wanted), {}
        )
        return msgspec.structs.replace(found, routes=routes, unseen=tuple(self._unseen))

    def _observe(self, what: str, look: Callable[[], T], otherwise: T) -> T:
        try:
            return look()
        except (Unavailable, OSError) as error:
            self._add_unseen(what, str(error))
            return otherwise

    def _add_unseen(self, what: str, why: str) -> None:
        self._unseen.append(Unseen(what, why))

    def _inputs(self, agent: AgentClient) -> NodeInputs | None:
        try:
            return agent.get(NodeInputs, "/v1/node")
        except NoAnswerInTime as error:
            self._delay = f"{error.what}; {error.advice}"
        except NoAnswer as error:
            if self._has_agent or isinstance(error, ElsewhereAgent):
                self._add_unseen(AGENT, error.what)
        return None

    def _present_warnings(self, agent: AgentClient) -> tuple[str, ...]:
        if self._delay:
            return ()  # it would not answer this in time either
        try:
            return agent.get(AgentState, "/v1/status").warnings
        except NoAnswer:
            return ()  # `_inputs` has recorded that

    # kube-proxy

    def _configuration(self, given: GivenConfig | None) -> tuple[KubeProxyConfigFacts | None, Config]:
        """kube-proxy's configuration, as given, from its process or /configz, and nftproxy's that follows from it."""
        if given is not None:
            return read_configuration(*given, {}, FIELDS), _config(*given)
        document: Mapping[str, Any] = EMPTY_CONFIG
        process = next(processes.processes_called(PROGRAM), None)
        if process is None:
            return self._configz(), self._in_force()
        source, flags = f"the arguments of process {process.number}", flags_of(process.arguments[1:])
        path = process.path(flags["config"]) if "config" in flags else None
        if path is not None:
            source = str(path)
            try:
                document = _mapping(path)
            except BadInput as error:
                self._add_unseen("kube-proxy's configuration", str(error))
                return self._configz(), self._in_force()
        return read_configuration(document, source, flags, FIELDS), _config(document, source)

    def _in_force(self) -> Config:
        """The agent's configuration, or the defaults without an agent."""
        return _config(_values(self._agent), AGENT) if self._agent else Config()

    def _configz(self) -> KubeProxyConfigFacts | None:
        """The configuration that a running kube-proxy shows."""
        url = f"{self._url}/configz"
        try:
            values = read_configz(msgspec.json.decode(_fetch(url)))
            why = f"and the program at {url} isn't kube-proxy"
        except (Unavailable, ValueError, RecursionError) as error:
            values, why = None, f"no kube-proxy process, and {error}"
        if values is None:
            self._add_unseen("kube-proxy's configuration", f"no --config, {why}")
            return None
        return of_configz(values, url)

    # the kernel

    def _saved(self) -> Iterator[SavedTables]:
        """The table filter of each variant of iptables, which has the rules of firewalls."""
        seen = False
        for tool in iptables_tools.tools():
            seen = True
            tables = LEGACY_TABLES if tool.is_legacy else ("filter",)
            looks = {each: functools.partial(iptables_tools.save_table, tool, each) for each in tables}
            texts = [self._observe(f"the table {table} of {tool.name}", look, "") for table, look in looks.items()]
            yield read_saved(tool.name, "".join(texts), is_legacy=tool.is_legacy)
        if not seen:
            self._add_unseen("the rules of iptables", "iptables-save and iptables-restore are missing here")
        elif os.geteuid():
            self._add_unseen("the rules of legacy iptables", "the kernel shows them only to root")

    def _settings(self) -> dict[str, int]:
        names = [name for _, name in socket.if_nameindex()]
        of_interfaces = [path for version in ("ipv4", "ipv6") for path in forwarding_of(version, names)]
        values = sysctl.read_all([*SYSCTLS, *SHORTEST_TIMEOUTS, *of_interfaces])
        if missing := [path for path in SYSCTLS if path not in values and not path.startswith("bridge/")]:
            self._add_unseen(f"the settings {', '.join(missing)}", "they are not below /proc/sys/net here")
        return values

    def _routes(self, api: ApiAccess | None, wanted: Config) -> dict[Address, Route]:
        """The routes to some endpoints of other nodes, which the agent knows, or else the API."""
        if self._agent is not None:
            chosen = list(map(Address, self._agent.endpoints))
        else:
            chosen = sample(api.slices if api else (), wanted.cluster_cidrs, left_out=self._node)
        return {each: route_to(each) for each in chosen}

    def _conntrack(self, values: Mapping[str, int], wanted: Config) -> ConntrackUsage | None:
        count, maximum, buckets = (values.get(f"netfilter/nf_conntrack_{name}") for name in ("count", "max", "buckets"))
        if count is None or maximum is None or buckets is None:
            return None  # `_settings` has recorded that
        asked_for = sysctl.wanted(wanted, os.cpu_count() or 1).get(sysctl.CONNTRACK_MAX, 0)
        return ConntrackUsage(count, maximum, buckets, asked_for)

    # the cluster

    def _api(self, kubeconfig: Path | None, rights: Sequence[Permission]) -> ApiAccess | None:
        if kubeconfig is None and not is_in_pod():
            self._add_unseen("the API server", "no --kubeconfig, and this isn't a pod with a service account")
            return None
        from nftproxy.sources.api_client import ApiClient  # with HTTP: importing takes half a second
        from nftproxy.sources.cluster_api import ApiDenies
        from nftproxy.sources.doctor_queries import query_cluster

        cluster = ApiClient(str(kubeconfig or ""))
        host = urlsplit(cluster.address).hostname or ""
        try:
            answers = query_cluster(cluster, self._node, rights)
        except ApiDenies as error:
            return ApiAccess(server=cluster.way, host=host, error=error.answer.message, status=error.status)
        except Unavailable as error:
            return ApiAccess(server=cluster.way, host=host, error=str(error))
        return ApiAccess(server=cluster.way, host=host, **answers._asdict())


def _advice(code: AnyCode) -> tuple[str, str]:
    article = articles()[code]
    return article.means, article.do


def _agent_facts(agent: NodeInputs) -> AgentFacts:
    return AgentFacts(
        of_configz(_values(agent), AGENT),
        has_pod_range=bool(agent.pod_cidrs),
        node=agent.name,
        internal_ips=tuple(map(Address, agent.internal_ips)),
    )


def _values(agent: NodeInputs) -> Mapping[str, Any]:
    """The fields of the agent's configuration."""
    (values,) = msgspec.json.decode(agent.configuration, type=dict[str, dict[str, Any]]).values()
    return values


def _fetch(url: str) -> str:
    from nftproxy.sources.doctor_queries import fetch

    return fetch(url)


def _mapping(path: Path) -> Mapping[str, Any]:
    document = config_document(path)
    if not isinstance(document, Mapping):
        parse_config(document, str(path), FIELDS)  # raises BadInput
        raise AssertionError
    return document


def _config(document: Mapping[str, Any], source: str) -> Config:
    try:
        return parse_config(document, source, FIELDS)[0]
    except BadInput:
        return Config()  # a check reports it


def _our_comments() -> list[str]:
    """The comment of each of our tables, "" for a table without one."""
    comments = (nft_queries.table_comment(family, TABLE) for family in Family)
    return [comment for comment in comments if comment is not None]


def _families() -> tuple[Family, ...] | None:
    return tuple(family for family in Family if nft_queries.has_family(family))
