"""Made-up clusters, their rules in a real kernel, and real packets, held against the specification.

The oracle (nftproxy_conformance/specification/oracle.py) says which outcomes each connection may have.  By default the
same few clusters are tried each time, so that what fails is the change under test; the long form makes up thousands
of new ones.  No example is kept in a database: which endpoints the kernel draws is chance, and a found fault deserves
a test of its own.  Faults found so far became tests in tests/system/packets, as small as Hypothesis made them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies import worlds
from nftproxy_conformance.strategies.probes import probes
from nftproxy_conformance.strategies.values import IPV4
from nftproxy_conformance.strategies.worlds import world_after
from nftproxy_conformance.subjects.rendered import Rendered
from nftproxy_conformance.trials import features
from nftproxy_conformance.trials.trial import Trial, exactly

from nftproxy.kernel.capabilities import probe as probe_capabilities
from nftproxy.model.events import Event
from nftproxy.model.objects import EndpointSlice, Service
from tests.support.factories import renderer
from tests.system.fuzz.effort import IS_LONG, Tally, by_table, effort

Strangers = list[Service | EndpointSlice]

pytestmark = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
    pytest.mark.usefixtures("small_tables"),
    pytest.mark.slow,
]


def tries(short: int, long: int) -> settings:
    """Settings for a property that is to try so many clusters."""
    return settings(effort(short, long), derandomize=not IS_LONG, database=None)


@pytest.fixture(scope="module")
def trial(tally: Tally) -> Iterator[Trial]:
    """A lab for the whole module, which counts its connections."""
    with Trial(Rendered(renderer(), probe_capabilities().capabilities)) as made:
        yield made
        tally.count("connections", made.connections)


@given(world=worlds.worlds)
@tries(40, 2500)
def test_connections_go_as_specified(trial: Trial, tally: Tally, world: World) -> None:
    """On any cluster, every connection worth trying has an outcome of the specification, and all such outcomes are
    seen.
    """
    tally.count("clusters")
    tally.count("Services that choose by a table", by_table(world.services))
    assert features.as_specified(features.anything, exactly, trial, world) is None


@given(world=worlds.worlds)
@tries(20, 1000)
def test_pings_are_answered_as_specified(trial: Trial, tally: Tally, world: World) -> None:
    """On any cluster, pings to every address are answered, rejected, or left alone, by source."""
    tally.count("clusters with pings")
    assert features.pinged(trial, world) is None


@given(world=worlds.silent_worlds())
@tries(15, 1000)
def test_silent_endpoints_are_left_out_as_specified(trial: Trial, tally: Tally, world: World) -> None:
    """Where endpoints don't answer, connections of Services that leave them out go to the rest, up to half."""
    tally.count("clusters with silence")
    assert features.as_specified(features.anything, exactly, trial, world) is None


@given(world=worlds.silent_worlds())
@tries(10, 500)
def test_refusals_pass_as_specified(trial: Trial, tally: Tally, world: World) -> None:
    """Where Services ask for it, clients hear of a refusal only if no other endpoint would do better."""
    tally.count("clusters with refusals")
    assert features.refused(trial, world) is None


@given(world=worlds.hashed_worlds())
@tries(15, 500)
def test_tables_choose_as_specified(trial: Trial, tally: Tally, world: World) -> None:
    """Where tables choose, connections go to all endpoints of the list, and connections of a client to the same
    endpoint.
    """
    tally.count("clusters with tables alone")
    lists = [Oracle(world).lists(each.service, each.port, IPV4) for each in Oracle(world).fronts.values() if each.port]
    tally.count("tables with a choice", sum(len(each.cluster) > 1 for each in lists))
    assert features.as_specified(features.anything, exactly, trial, world) is None


@given(life=worlds.lives)
@tries(12, 500)
def test_connections_go_as_specified_after_every_change(
    trial: Trial, tally: Tally, life: tuple[World, list[list[Event]]]
) -> None:
    """After any events connections go as in a cluster that was always like this."""
    world, batches = life
    tally.count("clusters that change")
    trial.load(world)
    for batch in batches:
        tally.count("changes")
        world = world_after(world, batch)
        trial.follow(world, batch)
        assert trial.differences(world, probes(world)) == []


@given(world=worlds.worlds, others=worlds.strangers)
@tries(8, 500)
def test_unrelated_services_change_nothing(trial: Trial, tally: Tally, world: World, others: Strangers) -> None:
    """While unrelated Services come and go, connections stay as they are and clients keep their pods."""
    tally.count("clusters with strangers")
    assert features.beside_strangers(exactly, trial, (world, others)) is None


@given(world=worlds.crowded_worlds)
@tries(4, 150)
def test_endpoints_are_drawn_evenly(trial: Trial, tally: Tally, world: World) -> None:
    """Each endpoint of a list is drawn as often as any other, as chi-square judges, at any front and from anywhere."""
    tally.count("clusters drawn from")
    assert features.evenly(trial, world) is None
