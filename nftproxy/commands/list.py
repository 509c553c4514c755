"""`nftproxy list`: print Services, endpoints, conflicts and clients of this node's agent, in tables like kubectl's."""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from nftproxy.agent.socket.answers import End, EndpointRow, ListingRow
from nftproxy.api.selectors import parse_selector
from nftproxy.commands.agent_client import LIVE, AgentClient
from nftproxy.commands.other_nodes import NODES_BESIDE_SELECTOR, NodesAsked, nodes_asked, report_failures
from nftproxy.commands.output import STRUCTURED, age, fitted, structured, table, with_times
from nftproxy.model.addresses import host_port, port_text
from nftproxy.model.texts import printable
from nftproxy.sources.context_namespace import context_namespace

Cells = Mapping[str, Callable[[Any], str]]
"""The cell of a row in each column, by the column's header."""


class Listing(NamedTuple):
    """How rows of a kind are printed: `wide` columns only with -o wide, and `name` with -o name."""

    columns: Cells
    wide: Cells = MappingProxyType({})
    name: Callable[[Any], str] = operator.attrgetter("key")
    lists: frozenset[str] = frozenset()
    """The columns with lists of addresses and ports, without which the narrow table isn't fitted into a width."""


def _used(row: EndpointRow) -> str:
    return "yes" if row.is_used else "local" if row.is_used_locally else "no"


LISTINGS: Mapping[str, Listing] = {
    "services": Listing(
        {
            "NAME": lambda row: row.service,
            "TYPE": lambda row: row.type,
            "CLUSTER-IP": lambda row: ",".join(row.cluster_ips),
            "EXTERNAL-IP": lambda row: ",".join(row.external_ips),
            "PORT(S)": lambda row: ",".join(row.ports),
            "ENDPOINTS": lambda row: f"{row.used}/{row.known}",
            "STATE": lambda row: row.state,
            "AGE": lambda row: age(time.time() - row.created) if row.created else "<unknown>",
        },
        {
            "LOCAL": lambda row: str(row.local) if "Local" in (row.internal_policy, row.external_policy) else "",
            "POLICY": lambda row: f"{row.internal_policy}/{row.external_policy}",
            "AFFINITY": lambda row: "" if row.affinity is None else f"{row.affinity}s",
            "NOTES": lambda row: "; ".join(row.notes),
        },
        lists=frozenset({"CLUSTER-IP", "EXTERNAL-IP", "PORT(S)"}),
    ),
    "endpoints": Listing(
        {
            "SERVICE": lambda row: row.service,
            "PORT": lambda row: port_text(row.port, row.protocol),
            "ENDPOINT": lambda row: row.endpoint,
            "LOCAL": lambda row: "yes" if row.is_local else "no",
            "USED": _used,
            "POD": lambda row: row.pod.removeprefix(f"{row.namespace}/"),
        },
        {
            "PORT-NAME": lambda row: row.port_name,
            "WHY": lambda row: row.why,
            "WHY-ON-NODE": lambda row: row.why_locally,
        },
        lambda row: f"{row.key} {row.endpoint}",
    ),
    "conflicts": Listing(
        {
            "SERVICE": lambda row: row.service,
            "PORT-NAME": lambda row: row.port_name,
            "LACKS": lambda row: row.what,
            "HOLDER": lambda row: row.holder,
        },
        {"WHY": lambda row: row.why},
    ),
    "quarantined": Listing(
        {
            "SERVICE": lambda row: row.service,
            "FAMILY": lambda row: row.family or "all",
            "WHY": lambda row: row.why,
        }
    ),
    "silent": Listing(
        {
            "SERVICE": lambda row: row.service,
            "PORT": lambda row: port_text(row.port, row.protocol),
            "ENDPOINT": lambda row: row.endpoint,
            "USED": _used,
            "POD": lambda row: row.pod.removeprefix(f"{row.namespace}/"),
        },
        {"WHY": lambda row: row.why},
        lambda row: f"{row.key} {row.endpoint}",
    ),
    "affinity": Listing(
        {
            "SERVICE": lambda row: row.service,
            "CLIENT": lambda row: row.client,
            "ADDRESS": lambda row: port_text(host_port(row.address, row.port), row.protocol),
            "POD": lambda row: row.pod,
            "LEFT": lambda row: age(row.seconds_left),
        },
        {"TIMEOUT": lambda row: f"{row.timeout}s"},
        lambda row: f"{row.key} {row.client}",
    ),
}
"""The listings, by their names on the command line.  A wide column replaces a narrow column of the same name."""

ALIASES: Mapping[str, str] = {
    "service": "services",
    "svc": "services",
    "endpoint": "endpoints",
    "ep": "endpoints",
    "conflict": "conflicts",
}
"""Other names of listings: kubectl's short names, and singulars."""


