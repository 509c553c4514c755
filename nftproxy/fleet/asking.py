"""Asks the agents of many nodes at once, over the API server: each by a command in its pod (`exec`).

kr8s has the requests (sources/cluster_api.py).  A pod's exec needs no port of the node that other machines
could reach, and works while the agent can't reach the API server.  `nftproxy manifests --reader` prints the rights.

* A node that doesn't answer costs its own row only, after `FleetAccess.patience` seconds.
* Pods that aren't ready are asked first, so that their time passes while the others answer.
* Answers are bounded, and reduced when they come, so that memory doesn't grow with the number of nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import httpx
import httpx_ws
import msgspec

from nftproxy.fleet.inventory import (
    AGENT_CONTAINER,
    AGENT_LABEL,
    KUBE_PROXY_LABEL,
    KUBE_PROXY_NAMESPACE,
    ClusterNode,
    ListedObject,
    ListPage,
    inventory,
)
from nftproxy.fleet.node_answers import NodeAnswer
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem, Unavailable
from nftproxy.sources.cluster_api import ClusterApi, cluster_api

AT_ONCE = 64
"""Nodes that are asked at the same time: below the 100 connections of an httpx client."""
PAGE = 500
"""Objects in a page of a list, as kubectl's --chunk-size."""
MOST_OBJECTS = 20_000
"""Limit of Nodes, and of Pods: four times the nodes that Kubernetes supports."""
LARGEST = 16 * 2**20
"""Bytes of an answer: the Services of a cluster of 10,000 take 6 MB."""
INPUT_PIECE = 32 * 1024
"""Bytes of standard input in a message."""

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""The versions of exec, the newest first.  Kubernetes 1.30 brought the fifth (KEP-4006)."""
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
"""Channels of an exec (k8s.io/apimachinery, pkg/util/remotecommand/constants.go)."""

_ENDED_EARLY = "the connection to its agent's pod has ended early"

T = TypeVar("T")

_FAILURES = (httpx.HTTPError, httpx_ws.HTTPXWSException, OSError)
"""The exceptions of a connection that fails."""


class FleetAccess(NamedTuple):
    """The cluster, by a kubeconfig and a context ("" for the defaults), and the namespace of the agents' pods.

    `patience` is the limit of seconds for the answer of a node.
    """

    kubeconfig: str
    context: str
    namespace: str
    patience: float


class NodeChoice(NamedTuple):
    """The nodes to ask: those with these names, or if there are none, all that a label selector selects."""

    names: tuple[str, ...] = ()
    selector: str = ""


class PodCommand(NamedTuple):
    """A command to run in the agent's container, and its standard input."""

    arguments: tuple[str, ...]
    stdin: bytes = b""


def ask_nodes(
    access: FleetAccess,
    choice: NodeChoice,
    command: PodCommand,
    reduce: Callable[[NodeAnswer], T],
    progress: Callable[[int], contextlib.AbstractContextManager[Callable[[], object]]],
) -> list[T]:
    """Run a command in the agent's pod on each node, and return what `reduce` makes of the answers, in any order.

    `progress` is called with the number of nodes.  It returns a context in which a function is called after each node.

    Raises:
        BadInput: the kubeconfig can't be used, or a node doesn't exist.
        Unavailable: the API server doesn't list Nodes and Pods.
    """
    return asyncio.run(_ask_nodes(access, choice, command, reduce, progress))


async def _ask_nodes(
    access: FleetAccess,
    choice: NodeChoice,
    command: PodCommand,
    reduce: Callable[[NodeAnswer], T],
    progress: Callable[[int], contextlib.AbstractContextManager[Callable[[], object]]],
) -> list[T]:
    turns = asyncio.Semaphore(AT_ONCE)
    async with cluster_api(access.kubeconfig, access.context, largest=LARGEST) as api:
        nodes = await _nodes(api, access, choice)
        with progress(len(nodes)) as advance:

            async def ask(node: ClusterNode) -> T:
                async with turns:
                    answer = await _answer(api, access, node, command)
                advance()
                return reduce(answer)

            return list(await asyncio.gather(*map(ask, sorted(nodes, key=lambda node: node.is_ready))))


async def _nodes(api: ClusterApi, access: FleetAccess, choice: NodeChoice) -> list[ClusterNode]:
    """Return the chosen nodes.

    Raises:
        BadInput: a node doesn't exist.
    """
    nodes = await _listed(api, "nodes", "", choice.selector)
    agents = await _listed(api, "pods", access.namespace, AGENT_LABEL)
    proxies = await _listed(api, "pods", KUBE_PROXY_NAMESPACE, KUBE_PROXY_LABEL)
    found = inventory(nodes, agents, proxies)
    if not choice.names:
        return found
    by_name = {node.name: node for node in found}
    absent = [name for name in dict.fromkeys(choice.names) if name not in by_name]
    if absent:
        raise BadInput(
            *(Problem("", "", "--node", f"the cluster has no node {n!r}", Code.NODE_UNKNOWN) for n in absent)
        )
    return [by_name[name] for name in dict.fromkeys(choice.names)]


async def _listed(api: ClusterApi, plural: str, namespace: str, selector: str) -> list[ListedObject]:
    """Return the Nodes or Pods of a label selector.

    Raises:
        Unavailable: the API server doesn't list them.
    """
    found: list[ListedObject] = []
    token: str | None = ""
    while token is not None:
        page = await _page(api, plural, namespace, {"labelSelector": selector, "continue": token, "limit": str(PAGE)})
        found += page.items or ()
        token = page.metadata.continue_token or None
        if len(found) > MOST_OBJECTS:
            raise Unavailable(f"the API server lists more than {MOST_OBJECTS} {plural}")
    return found


