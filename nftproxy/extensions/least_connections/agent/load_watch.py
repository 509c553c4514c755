"""Counts the connections of endpoints whose Services ask for `least-connections`, and sends factors to the pipeline.

Policy decides (../balance.py).  This module has the clock and the kernel's answers.  The pipeline turns the factors
into rules, in the same transaction as all other events.

* Until a Service has the algorithm this waits, without a timer or a socket.
* Then it goes over connection tracking every `INTERVAL`, in a thread, but takes a tenth of a CPU at most, however many
  connections there are.  The kernel could filter its answers, but goes over all entries all the same, and receives no
  packets meanwhile.
* Lists that are too long are named in a warning.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from nftproxy.agent.looks import Looks
from nftproxy.agent.reporting.fault_reporter import ReportOngoing
from nftproxy.agent.reporting.metrics import Metric, MetricRows, Metrics
from nftproxy.extensions.least_connections.balance import Balance
from nftproxy.extensions.least_connections.balanced_lists import BalancedLists
from nftproxy.extensions.least_connections.codes import LeastConnectionsCode
from nftproxy.extensions.least_connections.factors import LoadFactors
from nftproxy.logs import warn
from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import ObjectKey, Place
from nftproxy.model.steps import Steps
from nftproxy.model.texts import first_of

LEAST_CONNECTIONS_METRICS = MetricRows(
    counters=(
        Metric("nftproxy_rebalanced_lists_total", "Times that a list got other shares, as its connections changed", ()),
    ),
)

INTERVAL = 2.0
"""Seconds between two looks."""
REST = 4.0
"""Wait at least `REST` times as long as the last look took, of which the reader rests a half."""

CountConnections = Callable[[Iterable[Place]], Counter[Place]]
"""Counts the connections of endpoints."""


class LoadWatch:
    """Watches the connections of endpoints.

    Args:
        lists: the lists that follow them.
        count: asks the kernel.  It is called in a thread.
        metrics: counts the lists that get other shares.
        report: replaces the present warnings of a code.
    """

    def __init__(
        self, lists: BalancedLists, count: CountConnections, metrics: Metrics, report: ReportOngoing = lambda *_: None
    ) -> None:
        self._lists = lists
        self._count = count
        self._metrics = metrics
        self._report = report
        self._balance = Balance()
        self._sent = self._balance.published
        self._oversized: frozenset[ObjectKey] = frozenset()
        self._wanted = asyncio.Event()

    def rules_loaded(self) -> None:
        """Note that the kernel holds the rules for the present state.  Call this after each change of rules."""
        if self._lists.by_key:
            self._wanted.set()
        oversized = frozenset(key.service for key in self._lists.oversized)
        for namespace, fresh in itertools.groupby(sorted(oversized - self._oversized), lambda each: each.namespace):
            text = "connections to %(services)s go to endpoints at random, as their lists are too long to be balanced"
            warn(
                LeastConnectionsCode.LEAST_CONNECTIONS_OVERSIZED,
                text,
                of=namespace,
                services=first_of(list(map(str, fresh))),
            )
        self._oversized = oversized

    async def events(self) -> AsyncGenerator[Sequence[Event]]:
        """Yield the factors whenever they have changed, after an empty first batch."""
        yield []
        looks = Looks(self._look, self._report_look, interval=INTERVAL, share=REST)
        while True:
            await self._wanted.wait()
            pause = await looks.once()
            if self._sent is not self._balance.published:
                self._sent = self._balance.published
                yield [Put(LoadFactors(self._sent))]
            if not self._lists.by_key:
                self._wanted.clear()
            await asyncio.sleep(pause)

    async def _look(self) -> None:
        """Count connections, and publish the factors that have changed enough."""
        counts = await asyncio.to_thread(self._count, tuple(self._lists.places))
        steps = Steps(self._balance.observe(self._lists, counts))
        for _ in steps:
            await asyncio.sleep(0)
        self._metrics.count("nftproxy_rebalanced_lists_total", by=len(steps.result))

    def _report_look(self, error: Unavailable | None) -> None:
        warnings = {"": f"{error}; endpoints keep their shares of connections"} if error else {}
        self._report(
            LeastConnectionsCode.LOADS_UNREADABLE, warnings, "the connections of endpoints can be counted again"
        )
