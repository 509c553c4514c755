"""Counters of Services' connections: they never go down, and count once what the kernel has counted."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

from nftproxy.agent.counts import ServiceCounts, Totals
from nftproxy.kernel.counts import COUNTED_SETS, CountedSet, Counts, Reading, claim_of
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.counts import CountedFronts, Reason
from tests.support.factories import IPV4, IPV6, key, pipeline, service

CONNECTIONS, BY_NODE_PORT = CountedSet(None, False), CountedSet(None, True)
REJECTED = CountedSet(Reason.NO_ENDPOINT, False)
WEB = bytes([10, 96, 0, 10, 6, 0, 0, 0, 0, 80, 0, 0])
OTHER = bytes([10, 96, 0, 11, 6, 0, 0, 0, 0, 80, 0, 0])
WEB6 = Address("fd00:96::10")
WEB_CONNECTIONS = 'connections_total{namespace="shop",service="web",port="http",protocol="tcp",front="cluster_ip"}'
WEB_REJECTED = WEB_CONNECTIONS.replace("connections", "unserved_packets").replace("}", ',reason="no_endpoint"}')
BOTH = (service(), service("shop/other", cluster_ips=["10.96.0.11"]))


def fronts_of(made: Pipeline) -> CountedFronts:
    """Whose fronts a pipeline counts."""
    return made.counted


def reading(web: int, *, table: int = 1, **others: int) -> Reading:
    """What the kernel has: connections to shop/web; `rejected` of them, `other`: connections to shop/other."""
    connections = {WEB: web, OTHER: others.get("other", 0)}
    counts: Counts = {each: {} for each in COUNTED_SETS}
    counts |= {
        CONNECTIONS: {front: count for front, count in connections.items() if count},
        REJECTED: {WEB: others["rejected"]} if "rejected" in others else {},
    }
    return Reading(bytes([table]), counts)


def series(text: bytes) -> dict[str, int]:
    """The series, without what all names begin with."""
    found = re.findall(r"^nftproxy_service_(.*) (\d+)$", text.decode(), re.MULTILINE)
    return {name: int(value) for name, value in found if name != "counts_left_out_total"}


class Counters:
    """A pipeline with two Services, and the counters of their connections."""

    def __init__(self, *services: Service, most: int = 100) -> None:
        self.pipeline = pipeline(*(services or BOTH), service_counts=True)
        self.totals = Totals(fronts_of(self.pipeline), most)

    def after(self, *readings: Reading) -> dict[str, int]:
        """What a scrape shows after these; new series have begun in an earlier one."""
        for each in readings:
            self.totals.add(IPV4, each)
        self.totals.text()
        return series(self.totals.text())


def test_a_series_begins_at_zero() -> None:
    """What a series has counted is in the second scrape that has it: `increase` sees nothing of the first."""
    made = Counters()
    assert series(made.totals.text()) == {}
    made.totals.add(IPV4, reading(3))
    assert series(made.totals.text()) == {WEB_CONNECTIONS: 0}
    assert series(made.totals.text()) == {WEB_CONNECTIONS: 3}


def test_readings_add_up() -> None:
    """Each reading adds what has come since the last one, by what is counted."""
    made = Counters()
    assert made.after(reading(3), reading(3), reading(5, rejected=7)) == {WEB_CONNECTIONS: 5, WEB_REJECTED: 7}


def test_families_and_addresses_add_up() -> None:
    """One kind of a Service port's fronts is one series, whatever their addresses are."""
    made = Counters(service(cluster_ips=["10.96.0.10", "fd00:96::10"]))
    made.totals.add(IPV4, reading(3))
    key6 = bytes.fromhex("fd000096000000000000000000000010") + WEB[4:]
    made.totals.add(IPV6, Reading(b"1", {CONNECTIONS: {key6: 4}}))
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
def test_a_counter_never_goes_down(later: Reading, total: int) -> None:
    """Whatever becomes of the kernel's counts, a counter goes on from where it was."""
    assert Counters().after(reading(5), later) == {WEB_CONNECTIONS: total}


def test_what_is_not_listed_once_is_not_counted_twice() -> None:
    """An entry that a listing has left out, as a commit came meanwhile, goes on from its last count."""
    assert Counters().after(reading(5), reading(0), reading(6)) == {WEB_CONNECTIONS: 6}


