"""A cluster that has stored old spellings of addresses moves from kube-proxy itself to nftproxy, under traffic.

An API server of Kubernetes takes these spellings without the feature gate StrictIPCIDRValidation (KEP-4858), and keeps
them once it has the gate.  All runs in the network namespace of one node, with release binaries:

    NFTPROXY_KUBERNETES=/opt/kubernetes python -m tools.migration.stored
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from nftproxy_conformance.lab import RealNetwork, RealNode
from nftproxy_conformance.subjects.spellings import respelt

from nftproxy.sources.documents import to_yaml, yaml_documents
from tests.support.processes import AgentProcess
from tests.support.waiting import wait_until
from tools.kubernetes.binaries import VARIABLE, Binaries
from tools.kubernetes.control_plane import RealControlPlane
from tools.migration.__main__ import tables
from tools.migration.switch import EXAMPLE, PODS, STARTING, VIP, WEB, Account, Step, clean_up, fronts_of
from tools.migration.traffic import asking, await_tries

PROGRAMS = ("etcd", "kube-apiserver", "kube-proxy")
LENIENT = "StrictIPCIDRValidation=false"
PATHS = {
    "Node": "/api/v1/nodes",
    "Service": "/api/v1/namespaces/shop/services",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
}
"""Where the objects of the cluster are created."""


class StoredCluster:
    """An API server on a node, which has stored the cluster of examples/migrate with old spellings.

    Attributes:
        denied: the answer of the API server with the gate to a new Service with an old spelling.
        stored: the Service as that API server has it.
    """

    def __init__(self, node: RealNode, plane: RealControlPlane) -> None:
        self._node, self._plane = node, plane
        plane.start(LENIENT)
        self._ask("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
        documents = yaml_documents((EXAMPLE / "node" / "cluster.yaml").read_text())
        made: list[Any] = [respelt(each.value) for each in documents]
        for each in made:
            self._ask("POST", PATHS[each["kind"]], each)
        plane.stop("kube-apiserver")
        plane.start_api_server()
        (service,) = (each for each in made if each["kind"] == "Service")
        another = service | {"metadata": {"name": "new"}}
        self.stored = self._ask("GET", f"{PATHS['Service']}/web")
        self.denied = self._ask("POST", PATHS["Service"], another)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        options = ["--silent", "--cacert", str(self._plane.directory / "ca.crt"), "--request", method]
        headers = [
            "--header",
            f"Authorization: Bearer {self._plane.token}",
            "--header",
            "Content-Type: application/json",
        ]
        data = [] if body is None else ["--data", json.dumps(body)]
        return json.loads(self._node.node.run(["curl", *options, *headers, *data, f"{self._plane.url}{path}"], ""))


def switch_stored(binaries: Binaries, *, tries: int, kept: int) -> tuple[Account, StoredCluster]:
    """Take a node with such a cluster from kube-proxy to nftproxy.  The arguments are those of `switch`."""
    with ExitStack() as stack:
        network = stack.enter_context(RealNetwork())
        node = network.node()
        for pod, addresses in PODS.items():
            made = node.pod(pod, *addresses)
            made.serve(8080)
            made.serve(5353, "udp")
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = RealControlPlane(binaries, directory / "plane", "127.0.0.1", 6443, start=node.node.popen)
        stack.callback(plane.close)
        cluster = StoredCluster(node, plane)
        config = _configuration(directory, plane)
        kube_proxy = _start_kube_proxy(node, binaries, config)
        stack.callback(kube_proxy.kill)
        agent = AgentProcess(node.node, directory / "log")
        stack.callback(agent.kill)
        steps: list[Step] = []
        with asking(fronts_of(network, node), kept) as clients:

            def step(name: str, action: Callable[[], object]) -> None:
                began = time.monotonic()
                action()
                steps.append(Step(name, began, time.monotonic()))
                await_tries(clients, tries)

            step("kube-proxy", lambda: None)
            step("nftproxy starts", lambda: _start(agent, config, plane))
            step("kube-proxy ends", kube_proxy.kill)
            step("cleanup --kube-proxy", lambda: clean_up(node, "nftables"))
        found = sorted(each for client in clients for each in client.tries)
        return Account("nftables", tuple(steps), tuple(found)), cluster


def _configuration(directory: Path, plane: RealControlPlane) -> Path:
    """Write a configuration that both proxies take."""
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": "10.1.0.0/16",
        "hostnameOverride": "node-a",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
        "conntrack": {"maxPerCore": 0},
    }
    path = directory / "config.yaml"
    path.write_text(to_yaml([document]))
    return path


def _start_kube_proxy(node: RealNode, binaries: Binaries, config: Path) -> subprocess.Popen[Any]:
    """Start kube-proxy, and wait until it serves the Service."""
    log = config.with_name("kube-proxy.log")
    with log.open("w") as output:
        process: subprocess.Popen[Any] = node.node.popen(
            [binaries.path("kube-proxy"), "--config", str(config)], stdout=output, stderr=output
        )

    def serves() -> bool:
        try:
            return bool(node.ask(VIP, WEB, timeout=2).name)
        except OSError:
            return False

    wait_until(serves, lambda: log.read_text()[-3000:], patience=STARTING, pause=0.1)
    return process


def _start(agent: AgentProcess, config: Path, plane: RealControlPlane) -> None:
    agent.launch("--config", str(config), "--kubeconfig", str(plane.kubeconfig))
    wait_until(lambda: agent.has_died or "loaded the rules" in agent.log(), agent.log, patience=STARTING)
    assert not agent.has_died, agent.log()


@click.command()
@click.option("--tries", type=int, default=1000, show_default=True, help="Of each client after each step.")
def main(tries: int) -> None:
    """Move a node whose cluster has stored old spellings, and print the fate of connections."""
    directory = os.environ.get(VARIABLE)
    binaries = Binaries(Path(directory) if directory else None)
    if why := binaries.lack(PROGRAMS):
        raise click.ClickException(why)
    account, cluster = switch_stored(binaries, tries=tries, kept=25)
    click.echo(f"stored: {cluster.stored['spec']['clusterIPs']}; of a new Service: {cluster.denied['message']}")
    click.echo(tables({account.shape: list(account.rows())}), nl=False)


if __name__ == "__main__":
    main()
