"""After any events, in any order and any batches, the rules depend only on the objects that exist in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies.histories import batches, clusters, histories, survivors, undoing, updates
from nftproxy_conformance.strategies.objects import Given, all_settings

from nftproxy.model.addresses import Family
from nftproxy.model.events import Event, HostAddresses, Put
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.rules.ruleset import Element
from tests.support.factories import Ledger, renderer
from tests.system.fuzz.departures import departures
from tests.system.fuzz.effort import Tally, effort

History = list[list[Event]]


class Followed:
    """A pipeline, and the contents of a kernel that follows it."""

    def __init__(self, settings: Settings, objects: Iterable[Given] = ()) -> None:
        self.pipeline = Pipeline("node-a", settings, renderer())
        self.pipeline.ingest([Put(each) for each in objects])
        self.ledger = Ledger()
        self.load()

    def load(self) -> None:
        """Load everything."""
        self.ledger.apply(self.pipeline.full_transaction({family: self.ledger.installed(family) for family in Family}))

    def follow(self, events: Sequence[Event]) -> None:
        """Follow the events of a batch."""
        self.ledger.apply(self.pipeline.ingest(events))


def assert_alike(one: Followed, other: Followed) -> None:
    """Assert that two hold the same, less unused declarations, and that each holds the elements of its generation."""
    assert one.pipeline.losses.by_service == other.pipeline.losses.by_service
    assert one.pipeline.health_checks.by_port == other.pipeline.health_checks.by_port
    for family in Family:
        used = [made.pipeline.generations[family].used_declarations() for made in (one, other)]
        assert used[0] == used[1]
        elements = set(one.pipeline.generations[family].used_elements())
        for made in (one, other):
            declared = made.ledger.declared(family)
            generation = made.pipeline.generations[family]
            assert made.ledger.held(family) == set(generation.elements())
            assert elements == set(generation.used_elements())
            assert {(each.kind, each.name, each.body) for each in used[0].values()} <= declared
            assert declared == {(each.kind, each.name, each.body) for each in generation.declarations.values()}


def _held(made: Followed) -> dict[Family, set[Element]]:
    """The elements of a kernel, without the elements that lead to chains for unused numbers of endpoints."""
    return {
        family: made.ledger.held(family) & set(generation.used_elements())
        for family, generation in made.pipeline.generations.items()
    }


@effort(10, 5_000)
@given(all_settings, histories)
def test_incremental_equals_from_scratch(tally: Tally, settings: Settings, history: History) -> None:
    """After each batch of events the rules equal those of a new pipeline that sees only the present objects."""
    made, there = Followed(settings), list[Given]()
    for batch in history:
        there = survivors([[Put(value) for value in there], batch])
        made.follow(batch)
        assert_alike(made, Followed(settings, there))
        tally.count("batches of events")
    made.load()
    for generation in made.pipeline.generations.values():
        assert generation.declarations == generation.used_declarations()
    tally.count("histories")


@effort(10, 5_000)
@given(st.data(), all_settings, clusters)
def test_any_object_may_change_or_go(
    tally: Tally, data: st.DataObject, settings: Settings, cluster: list[Given]
) -> None:
    """After single fields have changed, and objects are gone, the rules equal those of a new pipeline."""
    made, there = Followed(settings, cluster), cluster
    for _ in range(data.draw(st.integers(2, 6))):
        if there:
            changed = st.sampled_from(there).flatmap(updates).map(Put)
            happened: list[Event] = [data.draw(st.one_of(changed, departures(there)))]
            there = survivors([[Put(value) for value in there], happened])
            made.follow(happened)
            assert_alike(made, Followed(settings, there))
            tally.count("fields changed and objects gone")


@effort(10, 5_000)
@given(all_settings, histories)
def test_how_events_are_gathered_does_not_matter(tally: Tally, settings: Settings, history: History) -> None:
    """Singly, in batches or all at once, the same events lead to the same rules."""
    events = [event for batch in history for event in batch]
    ways = [Followed(settings) for _ in range(3)]
    for number, batching in enumerate(([[event] for event in events], history, [events])):
        for batch in batching:
            ways[number].follow(batch)
    assert_alike(ways[0], ways[1])
    assert_alike(ways[0], ways[2])
    tally.count("histories gathered in 3 ways")


@effort(10, 5_000)
@given(st.data(), all_settings, clusters)
def test_the_order_of_events_does_not_matter(
    tally: Tally, data: st.DataObject, settings: Settings, cluster: list[Given]
) -> None:
    """The same objects lead to the same rules in any order and any batches."""
    one, other = Followed(settings, cluster), Followed(settings)
    for batch in data.draw(batches(cluster)):
        other.follow(batch)
    assert_alike(one, other)
    tally.count("clusters in 2 orders")


@effort(10, 5_000)
@given(all_settings, histories)
def test_what_is_undone_is_as_it_was(tally: Tally, settings: Settings, history: History) -> None:
    """When events are undone, the kernel holds the same as before them."""
    first, *rest = history
    made = Followed(settings)
    made.follow([*first, Put(HostAddresses(frozenset()))])  # once known, they are never unknown again
    there = survivors([first, [Put(HostAddresses(frozenset()))]])
    for batch in rest:
        after = survivors([[Put(value) for value in there], batch])
        before = _held(made)
        made.follow(batch)
        made.follow(undoing(there, after))
        assert before == _held(made)
        assert_alike(made, Followed(settings, there))
        tally.count("batches undone")
