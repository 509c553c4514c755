"""`--all-nodes` with three real agents: one with a silent endpoint, one that has ended, one that is out of touch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from nftproxy_conformance.apiserver import ApiServer, ExecRequest, ExecResult, faults
from nftproxy_conformance.lab import Namespace, RealHost, RealNetwork, obstacle
from nftproxy_conformance.lab.topology import SERVICE_CIDR, SERVICE_CIDR6

from nftproxy.agent.socket.answers import AgentState
from nftproxy.commands.agent_client import AgentClient
from tests.support.cluster import IP
from tests.support.fleet import CHECKOUT, FleetOfAgents, RunCommand
from tests.support.objects import too_large
from tests.support.waiting import PATIENCE
from tests.system.e2e.agent import Agent, eventually
from tests.system.e2e.objects import node, service, service_cidr
from tests.system.e2e.silent_town import Connections, put_service
from tests.test_docs import DOCS, commands, fenced, pattern

LIMITS = "beyond the memory limit of its cgroup|as the machine had no memory left"
KILLED = rf"; \S+ ago the kernel killed an agent \(process \d+(?: of the cgroup [^)]*)?\), ({LIMITS})"
"""What the kernel's log, which is the machine's, may say of the agents of other tests."""

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]

NODES = ("node-a", "node-b", "node-c")
CLAIMANTS = {"api": IP.vip2, "mail": "10.96.0.12"}
"""Services that claim an address, which the first gets."""
PATIENT = ("--timeout", str(PATIENCE))
"""So that three commands at once on a busy machine are no nodes without an answer."""


def inside(namespace: Namespace, socket: Path) -> RunCommand:
    """Commands that run in a node's network, as in its agent's pod."""

    async def run(request: ExecRequest) -> ExecResult:
        words = request.command[request.command.index("nftproxy") :]  # after an interpreter with CAP_NET_ADMIN, if any
        command = [sys.executable, "-m", *words, "--agent-socket", str(socket)]
        pipe = subprocess.PIPE
        process = namespace.popen(command, cwd=CHECKOUT, stdin=pipe, stdout=pipe, stderr=pipe)
        output, errors = await asyncio.to_thread(process.communicate, request.stdin)
        return ExecResult(output, errors, process.returncode)

    return run


class Printed(NamedTuple):
    """The exit status of a command, and the lines of its output and of its errors, without addresses of sockets."""

    status: int
    lines: list[str]
    errors: list[str]


class ViewedCluster:
    """Three nodes with agents and a client on node-a, and the commands of somebody on node-a who asks all of them."""

    def __init__(self, network: RealNetwork, server: ApiServer, namespace: Namespace, directory: Path) -> None:
        self.network, self.server = network, server
        self.agents: dict[str, Agent] = {}
        self.addresses: dict[str, str] = {}
        self.fleet = FleetOfAgents(server, directory)
        self._namespace = namespace
        self._kubeconfig = directory / "kubeconfig"

    def ask(self, *arguments: str) -> Printed:
        """Run a command for all nodes."""
        given = [*arguments, "--all-nodes", *PATIENT, "--kubeconfig", str(self._kubeconfig)]
        command, pipe = [sys.executable, "-m", "nftproxy", *given], subprocess.PIPE
        process = self._namespace.popen(command, cwd=CHECKOUT, stdout=pipe, stderr=pipe, text=True)
        output, errors = (re.sub(KILLED, "", text) for text in process.communicate())
        return Printed(process.returncode, output.splitlines(), re.sub(r"/\S+\.sock", "SOCKET", errors).splitlines())

    def state(self, name: str) -> AgentState:
        """The state of an agent."""
        return AgentClient(str(self.agents[name].socket_path), PATIENCE).get(AgentState, "/v1/status")


@pytest.fixture(scope="module")
def view_and_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ViewedCluster, RealHost]]:
    """Service web, which leaves silent endpoints out, has a pod on node-b and another on node-c."""
    directory = tmp_path_factory.mktemp("view")
    with RealNetwork() as network, contextlib.ExitStack() as stack:
        nodes = {name: network.node(name) for name in NODES}
        first = nodes["node-a"]
        server = stack.enter_context(
            ApiServer(hosts=(first.address,), tls=True, authenticate=True, make_socket=first.namespace.socket)
        )
        server.put(service_cidr("kubernetes", SERVICE_CIDR, SERVICE_CIDR6))
        made = ViewedCluster(network, server, first.namespace, directory)
        pods = [
            nodes[f"node-{letter}"].pod(f"web-{letter}", f"10.1.{number}.4", f"fd00:1:0:{number}::4")
            for number, letter in ((1, "b"), (2, "c"))
        ]
        for pod in pods:
            pod.serve(8080)
        put_service(server, "web", (IP.vip,), [f"{pod.address}@node-{pod.name[-1]}" for pod in pods])
        server.put(*(service(name, vips=(vip,), externalIPs=["203.0.113.1"]) for name, vip in CLAIMANTS.items()))
        server.put(too_large("ftp", "10.96.0.13"))
        for name, machine in nodes.items():
            agent = Agent(machine.namespace, name, server, directory)
            made.fleet.add(name, inside(machine.namespace, agent.socket_path))
            server.put(node(name, machine.address, machine.address6))
            agent.start()
            made.agents[name], made.addresses[name] = agent, machine.address
        client = first.pod("client", "10.1.0.9", "fd00:1::9")
        eventually(lambda: {client.ask(IP.vip, 80).name for _ in range(16)}, {"web-b", "web-c"})
        yield made, client


def test_a_well_cluster(view_and_client: tuple[ViewedCluster, RealHost]) -> None:
    """While nothing is wrong, status is well and all nodes agree, and connections are the sum of all nodes'."""
    view, client = view_and_client
    assert view.ask("status").lines[0] == "3 nodes: 3 well"
    assert view.ask("explain", "svc/shop/web") == Printed(
        0,
        [
            "svc/shop/web, on 3 nodes",
            "",
            "all 3 nodes:",
            "  10.96.0.10:80/TCP: ClusterIP of Service shop/web",
            "    note: endpoints that don't answer this node are left out, up to half of a list, until they answer",
            "    from anywhere: translated: to one of 2 endpoints, drawn at random",
            "      50.0 % each: 10.1.1.4:8080, 10.1.2.4:8080",
        ],
        [],
    )
    with client.talk(IP.vip, 80) as conversation:
        conversation.ask()
        shown = view.ask("top", "-n", "shop")
        assert (shown.status, shown.errors, shown.lines[0].split()[0]) == (0, [], "SERVICE")
        assert {line.split()[0] for line in shown.lines[1:]} == {"shop/web"}


