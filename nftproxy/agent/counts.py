"""Connections by Service port, as Prometheus counters: the kernel counts by front, and this adds up whose they are.

A counter never goes down, and what the kernel has counted is counted once:

* The sets outlive every change and every load of the rules (counts.nft.j2), so each reading adds what has come since
  the last one.  A table with another number is a new one, in which every count began at 0; so is a count that is lower
  than before (another program has reset it).  What is lost is what a table that others delete counted since the last
  reading.
* What was counted before this process began is not its own: the first reading only says where the others begin.
* What came at a front since the last reading is counted for the Service port that had it then.
* A series ends with its Service port.  It begins with 0, as of one that begins with 1 `increase` sees nothing: what it
  has counted is in the second scrape.

The kernel is read when metrics are asked for, in a thread; the text is made there too, as it may be megabytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

from nftproxy.kernel.counts import CountedSet, CountReader, Reading, claim_of
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable
from nftproxy.policy.counts import CountedFronts, Reason, ServiceFront

log = logging.getLogger(__name__)

Item = TypeVar("Item")

MOST_SERIES = 50_000
"""Series of all Services together: 10,000 Services that this node uses, some of them by several kinds of address."""
ENOUGH = 1.0
"""Seconds for which a reading is good: however many scrape, the kernel is read once in so long."""
PIECE, PAUSE = 500, 0.0005
"""After how many entries or series the thread lets others run, and for how many seconds: a piece takes it 1 ms."""
PATIENCE = 5.0
"""Seconds that a scrape waits for a reading; then it gets the last one's.  Prometheus waits for 10 by default."""

CONNECTIONS = "nftproxy_service_connections_total"
UNSERVED = "nftproxy_service_unserved_packets_total"
LEFT_OUT = "nftproxy_service_counts_left_out_total"
HELP = {
    CONNECTIONS: "Connections that an endpoint got, by Service port and kind of address",
    UNSERVED: "Packets of new connections that no endpoint got, by Service port, kind of address and reason",
    LEFT_OUT: "Connections and packets that have no series, as there are too many",
}


class Reader(Protocol):
    """What reads the kernel (kernel/counts.py has it)."""

    def read(self, family: Family) -> Reading | None:
        """What a family's sets have; raises Unavailable."""

    def close(self) -> None:
        """Let go of the kernel."""


class _Series(NamedTuple):
    """What is counted as one series; `reason` is None for connections."""

    front: ServiceFront
    reason: Reason | None

    @property
    def text(self) -> str:
        """The series as Prometheus writes it; all parts are names that need no escapes."""
        front = self.front
        reason = f',reason="{self.reason.name.lower()}"' if self.reason else ""
        return (
            f'{UNSERVED if self.reason else CONNECTIONS}{{namespace="{front.service.namespace}",'
            f'service="{front.service.name}",port="{front.port}",protocol="{front.protocol.value}",'
            f'front="{front.kind.value}"{reason}}} '
        )


class _Total:
    """A series' count, its text without the count, and whether a scrape has had it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.value = 0
        self.is_shown = False


class _Entry:
    """An entry of the kernel's sets as it was last read: its count, and whose front it was."""

    def __init__(self, family: Family, counted: CountedSet, key: bytes) -> None:
        self.claim = claim_of(family, counted, key)
        self.packets = 0
        self.owner: ServiceFront | None = None


