"""The TCP connections that conntrack must forget, since the address of their endpoint is in no slice any more."""

from __future__ import annotations

import dataclasses
import itertools
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import Destination, World
from nftproxy_conformance.strategies import quick
from nftproxy_conformance.strategies.histories import histories
from nftproxy_conformance.strategies.objects import all_settings

from nftproxy.extensions.failover import gone_addresses
from nftproxy.extensions.failover.annotations import Failover
from nftproxy.extensions.failover.gone_addresses import PAUSE, START_PAUSE, GoneAddresses
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.objects import Endpoint, EndpointSlice, Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.policy.flows import AddressPort, Flow, fronts_served, is_stale
from tests.support.factories import config_of, key, pipeline, renderer, service, slice_of

GONE = {"failover": "gone"}
FIRST, SECOND = Address("10.1.0.4"), Address("10.1.1.4")
FRONT = AddressPort(Address("10.96.0.10"), 80, Protocol.TCP)
WEB = service(annotations=GONE)


def web(*addresses: str, name: str = "shop/web", suffix: str = "1") -> EndpointSlice:
    """A slice of a Service."""
    return slice_of(name, list(addresses), suffix=suffix)


class Story:
    """A cluster whose slices change, some seconds after the start."""

    def __init__(self, *objects: Service | EndpointSlice, now: float = 100.0) -> None:
        self.pipeline: Pipeline = pipeline(*objects)
        self.now = 0.0
        self.looks = 0
        self.wait(now)

    def put(self, *objects: Service | EndpointSlice) -> dict[AddressPort, list[Address]]:
        """Change objects, and look."""
        self.pipeline.ingest([Put(each) for each in objects])
        return self.wait(0.0)

    def wait(self, seconds: float) -> dict[AddressPort, list[Address]]:
        """Let time pass, and look when asked for it.  Return the swept fronts, and those addresses that are gone."""
        gone, end, found = self.pipeline.view(GoneAddresses), self.now + seconds, dict[AddressPort, list[Address]]()
        while True:
            swept = gone.look(self.pipeline.state, self.now)
            self.looks += 1
            for front, kept in swept.items():
                assert isinstance(front, AddressPort)
                found[front] = [
                    each for each in (FIRST, SECOND) if is_stale(front, Flow(AddressPort(each, 1, Protocol.TCP)), kept)
                ]
            if not self.now < gone.next_look <= end:
                self.now = end
                return found
            self.now = gone.next_look


def test_an_address_that_leaves_is_gone_after_two_looks() -> None:
    """Connections to an address that left its only slice end after a pause, and no others."""
    story = Story(WEB, web(FIRST, SECOND))
    story.put(web(SECOND))
    assert story.wait(PAUSE / 2) == {}
    assert story.wait(PAUSE / 2) == {FRONT: [FIRST]}
    assert story.wait(100) == {}


@pytest.mark.parametrize("left", [f"{FIRST} stopped", f"{FIRST} draining", f"{FIRST} unready"])
def test_an_address_that_is_in_a_slice_in_any_condition_stays(left: str) -> None:
    """Terminating and unready endpoints keep their connections."""
    story = Story(WEB, web(FIRST, SECOND))
    story.put(web(left, SECOND))
    assert story.wait(100) == {}


def test_an_address_that_comes_back_stays() -> None:
    """An address that flaps in and out of the slices in less than a pause is never gone, however often it does."""
    story = Story(WEB, web(FIRST, SECOND))
    for _ in range(20):
        story.put(web(SECOND))
        assert story.wait(0.9 * PAUSE) == {}
        story.put(web(FIRST, SECOND))
        assert story.wait(0.3 * PAUSE) == {}
    assert story.wait(100) == {}


