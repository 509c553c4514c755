"""`nftproxy top`: print the active connections of this node, by Service and endpoint, from conntrack.

conntrack has addresses, and the agent has the Services that they belong to.  Without an agent the addresses are shown.
On a terminal the table is refreshed until Ctrl-C.  In a pipe, with --once and with -o json it is printed once.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import click
import msgspec

from nftproxy.agent.socket.answers import ConflictRow, End, ListingRow, ServiceRow
from nftproxy.commands.agent_client import LIVE, AgentClient, NoAnswer
from nftproxy.commands.output import json_text, table
from nftproxy.kernel.conntrack.connection_counts import ConnectionCounts, Translation, active_connections
from nftproxy.model.addresses import host_port

HEADER = ("SERVICE", "PORT", "ENDPOINT", "CONNECTIONS")
LINES_AROUND = 3
"""Lines of a terminal around the table's rows: the sum, the header, and the cursor's line."""
NAMES_FOR = 30.0
"""Seconds for which the agent's answer is cached: for 10,000 Services it takes the agent a second."""
CLEAR = "\x1b[H\x1b[2J"
"""Moves a terminal's cursor to its upper left corner and clears it (ECMA-48)."""


class TopRow(msgspec.Struct, frozen=True, rename="camel"):
    """Active connections of a Service port to an endpoint.

    `service` is "namespace/name".  If it is unknown, it is "", and `port` has the address and port that clients use.
    """

    service: str
    port: str
    protocol: str
    endpoint: str
    connections: int


class Top(msgspec.Struct, frozen=True, rename="camel"):
    """The output of `-o json`."""

    connections: int
    """All connections."""
    others: int
    """Connections that are in no row, as there are too many different ones."""
    rows: tuple[TopRow, ...]
    problem: str = ""
    """Why the rows have no Services, "" if they have."""
    caveat: str = ""
    """Why the Services may be out of date, "" if they aren't."""


class PortName(NamedTuple):
    """A Service port: "namespace/name", and the port's number."""

    service: str
    port: str


class ServiceNames:
    """The Service ports of addresses and node ports, from the agent's listings of Services and conflicts.

    A Service has its addresses, except for conflicts that it lost.  A node port is open at any address of the node.
    """

    def __init__(self, rows: Iterable[ListingRow | End] = ()) -> None:
        rows = list(rows)
        self.caveat = next((row.caveat for row in rows if isinstance(row, End) and row.caveat), "")
        lost = {(row.key, row.what) for row in rows if isinstance(row, ConflictRow)}
        self._names: dict[tuple[str, str, int], PortName] = {}
        for row in rows:
            if isinstance(row, ServiceRow):
                self._add(row, lost)

    def of(self, way: Translation) -> PortName | None:
        """Return the Service port that a connection was meant for, None if unknown."""
        protocol = way.protocol.value
        return self._names.get((protocol, way.address, way.port)) or self._names.get((protocol, "", way.port))

    def _add(self, row: ServiceRow, lost: set[tuple[str, str]]) -> None:
        for text in row.ports:
            number, _, rest = text.rpartition("/")
            port, _, node_port = number.partition(":")
            protocol, name = rest.lower(), PortName(f"{row.namespace}/{row.service}", port)
            for address in (*row.cluster_ips, *row.external_ips):
                if (row.key, f"{address} . {protocol} . {port}") not in lost:
                    self._names[protocol, address, int(port)] = name
            if node_port and (row.key, f"{protocol} . {node_port}") not in lost:
                self._names[protocol, "", int(node_port)] = name


def top_of(found: ConnectionCounts, names: ServiceNames, namespace: str = "", problem: str = "") -> Top:
    """Return the rows with most connections first, only of `namespace` if it isn't ""."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for way, count in found.by_translation.items():
        name = names.of(way) or PortName("", host_port(way.address, way.port))
        if not namespace or name.service.startswith(f"{namespace}/"):
            endpoint = host_port(way.endpoint, way.endpoint_port)
            counts[name.service, name.port, way.protocol.value, endpoint] += count
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = tuple(TopRow(*key, count) for key, count in ranked)
    return Top(counts.total() + found.others, found.others, rows, problem, names.caveat)


def lines_of(top: Top, most: int | None = None) -> Iterator[str]:
    """Yield the lines of the table, with at most `most` rows."""
    shown = top.rows[:most]
    yield from table(HEADER, map(_cells, shown))
    if rest := sum(row.connections for row in top.rows[len(shown) :]) + top.others:
        yield f"and {rest} more"


def _cells(row: TopRow) -> Sequence[str]:
    return row.service, f"{row.port}/{row.protocol}", row.endpoint, str(row.connections)


@click.command("top")
@click.option("-n", "--namespace", default="", help="Show only Services of this namespace.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--once", is_flag=True, help="Print the table once, as in a pipe.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two tables."
)
@LIVE
def top_command(namespace: str, output: str, once: bool, interval: float, agent_socket: str, timeout: float) -> None:
    """Show this node's connections by Service and endpoint.

    The rows with most connections come first.  On a terminal the table is refreshed until Ctrl-C.  A connection is
    active if conntrack has translated it and it hasn't ended.  For UDP that is as long as conntrack remembers it.
    """
    tops = _tops(AgentClient(agent_socket, timeout), namespace)
    if output == "json":
        click.echo(json_text(next(tops)))
    elif once or not sys.stdout.isatty():
        click.echo("\n".join(lines_of(next(tops))))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            for top in tops:
                _draw(top)
                time.sleep(interval)


def _tops(agent: AgentClient, namespace: str) -> Iterator[Top]:
    """Yield the present connections each time.  Names are cached for `NAMES_FOR`, and absent without an agent."""
    asked, names, problem = float("-inf"), ServiceNames(), ""
    while True:
        if time.monotonic() - asked >= NAMES_FOR:
            asked = time.monotonic()
            try:
                names, problem = ServiceNames([*agent.rows("services"), *agent.rows("conflicts")]), ""
                if names.caveat:
                    click.echo(f"caveat: {names.caveat}", err=True)
            except NoAnswer as error:
                names, problem = ServiceNames(), error.what
                why = f"{error.what}, so addresses are shown instead of Services; {error.advice}"
                click.echo(f"warning: {error.code}: {why}", err=True)
        yield top_of(active_connections(), names, namespace, problem)


def _draw(top: Top) -> None:
    """Redraw the terminal with the rows that fit."""
    height = shutil.get_terminal_size().lines
    head = f"{time.strftime('%H:%M:%S')}  {top.connections} active connections"
    problem = [f"no names: {top.problem}"] if top.problem else [top.caveat] if top.caveat else []
    rows = max(1, height - LINES_AROUND - len(problem) - 1)
    sys.stdout.write(CLEAR + "\n".join([head, *problem, *lines_of(top, rows)]) + "\n")
    sys.stdout.flush()
