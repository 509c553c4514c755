"""The state of a cluster, from the output of `nftproxy status -o json` on each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

import msgspec

from nftproxy.fleet.node_answers import Agreements, NodeAnswer, count_of, named, one_of

OUT_OF_TOUCH = 3
"""The exit status if a node needs attention that isn't the agent's own fault, as of `nftproxy status`."""


class NodeState(Enum):
    """The state of a node, in the order of attention that it needs."""

    NO_ANSWER = "NoAnswer"  # the agent doesn't answer, or has no pod that runs
    NO_AGENT = "NoAgent"  # no agent's pod, and no pod of kube-proxy
    UNHEALTHY = "NotHealthy"
    OUT_OF_TOUCH = "OutOfTouch"  # healthy, and changes of the cluster don't reach the agent
    LEAVING = "Leaving"  # healthy, and the node is being removed, or isn't known
    WARNINGS = "Warnings"  # healthy, with warnings
    KUBE_PROXY = "KubeProxy"  # no agent's pod, but a pod of kube-proxy
    WELL = "Well"


_WORDS = {
    NodeState.WELL: ("well", "well"),
    NodeState.WARNINGS: ("with warnings", "with warnings"),
    NodeState.OUT_OF_TOUCH: ("out of touch", "out of touch"),
    NodeState.LEAVING: ("leaving", "leaving"),
    NodeState.UNHEALTHY: ("not healthy", "not healthy"),
    NodeState.NO_ANSWER: ("doesn't answer", "don't answer"),
    NodeState.NO_AGENT: ("without an agent", "without an agent"),
    NodeState.KUBE_PROXY: ("with kube-proxy instead", "with kube-proxy instead"),
}
"""Each state in words, for a single node and for several, in the order of the first line."""
_FAULTY = {NodeState.NO_ANSWER, NodeState.NO_AGENT, NodeState.UNHEALTHY}


class _Versions(msgspec.Struct, frozen=True):
    nftproxy: str = ""
    kernel: str = ""


class _Agent(msgspec.Struct, rename="camel"):
    why_not: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    caveat: str = ""
    versions: _Versions = _Versions()
    configuration: str = ""
    is_eligible: bool = True


class _Report(msgspec.Struct, rename="camel"):
    is_healthy: bool
    agent: _Agent | None = None
    problem: str = ""


class StatusOfNode(msgspec.Struct, frozen=True, rename="camel"):
    """The state of a node.

    `reasons` say why it isn't well.  `configuration` is a digest of the agent's configuration, and `status` the output
    of `nftproxy status -o json` there, null if there is none.
    """

    node: str
    state: NodeState
    reasons: tuple[str, ...] = ()
    pod: str = ""
    has_kube_proxy: bool = False
    version: str = ""
    kernel: str = ""
    configuration: str = ""
    status: msgspec.Raw = msgspec.Raw(b"null")


class ClusterStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The output of `status --all-nodes -o json`: a summary in words, the number of nodes by state, and the nodes."""

    summary: str
    states: dict[str, int]
    nodes: tuple[StatusOfNode, ...]


def node_status(answer: NodeAnswer) -> StatusOfNode:
    """Judge the answer of a node."""
    node = answer.node
    known = StatusOfNode(node.name, NodeState.NO_ANSWER, pod=node.pod, has_kube_proxy=node.has_kube_proxy)
    if not node.pod:
        state = NodeState.KUBE_PROXY if node.has_kube_proxy else NodeState.NO_AGENT
        return msgspec.structs.replace(known, state=state)
    report, problem = answer.decoded(_Report)
    if report is None or report.agent is None:
        why = problem if report is None else report.problem
        return msgspec.structs.replace(known, reasons=(why.partition("\n")[0],))
    return _of_agent(known, report.is_healthy, report.agent, answer.output)


def _of_agent(known: StatusOfNode, is_healthy: bool, agent: _Agent, output: bytes) -> StatusOfNode:
    state = NodeState.WARNINGS if agent.warnings else NodeState.WELL
    state = state if agent.is_eligible else NodeState.LEAVING
    state = NodeState.OUT_OF_TOUCH if agent.caveat else state
    state = state if is_healthy else NodeState.UNHEALTHY
    return msgspec.structs.replace(
        known,
        state=state,
        reasons=(*agent.why_not, *agent.warnings),
        version=agent.versions.nftproxy,
        kernel=agent.versions.kernel,
        configuration=agent.configuration,
        status=msgspec.Raw(output.strip()),
    )


def cluster_status(nodes: Iterable[StatusOfNode]) -> ClusterStatus:
    """Sum up the states of nodes, by name."""
    found = tuple(sorted(nodes, key=lambda each: each.node))
    counts = Counter(each.state for each in found)
    summary = f"{count_of(len(found))}: {one_of((counts[state], *words) for state, words in _WORDS.items())}"
    states = {state.value: counts[state] for state in _WORDS if counts[state]}
    return ClusterStatus(summary, states, found)


def exit_status(found: ClusterStatus) -> int:
    """Return the worst exit status of all nodes, as of `nftproxy status` there.  A node without an agent is a fault."""
    states = {each.state for each in found.nodes}
    if states & _FAULTY:
        return 1
    return OUT_OF_TOUCH if states & {NodeState.OUT_OF_TOUCH, NodeState.LEAVING} else 0


def remarks(found: ClusterStatus) -> Iterator[str]:
    """Yield a line about each thing in which nodes differ, although each may be well."""
    if beside := [each.node for each in found.nodes if each.pod and each.has_kube_proxy]:
        yield f"kube-proxy beside the agent: {named(beside, len(found.nodes))}"
    yield from _differing("versions", ((each.node, each.version) for each in found.nodes))
    yield from _differing("configurations", ((each.node, each.configuration) for each in found.nodes))


def _differing(what: str, values: Iterable[tuple[str, str]]) -> Iterator[str]:
    agreements = Agreements[str, str](lambda value: value)
    for node, value in values:
        if value:
            agreements.add(node, value)
    groups = agreements.groups()
    if len(groups) > 1:
        (most, nodes), *rest = groups
        others = "; ".join(f"{each.answer} on {named(each.nodes, 0)}" for each in rest)
        yield f"{what} differ: {most} on {count_of(len(nodes))}; {others}"


HEADER = ("NODE", "STATE", "REASON")
WIDE = ("NODE", "STATE", "VERSION", "KERNEL", "CONFIGURATION", "POD", "REASON")
"""The columns of -o wide."""


def attention(found: ClusterStatus) -> Iterator[Sequence[str]]:
    """Yield a row for each node that needs attention, the worst first."""
    order = list(NodeState)
    for node in sorted(found.nodes, key=lambda each: order.index(each.state)):
        if node.state is not NodeState.WELL and node.state is not NodeState.KUBE_PROXY:
            yield node.node, node.state.value, "; ".join(node.reasons) or "-"


def wide(found: ClusterStatus) -> Iterator[Sequence[str]]:
    """Yield a row for each node."""
    for node in found.nodes:
        known = (node.version, node.kernel, node.configuration, node.pod)
        yield node.node, node.state.value, *(text or "-" for text in known), "; ".join(node.reasons) or "-"
