"""Applies the events of a round, and small changes of other namespaces between its parts.

Services go to the kernel port by port, and what can't be divided goes in pieces (pipeline.py).  After each part and
piece, and at each pause in between, the loop may apply small changes that have come meanwhile.  So a small change never
waits until a large change is compiled and in the kernel, only for a part of it.

After a failure the rest of the round is compiled, but not sent.  The loop takes the failure from here once the pipeline
holds the whole round, as a full load must follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple

from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.agent.sync.loading import Loader
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event
from nftproxy.model.steps import Steps
from nftproxy.pipeline import Changes, Pipeline
from nftproxy.rules.transaction import join


class FailedChange(NamedTuple):
    """A change that was not applied, and the families whose tables are in an unknown state since."""

    error: Refused | Unavailable
    families: frozenset[Family]


class Rounds:
    """Applies events to the known families."""

    def __init__(self, pipeline: Pipeline, loader: Loader, reporter: SyncReporter) -> None:
        self._pipeline = pipeline
        self._loader = loader
        self._reporter = reporter
        self._failure: FailedChange | None = None

    async def apply(self, events: Iterable[Event], between: Callable[[], Awaitable[object]] | None = None) -> int:
        """Apply events, and return the number of characters of the transactions.

        `between` is awaited between the parts.  It may apply other events, without a `between` of their own.
        """
        size = 0
        steps = Steps(self._pipeline.ingest_in_steps(events, self._loader.known, in_parts=between is not None))
        for changes in steps:
            size += await self._commit(changes)
            with self._reporter.interrupted():
                await asyncio.sleep(0)
            if between is not None:
                await between()
        self._loader.record_updates(self._pipeline.pop_updated())
        return size + await self._commit(steps.result)

    def pop_failure(self) -> FailedChange | None:
        """Return the first failure since the last call."""
        failure, self._failure = self._failure, None
        return failure

    async def _commit(self, changes: Changes) -> int:
        families = self._loader.known & changes.keys()
        transaction = join(changes[family] for family in changes if family in families)
        if not transaction:
            return 0
        if self._failure is not None:
            self._fail(self._failure.error, families)
            return 0
        try:
            await self._loader.commit(transaction, families)
        except (Refused, Unavailable) as error:
            self._fail(error, families)
            return 0
        return len(transaction.text)

    def _fail(self, error: Refused | Unavailable, families: Collection[Family]) -> None:
        before = self._failure.families if self._failure else frozenset[Family]()
        self._failure = FailedChange(error, before | frozenset(families))
