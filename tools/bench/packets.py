"""The cost of tables for a packet of an established flow: `python -m tools.bench.packets`, as root.

A client sends UDP datagrams to a pod that has answered once, through a node in between: three network namespaces,
joined by veth.  The kernel carries each packet within the system call that sends it, up to the pod's socket, so the
processor time of the sender is measured.  Each kind of node has namespaces of its own, and all take turns with short
bursts, so that other work of the machine falls on all of them.  The nodes have

* no table, and so no connection tracking either
* connection tracking, which a single rule asks for
* connection tracking and NAT, and nothing else, which every proxy pays that translates addresses
* our rules, and the rules of kube-proxy in nftables mode, for a Service.  More Services make neither longer for an
  established packet (`--services`: of ours).
* our rules with the fast path, if the kernel has flowtables, by a rule that adds each established connection at once

With `--tcp` each packet carries data of a TCP connection, and its time is that of the receiver, too.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.namespace import LabError

from nftproxy.kernel.nfnetlink.flowtable import fast_path_interfaces, follow_interfaces
from tests.support.flowtables import has_flowtables
from tools.bench.packet_ways import BATCH, BATCHES, FAST, PATIENCE, Flow, Kind, Sender, Way, flows

TURNS = 1_000
ENOUGH = 0.999
"""The part of the packets that must be seen to arrive: the pod's socket, which nobody reads, counts what it drops."""


class Found(NamedTuple):
    """The nanoseconds of a packet of a flow, one figure for each burst."""

    name: str
    bursts: list[float]

    @property
    def nanoseconds(self) -> float:
        """The time in the fastest twentieth of the bursts: slower bursts were disturbed by other programs."""
        return statistics.quantiles(self.bursts, n=20, method="inclusive")[0]


def measure(given: list[Flow], turns: int = TURNS) -> list[Found]:
    """Let the flows take turns, each time in another order.

    Raises:
        LabError: packets got lost on the way, or the kernel forgot a flow, so that the times say nothing.
    """
    with ExitStack() as stack:
        ways = [stack.enter_context(Way(flow)) for flow in given]
        sender, bursts = Sender(), {way.name: list[float]() for way in ways}
        before = {way.name: way.arrived() for way in ways}
        for turn in range(turns):
            for way in random.Random(turn).sample(ways, len(ways)):
                bursts[way.name].append(sender.burst(way))
        for way in ways:
            way.check()
        sent = turns * BATCH * BATCHES
        deadline = time.monotonic() + PATIENCE
        for way in ways:
            while (found := way.arrived() - before[way.name]) < ENOUGH * sent:
                if time.monotonic() > deadline:
                    raise LabError(f"{way.name}: of {sent} packets {found} arrived")
                time.sleep(0.01)
    return [Found(*each) for each in bursts.items()]


def report(found: list[Found]) -> Iterator[str]:
    """The lines of a table."""
    yield "| | packets a second | a packet takes | above no table | middle half of the bursts |"
    yield "| --- | --- | --- | --- | --- |"
    least = found[0].nanoseconds
    for each in found:
        low, _, high = statistics.quantiles(each.bursts, n=4)
        yield (
            f"| {each.name} | {1e9 / each.nanoseconds:,.0f} | {each.nanoseconds / 1000:.2f} us"
            f" | {(each.nanoseconds - least) / 1000:.2f} us | {low / 1000:.2f} to {high / 1000:.2f} us |"
        )


def following(kind: Kind, turns: int) -> Iterator[str]:
    """Yield table rows: the milliseconds to add an interface to the flowtable, to remove it, and to add all of them."""
    with Way(Flow("interfaces", FAST, kind.direct, is_fast=True, kind=kind)) as way:
        way.node.ip("link add another type veth peer name another-peer")

        def measured(interfaces: list[str]) -> float:
            began = time.perf_counter()
            assert follow_interfaces(interfaces) == []
            return 1e3 * (time.perf_counter() - began)

        def steps() -> Iterator[tuple[str, float]]:
            present = sorted(fast_path_interfaces() or ())
            for _ in range(turns):
                yield "an interface is added", measured([*present, "another"])
                yield "an interface is removed", measured(present)
            follow_interfaces([])
            yield f"{len(present)} interfaces are added", measured(present)

        found: dict[str, list[float]] = {}
        for name, took in way.node.call(lambda: list(steps())):
            found.setdefault(name, []).append(took)
        yield from (f"| {name} | {statistics.median(each):.2f} ms |" for name, each in found.items())


@click.command()
@click.option("--turns", default=TURNS, help="How many bursts of each flow.")
@click.option(
    "--templates",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Other templates to compare with these; can be repeated.",
)
@click.option("--ipv6", "is_ipv6", is_flag=True, help="A flow of IPv6.")
@click.option("--tcp", "is_tcp", is_flag=True, help="A flow of TCP.")
@click.option("--services", default=0, help="Our other Services.")
@click.option("--interfaces", default=0, help="The node's other interfaces, all on the fast path.")
def main(turns: int, templates: tuple[Path, ...], **kind: int) -> None:
    """Measure on a single processor."""
    if why := obstacle():
        raise click.ClickException(why)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    chosen = Kind(**kind)  # type: ignore[arg-type]
    for line in report(measure(list(flows(chosen, *templates)), turns)):
        click.echo(line)
    if has_flowtables() and chosen.interfaces:
        for line in following(chosen, turns):
            click.echo(line)


if __name__ == "__main__":
    main()
