"""`nftproxy manifests`: print the objects that run the agent on every node of a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import click

from nftproxy.commands.pod_options import label_of, namespace_of, pod_options, pod_settings
from nftproxy.config.flags import flags_by_path, override
from nftproxy.config.parse_config import EMPTY_CONFIG, parse_config
from nftproxy.deploy.daemonset import ALERTS, TEMPLATE, DaemonSetOptions, alerts_of, configuration, deployed, render
from nftproxy.deploy.distributions import DISTRIBUTIONS, IMPOSSIBLE, Distribution
from nftproxy.deploy.reader import reader_objects
from nftproxy.installed_fields import FIELDS
from nftproxy.model.codes import Code
from nftproxy.model.pod_interfaces import POD_INTERFACES, PodInterfaces, of_daemon_sets
from nftproxy.model.settings import Config
from nftproxy.sources.config_documents import KubeProxySettings, read_kube_proxy
from nftproxy.sources.documents import to_yaml
from nftproxy.templates_dir import deploy_templates_dir
from nftproxy.version import __version__

READER = "reader.yaml"
"""The objects of --reader."""
AUTO = "auto"
"""The value of --cni for the plugin that the cluster shows."""
IMAGE = f"nftproxy:{__version__}"

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,511}")
"""Roughly the references that a container runtime accepts (distribution/reference)."""


class PodsByInterface(NamedTuple):
    """The interfaces of pods, None if they aren't known, and whether the administrator has named the plugin."""

    interfaces: PodInterfaces | None
    is_asked: bool