class Totals:
    """The counters: readings in, text out.

    Args:
        fronts: whose fronts they are, as they are when a reading is added.
        most: series at the most.
        rest: called after each piece of work.
    """

    def __init__(
        self, fronts: CountedFronts, most: int = MOST_SERIES, rest: Callable[[], object] = lambda: None
    ) -> None:
        self._fronts = fronts
        self._rest = rest
        self._most = most
        self._tables: dict[Family, bytes] = {}
        self._entries: dict[tuple[Family, CountedSet], dict[bytes, _Entry]] = {}
        self._totals: dict[_Series, _Total] = {}
        self._left_out = 0

    def begin(self, family: Family, reading: Reading | None) -> None:
        """What a family's sets have before anything is counted."""
        if reading:
            self._tables[family] = reading.table
            for counted, key, packets in _entries(reading):
                self._entry(family, counted, key).packets = packets

    def add(self, family: Family, reading: Reading) -> None:
        """Count what has come since the last reading."""
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
            for key in known.keys() - counts.keys():  # it has gone, or was only not listed
                if known[key].owner is None or self._fronts.owner(known[key].claim) is None:
                    del known[key]

    def text(self) -> bytes:
        """All series in Prometheus' text format, for the last time those of Service ports that are no more."""
        lines: dict[str, list[str]] = {CONNECTIONS: [], UNSERVED: []}
        for series, total in self._in_pieces(self._totals.items()):
            value = total.value if total.is_shown else 0
            lines[UNSERVED if series.reason else CONNECTIONS].append(f"{total.text}{value}\n")
            total.is_shown = True
        lines[LEFT_OUT] = [f"{LEFT_OUT} {self._left_out}\n"]
        for series in [each for each in self._totals if not self._fronts.exists(each.front)]:
            del self._totals[series]
        parts = (f"# HELP {name} {HELP[name]}\n# TYPE {name} counter\n{''.join(lines[name])}" for name in HELP)
        return "".join(parts).encode()

    def _in_pieces(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a rest now and then."""
        for number, item in enumerate(items, 1):
            yield item
            if not number % PIECE:
                self._rest()

    def _entry(self, family: Family, counted: CountedSet, key: bytes) -> _Entry:
        entries = self._entries.setdefault((family, counted), {})
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = _Entry(family, counted, key)
        return entry

    def _count(self, series: _Series, more: int) -> None:
        total = self._totals.get(series)
        if total is None:
            if len(self._totals) >= self._most:
                self._left_out += more
                return
            total = self._totals[series] = _Total(series.text)
        total.value += more


def _entries(reading: Reading) -> Iterator[tuple[CountedSet, bytes, int]]:
    for counted, counts in reading.counts.items():
        for key, packets in counts.items():
            yield counted, key, packets


class ServiceCounts:
    """Reads the kernel and adds up, off the event loop, in a thread of the network namespace of who makes this.

    Args:
        fronts: whose fronts they are.
        families: those that are served.
        reader: reads the kernel.
        now: the time in seconds, of any clock that only goes forward.
    """

    def __init__(
        self,
        fronts: CountedFronts,
        families: Iterable[Family],
        reader: Reader | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._families = list(families)
        self._fronts = fronts
        self._reader = reader or CountReader()
        self._totals = Totals(fronts, rest=lambda: time.sleep(PAUSE))
        self._now = now
        self._text = self._totals.text()
        self._read_at = float("-inf")
        self._reading: asyncio.Future[None] | None = None
        self._has_begun = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="counts")

    async def begin(self) -> None:
        """Find out where to count from, before anything else is loaded."""
        await self._in_thread(self._begin)

    async def text(self) -> bytes:
        """The series as they are now, or as the last reading has left them if the kernel can't be read in time.

        Nothing, if there is nothing to count: then the kernel isn't read either.
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
        """End the thread, after the reading that it is in."""
        self._thread.shutdown()
        self._reader.close()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Unavailable as error:
            text = "%(error)s; metrics show the counts of before"
            log.warning(text, {"error": error}, extra={"code": Code.COUNTS_UNREADABLE})

    def _done(self, reading: asyncio.Future[None]) -> None:
        self._reading = None
        self._read_at = self._now()
        if not reading.cancelled():
            reading.result()  # which raises what nobody has foreseen

    def _begin(self) -> None:
        for family in self._families:
            self._totals.begin(family, self._reader.read(family))

    def _read(self) -> None:
        for family in self._families:
            if reading := self._reader.read(family):
                self._totals.add(family, reading)
        self._text = self._totals.text()