def test_what_was_counted_before_the_start_is_not_counted() -> None:
    """A process that begins beside an existing table counts what comes from then on."""
    made = Counters()
    made.totals.begin(IPV4, reading(5))
    assert made.after(reading(7)) == {WEB_CONNECTIONS: 2}
    made = Counters()
    made.totals.begin(IPV4, reading(5))
    assert made.after(reading(7, table=2)) == {WEB_CONNECTIONS: 7}


def test_a_front_that_passes_on() -> None:
    """What came until the first reading after a front has passed on is its former owner's, and is shown once more."""
    made = Counters()
    made.after(reading(5))
    made.pipeline.apply([Removed(Service, key("shop/web")), Put(service("shop/new"))])
    made.totals.add(IPV4, reading(7))
    assert series(made.totals.text()) == {WEB_CONNECTIONS: 7}
    assert made.after(reading(8)) == {WEB_CONNECTIONS.replace("web", "new"): 1}


def test_a_service_that_was_never_read_counts_for_nobody() -> None:
    """Of an entry that is nobody's nothing is counted."""
    made = Counters()
    made.pipeline.apply([Removed(Service, key("shop/web"))])
    assert made.after(reading(5)) == {}


def test_series_are_bounded() -> None:
    """With as many series as there may be, what would need another one is counted as left out."""
    made = Counters(most=1)
    made.totals.add(IPV4, reading(1, other=4))
    made.totals.add(IPV4, reading(2, other=5))
    assert made.after() == {WEB_CONNECTIONS: 2}
    assert b"\nnftproxy_service_counts_left_out_total 5\n" in made.totals.text()


def test_the_kernels_keys() -> None:
    """A key is address, protocol and port, or only these two of a node port."""
    assert claim_of(IPV4, CONNECTIONS, WEB) == Claim(Address("10.96.0.10"), Protocol.TCP, 80)
    key6 = bytes.fromhex("fd000096000000000000000000000010") + bytes([17, 0, 0, 0, 0, 53, 0, 0])
    assert claim_of(IPV6, REJECTED, key6) == Claim(WEB6, Protocol.UDP, 53)
    node_port = bytes([132, 0, 0, 0, 0x75, 0x80, 0, 0])
    assert claim_of(IPV6, BY_NODE_PORT, node_port) == Claim(NODE, Protocol.SCTP, 30080)


# ---- scrapes -------------------------------------------------------------------------------------------------------


class Kernel:
    """A kernel that counts up by one for each reading of IPv4, and may hang or fail.

    Attributes:
        readings: how many there were.
        hangs: makes a reading wait until it is set.
        fails: whether readings fail.
    """

    def __init__(self) -> None:
        self.readings = 0
        self.hangs = threading.Event()
        self.hangs.set()
        self.fails = False

    def read(self, family: Family) -> Reading | None:
        """What there is."""
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
    """Counts of shop/web, what they are read from, and their clock."""
    kernel, clock = Kernel(), Clock()
    made = pipeline(service(), service_counts=True)
    return ServiceCounts(fronts_of(made), Family, kernel, now=clock), kernel, clock


def test_the_kernel_is_read_once_for_scrapes_that_come_together() -> None:
    """Scrapes at the same time, or within a second, share a reading; a later one reads anew."""

    async def main() -> None:
        counts, kernel, clock = counting()
        await counts.begin()
        texts = [*await asyncio.gather(*(counts.text() for _ in range(5))), await counts.text()]
        assert (kernel.readings, len(set(texts))) == (2, 1)
        clock.seconds += 1
        assert series(await counts.text()) == {WEB_CONNECTIONS: 2}
        assert kernel.readings == 3
        counts.close()

    asyncio.run(main())


def test_a_scrape_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a reading hangs, scrapes get the counts of before, and the loop goes on."""
    monkeypatch.setattr("nftproxy.agent.counts.PATIENCE", 0.01)

    async def main() -> None:
        counts, kernel, clock = counting()
        await counts.begin()
        before = await counts.text()
        kernel.hangs.clear()
        clock.seconds += 10
        assert [await counts.text() for _ in range(3)] == [before] * 3
        kernel.hangs.set()
        counts.close()

    asyncio.run(main())


def test_a_reading_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """If the kernel can't be read the counts stay, the log says why, and the next scrape tries again."""

    async def main() -> None:
        counts, kernel, clock = counting()
        kernel.fails = True
        await counts.begin()
        before = await counts.text()
        kernel.fails = False
        clock.seconds += 1
        assert await counts.text() != before
        counts.close()

    asyncio.run(main())
    assert caplog.messages == ["no; metrics show the counts of before"] * 2
