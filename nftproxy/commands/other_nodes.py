"""The options by which a command asks the agents of other nodes, and the way from these options to the answers.

Without such an option a command loads none of this code but the options: `nftproxy/fleet` comes with HTTP.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from nftproxy.commands.agent_client import PATIENCE
from nftproxy.commands.options import Decorator, options
from nftproxy.model.settings import AGENT_SOCKET
from nftproxy.model.texts import printable

if TYPE_CHECKING:
    from nftproxy.fleet.merged_rows import NodeOutcome
    from nftproxy.fleet.node_answers import NodeAnswer

T = TypeVar("T")

PLUGIN = "kubectl nftproxy"
"""The name of the command line as kubectl's plugin."""
START = 3.0
"""Seconds that a node gets beside the agent's --timeout, for the connection and for starting the command in the pod.

One node in 300 that doesn't answer then costs 6 s, so that the command ends in 10 s."""

_KUBECONFIG = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="The credentials for asking other nodes.  The default is that of kubectl.",
    metavar="FILE",
)
_NODE = click.option("--node", "nodes", multiple=True, help="Ask the agent of this node.  Repeatable.", metavar="NAME")
_COMMON = options(
    click.option("--all-nodes", is_flag=True, help="Ask the agents of all nodes."),
    click.option("--context", default="", help="The context of the kubeconfig.", metavar="NAME"),
    click.option(
        "--agent-namespace",
        default="kube-system",
        show_default=True,
        help="The namespace of the agents' pods.",
        metavar="NAME",
    ),
)


def _selector(*names: str) -> Decorator:
    text = "Ask the agents of the nodes with these labels."
    return click.option(*names, "node_selector", default="", help=text, metavar="SELECTOR")


FLEET_PARAMETERS = ("node_selector", "all_nodes", "kubeconfig", "context", "agent_namespace")
"""The parameters of `NODES_WITHOUT_NAMES`, as `nodes_asked` takes them."""
NODES_BESIDE_KUBECONFIG = options(_NODE, _selector("-l", "--node-selector"), _COMMON)
"""The options of a command that has a --kubeconfig of its own."""
NODES_WITHOUT_NAMES = options(_selector("-l", "--node-selector"), _COMMON, _KUBECONFIG)
"""The options of a command that has a --node of its own."""
NODES = options(_NODE, _selector("-l", "--node-selector"), _COMMON, _KUBECONFIG)
"""The options of commands that can ask other nodes."""
NODES_BESIDE_SELECTOR = options(_NODE, _selector("--node-selector"), _COMMON, _KUBECONFIG)
"""The same for a command whose -l selects Services."""


class NodesAsked(NamedTuple):
    """The nodes to ask, as options name them, and how."""

    names: tuple[str, ...]
    selector: str
    kubeconfig: Path | None
    context: str
    namespace: str
    socket: str
    patience: float
    start: float
    """Seconds beside the patience."""

    def answers(self, arguments: tuple[str, ...], reduce: Callable[[NodeAnswer], T], stdin: bytes = b"") -> list[T]:
        """Run `nftproxy ARGUMENTS` in each agent's pod, and return what `reduce` makes of the answers, in any order.

        Raises:
            BadInput: the kubeconfig can't be used, or a node doesn't exist.
            Unavailable: the API server doesn't list the nodes.
        """
        from nftproxy.fleet.asking import FleetAccess, NodeChoice, PodCommand, ask_nodes

        access = FleetAccess(str(self.kubeconfig or ""), self.context, self.namespace, self.patience + self.start)
        command = PodCommand((*arguments, *self._given()), stdin)
        return ask_nodes(access, NodeChoice(self.names, self.selector), command, reduce, _progress)

    def _given(self) -> Iterator[str]:
        """Yield the options of the agent's socket that differ from the default."""
        if self.socket != AGENT_SOCKET:
            yield f"--agent-socket={self.socket}"
        if self.patience != PATIENCE:
            yield f"--timeout={self.patience:g}"


def nodes_asked(
    *,
    nodes: tuple[str, ...],
    node_selector: str,
    all_nodes: bool,
    kubeconfig: Path | None,
    context: str,
    agent_namespace: str,
    agent_socket: str,
    timeout: float,
    is_offline: bool = False,
) -> NodesAsked | None:
    """Return the nodes that a command's options name, or None to ask the agent of this node.

    Without such options kubectl's plugin asks all nodes, unless the command works from manifests (`is_offline`).

    Raises:
        UsageError: options contradict each other, or have no effect.
    """
    given = [bool(nodes), bool(node_selector), all_nodes]
    if sum(given) > 1:
        raise click.UsageError("give one of --node, --node-selector and --all-nodes")
    if not any(given) and (is_offline or not is_plugin()):
        if kubeconfig or context:
            raise click.UsageError("--kubeconfig and --context need --node, --node-selector or --all-nodes")
        return None
    return NodesAsked(nodes, node_selector, kubeconfig, context, agent_namespace, agent_socket, timeout, START)


def is_plugin() -> bool:
    """True if kubectl runs the command."""
    return click.get_current_context().find_root().info_name == PLUGIN


def report_failures(outcomes: Sequence[NodeOutcome]) -> bool:
    """Print to standard error which nodes give no answer, and which answers may be old.  Return whether all answer."""
    from nftproxy.fleet.merged_rows import caveats, failures
    from nftproxy.fleet.node_answers import named

    failed = failures(outcomes)
    for problem, nodes in failed:
        click.echo(f"no answer from {named(nodes, len(outcomes))}: {printable(problem)}", err=True)
    for caveat in caveats(outcomes):
        click.echo(f"caveat: {printable(caveat)}", err=True)
    return not failed


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], object]]:
    """Show a progress bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=total, label=f"asking {total} nodes", file=sys.stderr) as bar:
        yield lambda: bar.update(1)
