"""Many hostile Services together, each within its limits: `python -m tools.bench.limits`.

A namespace asks for more than the budget of elements, in six shapes.  Each shape has an agent of its own, over a small
cluster.  Meanwhile another tenant changes a Service again and again.  The rows have

* the elements that the kernel holds in the end, and the hostile Services that are quarantined,
* the agent's peak of memory: as the Services come, after a restart, and after an upgrade, which replaces tables of
  another shape,
* the longest time of a transaction (in a process of its own, which applies the same change), and the size of the
  largest,
* the longest time until a change of the other tenant was in the kernel.

`--budget` sets another budget, and the Services shrink with it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import click
import msgspec
from nftproxy_conformance.lab.node import Node

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.library import parsed
from nftproxy.model.addresses import Family
from nftproxy.model.settings import ELEMENT_BUDGET
from nftproxy.netlink import nf_tables as nft
from nftproxy.rules.pieces import pieces_of
from nftproxy.rules.transaction import Transaction, delete_transaction, join
from tests.support import objects as api
from tests.support.background import repeating
from tests.support.factories import INSTALLED_KINDS
from tests.support.processes import CHECKOUT
from tests.support.waiting import wait_until
from tools.bench.cluster import NODE, Object, Size, new_pipeline
from tools.bench.rig import Rig, assembled

SMALL = Size(100, 10)
HOSTILE, VICTIM = "evil", "victim"
PARTS = 6
"""Services that would come to the budget together.  Some more are made."""
MORE = 2
PER_SLICE = 1_000
PAUSE = 0.1
"""Seconds between two changes of the other tenant."""
PATIENCE = 600.0
"""Seconds for a single change."""
OTHER_TABLES = join(
    Transaction(
        f"{delete_transaction(family).text}table {family.table} {{\n"
        '  comment "nftproxy another-shape"\n  chain c { type filter hook input priority 0; }\n}\n'
    )
    for family in Family
)
"""Tables that an upgrade replaces."""
QUIET = 6.0
"""Seconds without a change of the hostile Services' rules, after which all of them have been followed."""


class Demand(NamedTuple):
    """A hostile Service: its object and its slices."""

    service: Object
    slices: list[Object]


class Outcome(msgspec.Struct):
    """The figures of a shape: bytes and seconds."""

    elements: int
    quarantined: int
    peak: int
    restart_peak: int
    upgrade_peak: int
    wait: float
    pieces: int
    largest: int
    longest: float


