"""What one Service costs at the limits, and one beyond them: `python -m tools.bench.one_service`, as root.

Each Service comes by itself to a node that is otherwise empty; its rules are loaded into the kernel of a lab.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click

from nftproxy.commands.options import renderer
from nftproxy.lab import Lab
from nftproxy.model.addresses import Address, Family, Protocol, parse_network
from nftproxy.model.events import Put
from nftproxy.model.objects import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Node,
    ObjectKey,
    Service,
    ServicePort,
    ServiceType,
)
from nftproxy.model.settings import Settings
from nftproxy.pipeline import Pipeline

KEY = ObjectKey("shop", "web")
SHAPES = {
    "a plain Service, 10 endpoints": (1, 0, 10, 0),
    "10,000 fronts: 100 ports, 99 external IPs": (100, 99, 0, 0),
    "100,000 rows: 100 ports, 1,000 endpoints": (100, 0, 1000, 0),
    "100 ranges, 1,000 ports": (1000, 0, 0, 100),
    "1,000 ranges, 1,000 ports": (1000, 0, 0, 1000),
    "beyond: 400 ports, 400 external IPs": (400, 400, 0, 0),
    "beyond: 3,000 ports, 3,300 endpoints, 100 times the rows": (3000, 0, 3300, 0),
}
"""By name: how many ports, external IPs, endpoints and source ranges."""


def objects(ports: int, addresses: int, endpoints: int, ranges: int) -> Iterable[Service | EndpointSlice]:
    """A Service of that size, and its EndpointSlices of 100 endpoints each."""
    yield Service(
        KEY,
        0,
        ServiceType.LOAD_BALANCER,
        (Address("10.96.0.10"),),
        tuple(ServicePort(f"p{port}", Protocol.TCP, port) for port in range(1, ports + 1)),
        external_ips=tuple(Address(f"203.{each // 250}.{each % 250}.9") for each in range(addresses)),
        load_balancer_ips=(Address("198.51.100.1"),) if ranges else (),
        source_ranges=tuple(parse_network(f"{20 + each // 250}.{each % 250}.0.0/24") for each in range(ranges)),
    )
    own = tuple(EndpointPort(f"p{port}", Protocol.TCP, 8080) for port in range(1, ports + 1))
    for first in range(0, endpoints, 100):
        pods = (Endpoint(Address(f"10.1.{each // 250}.{each % 250 + 1}")) for each in range(first, first + 100))
        name = ObjectKey(KEY.namespace, f"{KEY.name}-{first}")
        yield EndpointSlice(name, KEY, Family.IPV4, own, tuple(pods)[: endpoints - first])


def _measure(lab: Lab, name: str) -> str:
    pipeline = Pipeline("node-a", Settings(), renderer(None), [Family.IPV4])
    pipeline.apply([Put(Node("node-a"))])
    lab.load(pipeline.full_transaction({}).text)
    given = list(objects(*SHAPES[name]))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    transaction = pipeline.apply(map(Put, given))
    made = time.monotonic()
    if transaction:
        lab.load(transaction.text)
    loaded = time.monotonic()
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    what = "quarantined" if pipeline.state.excessive else f"{len(transaction.text):,} bytes of nft"
    return f"{made - began:.2f} s to compile, {loaded - made:.2f} s to load, {megabytes:.0f} MB more: {what}"


@click.command()
@click.argument("name", required=False, type=click.Choice(list(SHAPES)))
def main(name: str | None) -> None:
    """Measure one shape of Service, or each in a process of its own, so that memory can be told apart."""
    if name is not None:
        with Lab() as lab:
            click.echo(f"{name}: {_measure(lab, name)}")
        return
    for each in SHAPES:
        module = [sys.executable, "-m", "tools.bench.one_service", each]
        subprocess.run(module, check=True, cwd=Path(__file__).resolve().parents[2])


if __name__ == "__main__":
    main()
