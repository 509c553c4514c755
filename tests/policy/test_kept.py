"""What is kept of Service ports with many endpoints: the outcome is that from nothing, and little is decided anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.conformance.strategies import quick
from nftproxy.model.addresses import Family
from nftproxy.model.annotations import Algorithm, ServiceOptions
from nftproxy.model.objects import EndpointSlice
from nftproxy.policy import kept as kept_module
from nftproxy.policy.compile import compile_service
from nftproxy.policy.endpoints import Offers, choice_for, offers
from nftproxy.policy.kept import MANY, Kept, KeptChoice, KeptRows
from nftproxy.policy.numbers import as_address
from nftproxy.policy.placement import placed
from tests.support.crowds import Crowd, slices_of, steps
from tests.support.factories import IPV4, IPV6, key, pipeline, service, service_port

PORT = service_port("http:80")
WEB = service(options=ServiceOptions(weights=(("b", 3),)))


def offered(slices: list[EndpointSlice], family: Family = IPV4) -> Offers:
    """What slices offer to a Service with weights of zones."""
    return offers(WEB, slices, family)


@quick(50)
@given(st.sampled_from([1, 60, 120]), steps)
def test_the_choice_is_that_from_nothing(count: int, history: list[tuple[str, int, int]]) -> None:
    """Whatever happens to endpoints, slices and the node, each decision is the one that was made without the last."""
    crowd = Crowd(count)
    kept = KeptChoice()
    for step in [("touched", 0, 1), *history]:
        crowd.change(step)
        given_ = offered(crowd.slices)
        if (PORT.name, PORT.protocol) in given_.slices:
            expected = choice_for(PORT, given_, crowd.node)
            assert kept.follow(given_, PORT, crowd.node) == expected
            assert kept.follow(given_, PORT, crowd.node) == expected


@quick(50)
@given(st.sampled_from([100, 130, 300]), steps)
def test_rows_are_those_from_nothing(count: int, history: list[tuple[str, int, int]]) -> None:
    """Whatever happens, the rows are the endpoints in the slots that `placed` gives them."""
    crowd = Crowd(count)
    kept = KeptRows()
    for step in [("touched", 0, 1), *history]:
        crowd.change(step)
        chosen = choice_for(PORT, offers(service(), crowd.slices, IPV4), crowd.node).cluster
        if len({each.weight for each in chosen}) == 1:
            expected = placed(chosen, Algorithm.RANDOM, "")
            rows = tuple((as_address(slot, IPV4), *place) for slot, place in enumerate(expected))
            assert kept.follow(chosen, IPV4) == rows
            assert kept.follow(chosen, IPV4) == rows


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("weights", [(), (("b", 3),)], ids=["plain", "weighted"])
def test_each_algorithm_places_many_as_from_nothing(algorithm: Algorithm, weights: tuple[tuple[str, int], ...]) -> None:
    """Rows that aren't one for each endpoint, in its slot, are those for who keeps nothing."""
    web = service(options=ServiceOptions(algorithm=algorithm, weights=weights))
    made = pipeline(web, *slices_of(MANY))
    expected, found = (
        list(compile_service(made.state, made.settings, IPV4, web, kept=kept)) for kept in (None, Kept())
    )
    assert found == expected


def test_only_what_has_changed_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 endpoints one that goes, comes or gets unready is judged alone, and nobody else becomes a candidate."""
    crowd = Crowd(1_000, per_slice=100)
    kept = KeptChoice()
    before = kept.follow(offered(crowd.slices), PORT, crowd.node)
    for name in ("gather", "choose"):
        monkeypatch.setattr(kept_module, name, None)
    for step, count in (("gone", 999), ("come", 1_000), ("unready", 999), ("turned", 999), ("replaced", 999)):
        crowd.change((step, 3, 20))
        after = kept.follow(offered(crowd.slices), PORT, crowd.node)
        assert len(after.cluster) == count
        had = set(map(id, before.verdicts))
        assert sum(id(each) not in had for each in after.verdicts) <= 1
        before = after


def test_rows_of_who_stays_are_the_same_objects() -> None:
    """Of 1,000 rows, few are made anew when an endpoint goes: whoever renders them sees at a glance which."""
    crowd = Crowd(1_000, per_slice=100)
    kept = KeptRows()
    before = kept.follow(choice_for(PORT, offered(crowd.slices), crowd.node).cluster, IPV4)
    crowd.change(("gone", 5, 5))
    after = kept.follow(choice_for(PORT, offered(crowd.slices), crowd.node).cluster, IPV4)
    assert sum(one is other for one, other in zip(before, after, strict=False)) > 900
    assert len(after) == len(before) - 1


def test_few_endpoints_are_not_kept() -> None:
    """Of a port with fewer endpoints than a full slice nothing is kept, nor of one that has come to have so few."""
    kept = Kept()
    assert kept.port(IPV4, WEB.key, PORT, offered(slices_of(MANY - 1))) is None
    assert kept.port(IPV4, WEB.key, PORT, offered([])) is None
    assert not len(kept)
    assert kept.port(IPV4, WEB.key, PORT, offered(slices_of(MANY)))
    assert len(kept) == 1
    assert kept.port(IPV4, WEB.key, PORT, offered(slices_of(MANY - 1))) is None
    assert not len(kept)


def test_each_port_has_its_own() -> None:
    """What is kept is told apart by family, Service, and name and protocol of the port."""
    kept = Kept()
    both = offers(service(ports=["http:80", "http:80/udp"]), slices_of(MANY), IPV4)
    both.slices["http", service_port("http:80/udp").protocol] = both.slices["http", PORT.protocol]  # type: ignore[index]
    found = [
        kept.port(family, key(name), port, both)
        for family in (IPV4, IPV6)
        for name in ("shop/web", "shop/cart")
        for port in (PORT, service_port("http:80/udp"))
    ]
    assert len(set(map(id, found))) == len(kept) == 8
    assert kept.port(IPV6, key("shop/cart"), PORT, both) is found[6]


def test_what_is_kept_goes_with_its_service() -> None:
    """Nothing of a Service is left when it is forgotten, and the others stay."""
    kept = Kept()
    for family in (IPV4, IPV6):
        for name in ("shop/web", "shop/cart"):
            kept.port(family, key(name), PORT, offered(slices_of(MANY)))
    kept.forget(key("shop/web"))
    assert len(kept) == 2
    kept.forget(key("shop/cart"))
    assert not len(kept)


def test_so_many_endpoints_are_kept_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of endpoints what was asked for first goes first, and the last port stays whatever it has."""
    monkeypatch.setattr(kept_module, "MOST_KEPT", 3 * MANY)
    kept = Kept()
    names = [key(f"shop/s{number}") for number in range(4)]
    first, second, third = (kept.port(IPV4, name, PORT, offered(slices_of(MANY))) for name in names[:3])
    assert kept.port(IPV4, names[0], PORT, offered(slices_of(MANY))) is first
    kept.port(IPV4, names[3], PORT, offered(slices_of(MANY)))
    assert len(kept) == 3
    assert kept.port(IPV4, names[2], PORT, offered(slices_of(MANY))) is third
    assert kept.port(IPV4, names[0], PORT, offered(slices_of(MANY))) is first
    assert kept.port(IPV4, names[1], PORT, offered(slices_of(MANY))) is not second
    kept.port(IPV4, names[0], PORT, offered(slices_of(4 * MANY)))
    assert len(kept) == 1
