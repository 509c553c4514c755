"""The cost of counting Services' connections: `python -m tools.bench.counts`, as root.

Packets: the node itself sends the first packet of a connection, a UDP datagram from an address and port of its own, to
each Service in turn.  The processor time of the sender is measured, in turns between the ways to count, so that other
work of the machine falls on all of them.  Beside counts/table.nft.j2, these ways were tried:

* `in services`: the elements of the map `services` have a counter, so there is no further lookup.
* `a set of fronts`: a set with a counter in each element has all fronts, written by us and not by packets.

Scrapes: every Service has been used, and the agent's own reading is timed, with the time for which the loop waited.
"""

from __future__ import annotations

import asyncio
import re
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import click
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.node import Node

from nftproxy.extensions.counts.agent.count_reader import CountReader
from nftproxy.extensions.counts.agent.service_counts import ServiceCounts
from nftproxy.installed import INSTALLED
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.events import Event, Put
from nftproxy.model.settings import Config
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.rules.transaction import Transaction
from tests.support.factories import renderer, service, slice_of
from tools.bench.cluster import vip
from tools.bench.figures import timed

OFF, ON, IN_SERVICES, OF_FRONTS = "off", "on", "in services", "a set of fronts"
SOURCES, TURNS, SCRAPES, CHANGES = 3, 7, 10, 60
SET = """
  set counted-fronts {{
    typeof ip daddr . meta l4proto . th dport
    counter
    elements = {{ {} }}
  }}
"""


class Setting:
    """A namespace with the rules of a cluster, with connections counted in a given way."""

    def __init__(self, services: int, way: str) -> None:
        config = Config(service_counts=way == ON)
        self.pipeline = Pipeline("node-a", Settings(config, probe().capabilities, INSTALLED), renderer())
        self.pipeline.ingest(_objects(services))
        self.kernel = Kernel()
        self.node = Node("counts")
        self.node.ip("link add out type bridge", "addr add 192.168.0.2/24 dev out", "link set out up")
        self.node.ip("route add default dev out", "neigh add 10.1.0.4 lladdr 02:00:00:00:00:01 dev out")
        self.load_seconds = self.apply(_counted(self.pipeline.full_transaction({}).text, way, services))

    def apply(self, text: str) -> float:
        """Apply a transaction.  Returns the seconds that it took."""
        return self.node.call(timed, lambda: self.kernel.apply(Transaction(text)))[1]

    def send(self, packets: list[tuple[bytes, str]]) -> float:
        """Send packets.  Returns the seconds of processor time for each."""
        self.node.flush_conntrack()
        return self.node.call(_send, packets) / len(packets)


def _objects(services: int) -> Iterator[Event]:
    for number in range(services):
        name = f"crowd/s{number}"
        yield Put(service(name, cluster_ips=[vip(number)], ports=["dns:53/udp"]))
        yield Put(slice_of(name, ["10.1.0.4"], ports=["dns:53/udp"]))


def _counted(text: str, way: str, services: int) -> str:
    if way == IN_SERVICES:
        return re.sub(r"(map services \{\n[^}]*?: verdict\n)", r"\1    counter\n", text)
    if way == OF_FRONTS:
        fronts = ", ".join(f"{vip(number)} . udp . 53" for number in range(services))
        key = "ct original ip daddr . meta l4proto . ct original proto-dst"
        rule = f"    ct status & confirmed == 0 meta l4proto udp {key} @counted-fronts\n"
        head, chain, tail = text.partition("  chain remember {\n")
        return f"table ip nftproxy {{{SET.format(fronts)}}}\n{head}{chain}{rule}{tail}"
    return text


def _packets(services: int) -> list[tuple[bytes, str]]:
    """First packets of connections to each Service, each from a port and address of its own."""
    made = []
    for source in range(SOURCES):
        for number in range(services):
            udp = struct.pack("!HHHH", 20000 + number % 40000, 53, 8, 0)
            sender = socket.inet_aton(f"192.168.0.{2 + source}")
            head = struct.pack("!BBHHHBBH", 0x45, 0, 28, 1, 0, 64, 17, 0) + sender + socket.inet_aton(vip(number))
            made.append((head + udp, vip(number)))
    return made


