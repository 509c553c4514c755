"""`nftproxy top`: print the active connections of this node, by Service and endpoint, from conntrack.

The agent reads conntrack and names the Services.  Without an agent this process reads it, and shows addresses.
On a terminal the table is refreshed until Ctrl-C.  In a pipe, with --once and with -o json it is printed once.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from nftproxy.agent.socket.answers import ConnectionRow, Connections
from nftproxy.agent.socket.connection_rows import largest, unnamed
from nftproxy.commands.agent_client import LIVE, AgentClient, NoAnswer, NotReady
from nftproxy.commands.other_nodes import NODES, NodesAsked, nodes_asked, report_failures
from nftproxy.commands.output import STRUCTURED, structured, table
from nftproxy.kernel.conntrack.connection_counts import ConnectionCounts, active_connections
from nftproxy.model.addresses import port_text
from nftproxy.model.errors import Unavailable

HEADER = ("SERVICE", "PORT", "ENDPOINT", "CONNECTIONS", "UNANSWERED")
LINES_AROUND = 3
"""Lines of a terminal around the table's rows: the sum, the header, and the cursor's line."""
CLEAR = "\x1b[H\x1b[2J"
"""Moves a terminal's cursor to its upper left corner and clears it (ECMA-48)."""


def lines_of(top: Connections, most: int | None = None) -> Iterator[str]:
    """Yield the lines of the table, with at most `most` rows."""
    shown = top.rows[:most]
    yield from table(HEADER, map(_cells, shown))
    if rest := sum(row.connections for row in top.rows[len(shown) :]) + top.others:
        yield f"and {rest} more"


def _cells(row: ConnectionRow) -> Sequence[str]:
    endpoint = f"{row.endpoint} (gone)" if row.is_gone else row.endpoint
    return row.service, port_text(row.port, row.protocol), endpoint, str(row.connections), str(row.unanswered)


@click.command("top")
@click.option("-n", "--namespace", default="", help="Show only Services of this namespace.")
@click.option("-o", "--output", type=click.Choice(["text", *STRUCTURED]), default="text", show_default=True)
@click.option("--once", is_flag=True, help="Print the table once, as in a pipe.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two tables."
)
@NODES
@LIVE
def top_command(
    namespace: str, output: str, once: bool, interval: float, agent_socket: str, timeout: float, **fleet: Any
) -> None:
    """Show this node's connections by Service and endpoint.

    The rows with most connections come first.  On a terminal the table is refreshed until Ctrl-C.  A connection is
    active if conntrack has translated it and it hasn't ended.  For UDP that is as long as conntrack remembers it.
    UNANSWERED counts the connections to which the endpoint has sent nothing.  An endpoint that the Service doesn't have
    any more is marked as gone.

    With --all-nodes, --node or -l it prints the sums of the connections of these nodes, once.
    """
    if asked := nodes_asked(agent_socket=agent_socket, timeout=timeout, **fleet):
        sys.exit(_of_nodes(asked, namespace, output))
    tops = _tops(AgentClient(agent_socket, timeout), namespace)
    if output in STRUCTURED:
        click.echo(structured(next(tops), output))
    elif once or not sys.stdout.isatty():
        click.echo("\n".join(lines_of(next(tops))))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            for top in tops:
                _draw(top)
                time.sleep(interval)


def _of_nodes(asked: NodesAsked, namespace: str, output: str) -> int:
    """Print the sums of the connections of many nodes, and return the exit status: 1 if some node gives no answer."""
    from nftproxy.fleet.merged_rows import MergedConnections

    merged = MergedConnections()
    scope = [f"--namespace={namespace}"] if namespace else []
    outcomes = asked.answers(("nftproxy", "top", "-o", "json", *scope), merged.take)
    sums = merged.sums()
    click.echo(structured(sums, output) if output in STRUCTURED else "\n".join(lines_of(sums)))
    return 0 if report_failures(outcomes) else 1


def _tops(agent: AgentClient, namespace: str) -> Iterator[Connections]:
    """Yield the present connections each time, by address without an agent.

    Raises:
        NotReady: the agent doesn't know the cluster yet.
    """
    printed = ""
    while True:
        try:
            top = agent.get(Connections, "/v1/connections", namespace=namespace)
            news = f"caveat: {top.caveat}" if top.caveat else ""
        except NotReady:
            raise
        except NoAnswer as error:
            top = largest(unnamed(_without_agent(error), error.what), namespace)
            why = f"{error.what}, so addresses are shown instead of Services; {error.advice}"
            news = f"warning: {error.code}: {why}"
        if news and news != printed:
            click.echo(news, err=True)
        printed = news
        yield top


def _without_agent(error: NoAnswer) -> ConnectionCounts:
    """Return the connections from conntrack.

    Raises:
        NoAnswer: conntrack can't be read either, as in a pod without CAP_NET_ADMIN.
    """
    try:
        return active_connections()
    except Unavailable as other:
        raise NoAnswer(f"{error.what}; {other}", error.advice, error.process) from other


def _draw(top: Connections) -> None:
    """Redraw the terminal with the rows that fit."""
    height = shutil.get_terminal_size().lines
    head = f"{time.strftime('%H:%M:%S')}  {top.connections} active connections"
    problem = [f"no names: {top.problem}"] if top.problem else [top.caveat] if top.caveat else []
    rows = max(1, height - LINES_AROUND - len(problem) - 1)
    sys.stdout.write(CLEAR + "\n".join([head, *problem, *lines_of(top, rows)]) + "\n")
    sys.stdout.flush()
