"""Counters of Services' connections never go down, and count each of the kernel's counts once."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

from nftproxy.extensions.counts.agent.count_reader import (
    COUNTED_SETS,
    CountedSet,
    CountReader,
    Counts,
    FamilyCounts,
    claim_of,
)
from nftproxy.extensions.counts.agent.service_counts import CountTotals, ServiceCounts
from nftproxy.extensions.counts.counted_fronts import CountedFronts
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import Service
from nftproxy.model.unserved_reasons import UnservedReason
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import NODE, Claim
from tests.support.factories import IPV4, IPV6, key, pipeline, service

CONNECTIONS, BY_NODE_PORT = CountedSet(None, False), CountedSet(None, True)
REJECTED = CountedSet(UnservedReason.NO_ENDPOINT, False)
WEB = bytes([10, 96, 0, 10, 6, 0, 0, 0, 0, 80, 0, 0])
OTHER = bytes([10, 96, 0, 11, 6, 0, 0, 0, 0, 80, 0, 0])
WEB6 = Address("fd00:96::10")
WEB_CONNECTIONS = 'connections_total{namespace="shop",service="web",port="http",protocol="tcp",front="cluster_ip"}'
WEB_REJECTED = WEB_CONNECTIONS.replace("connections", "unserved_packets").replace("}", ',reason="no_endpoint"}')
BOTH = (service(), service("shop/other", cluster_ips=["10.96.0.11"]))


def fronts_of(made: Pipeline) -> CountedFronts:
    """The fronts that a pipeline counts, with their Services."""
    return made.view(CountedFronts)


def reading(web: int, *, table: int = 1, **others: int) -> FamilyCounts:
    """Counts in the kernel: connections to shop/web, `rejected` of them, `other`: connections to shop/other."""
    connections = {WEB: web, OTHER: others.get("other", 0)}
    counts: Counts = {each: {} for each in COUNTED_SETS}
    counts |= {
        CONNECTIONS: {front: count for front, count in connections.items() if count},
        REJECTED: {WEB: others["rejected"]} if "rejected" in others else {},
    }
    return FamilyCounts(bytes([table]), counts)


def series(text: bytes) -> dict[str, int]:
    """The series, without their common prefix."""
    found = re.findall(r"^nftproxy_service_(.*) (\d+)$", text.decode(), re.MULTILINE)
    return {name: int(value) for name, value in found if name != "counts_left_out_total"}


class Counters:
    """A pipeline with two Services, and the counters of their connections."""

    def __init__(self, *services: Service, most: int = 100) -> None:
        self.pipeline = pipeline(*(services or BOTH), service_counts=True)
        self.totals = CountTotals(fronts_of(self.pipeline), most)

    def after(self, *readings: FamilyCounts) -> dict[str, int]:
        """The series in a scrape after these readings. New series have begun in an earlier scrape."""
        for each in readings:
            self.totals.add(IPV4, each)
        self.totals.exposition()
        return series(self.totals.exposition())


def test_a_series_begins_at_zero() -> None:
    """A new series starts at zero and counts from its second scrape, as `increase` ignores the first value."""
    made = Counters()
    assert series(made.totals.exposition()) == {}
    made.totals.add(IPV4, reading(3))
    assert series(made.totals.exposition()) == {WEB_CONNECTIONS: 0}
    assert series(made.totals.exposition()) == {WEB_CONNECTIONS: 3}


def test_readings_add_up() -> None:
    """Each reading adds the increase since the previous reading, for each series."""
    made = Counters()
    assert made.after(reading(3), reading(3), reading(5, rejected=7)) == {WEB_CONNECTIONS: 5, WEB_REJECTED: 7}


def test_families_and_addresses_add_up() -> None:
    """Fronts of a Service port with the same kind share a series, for all addresses."""
    made = Counters(service(cluster_ips=["10.96.0.10", "fd00:96::10"]))
    made.totals.add(IPV4, reading(3))
    key6 = bytes.fromhex("fd000096000000000000000000000010") + WEB[4:]
    made.totals.add(IPV6, FamilyCounts(b"1", {CONNECTIONS: {key6: 4}}))
    assert made.after() == {WEB_CONNECTIONS: 7}


@pytest.mark.parametrize(
    ("later", "total"),
    [
        (reading(8), 8),
        (reading(5, table=2), 10),
        (reading(8, table=2), 13),
        (reading(2), 7),
        (reading(0), 5),
    ],
    ids=["more", "a new table with as many", "a new table with more", "another's reset", "nothing listed"],
)
def test_a_counter_never_goes_down(later: FamilyCounts, total: int) -> None:
    """A counter goes on from its value, however the kernel's counts change."""
    assert Counters().after(reading(5), later) == {WEB_CONNECTIONS: total}


def test_an_entry_missing_from_a_listing_is_not_counted_twice() -> None:
    """An entry that a listing has left out, as a commit came meanwhile, goes on from its last count."""
    assert Counters().after(reading(5), reading(0), reading(6)) == {WEB_CONNECTIONS: 6}


def test_connections_before_the_start_are_not_counted() -> None:
    """A process that starts beside an existing table counts only connections from then on."""
    made = Counters()
    made.totals.set_baseline(IPV4, reading(5))
    assert made.after(reading(7)) == {WEB_CONNECTIONS: 2}
    made = Counters()
    made.totals.set_baseline(IPV4, reading(5))
    assert made.after(reading(7, table=2)) == {WEB_CONNECTIONS: 7}


