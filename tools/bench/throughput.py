"""The throughput of iperf3 through a node with different rules: `python -m tools.bench.throughput`, as root.

The nodes are those of tools/bench/packets.py, and take turns.  The kernel carries TCP in packets of 64 KB, so rules
cost little of the throughput.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.namespace import LabError

from tools.bench.packet_ways import Flow, Hop, Kind, flows

FEW = 0.1
"""The part of the usual number of packets that the node may forward by the usual way while it has a fast path."""


class Found(NamedTuple):
    """Bits a second of each transfer through a node, and the packets that the node has forwarded by the usual way."""

    name: str
    speeds: list[float]
    forwarded: int


def through_services(kind: Kind) -> list[Flow]:
    """The flows of a kind through the Service.  The first goes to the pod itself, through a node without a table."""
    return [each for each in flows(kind) if not each.rules or each.place == kind.service]


def measure(given: list[Flow], turns: int, seconds: int) -> list[Found]:
    """Let the nodes take turns, each time in another order.

    Raises:
        LabError: a transfer failed, or didn't take the fast path.
    """
    with ExitStack() as stack:
        hops = [(flow, stack.enter_context(Hop(flow))) for flow in given]
        speeds = {flow.name: list[float]() for flow in given}
        for turn in range(turns):
            for flow, hop in random.Random(turn).sample(hops, len(hops)):
                speeds[flow.name].append(transfer(flow, hop, seconds))
        found = [Found(flow.name, speeds[flow.name], hop.node.call(_forwarded)) for flow, hop in hops]
    for flow, each in zip(given, found, strict=True):
        if flow.is_fast and each.forwarded > FEW * found[0].forwarded:
            raise LabError(f"{flow.name}: {each.forwarded} packets took the usual way")
    return found


def transfer(flow: Flow, hop: Hop, seconds: int) -> float:
    """Send data to the flow's place for `seconds` seconds, and return the bits that arrived each second."""
    address, port = flow.place
    to = ["--client", address, "--port", str(port), "--time", str(seconds), "--json"]
    serve = ["iperf3", "--server", "--one-off", "--forceflush", "--port", str(flow.kind.direct[1])]
    server = hop.pods.popen(serve, stdout=subprocess.PIPE, text=True)
    if not any("listening" in line for line in server.stdout or ()):
        raise LabError("the server of iperf3 doesn't start")
    answer, _ = hop.client.popen(["iperf3", *to], stdout=subprocess.PIPE, text=True).communicate()
    server.communicate()
    result = json.loads(answer)
    if error := result.get("error"):
        raise LabError(f"{flow.name}: iperf3: {error}")
    return float(result["end"]["sum_received"]["bits_per_second"])


def _forwarded() -> int:
    """The packets of IPv4 and IPv6 that this namespace has forwarded.  Packets in a flowtable don't count."""
    names, values = (
        line.split() for line in Path("/proc/thread-self/net/snmp").read_text().splitlines() if line.startswith("Ip:")
    )
    in_ipv6 = dict(map(str.split, Path("/proc/thread-self/net/snmp6").read_text().splitlines()))
    return int(values[names.index("ForwDatagrams")]) + int(in_ipv6["Ip6OutForwDatagrams"])


def report(found: list[Found]) -> Iterator[str]:
    """The lines of a table."""
    yield "| | Gbit/s, median | of no table | middle half of the transfers | packets forwarded by the usual way |"
    yield "| --- | --- | --- | --- | --- |"
    base = statistics.median(found[0].speeds)
    for each in found:
        low, middle, high = (quarter / base for quarter in statistics.quantiles(each.speeds, method="inclusive"))
        speed = middle * base / 1e9
        yield f"| {each.name} | {speed:.2f} | {middle:.3f} | {low:.3f} to {high:.3f} | {each.forwarded:,} |"


@click.command()
@click.option("--turns", type=click.IntRange(min=2), default=10, help="How many transfers through each node.")
@click.option("--seconds", default=1, help="How long a transfer lasts.")
@click.option("--ipv6", "is_ipv6", is_flag=True, help="A Service of IPv6.")
def main(turns: int, seconds: int, is_ipv6: bool) -> None:
    """Measure on a single processor."""
    if why := obstacle():
        raise click.ClickException(why)
    if not shutil.which("iperf3"):
        raise click.ClickException("there is no iperf3")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for line in report(measure(through_services(Kind(is_ipv6, is_tcp=True)), turns, seconds)):
        click.echo(line)


if __name__ == "__main__":
    main()