def hosts(first: str, count: int) -> list[str]:
    """Addresses below a prefix of 8 bits."""
    return [f"{first}.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(1, count + 1)]


def demand(
    number: int, ports: int, pods: int, external: int = 0, annotations: dict[str, str] | None = None, **spec: Any
) -> Demand:
    """A Service with these numbers of ports, endpoints on the measured node, and external IPs."""
    name, vips = f"s{number}", spec.pop("vips", [f"10.100.0.{number + 1}"])
    spec["externalIPs"] = [f"198.{18 + number}.{each >> 8}.{each & 255}" for each in range(external)]
    names = [f"p{each}" for each in range(ports)]
    made = api.service(
        name,
        spec,
        namespace=HOSTILE,
        vips=vips,
        ports=[f"{port}:{number}" for number, port in enumerate(names, 1)],
        metadata={"annotations": annotations or {}},
    )
    offered = [f"{port}:{number}" for number, port in enumerate(names, 8000)]
    slices = [
        api.endpoint_slice(
            f"{name}-{family}-{start}".lower(),
            *[f"{address}@{NODE}" for address in addresses[start : start + PER_SLICE]],
            service=name,
            namespace=HOSTILE,
            family=family,
            ports=offered,
        )
        for family, addresses in _pods(number % 100, pods, any(":" in vip for vip in vips)).items()
        for start in range(0, pods, PER_SLICE)
    ]
    return Demand(made, slices)


def _pods(number: int, count: int, is_dual: bool) -> dict[str, list[str]]:
    """The endpoints of a Service in each family: no two Services share any."""
    found = {"IPv4": hosts(str(20 + number), count)}
    return found | ({"IPv6": [f"fd00:{number}::{each:x}" for each in range(1, count + 1)]} if is_dual else {})


def many(make: Callable[[int], Demand], count: int = PARTS + MORE) -> Iterator[Demand]:
    """A number of hostile Services."""
    return map(make, range(count))


def denied_ranges() -> str:
    """Ranges that can't be merged."""
    return ",".join(f"{address}/32" for address in hosts("9", 2 * RANGES)[::2])


TABLE = 4093
"""Rows of Maglev's table for two endpoints."""

RANGES = 1_000

SHAPES: dict[str, Callable[[int], Iterator[Demand]]] = {
    "ports": lambda size: many(lambda each: demand(each, 100, size // 200)),
    "addresses": lambda size: many(lambda each: demand(each, 1, size // 100, 98)),
    "endpoints": lambda size: many(lambda each: demand(each, 1, min(size // 2, 65_000)), 2 * PARTS + MORE),
    "ranges": lambda size: many(
        lambda each: demand(
            each % 250 + each // 250 * 1_000,
            1,
            1,
            vips=[f"10.100.{each // 250}.{each % 250 + 1}"],
            annotations={"nftproxy.dev/denied-source-ranges": denied_ranges()},
        ),
        (PARTS + MORE) * size // RANGES,
    ),
    "algorithms": lambda size: many(
        lambda each: demand(
            each, 1, 2, max(size // TABLE - 1, 0), annotations={"nftproxy.dev/algorithm": "consistent-hash"}
        )
    ),
    "families": lambda size: many(
        lambda each: demand(
            each,
            10,
            size // 50,
            vips=[f"10.100.0.{each + 1}", f"fd00:96::{each + 1:x}"],
            sessionAffinity="ClientIP",
        )
    ),
}


def measure(shape: str, budget: int) -> Outcome:
    """Let an agent follow the hostile Services of a shape while another tenant's Service changes."""
    options = ["--element-budget", str(budget)]
    with assembled(SMALL, options=options) as rig:
        for namespace in (HOSTILE, VICTIM):
            rig.write("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        _create(rig, api.service("web", namespace=VICTIM, vips=["10.101.0.1"], ports=["80/UDP"]))
        rig.start_agent()
        rig.settle()
        with closing(Victim(rig)) as victim, repeating(victim.change, PAUSE):
            for each in SHAPES[shape](budget // PARTS):
                _create(rig, each.service)
                for endpoint_slice in each.slices:
                    _create(rig, endpoint_slice)
            quarantined = _settled(rig)
        peak = rig.agent.peak
        rig.stop_agent()
        rig.start_agent()
        elements = _elements(rig)
        restart_peak = rig.agent.peak
        rig.stop_agent()
        rig.node.call(Kernel().apply, OTHER_TABLES)
        rig.start_agent()
        upgrade_peak = rig.agent.peak
        rig.agent.stop()
    pieces, largest, longest = msgspec.json.decode(_run("--pieces", shape, "--budget", str(budget)))
    return Outcome(elements, quarantined, peak, restart_peak, upgrade_peak, victim.longest, pieces, largest, longest)


class Victim:
    """Another tenant, who changes a Service of UDP again and again, and waits for each change.

    Attributes:
        longest: the longest time from the API's answer until the kernel had a change, in seconds.
        changes: the number of changes.
    """

    def __init__(self, rig: Rig) -> None:
        self.longest = 0.0
        self.changes = 0
        self._rig = rig
        self._http = rig.connection()
        self._kernel = rig.node.call(open_socket)
        self._put(1, "POST", "")

    def _put(self, pods: int, method: str = "PUT", suffix: str = "/web-1") -> None:
        addresses = [f"10.50.0.{each}" for each in range(1, pods + 1)]
        made = api.endpoint_slice("web-1", *addresses, namespace=VICTIM, ports=["8080/UDP"])
        self._rig.write(method, f"{_path(VICTIM, 'EndpointSlice')}{suffix}", made, self._http)

    def change(self) -> None:
        """Change the Service, and wait until the kernel has the change."""
        self.changes += 1
        pods = 1 + self.changes % 2
        self._put(pods)
        began = time.monotonic()
        wait_until(partial(_has, self._kernel, pods), patience=PATIENCE, pause=0.005)
        self.longest = max(self.longest, time.monotonic() - began)

    def close(self) -> None:
        """Close its connections to the API and to the kernel."""
        self._http.close()
        self._kernel.close()


def _has(kernel: socket.socket, rows: int) -> bool:
    """Whether the kernel has `rows` rows of UDP, which only the other tenant's Service has."""
    declared = nft_queries.declaration_of(kernel, Family.IPV4, "udp-endpoints")
    return declared is not None and int.from_bytes(declared[nft.SET_COUNT]) == rows


def _path(namespace: str, kind: str) -> str:
    core, discovery = "/api/v1", "/apis/discovery.k8s.io/v1"
    group, plural = (core, "services") if kind == "Service" else (discovery, "endpointslices")
    return f"{group}/namespaces/{namespace}/{plural}"


def _create(rig: Rig, made: Object) -> None:
    rig.write("POST", _path(made["metadata"]["namespace"], made["kind"]), made)


def _elements(rig: Rig) -> int:
    """The elements that the kernel holds in both families."""
    counted = (each.count for family in Family for each in rig.node.call(nft_queries.sets, family))
    return sum(filter(None, counted))


def _metric(rig: Rig, name: str) -> int:
    """A metric of the agent."""
    with rig.node.call(urllib.request.urlopen, "http://127.0.0.1:10249/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith(f"{name} "))


def _settled(rig: Rig) -> int:
    """Wait until no change has waited for a second, and the elements have stayed the same for a while.

    Returns:
        The number of quarantined Services.
    """
    before, since = -1, time.monotonic()
    while time.monotonic() < since + QUIET:
        assert not rig.agent.has_died, rig.agent.log()
        now = _elements(rig)
        is_behind = _metric(rig, "nftproxy_services_postponed") or _metric(rig, "nftproxy_oldest_change_age_seconds")
        if abs(now - before) > 2 or is_behind:  # the other tenant's go on
            before, since = now, time.monotonic()
        time.sleep(0.5)
    return _metric(rig, "nftproxy_services_quarantined")


def in_pieces(shape: str, budget: int) -> tuple[int, int, float]:
    """Apply the change from none of the hostile Services to all, in this process.

    Returns:
        The number of pieces, the characters of the largest, and the seconds of the slowest.
    """
    objects = [each for hostile in SHAPES[shape](budget // PARTS) for each in (hostile.service, *hostile.slices)]
    with Node("node") as node:
        agent, kernel = new_pipeline(element_budget=budget), Kernel()
        node.call(kernel.apply, agent.full_transaction({}))
        pieces = pieces_of(agent.ingest(parsed(objects, INSTALLED_KINDS).listing()))
        seconds = []
        for piece in pieces:
            began = time.monotonic()
            node.call(kernel.apply, piece)
            seconds.append(time.monotonic() - began)
    return len(pieces), max(len(piece.text) for piece in pieces), max(seconds)


def row(shape: str, found: Outcome) -> str:
    """A row of the table."""
    return (
        f"| {shape} | {found.elements:,} | {found.quarantined:,} | {found.peak / 1e6:,.0f} MB"
        f" | {found.restart_peak / 1e6:,.0f} MB | {found.upgrade_peak / 1e6:,.0f} MB"
        f" | {found.pieces:,} | {found.largest:,}"
        f" | {found.longest * 1000:,.0f} ms | {found.wait:,.2f} s |"
    )


@click.command()
@click.option("--shape", "shapes", multiple=True, type=click.Choice(list(SHAPES)), help="Measure this; repeatable.")
@click.option("--budget", type=int, default=ELEMENT_BUDGET, show_default=True, help="The budget of elements.")
@click.option("--pieces", type=click.Choice(list(SHAPES)), hidden=True)
def main(shapes: tuple[str, ...], budget: int, pieces: str | None) -> None:
    """Print a row for each shape."""
    if pieces:
        click.echo(msgspec.json.encode(in_pieces(pieces, budget)))
        return
    click.echo(
        "| shape | elements | quarantined | peak, as they come | peak, after a restart | after an upgrade"
        " | transactions | characters of the largest | longest transaction | another tenant waited |"
    )
    click.echo("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for shape in shapes or SHAPES:
        click.echo(row(shape, measure(shape, budget)))


def _run(*arguments: str) -> bytes:
    command = [sys.executable, "-m", "tools.bench.limits", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
