"""Made-up clusters, their rules in a real kernel, and real packets, held against the specification.

The oracle (nftproxy/conformance/oracle.py) says what must become of each connection.  By default the same few clusters
are tried each time, so that what fails is the change under test; the long form makes up thousands of new ones.
A failure that was found belongs into `test_what_once_went_wrong`, as small as Hypothesis made it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.capabilities import probe as probe_capabilities
from nftproxy.conformance import strategies
from nftproxy.conformance.oracle import Oracle, World
from nftproxy.conformance.probes import probes
from nftproxy.conformance.strategies import world_after
from nftproxy.conformance.trial import Trial
from nftproxy.lab import Probe, is_even, obstacle
from nftproxy.model import EndpointSlice, Service
from nftproxy.state import Event, Put, Removed, key_of
from tests.factories import renderer
from tests.fuzz.effort import IS_LONG, Tally, effort

Strangers = list[Service | EndpointSlice]

pytestmark = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
    pytest.mark.timeout(3600 if IS_LONG else 120),
]


@pytest.fixture(scope="module")
def trial(tally: Tally) -> Iterator[Trial]:
    """One lab for the whole module, which counts its connections."""
    with Trial(renderer(), probe_capabilities().capabilities) as made:
        yield made
        tally.count("connections", made.connections)


@given(world=strategies.worlds)
@effort(60, 2500)
def test_connections_go_as_specified(trial: Trial, tally: Tally, world: World) -> None:
    """On any cluster, every connection worth trying becomes what the specification says, and all that it may become."""
    tally.count("clusters")
    trial.load(world)
    assert trial.differences(world, probes(world)) == []


@given(life=strategies.lives)
@effort(20, 500)
def test_connections_go_as_specified_after_every_change(
    trial: Trial, tally: Tally, life: tuple[World, list[list[Event]]]
) -> None:
    """Whatever happens, after each transaction connections go as in a cluster that was always like this."""
    world, batches = life
    tally.count("clusters that change")
    trial.load(world)
    for batch in batches:
        tally.count("changes")
        world = world_after(world, batch)
        trial.follow(batch)
        assert trial.differences(world, probes(world)) == []


def clients_of(world: World) -> list[Probe]:
    """Some of the connections worth trying that an endpoint may be drawn for."""
    oracle = Oracle(world)
    drawn = [probe for probe in probes(world) if len(oracle.expected(probe)) > 1]
    return drawn[:: 1 + len(drawn) // 50]


def pods(trial: Trial, clients: list[Probe]) -> list[str]:
    """The pod that each client reaches."""
    return [outcome.endpoint.ip if outcome.endpoint else "" for outcome in trial.connect(clients)]


@given(world=strategies.worlds, others=st.lists(strategies.strangers, min_size=1, max_size=2))
@effort(12, 500)
def test_nothing_changes_by_what_others_do(trial: Trial, tally: Tally, world: World, others: list[Strangers]) -> None:
    """While unrelated Services come, change and go, connections stay as they are and clients with their pods."""
    tally.count("clusters with strangers")
    trial.load(world)
    oracle = Oracle(world)
    remembered = [probe for probe in clients_of(world) if oracle.remembers(probe)]
    before = pods(trial, remembered)
    gone = [Removed(type(value), key_of(value)) for value in itertools.chain(*others)]
    for there in (*others, []):
        trial.follow([*gone, *map(Put, there)])
        assert trial.differences(world, probes(world)) == []
        assert pods(trial, remembered) == before


@given(world=strategies.crowded_worlds, start=st.integers(0, 10))
@effort(6, 150)
def test_endpoints_are_drawn_evenly(trial: Trial, tally: Tally, world: World, start: int) -> None:
    """Each endpoint of a list is drawn as often as any other, as chi-square judges, at any front and from anywhere."""
    trial.load(world)
    oracle = Oracle(world)
    for probe in clients_of(world)[start::17]:
        tally.count("lists drawn from")
        expected = oracle.expected(probe)
        outcomes = trial.connect([probe] * 40 * len(expected))
        assert set(outcomes) <= expected
        assert is_even(outcomes, [each.endpoint for each in expected if each.endpoint])