def test_a_front_that_passes_on() -> None:
    """Connections until the first reading after a front changes owner are the former owner's, shown once more."""
    made = Counters()
    made.after(reading(5))
    made.pipeline.ingest([Removed(Service, key("shop/web")), Put(service("shop/new"))])
    made.totals.add(IPV4, reading(7))
    assert series(made.totals.exposition()) == {WEB_CONNECTIONS: 7}
    assert made.after(reading(8)) == {WEB_CONNECTIONS.replace("web", "new"): 1}


def test_an_entry_without_an_owner_is_not_counted() -> None:
    """An entry without an owner isn't counted."""
    made = Counters()
    made.pipeline.ingest([Removed(Service, key("shop/web"))])
    assert made.after(reading(5)) == {}


def test_series_are_bounded() -> None:
    """At the limit of series, connections that need a new series are counted as left out."""
    made = Counters(most=1)
    made.totals.add(IPV4, reading(1, other=4))
    made.totals.add(IPV4, reading(2, other=5))
    assert made.after() == {WEB_CONNECTIONS: 2}
    assert b"\nnftproxy_service_counts_left_out_total 5\n" in made.totals.exposition()


def test_a_namespace_with_few_series_gets_its_share() -> None:
    """Beyond the limit, the latest series of the namespace with the most makes room, and comes back in no later one."""
    crowd = [service(f"crowd/s{number}", cluster_ips=[f"10.96.1.{number}"]) for number in range(4)]
    made = Counters(*crowd, service(), most=3)
    fronts = [bytes([10, 96, 1, number, *WEB[4:]]) for number in range(4)]
    for packets in (1, 2):
        more = dict.fromkeys(fronts, packets)
        made.totals.add(IPV4, FamilyCounts(b"1", {CONNECTIONS: more}))
        made.totals.add(IPV4, FamilyCounts(b"1", {CONNECTIONS: {**more, WEB: packets}}))
    of_crowd = [WEB_CONNECTIONS.replace("shop", "crowd").replace("web", f"s{number}") for number in range(2)]
    assert made.after() == {WEB_CONNECTIONS: 2, of_crowd[0]: 2, of_crowd[1]: 2}
    assert b"\nnftproxy_service_counts_left_out_total 3\n" in made.totals.exposition()


def test_the_kernels_keys() -> None:
    """A key is address, protocol and port, or only these two of a node port."""
    assert claim_of(IPV4, CONNECTIONS, WEB) == Claim(Address("10.96.0.10"), Protocol.TCP, 80)
    key6 = bytes.fromhex("fd000096000000000000000000000010") + bytes([17, 0, 0, 0, 0, 53, 0, 0])
    assert claim_of(IPV6, REJECTED, key6) == Claim(WEB6, Protocol.UDP, 53)
    node_port = bytes([132, 0, 0, 0, 0x75, 0x80, 0, 0])
    assert claim_of(IPV6, BY_NODE_PORT, node_port) == Claim(NODE, Protocol.SCTP, 30080)


# ---- scrapes -------------------------------------------------------------------------------------------------------


class Kernel(CountReader):
    """A kernel whose count grows by 1 at each reading of IPv4, and that may hang or fail."""

    def __init__(self) -> None:
        self.readings = 0
        self.hangs = threading.Event()
        self.hangs.set()
        self.fails = False

    def read(self, family: Family) -> FamilyCounts | None:
        """The counts at present."""
        if family is IPV6:
            return None
        self.hangs.wait()
        if self.fails:
            raise Unavailable("no")
        self.readings += 1
        return reading(self.readings)

    def close(self) -> None:
        """Do nothing."""


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """The seconds."""
        return self.seconds


def counting() -> tuple[ServiceCounts, Kernel, Clock]:
    """Counts of shop/web, their kernel, and their clock."""
    kernel, clock = Kernel(), Clock()
    made = pipeline(service(), service_counts=True)
    return ServiceCounts(fronts_of(made), Family, kernel, now=clock), kernel, clock


def test_the_kernel_is_read_once_for_scrapes_that_come_together() -> None:
    """Scrapes at the same time, or within a second, share a reading, and a later scrape reads anew."""

    async def main() -> None:
        counts, kernel, clock = counting()
        await counts.set_baseline()
        texts = [*await asyncio.gather(*(counts.exposition() for _ in range(5))), await counts.exposition()]
        assert (kernel.readings, len(set(texts))) == (2, 1)
        clock.seconds += 1
        assert series(await counts.exposition()) == {WEB_CONNECTIONS: 2}
        assert kernel.readings == 3
        counts.close()

    asyncio.run(main())


def test_a_scrape_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a reading hangs, scrapes get the previous counts, and the loop goes on."""

    async def main() -> None:
        counts, kernel, clock = counting()
        await counts.set_baseline()
        before = await counts.exposition()
        monkeypatch.setattr("nftproxy.extensions.counts.agent.service_counts.PATIENCE", 0.01)
        kernel.hangs.clear()
        clock.seconds += 10
        assert [await counts.exposition() for _ in range(3)] == [before] * 3
        kernel.hangs.set()
        counts.close()

    asyncio.run(main())


def test_a_reading_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """If the kernel can't be read the counts stay, the log says why, and the next scrape tries again."""

    async def main() -> None:
        counts, kernel, clock = counting()
        kernel.fails = True
        await counts.set_baseline()
        before = await counts.exposition()
        kernel.fails = False
        clock.seconds += 1
        assert await counts.exposition() != before
        counts.close()

    asyncio.run(main())
    assert caplog.messages == ["no; keeping the last values"] * 2
