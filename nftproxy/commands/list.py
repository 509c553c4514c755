"""`nftproxy list`: what the agent of this node serves, and what it doesn't, in tables as kubectl prints them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from nftproxy.agent.answers import (
    ClientRow,
    End,
    EndpointRow,
    Row,
    ServiceRow,
)
from nftproxy.api.selectors import parse_selector
from nftproxy.commands.live import LIVE, Agent
from nftproxy.commands.tables import age, json_text, table
from nftproxy.model.addresses import host_port
from nftproxy.model.printable import printable

DEFAULT_NAMESPACE = "default"
"""What is listed without -n and -A, as kubectl has it where its context says nothing else."""

Cells = Callable[[Any], Sequence[str]]


class Columns(NamedTuple):
    """How a kind of row is shown: a header and cells, more of them with -o wide, and what -o name prints."""

    header: tuple[str, ...]
    cells: Cells
    wide_header: tuple[str, ...]
    wide_cells: Cells
    name: Callable[[Any], str]


def _service_cells(row: ServiceRow) -> Sequence[str]:
    external = ",".join(row.external_ips)
    since = age(time.time() - row.created) if row.created else "<unknown>"
    pods = f"{row.used}/{row.known}"
    return row.service, row.type, ",".join(row.cluster_ips), external, ",".join(row.ports), pods, row.state, since


def _wide_service_cells(row: ServiceRow) -> Sequence[str]:
    affinity = "" if row.affinity is None else f"{row.affinity}s"
    return str(row.local), f"{row.internal_policy}/{row.external_policy}", affinity, "; ".join(row.notes)


def _endpoint_cells(row: EndpointRow) -> Sequence[str]:
    used = "yes" if row.is_used else "local" if row.is_used_locally else "no"
    front = f"{row.port_name or row.port}/{row.protocol}"
    return row.service, front, row.endpoint, "yes" if row.is_local else "no", used


def _client_cells(row: ClientRow) -> Sequence[str]:
    front = f"{host_port(row.address, row.port)}/{row.protocol}"
    return row.service, row.client, front, row.pod, age(row.seconds_left)


COLUMNS: Mapping[str, Columns] = {
    "services": Columns(
        ("NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "ENDPOINTS", "STATE", "AGE"),
        _service_cells,
        ("LOCAL", "POLICY", "AFFINITY", "NOTES"),
        _wide_service_cells,
        lambda row: row.key,
    ),
    "endpoints": Columns(
        ("SERVICE", "PORT", "ENDPOINT", "LOCAL", "USED"),
        _endpoint_cells,
        ("WHY", "WHY-ON-NODE"),
        lambda row: (row.why, row.why_locally),
        lambda row: f"{row.key} {row.endpoint}",
    ),
    "conflicts": Columns(
        ("SERVICE", "PORT", "LACKS", "HOLDER"),
        lambda row: (row.service, row.port_name, row.what, row.holder),
        ("WHY",),
        lambda row: (row.why,),
        lambda row: row.key,
    ),
    "quarantined": Columns(
        ("SERVICE", "FAMILY", "WHY"),
        lambda row: (row.service, row.family or "all", row.why),
        (),
        lambda _row: (),
        lambda row: row.key,
    ),
    "affinity": Columns(
        ("SERVICE", "CLIENT", "ADDRESS", "POD", "LEFT"),
        _client_cells,
        ("TIMEOUT",),
        lambda row: (f"{row.timeout}s",),
        lambda row: f"{row.key} {row.client}",
    ),
}
"""What can be listed, and how."""


@click.command("list")
@click.argument("what", type=click.Choice(list(COLUMNS)))
@click.option("-n", "--namespace", default=DEFAULT_NAMESPACE, show_default=True, help="List what is in this namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="List what is in all namespaces.")
@click.option("-l", "--selector", default="", help="List what is of Services with these labels: app=web,!canary.")
@click.option(
    "-o", "--output", type=click.Choice(["wide", "json", "name"]), help="Print more columns, JSON, or names alone."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=500, show_default=True, help="List so many clients at most."
)
@LIVE
def list_command(
    what: str,
    namespace: str,
    all_namespaces: bool,
    selector: str,
    output: str | None,
    limit: int,
    agent_socket: str,
    timeout: float,
) -> None:
    """List what the agent of this node serves, and what it doesn't.

    That is services, their endpoints, conflicts about addresses and ports, Services that are quarantined, and the
    clients that session affinity remembers.
    """
    parse_selector(selector)  # which raises what is wrong with it, agent or no agent
    scope = "" if all_namespaces else namespace
    query = {"namespace": scope, "selector": selector}
    if what == "affinity":
        query["limit"] = str(limit)
    *rows, end = Agent(agent_socket, timeout).rows(what, **query)
    found = [row for row in rows if isinstance(row, Row)]
    for line in _printed(found, COLUMNS[what], output, with_namespace=all_namespaces):
        sys.stdout.write(f"{line}\n")
    if not found and output in (None, "wide"):
        click.echo("No resources found" + (f" in {printable(scope)} namespace." if scope else ""), err=True)
    if isinstance(end, End) and end.is_cut:
        click.echo(f"there are more: these are the first {len(found)} (--limit), in no order", err=True)


def _printed(rows: Sequence[Row], columns: Columns, output: str | None, *, with_namespace: bool) -> Iterator[str]:
    if output == "json":
        yield json_text({"kind": "List", "items": rows})
    elif output == "name":
        yield from dict.fromkeys(map(columns.name, rows))
    elif rows:
        wide = output == "wide"
        header = (*["NAMESPACE"] * with_namespace, *columns.header, *(columns.wide_header if wide else ()))
        yield from table(header, (_cells(row, columns, wide=wide, with_namespace=with_namespace) for row in rows))


def _cells(row: Row, columns: Columns, *, wide: bool, with_namespace: bool) -> Sequence[str]:
    own = [row.namespace] if with_namespace else []
    return (*own, *columns.cells(row), *(columns.wide_cells(row) if wide else ()))