class DistributionName(click.Choice[str]):
    """The name of a distribution.  Where kube-proxy can't be replaced, the error says why."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        if found := IMPOSSIBLE.get(value):
            self.fail(f"not possible on {found.title}: {found.why} (docs/install.md)", param, ctx)
        return super().convert(value, param, ctx)


@click.command("manifests")
@click.argument("config_maps", required=False, type=click.Path(path_type=Path, allow_dash=True), metavar="[FILE]")
@click.option(
    "--for",
    "distribution",
    type=DistributionName(list(DISTRIBUTIONS)),
    default="kubeadm",
    show_default=True,
    help="The cluster's distribution.",
)
@click.option(
    "--api-server",
    default="",
    help="The API server as every node reaches it, other than through a Service.",
    metavar="URL",
)
@click.option(
    "--cluster-cidr", default="", help="The ranges of the cluster's pods, one for each family.", metavar="CIDR,..."
)
@click.option(
    "--cni",
    type=click.Choice([AUTO, *POD_INTERFACES]),
    default=AUTO,
    show_default=True,
    help="The network plugin, whose pods are recognised by their interfaces instead of a range.  auto: that of the "
    "DaemonSets in FILE or of the distribution, if there is no range.",
)
@click.option("--image", default=IMAGE, show_default=True, help="The image's name.", metavar="IMAGE")
@click.option("--node-selector", default="", help="Run the agent only on nodes with this label.", metavar="NAME=VALUE")
@click.option("--monitoring/--no-monitoring", help="Whether other machines may scrape metrics.")
@click.option(
    "--sysctls/--no-sysctls",
    default=True,
    show_default=True,
    help="Whether a privileged init container sets the sysctls of the section conntrack.",
)
@click.option(
    "--startup-taint", default="", help="The key of a taint to remove once all rules are loaded.", metavar="KEY"
)
@click.option("--service-proxy-name", default="", help="Serve just the Services with this label value.", metavar="NAME")
@click.option(
    "--pod-monitor/--no-pod-monitor", default=True, show_default=True, help="Whether --monitoring has a PodMonitor."
)
@click.option("--alerts/--no-alerts", help="Whether there are alerts (PrometheusRule).")
@pod_options
@click.option("--reader", is_flag=True, help="Print only the rights to ask the agents of all nodes.")
def manifests_command(
    config_maps: Path | None, distribution: str, cni: str, *, reader: bool, alerts: bool, **options: Any
) -> None:
    """Print the objects that run the agent on a cluster.

    Nothing is left to fill in.  FILE has the cluster's own kube-proxy ConfigMap, "-" is standard input: kubectl
    --namespace kube-system get configmap kube-proxy --output yaml.  Options override it.

    With --reader it prints the rights for `status --all-nodes` and the like, for agents in the --namespace.  No other
    option changes these.
    """
    if reader:
        text = (deploy_templates_dir() / READER).read_text()
        click.echo(reader_objects(text, namespace_of(options["namespace"])), nl=False)
        return
    chosen = DISTRIBUTIONS[distribution]
    found = read_kube_proxy(config_maps) if config_maps else KubeProxySettings(EMPTY_CONFIG, "")
    if cni != AUTO and options["cluster_cidr"]:
        raise click.UsageError("--cluster-cidr and --cni are two ways to recognise pods: give one of them")
    plugin = of_daemon_sets(found.daemon_sets)
    known = POD_INTERFACES.get(chosen.cni) if plugin is None else plugin
    given = POD_INTERFACES.get(cni)
    pods = PodsByInterface(given or known, is_asked=given is not None)
    asked = _asked(chosen, found, str(config_maps or "flags"), pods, **options)
    config = deployed(asked)
    template = (deploy_templates_dir() / TEMPLATE).read_text()
    click.echo(render(template, asked, config, to_yaml([configuration(config)])), nl=False)
    if alerts:
        click.echo(f"---\n{alerts_of(asked, (deploy_templates_dir() / ALERTS).read_text())}", nl=False)


def _asked(
    distribution: Distribution,
    found: KubeProxySettings,
    source: str,
    pods: PodsByInterface,
    *,
    api_server: str,
    image: str,
    node_selector: str,
    monitoring: bool,
    sysctls: bool,
    pod_monitor: bool,
    cluster_cidr: str,
    startup_taint: str,
    service_proxy_name: str,
    **pod: Any,
) -> DaemonSetOptions:
    if not _IMAGE.fullmatch(image):
        raise click.BadParameter(f"{image!r} is not the name of an image", param_hint="--image")
    fields = {
        "cluster_cidr": cluster_cidr, "startup_taint": startup_taint, "service_proxy_name": service_proxy_name
    }  # fmt: skip
    return DaemonSetOptions(
        distribution,
        _config(distribution, found.config, source, pods, fields),
        api_server or found.server,
        image,
        node_labels=(label_of(node_selector, "--node-selector"),) if node_selector else (),
        has_monitoring=monitoring,
        sets_sysctls=sysctls,
        has_pod_monitor=pod_monitor,
        **pod_settings(**pod),
    )


def _config(
    distribution: Distribution, raw: object, source: str, pods: PodsByInterface, fields: dict[str, str]
) -> Config:
    """kube-proxy's configuration, overridden by options, and with the distribution's range of pods by default.

    Without any range, pods are recognised by the interfaces of the network plugin.
    """
    given = {name.replace("_", "-"): text for name, text in fields.items() if text}
    base = dict(raw) if isinstance(raw, dict) else {}
    knows_pods = base.get("clusterCIDR") or base.get("detectLocalMode") not in (None, "", "ClusterCIDR")
    if pods.interfaces and (pods.is_asked or not (knows_pods or "cluster-cidr" in given or distribution.cluster_cidrs)):
        base |= pods.interfaces.fields()
    elif not knows_pods:
        base["clusterCIDR"] = distribution.cluster_cidrs
    config, warnings = parse_config(override(base, given), source, FIELDS, flags_by_path(given))
    for warning in warnings:
        if warning.code is Code.PORT_OF_KUBE_PROXY:
            continue  # a canary gets other ports
        click.echo(f"warning: {warning.coded}", err=True)
    return config