@click.command("list")
@click.argument("what", type=click.Choice([*LISTINGS, *ALIASES]), metavar="WHAT")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-n", "--namespace", default="", help="The namespace to list.  The default is the kubeconfig's.")
@click.option("-A", "--all-namespaces", is_flag=True, help="List all namespaces.")
@click.option("-l", "--selector", default="", help="Only Services with these labels: app=web,!canary.")
@click.option(
    "-o", "--output", type=click.Choice(["wide", *STRUCTURED, "name"]), help="Print more columns, JSON, YAML, or names."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=500, show_default=True, help="The most clients to list."
)
@NODES_BESIDE_SELECTOR
@LIVE
def list_command(
    what: str,
    names: tuple[str, ...],
    namespace: str,
    all_namespaces: bool,
    selector: str,
    output: str | None,
    limit: int,
    agent_socket: str,
    timeout: float,
    **fleet: Any,
) -> None:
    """List Services, endpoints and clients of this node's agent.

    WHAT is services (svc), endpoints (ep), conflicts about addresses and ports, quarantined Services, silent endpoints
    that are left out, or affinity, the clients that session affinity remembers.  NAME is the name of a Service, and the
    exit status is 1 if there is none.

    With --all-nodes, --node or --node-selector it lists the rows of these nodes' agents.  Equal rows are a single row.
    """
    what = ALIASES.get(what, what)
    if names and all_namespaces:
        raise click.UsageError("a name needs a namespace: replace -A with --namespace")
    parse_selector(selector)  # raises if it is bad, agent or no agent
    if not (namespace or all_namespaces):
        namespace = context_namespace(fleet["kubeconfig"], fleet["context"])
    scope = "" if all_namespaces else namespace
    query = {"namespace": scope, "selector": selector} | ({"limit": str(limit)} if what == "affinity" else {})
    if asked := nodes_asked(agent_socket=agent_socket, timeout=timeout, **fleet):
        sys.exit(_of_nodes(asked, what, names, query, output))
    listed, end = AgentClient(agent_socket, timeout).listing(what, **query)
    rows = [row for row in listed if not names or row.service in names]
    for line in _printed(rows, LISTINGS[what], output, end.caveat, with_namespace=all_namespaces):
        sys.stdout.write(f"{line}\n")
    absent = _absent(names, rows) if what == "services" else []
    if absent:
        click.echo(_absence(absent, namespace), err=True)
    elif not rows and output in (None, "wide"):
        click.echo("No resources found" + (f" in {printable(scope)} namespace." if scope else ""), err=True)
    for remark in _remarks(len(rows), end):
        click.echo(remark, err=True)
    if absent:
        sys.exit(1)


def _of_nodes(asked: NodesAsked, what: str, names: Sequence[str], query: Mapping[str, str], output: str | None) -> int:
    """Print the merged rows of many nodes, and return the exit status: 1 if some node gives no answer."""
    from nftproxy.fleet.merged_rows import MergedListing

    listing, merged = LISTINGS[what], MergedListing(names)
    scope = [f"--{name}={text}" for name, text in query.items() if text]
    everywhere = [] if query["namespace"] else ["-A"]
    outcomes = asked.answers(("nftproxy", "list", what, "-o", "json", *everywhere, *scope), merged.take)
    rows = merged.rows()
    if output in STRUCTURED:
        click.echo(structured(with_times({"kind": "List", "items": rows}), output))
    elif output == "name":
        click.echo("".join(f"{name}\n" for name in dict.fromkeys(listing.name(each.row) for each in rows)), nl=False)
    elif rows:
        cells = _cells(listing, output, with_namespace=not query["namespace"])
        cells = {name: cell for name, cell in cells.items() if name not in OF_A_NODE}
        reasons = [name for name in cells if name.startswith("WHY")]  # long texts come last
        header = (*(name for name in cells if name not in reasons), "NODES", *reasons)
        lines = (
            {name: cell(each.row) for name, cell in cells.items()} | {"NODES": _nodes(each.nodes, len(outcomes))}
            for each in rows
        )
        click.echo("\n".join(_table(listing, output, header, ([line[name] for name in header] for line in lines))))
    else:
        click.echo("No resources found", err=True)
    return 0 if report_failures(outcomes) else 1


OF_A_NODE = frozenset({"LOCAL", "AGE"})
"""Columns that a merged listing lacks: each node has another value, or prints it at another time."""


MOST_NODES = 3
"""Nodes of a merged row that are named."""


def _nodes(nodes: Sequence[str], asked: int) -> str:
    if len(nodes) == asked:
        return "all"
    return ",".join(nodes) if len(nodes) <= MOST_NODES else f"{len(nodes)} of {asked}"


def _cells(listing: Listing, output: str | None, *, with_namespace: bool) -> Cells:
    namespace: Cells = {"NAMESPACE": lambda row: row.namespace} if with_namespace else {}
    return {**namespace, **listing.columns, **(listing.wide if output == "wide" else {})}


def _absent(names: Sequence[str], rows: Sequence[ListingRow]) -> list[str]:
    present = {row.service for row in rows}
    return [name for name in names if name not in present]


def _absence(services: Sequence[str], namespace: str) -> str:
    """Say that these Services of a namespace aren't listed, and how to find out why."""
    absent = f"services {printable(', '.join(services))} not found in {printable(namespace)} namespace, or not served"
    return f"{absent}: nftproxy explain svc/{printable(f'{namespace}/{services[0]}')}"


def _remarks(count: int, end: End) -> Iterator[str]:
    """Yield why these rows may not be all, and may be out of date."""
    if end.is_cut:
        yield f"there are more: these are {count} of them (--limit), in no particular order"
    if end.caveat:
        yield f"caveat: {printable(end.caveat)}"


def _printed(
    rows: Sequence[ListingRow], listing: Listing, output: str | None, caveat: str, *, with_namespace: bool
) -> Iterator[str]:
    if output in STRUCTURED:
        found = {"kind": "List", **({"caveat": caveat} if caveat else {}), "items": rows}
        yield structured(with_times(found), output)
    elif output == "name":
        yield from dict.fromkeys(map(listing.name, rows))
    elif rows:
        cells = _cells(listing, output, with_namespace=with_namespace)
        yield from _table(listing, output, tuple(cells), ([cell(row) for cell in cells.values()] for row in rows))


def _table(listing: Listing, output: str | None, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    if output == "wide" or not listing.lists:
        return table(header, rows)
    return fitted(header, rows, listing.lists)
