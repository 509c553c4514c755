"""Random questions about made-up clusters: explanation, specification and packets answer them alike.

The outcome of a connection by `nftproxy explain` is compared with the oracle, word for word: endpoints, hidden
sources, rejections.  Then the connection is made, in a kernel that has the rules: each outcome is one that was named,
and all that were named are seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies import worlds
from nftproxy_conformance.subjects.rendered import Rendered
from nftproxy_conformance.trials.trial import Trial

from nftproxy.kernel.capabilities import probe as probe_capabilities
from tests.support.explained import disagreements, pipeline_of, some_questions
from tests.support.factories import renderer
from tests.system.fuzz.effort import IS_LONG, Tally, by_table, effort

QUESTIONS = 10
"""Questions about each cluster."""

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.usefixtures("small_tables")]


@pytest.fixture(scope="module")
def trial(tally: Tally) -> Iterator[Trial]:
    """A lab for the whole module, which counts its connections."""
    with Trial(Rendered(renderer(), probe_capabilities().capabilities)) as made:
        yield made
        tally.count("connections", made.connections)


@given(world=worlds.worlds | worlds.silent_worlds(), start=st.integers(0, 10_000))
@settings(effort(6, 1100), derandomize=not IS_LONG, database=None)
def test_questions_are_answered_as_connections_go(trial: Trial, tally: Tally, world: World, start: int) -> None:
    """The explanation answers each question as the specification does, and as packets go."""
    world = world._replace(knows_interfaces=True)  # packets meet the interfaces of the lab's node anyway
    asked = some_questions(world, start, QUESTIONS)
    oracle = Oracle(world)
    expected = [oracle.expected(probe) for probe in asked]
    tally.count("questions", len(asked))
    tally.count("clusters")
    tally.count("Services that choose by a table", by_table(world.services))
    assert disagreements(pipeline_of(world, probe_capabilities().capabilities), asked, expected) == []
    trial.load(world)
    assert trial.differences(world, asked) == []
