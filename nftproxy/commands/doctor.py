"""`nftproxy doctor`: looks at a node before, while and after it changes from kube-proxy, and says what follows.

This module gathers the facts; what they mean is decided in `nftproxy/doctor`.  It changes nothing and needs no agent.
Whatever can't be looked at is named in the answer, with the reason.
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

from nftproxy.api.config import EMPTY_CONFIG, parse_config
from nftproxy.api.reviews import RIGHTS, TAINT_RIGHTS, Right
from nftproxy.commands.codes import articles
from nftproxy.commands.tables import json_text
from nftproxy.doctor.configuration import flags_of, of_configz, read_configuration, read_configz
from nftproxy.doctor.diagnosis import Explanation, as_text, as_values, diagnose
from nftproxy.doctor.facts import Api, Conntrack, Facts, KubeProxy, Metrics, Unseen
from nftproxy.doctor.iptables import SavedTables, read_saved
from nftproxy.doctor.metrics import read_metrics
from nftproxy.kernel import accounting, agent_lock, capabilities, iptables, ipvs, nftables_netlink, processes, sysctl
from nftproxy.kernel.netlink import FAMILY_NUMBER
from nftproxy.kernel.other_proxies import other_proxies
from nftproxy.model.addresses import TABLE, Address, Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Unavailable
from nftproxy.model.settings import Config
from nftproxy.rules.transaction import BESIDE_ANOTHER
from nftproxy.sources.credentials import SERVICE_ACCOUNT
from nftproxy.sources.files import config_document
from nftproxy.sources.interfaces import host_addresses

T = TypeVar("T")

PROGRAM = "kube-proxy"
METRICS = "http://127.0.0.1:10249"
"""Where kube-proxy answers on its node unless metricsBindAddress says otherwise."""
SYSCTLS = (
    "ipv4/ip_forward",
    "ipv6/conf/all/forwarding",
    "ipv4/conf/all/route_localnet",
    "bridge/bridge-nf-call-iptables",
    "bridge/bridge-nf-call-ip6tables",
    "netfilter/nf_conntrack_tcp_be_liberal",
    "netfilter/nf_conntrack_count",
    "netfilter/nf_conntrack_max",
    "netfilter/nf_conntrack_buckets",
)


@click.command("doctor")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="kube-proxy's configuration, or the ConfigMap that holds it; - is standard input.",
    metavar="FILE",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="How the agent will reach the API; by default a pod's service account.",
    metavar="FILE",
)
@click.option("--node", default="", help="This node's name in the cluster; by default its host name.", metavar="NAME")
@click.option(
    "--kube-proxy-metrics", default=METRICS, show_default=True, help="Where kube-proxy answers.", metavar="URL"
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def doctor_command(
    config_file: Path | None, kubeconfig: Path | None, node: str, kube_proxy_metrics: str, output: str
) -> None:
    """Say what a change from kube-proxy means for this node.

    It looks before the change, while both proxies are there, and for what is left to do after it; it changes nothing.
    Exit status 1 if there are errors or warnings, 0 if there are notes at most.
    """
    look = Look(node or platform.node().lower(), kube_proxy_metrics.rstrip("/"))
    diagnosis = diagnose(look.facts(config_file, kubeconfig))
    if output == "json":
        click.echo(json_text(as_values(diagnosis, _explanation)))
    else:
        click.echo("\n".join(as_text(diagnosis, _explanation)))
    sys.exit(1 if diagnosis.needs_attention else 0)


class Look:
    """A look at a node: gathers facts, and takes note of what it can't see.

    Args:
        node: the node's name.
        url: where kube-proxy answers.
    """

    def __init__(self, node: str, url: str) -> None:
        self._node = node
        self._url = url
        self._unseen: list[Unseen] = []

    def facts(self, config_file: Path | None, kubeconfig: Path | None) -> Facts:
        """Everything that is to be seen.

        Raises:
            BadInput: the file that was given can't be read.
        """
        configuration, wanted = self._configuration(config_file)
        values = self._settings()
        ours: list[str] = self._see("nftproxy's rules", _our_comments, [])
        found = Facts(
            node=self._node,
            kernel=os.uname().release,
            configuration=configuration,
            metrics=self._metrics(),
            saved=tuple(self._saved()),
            accounts=self._see("kube-proxy's counters", accounting.packets, {}),
            base_chains=tuple(self._see("nftables' chains", nftables_netlink.base_chains, [])),
            nft_tables=tuple(self._see("nftables' tables", nftables_netlink.tables, [])),
            schedulers=tuple(self._see("IPVS' virtual servers", ipvs.schedulers, [])),
            traces=self._see("other proxies' rules", other_proxies, {}),
            interfaces=tuple(name for _, name in socket.if_nameindex()),
            addresses=self._see("this node's addresses", _addresses, None),
            has_our_rules=bool(ours),
            is_canary=any(comment.endswith(BESIDE_ANOTHER) for comment in ours),
            has_agent=agent_lock.holder() is not None,
            sysctls=values,
            conntrack=self._conntrack(values, wanted),
            families=self._see("nftables' families", _families, None),
            missing_features=tuple(self._see("the kernel's features", capabilities.missing_features, [])),
            affinity_by_hash=capabilities.probe().reason,
            api=self._api(kubeconfig, RIGHTS + TAINT_RIGHTS if wanted.startup_taint else RIGHTS),
        )
        return msgspec.structs.replace(found, unseen=tuple(self._unseen))

    def _see(self, what: str, look: Callable[[], T], otherwise: T) -> T:
        try:
            return look()
        except (Unavailable, OSError) as error:
            self._miss(what, str(error))
            return otherwise

    def _miss(self, what: str, why: str) -> None:
        self._unseen.append(Unseen(what, why))

    # kube-proxy

    def _configuration(self, given: Path | None) -> tuple[KubeProxy | None, Config]:
        """kube-proxy's configuration, from a file, its process, or itself; and ours, which would be made of it."""
        document: Mapping[str, Any] = EMPTY_CONFIG
        source, flags, path = "", dict[str, str](), given
        if given is None:
            process = next(processes.processes_called(PROGRAM), None)
            if process is None:
                return self._configz(), Config()
            source, flags = f"the arguments of process {process.number}", flags_of(process.arguments[1:])
            path = process.path(flags["config"]) if "config" in flags else None
        if path is not None:
            source = str(path)
            try:
                document = _mapping(path)
            except BadInput as error:
                if given is not None:
                    raise
                self._miss("kube-proxy's configuration", str(error))
                return self._configz(), Config()
        return read_configuration(document, source, flags), _config(document, source)

    def _configz(self) -> KubeProxy | None:
        """What a running kube-proxy says of itself."""
        url = f"{self._url}/configz"
        try:
            values = read_configz(msgspec.json.decode(_fetch(url)))
        except (Unavailable, ValueError, RecursionError) as error:
            self._miss("kube-proxy's configuration", f"no --config, no process kube-proxy to be seen, and {error}")
            return None
        if values is None:
            self._miss("kube-proxy's configuration", f"no --config, and it isn't kube-proxy that answers at {url}")
            return None
        return of_configz(values, url)

    def _metrics(self) -> Metrics | None:
        url = f"{self._url}/metrics"
        try:
            return read_metrics(url, _fetch(url))
        except Unavailable as error:
            self._miss("kube-proxy's metrics", str(error))
            return None

    # the kernel

    def _saved(self) -> Iterator[SavedTables]:
        """The table filter of each variant of iptables: what concerns other programs is there."""
        seen = False
        for tool in iptables.tools():
            seen = True
            look = functools.partial(iptables.save_table, tool, "filter")
            text = self._see(f"the table filter of {tool.name}", look, "")
            yield read_saved(tool.name, text)
        if not seen:
            self._miss("the rules of iptables", "there are no iptables-save and iptables-restore here")
        elif os.geteuid():
            self._miss("the rules of legacy iptables", "the kernel shows them to root alone")

    def _settings(self) -> dict[str, int]:
        values = sysctl.read_all(SYSCTLS)
        if missing := [path for path in SYSCTLS if path not in values and not path.startswith("bridge/")]:
            self._miss(f"the settings {', '.join(missing)}", "they are not below /proc/sys/net here")
        return values

    def _conntrack(self, values: Mapping[str, int], wanted: Config) -> Conntrack | None:
        count, maximum, buckets = (values.get(f"netfilter/nf_conntrack_{name}") for name in ("count", "max", "buckets"))
        if count is None or maximum is None or buckets is None:
            return None  # `_settings` has said so
        asked_for = sysctl.wanted(wanted, os.cpu_count() or 1).get(sysctl.CONNTRACK_MAX, 0)
        return Conntrack(count, maximum, buckets, asked_for)

    # the cluster

    def _api(self, kubeconfig: Path | None, rights: Sequence[Right]) -> Api | None:
        if kubeconfig is None and not SERVICE_ACCOUNT.exists():
            self._miss("the API server", "no --kubeconfig, and this is no pod with a service account")
            return None
        from nftproxy.sources.apiserver import Cluster  # HTTP and all: half a second that others save
        from nftproxy.sources.questions import ask_cluster

        cluster = Cluster(str(kubeconfig or ""))
        host = urlsplit(cluster.address).hostname or ""
        try:
            answers = ask_cluster(cluster, self._node, rights)
        except Unavailable as error:
            return Api(server=cluster.address, host=host, error=str(error))
        return Api(server=cluster.address, host=host, **answers._asdict())


def _explanation(code: Code) -> Explanation:
    article = articles()[code]
    return Explanation(article.means, article.do)


def _fetch(url: str) -> str:
    from nftproxy.sources.questions import fetch

    return fetch(url)


def _mapping(path: Path) -> Mapping[str, Any]:
    document = config_document(path)
    if not isinstance(document, Mapping):
        parse_config(document, str(path))  # raises, and says what it is instead
        raise AssertionError
    return document


def _config(document: Mapping[str, Any], source: str) -> Config:
    try:
        return parse_config(document, source)[0]
    except BadInput:
        return Config()  # that it can't be used is a finding


def _addresses() -> tuple[Address, ...] | None:
    return tuple(sorted(host_addresses().addresses))


def _our_comments() -> list[str]:
    """The comments of our tables, of which those that are there have one, if only ""."""
    comments = (nftables_netlink.table_comment(family, TABLE) for family in Family)
    return [comment for comment in comments if comment is not None]


def _families() -> tuple[Family, ...] | None:
    return tuple(family for family in Family if nftables_netlink.has_family(FAMILY_NUMBER[family]))
