"""The inbox grows with the number of objects, not with the number of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nftproxy.agent.sync.inbox import Inbox
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, Ignored, ObjectKey, Service
from tests.support.factories import host_addresses, key, node, pipeline, service, service_cidr, slice_of

NAMES = ["shop/a", "shop/b", "shop/c"]
SERVICES = [service(name, cluster_ips=[f"10.96.0.{n}"]) for n, name in enumerate(NAMES, 10)]
SLICES = [slice_of(name, [f"10.1.0.{n}@node-a"]) for name in NAMES for n in (4, 5)]
OTHERS: list[Event] = [Put(node()), Put(node(zone="z")), Put(service_cidr())]
PUTS: list[Event] = [*map(Put, SERVICES), *map(Put, SLICES), *OTHERS]
REMOVALS: list[Event] = [
    *(Removed(Service, each.key) for each in SERVICES),
    *(Removed(EndpointSlice, each.key) for each in SLICES),
]
PASSED_OVER = [Ignored(f"Service {name}", "it is headless", key(name)) for name in NAMES]
REMOVALS += [Removed(Service, each.key, each) for each in PASSED_OVER]
LISTINGS: list[Event] = [Listed(Service, tuple(SERVICES[:n]), tuple(PASSED_OVER[n:])) for n in range(3)]
LISTINGS += [Listed(EndpointSlice, tuple(SLICES[::step])) for step in (1, 3)]
ADDRESSES: list[Event] = [Put(host_addresses("192.0.2.1")), Put(host_addresses())]
histories = st.lists(st.sampled_from([*PUTS, *REMOVALS, *LISTINGS, *ADDRESSES]), max_size=40)


@given(histories, histories)
def test_taking_the_inbox_gives_the_same_rules(before: list[Event], waiting: list[Event]) -> None:
    """The rules after taking the inbox are the same as after all its events, with any earlier state."""
    inbox = Inbox()
    inbox.add(waiting)
    one, other = pipeline(node=None), pipeline(node=None)
    for made, events in ((one, waiting), (other, inbox.pop_all())):
        made.ingest(before)
        made.ingest(events)
    for family, generation in one.generations.items():
        assert set(generation.used_elements()) == set(other.generations[family].used_elements())
    assert one.state.ignored == other.state.ignored


def test_nothing_is_left() -> None:
    """The inbox is empty after it was taken."""
    inbox = Inbox()
    inbox.add([*LISTINGS, *PUTS])
    assert inbox.pop_all()
    assert (len(inbox), inbox.pop_all()) == (0, [])


def test_an_object_that_changes_waits_once() -> None:
    """An object waits once, however often it changes."""
    inbox = Inbox()
    for _ in range(10_000):
        inbox.add([Put(SLICES[0]), Put(node()), Put(host_addresses("192.0.2.1"))])
    assert len(inbox) == 3


def test_objects_that_come_and_go_leave_nothing() -> None:
    """After a listing, which is the first that a source delivers, only objects that are there wait."""
    inbox = Inbox()
    inbox.add([Listed(Service, (SERVICES[0],))])
    for number in range(10_000):
        it = service(f"shop/s{number}")
        inbox.add([Put(it), Removed(Service, it.key)])
    assert len(inbox) == 1


@given(histories, histories, st.sets(st.sampled_from([each.key for each in SERVICES])))
def test_postponed_changes_come_later(first: list[Event], later: list[Event], postponed: set[ObjectKey]) -> None:
    """Whatever is postponed, the rules are the same in the end, and nothing else waits."""
    inbox = Inbox()
    one, other = pipeline(node=None), pipeline(node=None)
    one.ingest([*first, *later])
    for events in (first, later):
        inbox.add(events)
        other.ingest(inbox.pop_except(postponed, other.state.service_of))
        assert set(inbox.waiting(other.state.service_of)) <= postponed
    other.ingest(inbox.pop_all())
    for family, generation in one.generations.items():
        assert set(generation.used_elements()) == set(other.generations[family].used_elements())


def test_how_long_a_service_waits() -> None:
    """A Service waits since the oldest of its changes, and a deletion can't be postponed."""
    inbox, state = Inbox(), pipeline(*SLICES).state
    one, two, three = (each.key for each in SERVICES)
    inbox.add([Put(SLICES[0])], 1.0)
    inbox.add([Put(SLICES[0]), Put(SERVICES[0]), Removed(EndpointSlice, SLICES[2].key)], 2.0)
    inbox.add([Removed(Service, three), Put(node())], 3.0)
    assert inbox.waiting(state.service_of) == {one: 1.0, two: 2.0}
    assert inbox.deleted() == [three]
    assert inbox.services() == [SERVICES[0]]
    assert inbox.pop_except({one, two}, state.service_of) == [Removed(Service, three), Put(node())]
    assert inbox.waiting(state.service_of) == {one: 1.0, two: 2.0}


def test_endpoints_that_change_alone_can_be_taken_alone() -> None:
    """Only Services whose own object hasn't changed are named, and their slices are taken without all others."""
    inbox = Inbox()
    a, b, c = (Put(each) for each in SLICES[::2])
    inbox.add([a, Put(SERVICES[1]), b], at=3.0)
    inbox.add([c, Put(node())], at=4.0)
    assert inbox.waiting_endpoints(lambda _: None) == {key("shop/a"): 3.0, key("shop/c"): 4.0}
    assert inbox.pop_of([key("shop/c")], lambda _: None) == [c]
    assert inbox.pop_all() == [a, Put(SERVICES[1]), b, Put(node())]


def test_nothing_goes_ahead_of_a_listing() -> None:
    """While a listing waits, no endpoints can be taken alone."""
    inbox = Inbox()
    inbox.add([Listed(Service, tuple(SERVICES)), Put(SLICES[0])])
    assert inbox.waiting_endpoints(lambda _: None) == {}
