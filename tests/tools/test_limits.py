"""The short form of `tools.bench.limits`: counts, sizes of transactions and memory, in each shape."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest

from nftproxy.kernel.nfnetlink.element_batch import MOST_CHARACTERS
from nftproxy.library import parsed
from nftproxy.model.events import Event
from nftproxy.pipeline import Pipeline
from nftproxy.rules.pieces import pieces_of
from tests.support.factories import INSTALLED_KINDS, renderer, settings
from tools.bench.cluster import NODE
from tools.bench.limits import PARTS, SHAPES

BUDGET = 6_000
SKELETON = 50
"""Elements that belong to no Service, and elements that lead to chains."""


def hostile(shape: str) -> Sequence[Event]:
    """The hostile Services of a shape: 4/3 of `BUDGET`."""
    objects = [each for made in SHAPES[shape](BUDGET // PARTS) for each in (made.service, *made.slices)]
    return parsed(objects, INSTALLED_KINDS).listing()


def agent_with(budget: int) -> Pipeline:
    """An agent without Services."""
    return Pipeline(NODE, settings(element_budget=budget), renderer())


@pytest.mark.parametrize("shape", SHAPES)
def test_many_services_within_the_limits_are_bounded_together(shape: str) -> None:
    """Some Services are quarantined, the rest is within the budget and uses much of it, in transactions of one size."""
    agent = agent_with(BUDGET)
    declared, *pieces = pieces_of(agent.ingest(hostile(shape)))
    assert 0 < len(agent.quarantined) < len(agent.state.given)
    elements = sum(each.element_count() for each in agent.generations.values())
    assert BUDGET / 3 < elements < BUDGET + SKELETON
    assert max(len(each.text) for each in (declared, *pieces)) <= MOST_CHARACTERS


def test_quarantined_services_cost_no_memory() -> None:
    """The memory grows with the elements that are served, and not with those that are asked for."""
    events = hostile("endpoints")
    peaks = []
    for agent in (agent_with(BUDGET // 4), agent_with(BUDGET)):
        tracemalloc.start()
        agent.ingest(events)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] < peaks[1] / 2
