"""A cluster whose agents are asked over the API server: its Nodes and Pods, and commands that "run" in the pods.

with ApiServer() as server:
    cluster = FleetOfAgents(server, tmp_path)
    cluster.add("node-a", answering(report))
    cluster.nftproxy("status", "--all-nodes")
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from nftproxy_conformance.apiserver import ApiServer, ExecRequest, ExecResult

from nftproxy.agent.socket.answers import AgentState, FamilyState, Versions
from nftproxy.commands.status import StatusReport
from tests.support.command import Done, kubectl_nftproxy, nftproxy
from tests.support.objects import api_object

CHECKOUT = Path(__file__).resolve().parents[2]
NAMESPACE = "kube-system"

RunCommand = Callable[[ExecRequest], Awaitable[ExecResult]]


def node(name: str, **labels: str) -> dict[str, Any]:
    """A Node with Linux and further labels."""
    known = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    return {"kind": "Node", "metadata": {"name": name, "labels": known | labels}}


def pod(
    name: str,
    node_name: str,
    labels: Mapping[str, str],
    *,
    is_ready: bool = True,
    namespace: str = NAMESPACE,
    waiting: str = "",
) -> dict[str, Any]:
    """A Pod on a node.  It runs, unless its container waits for a reason."""
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    return api_object("Pod", name, namespace, labels) | {
        "spec": {"nodeName": node_name, "containers": [{"name": "nftproxy"}]},
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": [
                {"name": "nftproxy", "state": {"waiting": {"reason": waiting}} if waiting else {"running": {}}}
            ],
        },
    }


def agent_pod(node_name: str, **options: Any) -> dict[str, Any]:
    """The agent's Pod on a node, as the DaemonSet makes it.  The options are those of `pod`."""
    return pod(f"nftproxy-{node_name}", node_name, {"app.kubernetes.io/name": "nftproxy"}, **options)


def kube_proxy_pod(node_name: str) -> dict[str, Any]:
    """kube-proxy's Pod on a node, as kubeadm makes it."""
    return pod(f"kube-proxy-{node_name}", node_name, {"k8s-app": "kube-proxy"})


class FleetOfAgents:
    """The agents of a cluster, by their pods.

    Args:
        server: the API server.
        directory: the directory of a kubeconfig.
        namespace: the pods' namespace.
    """

    def __init__(self, server: ApiServer, directory: Path, namespace: str = NAMESPACE) -> None:
        self._namespace = namespace
        self._server = server
        self._kubeconfig = server.write_kubeconfig(directory / "kubeconfig")
        self._commands: dict[str, RunCommand] = {}
        self.asked: list[ExecRequest] = []
        server.run_in_pods(self._run)

    def add(self, name: str, run: RunCommand, *, is_ready: bool = True) -> None:
        """Add a node with an agent."""
        self._server.put(node(name), agent_pod(name, is_ready=is_ready, namespace=self._namespace))
        self._commands[f"nftproxy-{name}"] = run

    async def _run(self, request: ExecRequest) -> ExecResult:
        self.asked.append(request)
        return await self._commands[request.pod](request)

    def nftproxy(self, *arguments: str | Path) -> Done:
        """Run a command with the kubeconfig."""
        return nftproxy(*arguments, "--kubeconfig", self._kubeconfig)

    def kubectl_nftproxy(self, *arguments: str | Path) -> Done:
        """Run a command of kubectl's plugin with the kubeconfig."""
        return kubectl_nftproxy(*arguments, "--kubeconfig", self._kubeconfig)


def answering(value: object, status: int = 0, errors: str = "") -> RunCommand:
    """A command that prints a value as JSON."""
    output = value if isinstance(value, bytes) else msgspec.json.encode(value)

    async def run(_request: ExecRequest) -> ExecResult:
        return ExecResult(output, errors.encode(), status)

    return run


async def hanging(_request: ExecRequest) -> ExecResult:
    """A command that never ends."""
    await asyncio.Event().wait()
    raise AssertionError


def real(socket: Path, program: Sequence[str] = (sys.executable, "-m", "nftproxy")) -> RunCommand:
    """A command that is run as a process, with the socket of an agent."""

    async def run(request: ExecRequest) -> ExecResult:
        given = [*program, *request.command[1:], "--agent-socket", str(socket)]
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
        process = await asyncio.create_subprocess_exec(
            *given, env=environment, cwd="/", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await process.communicate(request.stdin)
        return ExecResult(output, errors, process.returncode or 0)

    return run


def agent_state(name: str, **changes: Any) -> AgentState:
    """The state of a healthy agent on a node."""
    state = AgentState(
        is_healthy=True,
        why_not=(),
        warnings=(),
        node=name,
        process=1,
        started=1_000_000.0,
        now=1_000_060.0,
        source="https://10.0.0.1:6443",
        caveat="",
        knows_cluster=True,
        services=2,
        conflicts=0,
        quarantined=0,
        families=(FamilyState("IPv4", 1_000_050.0, is_healthy=True, waiting=0.0, elements=117),),
        watches=(),
        last_transaction=None,
        last_refusal=None,
        affinity=(),
        other_proxies={},
        missing=(),
        versions=Versions("0.2.0", "6.12.1", "1.1.3", "3.13.5"),
        configuration="5f70bf18",
    )
    return msgspec.structs.replace(state, **changes)


def status_of(name: str, **changes: Any) -> RunCommand:
    """The output of `nftproxy status -o json` on a node whose agent answers."""
    state = agent_state(name, **changes)
    return answering(StatusReport(is_healthy=state.is_healthy, agent=state))
