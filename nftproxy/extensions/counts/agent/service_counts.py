"""Counts connections by Service port, as Prometheus counters, from the kernel's counts by front.

A counter never goes down, and each packet that the kernel has counted is counted once:

* The sets outlive every change and load of the rules (counts/table.nft.j2), so each reading adds the difference to the
  last reading.  A table with another handle is new, and its counts began at 0.  So does a count that is lower than
  before (another program has reset it).  If another program deletes our table, its counts since the last reading are
  lost.
* Counts from before this process began aren't its own: the first reading is only the baseline.
* Packets at a front since the last reading are counted for the Service port that had the front then.
* A series ends with its Service port.  Its first scrape shows 0, because `increase` ignores a series that begins
  with 1.  The second scrape has its count.

The kernel is read at each scrape, in a thread.  The text is made there too, as it may be megabytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from nftproxy.extensions.counts.agent.count_reader import CountedSet, CountReader, FamilyCounts, claim_of
from nftproxy.extensions.counts.codes import CountsCode
from nftproxy.extensions.counts.counted_fronts import CountedFronts, ServiceFront
from nftproxy.kernel.threads import NotedThreads
from nftproxy.logs import warn
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.fairness import SharedRoom
from nftproxy.model.unserved_reasons import UnservedReason
from nftproxy.policy.claims import Claim

Item = TypeVar("Item")

MOST_SERIES = 50_000
"""Limit of series: enough for 10,000 Services that this node uses, some by several kinds of address.

Beyond it, the latest series of the namespace with the most makes room for those of namespaces with fewer.
"""
ENOUGH = 1.0
"""Seconds for which a reading is cached: the kernel isn't read more often, however many scrapes come."""
BETWEEN_PAUSES, PAUSE = 500, 0.0005
"""The thread sleeps `PAUSE` seconds after each `BETWEEN_PAUSES` entries or series, which take it 1 ms."""
PATIENCE = 5.0
"""Seconds that a scrape waits for a reading before it gets the last text.  Prometheus waits for 10 by default."""

CONNECTIONS = "nftproxy_service_connections_total"
UNSERVED = "nftproxy_service_unserved_packets_total"
LEFT_OUT = "nftproxy_service_counts_left_out_total"
HELP = {
    CONNECTIONS: "Connections that an endpoint got, by Service port and kind of address",
    UNSERVED: "Packets of new connections that no endpoint got, by Service port, kind of address and reason",
    LEFT_OUT: "Connections and packets without a series, as there are too many series",
}


class _Series(NamedTuple):
    """The key of a series.  `reason` is None for connections."""

    front: ServiceFront
    reason: UnservedReason | None

    @property
    def text(self) -> str:
        """The series as Prometheus writes it.  No part of it needs escapes."""
        front = self.front
        reason = f',reason="{self.reason.name.lower()}"' if self.reason else ""
        return (
            f'{UNSERVED if self.reason else CONNECTIONS}{{namespace="{front.service.namespace}",'
            f'service="{front.service.name}",port="{front.port}",protocol="{front.protocol.value}",'
            f'front="{front.kind.value}"{reason}}} '
        )


class _Total(msgspec.Struct):
    """A series' count, its text without the count, and whether a scrape has had it."""

    text: str
    value: int = 0
    is_shown: bool = False


class _CountedEntry(msgspec.Struct):
    """An entry of the kernel's sets at the last reading: its front, its count, and the owner of its front."""

    claim: Claim
    packets: int = 0
    owner: ServiceFront | None = None