async def _page(api: ClusterApi, plural: str, namespace: str, params: dict[str, str]) -> ListPage:
    given = {name: value for name, value in params.items() if value}
    call = api.call_api("GET", url=plural, namespace=namespace or None, params=given, raise_for_status=False)
    try:
        async with call as response:
            body, status = response.content, response.status_code
    except _FAILURES as error:
        raise Unavailable(f"{api.host}: no list of {plural}: {api.failure(error)}") from error
    if status != 200:
        answer = api.error_status(body, status)
        hint = "; `nftproxy manifests --reader` prints the rights" if status == 403 else ""
        raise Unavailable(f"{api.host}: no list of {plural}: {answer.message}{hint}")
    try:
        return msgspec.json.decode(body, type=ListPage)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unavailable(f"{api.host}: the list of {plural} can't be read: {error}") from error


async def _answer(api: ClusterApi, access: FleetAccess, node: ClusterNode, command: PodCommand) -> NodeAnswer:
    """Return the answer of a node, or the reason why it gives none."""
    if not node.pod:
        return NodeAnswer(node, problem="no agent")
    if node.waiting:
        return NodeAnswer(node, problem=f"the container of its agent doesn't run: {node.waiting}")
    try:
        async with asyncio.timeout(access.patience):
            ended = await _run(api, access.namespace, node.pod, command)
    except TimeoutError:
        return NodeAnswer(node, problem=f"no answer within {access.patience:g} s")
    except _FAILURES as error:
        return NodeAnswer(node, problem=_cause(api, error))
    except (ValueError, RecursionError) as error:  # of a Status that can't be read, too
        return NodeAnswer(node, problem=f"an answer that isn't one of an exec: {error}")
    if ended.problem:
        return NodeAnswer(node, problem=ended.problem)
    if ended.status and not ended.output.strip():
        reason = ended.errors.strip().partition("\n")[0].removeprefix("error:").lstrip()
        return NodeAnswer(node, problem=reason or f"exit status {ended.status}", status=ended.status)
    return NodeAnswer(node, ended.output, status=ended.status)


class _ExecCause(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _ExecDetails(msgspec.Struct):
    causes: list[_ExecCause] | None = None


class _ExecStatus(msgspec.Struct):
    """The Status at the end of an exec."""

    status: str = ""
    message: str = ""
    details: _ExecDetails | None = None

    @property
    def exit_status(self) -> int | None:
        """The command's exit status, None if it wasn't run to its end."""
        if self.status == "Success":
            return 0
        causes = self.details.causes or [] if self.details else []
        found = next((cause.message for cause in causes if cause.reason == "ExitCode"), "")
        return int(found) if found.isascii() and found.isdigit() else None


class _Ended(NamedTuple):
    output: bytes = b""
    errors: str = ""
    status: int = 0
    problem: str = ""


async def _run(api: ClusterApi, namespace: str, pod: str, command: PodCommand) -> _Ended:
    """Run a command in a pod to its end."""
    outputs = {STDOUT: bytearray(), STDERR: bytearray(), ERROR: bytearray()}
    parameters = {
        "container": AGENT_CONTAINER,
        "command": list(command.arguments),
        "stdin": "true" if command.stdin else "false",
        "stdout": "true",
        "stderr": "true",
    }
    url = f"pods/{pod}/exec"
    async with api.open_websocket(url=url, namespace=namespace, subprotocols=PROTOCOLS, params=parameters) as socket:
        if command.stdin and socket.subprotocol != PROTOCOLS[0]:
            return _Ended(problem=f"its exec can't end standard input: that takes {PROTOCOLS[0]} (Kubernetes 1.30)")
        await _send(socket.send_bytes, command.stdin)
        while not outputs[ERROR]:
            message = await socket.receive_bytes()
            outputs.get(message[0] if message else ERROR, bytearray()).extend(message[1:])
            if sum(map(len, outputs.values())) > LARGEST:
                return _Ended(problem=f"an answer of more than {LARGEST} bytes")
    if not outputs[ERROR]:
        return _Ended(problem=_ENDED_EARLY)
    ended = msgspec.json.decode(outputs[ERROR], type=_ExecStatus)
    if ended.exit_status is None:
        return _Ended(problem=ended.message or "the command didn't run to its end")
    return _Ended(bytes(outputs[STDOUT]), outputs[STDERR].decode(errors="replace"), ended.exit_status)


async def _send(send: Callable[[bytes], Awaitable[None]], stdin: bytes) -> None:
    """Send standard input and its end.  Only version 5 of the protocol has an end."""
    if stdin:
        for start in range(0, len(stdin), INPUT_PIECE):
            await send(bytes([STDIN]) + stdin[start : start + INPUT_PIECE])
        await send(bytes([CLOSE, STDIN]))


def _cause(api: ClusterApi, error: BaseException) -> str:
    """Return a failure in words."""
    if isinstance(error, httpx_ws.WebSocketUpgradeError):
        status = error.response.status_code
        hint = ": the right to exec is missing (nftproxy manifests --reader)" if status == 403 else ""
        return f"the API server answers its exec with status {status}{hint}"
    if isinstance(error, httpx_ws.HTTPXWSException):
        return _ENDED_EARLY
    return api.failure(error)
