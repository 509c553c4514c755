"""Choices with a cache: the outcome is the same as without, and only changed endpoints are judged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nftproxy_conformance.strategies import quick

from nftproxy.model.addresses import Address
from nftproxy.model.annotations import WEIGHTS, Options
from nftproxy.model.objects import Place
from nftproxy.policy.choosing import choice as choice_module
from nftproxy.policy.choosing import verdicts
from nftproxy.policy.choosing.choice import ChoiceCache
from nftproxy.policy.choosing.verdicts import MANY, choose
from tests.policy.choosing.makers import endpoints_of
from tests.support.crowds import Crowd, slices_of, steps
from tests.support.factories import IPV4, IPV6, key, node, service, service_port, slice_of

PORT = service_port("http:80")
WEB = service(options=Options.of({WEIGHTS: (("b", 3),)}))
CROWD = endpoints_of(slices_of(MANY))


def test_only_tcp_ports_leave_silent_endpoints_out() -> None:
    """Silence is seen of TCP connections, so the same endpoint serves on by another protocol."""
    slices = [slice_of(endpoints=["10.1.0.1", "10.1.0.2"], ports=["http:80", "http:80/udp"])]
    endpoints = endpoints_of(slices)._replace(left_out=[Place(Address("10.1.0.1"), 80)])
    found = {port: len(choose(endpoints, service_port(port)).cluster) for port in ("http:80", "http:80/udp")}
    assert found == {"http:80": 1, "http:80/udp": 2}


@quick(50)
@given(st.sampled_from([1, 60, 120]), steps)
def test_the_choice_is_that_without_a_cache(count: int, history: list[tuple[str, int, int]]) -> None:
    """After any changes to endpoints, slices and the node, each choice is the same as without the cache."""
    crowd = Crowd(count)
    cache = ChoiceCache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "MANY", 1)
        for step in [("touched", 0, 1), *history]:
            crowd.change(step)
            endpoints = endpoints_of(crowd.slices, of=WEB, at=crowd.node)
            expected = choose(endpoints, PORT)
            assert choose(endpoints, PORT, cache) == expected
            assert choose(endpoints, PORT, cache) == expected


@pytest.mark.parametrize(
    "steps",
    [
        [("zone hints", 0, 1), ("zone of the node", 0, 2)],
        [("zone hints", 0, 1), ("zone of the node", 0, 0)],
        [("twice", 0, 3), ("gone", 0, 3)],
        [("ghost", 0, 3), ("gone", 1, 50)],
        [("gone", 0, 3), ("twice", 0, 4), ("gone", 0, 4)],
        [("carried", 0, 3), ("gone", 0, 3)],
    ],
    ids=["other zone", "no zone", "twice in a slice", "in two slices", "comes twice", "carried to another slice"],
)
def test_a_cached_choice_is_dropped_when_it_no_longer_holds(steps: list[tuple[str, int, int]]) -> None:
    """Another zone of the node and an address that is there twice take a choice from nothing, as when they end."""
    crowd, cache = Crowd(2 * MANY, per_slice=50), ChoiceCache()
    choose(endpoints_of(crowd.slices), PORT, cache)
    for step in steps:
        crowd.change(step)
        endpoints = endpoints_of(crowd.slices, at=crowd.node)
        assert choose(endpoints, PORT, cache) == choose(endpoints, PORT)


@pytest.mark.parametrize(("was_there", "slices"), [(True, [1]), (False, [0, 1])])
def test_newcomers_that_are_there_twice_take_a_choice_from_nothing(was_there: bool, slices: list[int]) -> None:
    """Among several newcomers, an address that another slice has, from before or since, is found."""
    crowd, cache = Crowd(2 * MANY, per_slice=50), ChoiceCache()
    choose(endpoints_of(crowd.slices), PORT, cache)
    copied = next(iter(crowd.slices[2].endpoints)) if was_there else crowd.newcomer()
    for at in slices:
        others = [crowd.newcomer() for _ in range(6)]
        ghost = replace(copied, terminating=at == 1, ready=at == 0)
        crowd.put_endpoints(at, *crowd.slices[at].endpoints, *others, ghost)
    endpoints = endpoints_of(crowd.slices)
    assert choose(endpoints, PORT, cache) == choose(endpoints, PORT)


def test_another_node_or_other_weights_of_zones_are_another_choice() -> None:
    """The cache also compares facts outside of slices: the local candidates and the weights of zones."""
    slices, cache = slices_of(MANY), ChoiceCache()
    for of, at in ((service(), node()), (WEB, node()), (WEB, node("node-b")), (service(), node("node-b"))):
        endpoints = endpoints_of(slices, of=of, at=at)
        assert choose(endpoints, PORT, cache) == choose(endpoints, PORT)


def test_endpoints_that_do_not_answer_bypass_the_cache() -> None:
    """While an endpoint is silent, the choice is made anew, and the cache makes no entry."""
    cache = ChoiceCache()
    silent = CROWD._replace(left_out=[choose(CROWD, PORT).cluster[0].place])
    assert choose(silent, PORT, cache) == choose(silent, PORT)
    assert len(choose(silent, PORT, cache).cluster) == MANY - 1
    assert not cache.entries


def test_only_what_has_changed_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only removed, new and newly unready endpoints of 1,000, in one slice or in two, are judged."""
    crowd = Crowd(1_000, per_slice=100)
    cache = ChoiceCache()
    before = choose(endpoints_of(crowd.slices), PORT, cache)
    for name in ("candidates_of", "decide"):
        monkeypatch.setattr(choice_module, name, None)
    one, three = [3], [4, 5, 6]
    changes = [("gone", one, 999), ("come", one, 1_000), ("unready", one, 999), ("turned", one, 999)]
    changes += [("replaced", one, 999), ("unready", three, 996), ("gone", three, 996), ("come", three, 999)]
    for step, changed, count in changes:
        for at in changed:
            crowd.change((step, at, 20))
        after = choose(endpoints_of(crowd.slices), PORT, cache)
        assert len(after.cluster) == count
        had = set(map(id, before.verdicts))
        assert sum(id(each) not in had for each in after.verdicts) <= len(changed)
        before = after