def _send(packets: list[tuple[bytes, str]]) -> float:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
        began = time.thread_time()
        for packet, address in packets:
            sender.sendto(packet, (address, 0))
        return time.thread_time() - began


def _changes(setting: Setting, services: int) -> list[float]:
    """The seconds of changes: each replaces a Service's endpoint."""
    found = []
    for number in range(CHANGES):
        changed = slice_of(f"crowd/s{number % services}", [f"10.1.1.{number + 1}"], ports=["dns:53/udp"])
        found.append(setting.apply(setting.pipeline.ingest([Put(changed)]).text))
    return found


class Watch:
    """How late the loop is, looked at every millisecond: an asynchronous context."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._is_over = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over.set()
        await self._task

    async def _look(self) -> None:
        while not self._is_over.is_set():
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            self._late.append(time.perf_counter() - began - 0.001)

    def __str__(self) -> str:
        ranked = sorted(self._late)
        return f"{ranked[int(len(ranked) * 0.99)] * 1e3:.1f} ms (99th percentile), {ranked[-1] * 1e3:.1f} ms at most"


class Scrapes(NamedTuple):
    """Seconds of each scrape, CPU, bytes of text, and the lateness of the loop with scrapes and without."""

    took: list[float]
    cpu: float
    size: int
    late: str
    late_otherwise: str


async def _scrape(counts: ServiceCounts, scrapes: int) -> Scrapes:
    await counts.exposition()  # in which every series begins
    took, text, began_cpu = [], b"", time.process_time()
    async with Watch() as watch:
        for _ in range(scrapes):
            began = time.perf_counter()
            text = await counts.exposition()
            took.append(time.perf_counter() - began)
    cpu = (time.process_time() - began_cpu) / scrapes
    async with Watch() as quiet:
        await asyncio.sleep(sum(took))
    return Scrapes(took, cpu, len(text), str(watch), str(quiet))


def measure(services: int, turns: int = TURNS, scrapes: int = SCRAPES) -> Iterator[str]:
    """The lines of the report."""
    packets = _packets(services)
    settings = {way: Setting(services, way) for way in (OFF, ON, IN_SERVICES, OF_FRONTS)}
    try:
        rounds = [{way: each.send(packets) for way, each in settings.items()} for _ in range(turns)]
        for way, each in settings.items():
            sent = statistics.median(found[way] for found in rounds) * 1e6
            more = statistics.median(found[way] - found[OFF] for found in rounds) * 1e6
            change = statistics.median(_changes(each, services)) * 1e3
            yield f"{way}: packet {sent:.2f} us ({more:+.2f}), change {change:.2f} ms, load {each.load_seconds:.2f} s"
        yield from _scrapes(settings[ON], services, scrapes)
    finally:
        for each in settings.values():
            each.node.close()


def _scrapes(setting: Setting, services: int, scrapes: int) -> Iterator[str]:
    counts = ServiceCounts(setting.pipeline.counted, setting.pipeline.generations, CountReader(), now=_always_later())
    setting.send(_packets(services))

    found = setting.node.call(lambda: asyncio.run(_scrape(counts, scrapes)))
    counts.close()
    took = statistics.median(found.took) * 1e3
    cpu = found.cpu * 1e3
    yield f"a scrape of {services:,} Services: {took:.0f} ms, {cpu:.0f} ms of processor time, {found.size:,} bytes"
    yield f"the loop is late by {found.late}; without scrapes by {found.late_otherwise}"


def _always_later() -> Callable[[], float]:
    """A clock by which every scrape reads the kernel."""
    seconds = iter(range(0, 1 << 30, 10))
    return lambda: float(next(seconds))


@click.command()
@click.option("--services", default=10_000, help="How many Services there are, each of which is used.")
def main(services: int) -> None:
    """Compare the ways to count, and print the cost of a scrape."""
    if why := obstacle():
        raise click.ClickException(why)
    for line in measure(services):
        click.echo(line)


if __name__ == "__main__":
    main()