def test_an_address_in_another_slice_stays_until_it_leaves_that() -> None:
    """An address in the slice of another Service, which doesn't ask, or in another slice of the same, isn't gone."""
    for name in ("shop/web", "other/plain"):
        beside = web(FIRST, name=name, suffix="2")
        story = Story(WEB, web(FIRST, SECOND), service("other/plain", cluster_ips=["10.96.0.30"]), beside)
        story.put(web(SECOND))
        assert story.wait(100) == {}
        story.put(web(name=name, suffix="2"))
        assert story.wait(100) == {FRONT: [FIRST]}


def test_slices_of_no_service_keep_nothing_and_cost_nothing() -> None:
    """An address that is only in slices of no Service is gone, and a look at any number of these takes no memory."""
    story = Story(WEB, web(FIRST, SECOND))
    orphans = [
        web(*(f"10.{100 + high}.{middle}.{low}" for middle in range(4) for low in range(1, 251)), name=f"evil/o{high}")
        for high in range(100)
    ]
    story.put(*orphans, web(FIRST, name="evil/none"))
    story.put(web(SECOND))
    tracemalloc.start()
    try:
        assert story.wait(2 * PAUSE) == {FRONT: [FIRST]}
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**18, "a set of 100,000 addresses has 4 MiB without its addresses"


def test_a_look_at_other_services_makes_no_set_of_their_addresses() -> None:
    """However many endpoints other Services have, a look for an address that has left takes memory for one slice."""
    services = [service(f"other/s{high}", cluster_ips=[f"10.96.1.{high}"]) for high in range(1, 30)]
    slices = [
        web(*(f"10.{100 + high}.{low >> 8}.{low & 255}" for low in range(1000)), name=f"other/s{high}")
        for high in range(1, 30)
    ]
    story = Story(WEB, web(FIRST, SECOND), *services, *slices)
    story.put(web(SECOND))
    tracemalloc.start()
    try:
        assert story.wait(2 * PAUSE) == {FRONT: [FIRST]}
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**18


def test_other_services_connections_stay() -> None:
    """The fronts of a Service that doesn't ask are never swept, and it has no looks made."""
    plain = service("shop/plain", cluster_ips=["10.96.0.30"])
    story = Story(WEB, web(FIRST), plain, web(FIRST, name="shop/plain", suffix="2"))
    story.put(web(), web(name="shop/plain", suffix="2"))
    assert story.wait(100) == {FRONT: [FIRST, SECOND]}
    without = Story(plain, web(FIRST, name="shop/plain"))
    without.put(web(name="shop/plain"))
    assert (without.wait(100), without.looks) == ({}, 3)


def test_no_front_is_swept_for_other_protocols_or_contested_addresses() -> None:
    """Only the TCP fronts that a Service has are swept, a node port at each of the node's addresses."""
    ports = ["http:80:30080", "dns:53:30053/udp"]
    older = service("shop/older", cluster_ips=["10.96.0.11"], external_ips=["203.0.113.7"])
    asking = service(type="NodePort", ports=ports, external_ips=["203.0.113.7"], annotations=GONE)
    story = Story(older, asking, slice_of(endpoints=[FIRST], ports=["http:8080", "dns:5353/udp"]))
    story.put(slice_of(endpoints=[], ports=["http:8080", "dns:5353/udp"]))
    assert story.wait(PAUSE).keys() == {FRONT, AddressPort(Address("192.168.0.2"), 30080, Protocol.TCP)}


def test_the_start_judges_all_connections_after_a_while() -> None:
    """Addresses that went while the agent didn't run are gone.  The first listing may be old, so this takes a while."""
    story = Story(WEB, web(SECOND), now=START_PAUSE - 1)
    story.put(web(SECOND, "10.1.0.9"))
    assert story.wait(0.5) == {}
    assert story.wait(0.5) == {FRONT: [FIRST]}


def test_a_service_that_begins_to_ask_is_judged() -> None:
    """The annotation counts for addresses that went before, and its removal at once."""
    story = Story(service(), web(SECOND))
    assert story.put(WEB) == {FRONT: [FIRST]}
    story.put(web())
    story.put(service())
    assert story.wait(100) == {}


