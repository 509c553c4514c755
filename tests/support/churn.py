"""Rules that keep changing while connections are tried, and the worlds that a connection may have met.

    with Churn(lab, world, cycle(lab, pipeline, worlds)) as churn:
        tries = churn.try_all(probes, 1000, at_once=1)
    for each in tries:
        assert each.outcome in expected(churn.in_force(each.began, each.ended))

A *world* is a test's description of a generation.  The time of a commit is known from both sides: it is after
the call began and before it returned.  So a connection may have met every world that could have been in force at some
moment between its own beginning and end, and no other.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

from nftproxy_conformance.lab import Lab, LabError, Outcome, Probe

from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.events import Event
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Transaction

SWITCH_INTERVAL = 50e-6
"""Seconds after which a thread must yield to another.  With Python's own 5 ms, the connecting thread would keep
the committing thread waiting most of the time: 200 transactions a second, where this makes it 1,500."""

W = TypeVar("W")


class Step(NamedTuple, Generic[W]):
    """A transaction, and the world that is in force after it."""

    transaction: Transaction
    world: W


class Try(NamedTuple):
    """A connection that was tried, with times before and after."""

    began: float
    ended: float
    outcome: Outcome


class _Commit(Generic[W]):
    """A commit: when its call began and returned (`time.monotonic`), and the world that it brought."""

    def __init__(self, world: W, began: float, returned: float = math.inf) -> None:
        self.world = world
        self.began = began
        self.returned = returned


class Churn(Generic[W]):
    """Applies transactions to a lab's node in turn, in a thread of its own, for the time of the `with` block.

    An error of that thread is raised at the exit.

    Args:
        lab: the lab with the node.
        world: the world that is in force already.
        steps: an endless iterator, advanced in the thread.
        pause: seconds between two transactions, on average.  If worlds alternate, some pause is needed.  Otherwise
            threads and kernel fall into step, and connections are tried in one world only.
    """

    def __init__(self, lab: Lab, world: W, steps: Iterator[Step[W]], *, pause: float = 0.0) -> None:
        self._lab = lab
        self._kernel = node_kernel(lab)
        self._commits = [_Commit(world, -math.inf, -math.inf)]
        self._steps = steps
        self._pause = pause
        self._random = random.Random(0)
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="churn", daemon=True)

    @property
    def count(self) -> int:
        """How many transactions have happened."""
        return len(self._commits) - 1

    @property
    def world(self) -> W:
        """The world that the last transaction brought."""
        return self._commits[-1].world

    def __enter__(self) -> Self:
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_interval)
        if self._errors:
            raise self._errors[0]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._commit(next(self._steps))
                if self._pause:
                    self._stop.wait(self._random.expovariate(1 / self._pause))
        except BaseException as error:  # noqa: BLE001 -- raised again by whoever waits for this thread
            self._errors.append(error)

    def _commit(self, step: Step[W]) -> None:
        commit = _Commit(step.world, time.monotonic())
        self._commits.append(commit)
        self._kernel.apply(step.transaction)
        commit.returned = time.monotonic()

    def try_all(self, probes: Iterator[Probe], connections: int, *, at_once: int, transactions: int = 1) -> list[Try]:
        """Try connections, some at once, and note when.

        Args:
            probes: endless.
            connections: how many at least.
            at_once: how many between two looks at the clock.
            transactions: go on until this number has happened, however long a busy machine takes.
        """
        tries: list[Try] = []
        while len(tries) < connections or self.count < transactions:
            if not self._thread.is_alive():
                raise LabError("the thread that changes rules has ended")
            began = time.monotonic()
            outcomes = self._lab.connect_many(itertools.islice(probes, at_once))
            ended = time.monotonic()
            tries += [Try(began, ended, outcome) for outcome in outcomes]
        return tries

    def in_force(self, began: float, ended: float) -> list[W]:
        """The worlds that may have been in force at some moment between two times, in their order."""
        first = bisect_right(self._commits, began, key=attrgetter("returned")) - 1
        last = bisect_right(self._commits, ended, key=attrgetter("began"))
        return [commit.world for commit in self._commits[first:last]]


def node_kernel(lab: Lab) -> Kernel:
    """A kernel side that writes to the lab's node, whichever thread calls."""
    kernel = Kernel()
    lab.node.call(kernel.apply, Transaction("add table ip nothing\ndelete table ip nothing\n"))
    return kernel


def loaded(lab: Lab, pipeline: Pipeline) -> Kernel:
    """A kernel side for the lab's node, on which the rules of the pipeline are loaded."""
    kernel = node_kernel(lab)
    kernel.apply(full_transaction(lab, kernel, pipeline))
    return kernel


def full_transaction(lab: Lab, kernel: Kernel, pipeline: Pipeline) -> Transaction:
    """The transaction that replaces the rules of the lab's node by those of the pipeline."""
    return pipeline.full_transaction({family: lab.node.call(kernel.read_back, family) for family in Family})


def cycle(lab: Lab, pipeline: Pipeline, worlds: Sequence[tuple[W, Sequence[Event]]]) -> Iterator[Step[W]]:
    """Steps that lead from the last world through all of them, again and again.  The last world is in force on return.

    All transactions are made beforehand, so that they can follow each other as fast as the kernel takes them.
    """
    kernel = loaded(lab, pipeline)
    for _, events in worlds:  # a first round, after which there are no more chains to be made
        kernel.apply(pipeline.ingest(events))
    return itertools.cycle([Step(pipeline.ingest(events), world) for world, events in worlds])
