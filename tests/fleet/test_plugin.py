"""`kubectl nftproxy`: the same commands, which ask all nodes by default."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer

from nftproxy.commands.cli import plugin
from tests.support.command import kubectl_nftproxy
from tests.support.fleet import CHECKOUT, FleetOfAgents, status_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FleetOfAgents]:
    """A cluster of two nodes."""
    with ApiServer() as server:
        made = FleetOfAgents(server, tmp_path)
        for name in ("node-a", "node-b"):
            made.add(name, status_of(name))
        yield made


def test_the_plugin_asks_all_nodes(cluster: FleetOfAgents) -> None:
    """Without options all nodes are asked, and with --node this node, with the kubeconfig and the context."""
    assert cluster.kubectl_nftproxy("status", "--context", "test").out == "2 nodes: 2 well\n"
    assert cluster.kubectl_nftproxy("status", "--node", "node-b").out == "1 node: 1 well\n"


def test_the_namespace_is_kubectls(cluster: FleetOfAgents, tmp_path: Path) -> None:
    """svc/web is in the namespace of the kubeconfig's context, or in that of -n."""
    kubeconfig = tmp_path / "kubeconfig"
    document = yaml.safe_load(kubeconfig.read_text())
    document["contexts"][0]["context"]["namespace"] = "blog"
    kubeconfig.write_text(yaml.safe_dump(document))
    for options in ((), ("-n", "shop")):
        cluster.kubectl_nftproxy("explain", "svc/web", "--node", "node-a", *options)
    assert [each.command[:3] for each in cluster.asked] == [
        ("nftproxy", "explain", "svc/blog/web"),
        ("nftproxy", "explain", "svc/shop/web"),
    ]


def test_manifests_need_no_cluster() -> None:
    """`explain` with manifests answers from these, in the plugin too."""
    manifests = CHECKOUT / "examples" / "cluster-ip" / "manifests"
    done = kubectl_nftproxy("explain", "svc/web", "-n", "shop", manifests, "--node", "node-a")
    assert (done.status, done.out.splitlines()[0]) == (0, "svc/shop/web, on node node-a")


def test_the_plugin_has_the_name_that_kubectl_looks_for() -> None:
    """The wheel has a program kubectl-nftproxy, which is the plugin, and its usage is kubectl's."""
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["kubectl-nftproxy"].partition(":")
    assert getattr(import_module(module), function) is plugin
    assert kubectl_nftproxy("--help").out.startswith("Usage: kubectl nftproxy ")