def test_a_service_that_is_deleted_has_no_fronts() -> None:
    """The connections of a Service that is deleted in the meantime are left alone."""
    story = Story(WEB, web(FIRST))
    story.put(web())
    story.pipeline.ingest([Removed(Service, key("shop/web"))])
    assert story.wait(100) == {}


def test_a_sweep_that_is_under_way_spares_what_comes_back() -> None:
    """The kept addresses of a sweep stay up to date after it has begun."""
    story = Story(WEB, web(FIRST, SECOND))
    story.put(web(SECOND))
    story.wait(0.5)
    story.now += PAUSE
    swept = story.pipeline.view(GoneAddresses).look(story.pipeline.state, story.now)
    assert FIRST not in swept[FRONT]
    story.put(web(FIRST, SECOND))
    assert FIRST in swept[FRONT]


def test_many_services_are_judged_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start only so many Services are judged at a look, and the rest at the next looks."""
    monkeypatch.setattr(gone_addresses, "MOST_SERVICES", 2)
    many = [service(f"shop/s{number}", cluster_ips=[f"10.96.1.{number}"], annotations=GONE) for number in range(5)]
    made = pipeline(*many)
    made.view(GoneAddresses).look(made.state, 0.0)
    counts = [len(made.view(GoneAddresses).look(made.state, START_PAUSE + number * PAUSE)) for number in range(4)]
    assert counts == [2, 2, 1, 0]


def test_the_namespace_with_the_most_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant whose addresses leave by thousands loses track of its own, and no other tenant's are forgotten."""
    monkeypatch.setattr(gone_addresses, "MOST_LEFT", 50)
    hostile = service("evil/web", cluster_ips=["10.96.0.66"], annotations=GONE)
    crowd = [f"10.9.0.{number}" for number in range(1, 101)]
    story = Story(WEB, web(FIRST, SECOND), hostile, slice_of("evil/web", crowd))
    story.put(web(SECOND))
    story.put(slice_of("evil/web", []))
    assert story.wait(100) == {FRONT: [FIRST]}


# ---- any cluster

asking = st.sampled_from([frozenset({Failover.GONE}), frozenset()])


@quick()
@given(all_settings, histories, asking)
def test_a_start_ends_exactly_the_connections_that_the_specification_ends(
    given_settings: Settings, history: list[list[Event]], failover: frozenset[Failover]
) -> None:
    """In any cluster the agent ends exactly the connections that the oracle names."""
    settings = dataclasses.replace(given_settings, config=config_of(given_settings.config, failover=failover))
    made = Pipeline("node-a", settings, renderer())
    addresses = {Address("10.1.99.9"), *(each.address for batch in history for each in _endpoints(batch))}
    for batch in history:
        made.ingest(batch)
    state, gone = made.state, made.view(GoneAddresses)
    gone.look(state, 0.0)
    swept = gone.look(state, START_PAUSE) | gone.look(state, START_PAUSE + PAUSE)
    objects = [*state.services.values(), *state.slices()]
    interfaces = frozenset(state.node.addresses if state.host_addresses is None else state.host_addresses)
    world = World.with_objects(
        state.node, settings.config, objects, interfaces=interfaces, knows_interfaces=state.host_addresses is not None
    )
    oracle = Oracle(world)
    for family in Family:
        for each in state.services.values():
            for _, fronts in fronts_served(state, settings, family, each, {Protocol.TCP}):
                for (front, _), address in itertools.product(fronts, addresses):
                    flow = Flow(AddressPort(address, 1, Protocol.TCP))
                    ends = front in swept and is_stale(front, flow, swept[front])
                    assert ends == oracle.ends(Destination(front.address, front.protocol, front.port), address)


def _endpoints(batch: Iterable[Event]) -> Iterator[Endpoint]:
    for event in batch:
        objects = event.objects if isinstance(event, Listed) else [event.object] if isinstance(event, Put) else []
        for each in objects:
            yield from each.endpoints if isinstance(each, EndpointSlice) else ()
