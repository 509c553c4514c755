"""`nftproxy top`: the active connections of this node, by Service and endpoint, as conntrack has them.

conntrack knows addresses; whose they are is asked of the agent.  Without one the addresses themselves are shown.
On a terminal the table is renewed until it is stopped; in a pipe, with --once and with -o json it is printed once.
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

from nftproxy.agent.answers import ConflictRow, End, Row, ServiceRow
from nftproxy.commands.live import LIVE, Agent, NoAnswer
from nftproxy.commands.tables import json_text, table
from nftproxy.kernel.connections import Connections, Way, active_connections
from nftproxy.model.addresses import host_port

HEADER = ("SERVICE", "PORT", "ENDPOINT", "CONNECTIONS")
LINES_AROUND = 3
"""Lines of a terminal that the table's rows don't get: the sum, the header, and the cursor's own."""
NAMES_FOR = 30.0
"""Seconds for which the agent's answer is used: asking about 10,000 Services takes it a second."""
CLEAR = "\x1b[H\x1b[2J"
"""Moves a terminal's cursor to its upper left corner and clears it (ECMA-48)."""


class TopRow(msgspec.Struct, frozen=True, rename="camel"):
    """Active connections of a Service port to an endpoint.

    `service` is "namespace/name", "" if it isn't known; then `port` has the address and port that clients use.
    """

    service: str
    port: str
    protocol: str
    endpoint: str
    connections: int


class Top(msgspec.Struct, frozen=True, rename="camel"):
    """What `-o json` prints: all connections, those of too many ways to be shown, and the rows.

    `problem` says why Services have no names, "" if they have.
    """

    connections: int
    others: int
    rows: tuple[TopRow, ...]
    problem: str = ""


class Front(NamedTuple):
    """A Service port: "namespace/name", and the port's number."""

    service: str
    port: str


class Names:
    """Whose the addresses and ports are, from the agent's listings of Services and conflicts.

    A Service has its addresses, except those that it lost to another one; a node port is the node's at any address.
    """

    def __init__(self, rows: Iterable[Row | End] = ()) -> None:
        rows = list(rows)
        lost = {(row.key, row.what) for row in rows if isinstance(row, ConflictRow)}
        self._by_address: dict[tuple[str, str, int], Front] = {}
        self._by_node_port: dict[tuple[str, int], Front] = {}
        for row in rows:
            if isinstance(row, ServiceRow):
                self._add(row, lost)

    def of(self, way: Way) -> Front | None:
        """Whose the place is that a connection was meant for; None if nobody's that is known."""
        protocol = way.protocol.value
        by_address = self._by_address.get((protocol, way.address, way.port))
        return by_address or self._by_node_port.get((protocol, way.port))

    def _add(self, row: ServiceRow, lost: set[tuple[str, str]]) -> None:
        for text in row.ports:
            number, _, rest = text.rpartition("/")
            port, _, node_port = number.partition(":")
            protocol, front = rest.lower(), Front(f"{row.namespace}/{row.service}", port)
            for address in (*row.cluster_ips, *row.external_ips):
                if (row.key, f"{address} . {protocol} . {port}") not in lost:
                    self._by_address[protocol, address, int(port)] = front
            if node_port and (row.key, f"{protocol} . {node_port}") not in lost:
                self._by_node_port[protocol, int(node_port)] = front


def top_of(found: Connections, names: Names, namespace: str = "", problem: str = "") -> Top:
    """The rows, those with most connections first; only of a namespace, if one is given."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for way, count in found.by_way.items():
        front = names.of(way) or Front("", host_port(way.address, way.port))
        if not namespace or front.service.startswith(f"{namespace}/"):
            endpoint = host_port(way.endpoint, way.endpoint_port)
            counts[front.service, front.port, way.protocol.value, endpoint] += count
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = tuple(TopRow(*key, count) for key, count in ranked)
    return Top(counts.total() + found.others, found.others, rows, problem)


def lines_of(top: Top, most: int | None = None) -> Iterator[str]:
    """The table, with at most so many rows."""
    shown = top.rows[:most]
    yield from table(HEADER, map(_cells, shown))
    if rest := sum(row.connections for row in top.rows[len(shown) :]) + top.others:
        yield f"and {rest} more"


def _cells(row: TopRow) -> Sequence[str]:
    return row.service, f"{row.port}/{row.protocol}", row.endpoint, str(row.connections)


class _Asking:
    """The agent's answer about names, asked for now and then."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._asked = float("-inf")
        self.names = Names()
        self.problem = ""

    def renew(self) -> None:
        """Ask again if the last answer is old; without an answer there are no names."""
        if time.monotonic() - self._asked < NAMES_FOR:
            return
        self._asked = time.monotonic()
        try:
            self.names = Names([*self._agent.rows("services"), *self._agent.rows("conflicts")])
            self.problem = ""
        except NoAnswer as error:
            self.names, self.problem = Names(), error.what
            text = f"warning: {error.code}: {error.what}, so addresses are shown instead of Services; {error.advice}"
            click.echo(text, err=True)


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

    Those with most come first.  On a terminal the table is renewed until Ctrl-C.  Active are connections that conntrack
    has translated and that have not ended: of UDP, as long as conntrack remembers them.
    """
    asking = _Asking(Agent(agent_socket, timeout))
    if output == "json":
        top = _look(asking, namespace)
        click.echo(json_text(top))
    elif once or not sys.stdout.isatty():
        click.echo("\n".join(lines_of(_look(asking, namespace))))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                _draw(_look(asking, namespace))
                time.sleep(interval)


def _look(asking: _Asking, namespace: str) -> Top:
    asking.renew()
    return top_of(active_connections(), asking.names, namespace, asking.problem)


def _draw(top: Top) -> None:
    """Renew the table on a terminal, as long as it fits."""
    height = shutil.get_terminal_size().lines
    head = f"{time.strftime('%H:%M:%S')}  {top.connections} active connections"
    problem = [f"no names: {top.problem}"] if top.problem else []
    rows = max(1, height - LINES_AROUND - len(problem) - 1)
    sys.stdout.write(CLEAR + "\n".join([head, *problem, *lines_of(top, rows)]) + "\n")
    sys.stdout.flush()