def test_three_faults(view_and_client: tuple[ViewedCluster, RealHost], tmp_path: Path) -> None:
    """Each node has its own fault, and each command prints the lines of docs/cli.md, which say which node has which."""
    view, client = view_and_client
    view.network.lose("10.1.1.0/24")
    with contextlib.closing(Connections(client, IP.vip)) as connections:
        while not view.state("node-a").features["Silent endpoints"]:
            connections.begin(4)
            connections.wait(0.2)
    view.agents["node-b"].stop()
    address = view.addresses["node-c"]
    unauthorized = faults.Respond(401, "Unauthorized")
    view.server.faults.add(
        faults.Fault(unauthorized, count=None, when=lambda request: request.peer == address),
        *(faults.Fault(faults.Reset(), verb="watch", when=lambda request: request.peer == address) for _ in range(4)),
    )
    eventually(lambda: bool(view.state("node-c").caveat), True)

    cluster = tmp_path / "cluster.yaml"
    every = [each | {"kind": kind} for kind in ("Service", "EndpointSlice") for each in view.server.objects(kind)]
    cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": every}))
    (page,) = [commands(block) for block in fenced(DOCS / "cli.md", "text") if "--all-nodes" in block]
    for command in page:
        _, *arguments = command.text.removesuffix(" --all-nodes").split()
        shown = view.ask(*(str(cluster) if each == cluster.name else each for each in arguments))
        printed = "".join(f"{line.strip()}\n" for line in (*shown.lines, *shown.errors))
        assert re.fullmatch(pattern(command.shown), printed), f"{command.text}\n{printed}"
        assert shown.status == 1, command.text
