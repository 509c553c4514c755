"""A cluster of 5,000 nodes, on paper: `python -m tools.bench.paper`.

There is no such cluster to measure, so this process does the work of a single node, at full size: it reads, compiles,
renders and loads the answers of the API server into a scratch node's kernel.  The figures of many nodes are multiples.
"""

from __future__ import annotations

import json
import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import click
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.node import Node

from nftproxy.api.reflector import Reflector
from nftproxy.api.resources import resources
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.events import Event
from tests.support.factories import networks
from tests.support.lists import receive_list
from tools.bench import cluster
from tools.bench.cluster import Object, Pod, Size
from tools.bench.figures import markdown, timed

NODES, SIZE = 5_000, Size(50_000, 3)
CHANGES = 500  # events that are measured
ROLLED = 0.1  # of all pods, in a rolling update
ROLLING = 600.0  # seconds that it takes
WRITES = 4  # of an EndpointSlice for a replaced pod: the new pod comes, gets ready, the old pod terminates, is gone
GZIP_LEVEL = 1  # of kube-apiserver's answers (apiserver/pkg/endpoints/handlers/responsewriters)
LARGE = 100  # endpoints in a full slice (--max-endpoints-per-slice)
MEGA = 1e6

T = TypeVar("T")


class Costs(NamedTuple):
    """The figures of a node: bytes of JSON, and seconds of CPU."""

    service_bytes: float
    slice_bytes: float
    large_slice_bytes: float
    compression: float
    reading: float
    compiling: float
    loading: float
    change: float

    @property
    def list_bytes(self) -> float:
        """The bytes of all lists that a node reads."""
        return SIZE.services * (self.service_bytes + self.slice_bytes)


def measure(size: Size = SIZE, changes: int = CHANGES) -> Costs:
    """The costs of a node for a cluster of this size, and for a change in it."""
    services = [cluster.service(number) for number in range(size.services)]
    slices = [cluster.slice_of(number, cluster.pods(size, number)) for number in range(size.services)]
    bodies = [_list_body("v1", "Service", services), _list_body("discovery.k8s.io/v1", "EndpointSlice", slices)]
    service_bytes, slice_bytes = (len(body) / size.services for body in bodies)
    compression = sum(map(len, bodies)) / sum(len(zlib.compress(body, GZIP_LEVEL)) for body in bodies)
    del services, slices
    with Node(cluster.NODE) as node:
        pipeline = cluster.new_pipeline(cluster_cidrs=networks([cluster.CLUSTER_CIDR]))
        kernel = node.call(Kernel)
        reflectors = [Reflector(each) for each in resources(cluster.NODE)[-2:]]
        events, reading = _timed(lambda: [list(_listed(*pair)) for pair in zip(reflectors, bodies, strict=True)])
        bodies.clear()
        _, compiling = _timed(lambda: pipeline.ingest(each for batch in events for each in batch))
        transaction, writing = _timed(lambda: pipeline.full_transaction(dict.fromkeys(Family)))
        _, loading = _timed(lambda: node.call(kernel.apply, transaction))
        lines = [_changed(size, number) for number in random.Random(1).sample(range(size.services), changes)]
        reflectors[1].request(0.0, 0.0)

        def follow() -> None:
            for line in lines:
                node.call(kernel.apply, pipeline.ingest(reflectors[1].receive_data(line, 0.0)))

        _, following = _timed(follow)
    return Costs(
        service_bytes=service_bytes,
        slice_bytes=slice_bytes,
        large_slice_bytes=len(_changed(Size(1, LARGE), 0)),
        compression=compression,
        reading=reading,
        compiling=compiling + writing,
        loading=loading,
        change=following / changes,
    )


def _list_body(api_version: str, kind: str, items: Iterable[Object]) -> bytes:
    head = {"apiVersion": api_version, "kind": f"{kind}List", "metadata": {"resourceVersion": "1"}}
    return _compact(head | {"items": list(items)})


def _listed(reflector: Reflector, body: bytes) -> Iterator[Event]:
    reflector.request(0.0, 0.0)
    yield from receive_list(reflector, body)


def _changed(size: Size, service: int) -> bytes:
    """A watch event: a pod of a Service replaced."""
    pods = [*cluster.pods(size, service)[1:], Pod(cluster.SPARE + service)]
    return _compact({"type": "MODIFIED", "object": cluster.slice_of(service, pods)}) + b"\n"


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """The result of a call, and the seconds of CPU that it took, in all threads and in the kernel."""
    return timed(call, time.process_time)


def table(costs: Costs) -> str:
    """The costs of a cluster as Markdown."""
    pods = SIZE.services * SIZE.endpoints
    writes = pods * ROLLED * WRITES / ROLLING
    event = writes * costs.slice_bytes
    listed, packed = costs.list_bytes, costs.list_bytes / costs.compression
    start = costs.reading + costs.compiling + costs.loading
    rows = [
        ("measured: a Service in a list; an EndpointSlice of 3 endpoints; a full one (100) in a watch",
         f"{costs.service_bytes:,.0f} B; {costs.slice_bytes:,.0f} B; {costs.large_slice_bytes / 1e3:,.1f} kB"),
        ("measured: all that one node lists, as JSON; as it is sent (gzip)",
         f"{listed / MEGA:,.0f} MB; {packed / MEGA:,.0f} MB"),
        ("measured: CPU of one node from lists to rules: reading; compiling and rendering; loading",
         f"{costs.reading:.1f} s; {costs.compiling:.1f} s; {costs.loading:.1f} s"),
        ("measured: CPU of one node for one changed EndpointSlice, from the bytes of the event to the commit",
         f"{costs.change * 1e3:.2f} ms"),
        (f"rolling update of {ROLLED:.0%} of all pods in {ROLLING / 60:.0f} minutes: writes of EndpointSlices",
         f"{writes:,.0f} a second"),
        ("- each node: received; CPU at the most, with no two changes gathered",
         f"{event / MEGA:.2f} MB/s; {writes * costs.change:.1%} of a core"),
        (f"- API servers, together: sent to {NODES:,} nodes", f"{event * NODES / MEGA:,.0f} MB/s"),
        ("every node lists everything anew: sent; CPU of all nodes",
         f"{packed * NODES / 1e9:,.0f} GB; {costs.reading:.1f} s each"),
        ("a new node, or one whose agent starts: received; CPU", f"{packed / MEGA:,.0f} MB; {start:.1f} s"),
        (f"a Service of {NODES:,} endpoints, one of them replaced: sent to all nodes, at {WRITES} writes",
         f"{costs.large_slice_bytes * WRITES * NODES / 1e9:,.1f} GB"),
    ]  # fmt: skip
    return markdown(("", ""), rows)


@click.command()
def main() -> None:
    """Measure a node, and print the costs of a cluster of many."""
    if why := obstacle():
        raise click.ClickException(why)
    click.echo(table(measure()), nl=False)


if __name__ == "__main__":
    main()