class CountTotals:
    """The counters: readings in, text out.

    Args:
        fronts: the present owners of fronts.
        most: limit of series.
        rest: called after each piece of work.
    """

    def __init__(
        self, fronts: CountedFronts, most: int = MOST_SERIES, rest: Callable[[], object] = lambda: None
    ) -> None:
        self._fronts = fronts
        self._rest = rest
        self._most = most
        self._tables: dict[Family, bytes] = {}
        self._entries: dict[tuple[Family, CountedSet], dict[bytes, _CountedEntry]] = {}
        self._totals: dict[_Series, _Total] = {}
        self._shared = SharedRoom[_Series]()
        self._left_out = 0

    def set_baseline(self, family: Family, reading: FamilyCounts | None) -> None:
        """Set a family's baseline to a reading."""
        if reading:
            self._tables[family] = reading.table
            for counted, key, packets in _entries(reading):
                self._entry(family, counted, key).packets = packets

    def add(self, family: Family, reading: FamilyCounts) -> None:
        """Count the difference to the last reading."""
        if self._tables.get(family) != reading.table:
            for counted in reading.counts:
                self._entries.pop((family, counted), None)
            self._tables[family] = reading.table
        for counted, key, packets in self._in_pieces(_entries(reading)):
            entry = self._entry(family, counted, key)
            owner, entry.owner = entry.owner, self._fronts.owner(entry.claim)
            more = packets - entry.packets if packets >= entry.packets else packets
            entry.packets = packets
            if more and (front := owner or entry.owner):
                self._count(_Series(front, counted.reason), more)
        for counted, counts in reading.counts.items():
            known = self._entries.get((family, counted), {})
            for key in known.keys() - counts.keys():  # it is gone, or only missing from the listing
                if known[key].owner is None or self._fronts.owner(known[key].claim) is None:
                    del known[key]

    def exposition(self) -> bytes:
        """Return all series in Prometheus' text format, and drop those of Service ports that are gone."""
        lines: dict[str, list[str]] = {CONNECTIONS: [], UNSERVED: []}
        for series, total in self._in_pieces(self._totals.items()):
            value = total.value if total.is_shown else 0
            lines[UNSERVED if series.reason else CONNECTIONS].append(f"{total.text}{value}\n")
            total.is_shown = True
        lines[LEFT_OUT] = [f"{LEFT_OUT} {self._left_out}\n"]
        for series in [each for each in self._totals if not self._fronts.exists(each.front)]:
            self._drop(series)
        parts = (f"# HELP {name} {HELP[name]}\n# TYPE {name} counter\n{''.join(lines[name])}" for name in HELP)
        return "".join(parts).encode()

    def _in_pieces(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, with a rest after each piece."""
        for number, item in enumerate(items, 1):
            yield item
            if not number % BETWEEN_PAUSES:
                self._rest()

    def _entry(self, family: Family, counted: CountedSet, key: bytes) -> _CountedEntry:
        entries = self._entries.setdefault((family, counted), {})
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = _CountedEntry(claim_of(family, counted, key))
        return entry

    def _count(self, series: _Series, more: int) -> None:
        total = self._totals.get(series) or self._added(series)
        if total:
            total.value += more
        else:
            self._left_out += more

    def _added(self, series: _Series) -> _Total | None:
        """Return a new series, None if there is no room for it."""
        namespace = series.front.service.namespace
        if evicted := self._shared.to_evict(namespace, self._most):
            self._drop(evicted)
        if len(self._totals) >= self._most:
            return None
        self._shared.add(namespace, series)
        self._totals[series] = _Total(series.text)
        return self._totals[series]

    def _drop(self, series: _Series) -> None:
        self._shared.remove(series.front.service.namespace, series)
        del self._totals[series]


def _entries(reading: FamilyCounts) -> Iterator[tuple[CountedSet, bytes, int]]:
    for counted, counts in reading.counts.items():
        for key, packets in counts.items():
            yield counted, key, packets


class ServiceCounts:
    """Reads the kernel and adds up, off the event loop, in a thread of the creator's network namespace.

    Args:
        fronts: the present owners of fronts.
        families: the families that are served.
        reader: reads the kernel.
        now: returns the time in seconds, of any monotonic clock.
    """

    def __init__(
        self,
        fronts: CountedFronts,
        families: Iterable[Family],
        reader: CountReader,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._families = list(families)
        self._fronts = fronts
        self._reader = reader
        self._totals = CountTotals(fronts, rest=lambda: time.sleep(PAUSE))
        self._now = now
        self._text = self._totals.exposition()
        self._read_at = float("-inf")
        self._reading: asyncio.Future[None] | None = None
        self._thread = NotedThreads("counts", 1)

    async def set_baseline(self) -> None:
        """Read the baseline, before any rules are loaded."""
        await self._in_thread(self._read_baseline)

    async def exposition(self) -> bytes:
        """Return the present series, or those of the last reading if the kernel can't be read in time.

        Without fronts to count this returns nothing, and doesn't read the kernel.
        """
        if self._fronts.is_empty:
            return b""
        if self._reading is None and self._now() - self._read_at >= ENOUGH:
            self._reading = asyncio.ensure_future(self._in_thread(self._read))
            self._reading.add_done_callback(self._done)
        if self._reading:
            await asyncio.wait([self._reading], timeout=PATIENCE)
        return self._text

    def close(self) -> None:
        """End the thread, after its present reading."""
        self._thread.shutdown()
        self._reader.close()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Unavailable as error:
            text = "%(error)s; keeping the last values"
            warn(CountsCode.COUNTS_UNREADABLE, text, error=error)

    def _done(self, reading: asyncio.Future[None]) -> None:
        self._reading = None
        self._read_at = self._now()
        if not reading.cancelled():
            reading.result()  # which raises any unexpected error

    def _read_baseline(self) -> None:
        for family in self._families:
            self._totals.set_baseline(family, self._reader.read(family))

    def _read(self) -> None:
        for family in self._families:
            if reading := self._reader.read(family):
                self._totals.add(family, reading)
        self._text = self._totals.exposition()