def test_a_change_of_most_endpoints_inserts_none_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are decided anew: each insertion moves half of the list, so that the time would grow with the square."""
    cache = ChoiceCache()
    before, after = (
        [slice_of(endpoints=[f"10.3.0.{each}"], ports=[f"http:{port}"], suffix=str(each)) for each in range(1, 201)]
        for port in (8080, 8081)
    )
    choose(endpoints_of(before), PORT, cache)
    monkeypatch.setattr(choice_module, "insort", None)
    moved = choose(endpoints_of(after), PORT, cache)
    assert {each.place.port for each in moved.cluster} == {8081}
    assert len(moved.cluster) == 200


def test_few_endpoints_are_not_cached() -> None:
    """A port with fewer endpoints than a full slice has no entry."""
    cache = ChoiceCache()
    few, none = endpoints_of(slices_of(MANY - 1)), endpoints_of([])
    for each in (few, none):
        choose(each, PORT, cache)
    assert not cache.entries
    choose(CROWD, PORT, cache)
    assert len(cache.entries) == 1


def test_each_port_has_its_own_entry() -> None:
    """Entries differ by family, Service, and name and protocol of the port."""
    cache = ChoiceCache()
    ports = [service_port(text) for text in ("http:80/tcp", "http:80/udp", "dns:80/tcp")]
    many = CROWD._replace(by_port={(port.name, port.protocol): CROWD.slices_of(PORT) for port in ports})
    found = [
        cache.entry(many._replace(family=family, service=key(name)), port)
        for family in (IPV4, IPV6)
        for name in ("shop/web", "shop/cart")
        for port in ports
    ]
    assert len(set(map(id, found))) == len(cache.entries) == 12
    assert cache.entry(many._replace(family=IPV6, service=key("shop/cart")), PORT) is found[9]


def test_the_entries_of_a_service_are_evicted() -> None:
    """Nothing of a Service is left when it is evicted, and other Services keep their entries."""
    cache = ChoiceCache()
    for family in (IPV4, IPV6):
        for name in ("shop/web", "shop/cart"):
            cache.entry(CROWD._replace(family=family, service=key(name)), PORT)
    cache.evict(key("shop/web"))
    assert len(cache.entries) == 2
    cache.evict(key("shop/cart"))
    assert not cache.entries


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of endpoints the least recently used ports are evicted, but never the last, however large."""
    monkeypatch.setattr(choice_module, "CACHED_ENDPOINTS", 3 * MANY)
    cache = ChoiceCache()
    names = [key(f"shop/s{number}") for number in range(4)]
    many = [CROWD._replace(service=name) for name in names]
    first, second, third = (cache.entry(each, PORT) for each in many[:3])
    assert cache.entry(many[0], PORT) is first
    cache.entry(many[3], PORT)
    assert len(cache.entries) == 3
    assert cache.entry(many[2], PORT) is third
    assert cache.entry(many[0], PORT) is first
    assert cache.entry(many[1], PORT) is not second
    cache.entry(endpoints_of(slices_of(4 * MANY))._replace(service=names[0]), PORT)
    assert len(cache.entries) == 1
