"""Candidates for a port: endpoints of its slices, each address and port once, with their weights."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies import quick
from nftproxy_conformance.strategies.objects import slices

from nftproxy.model.addresses import Protocol
from nftproxy.model.annotations import WEIGHTS, Options
from nftproxy.model.objects import EndpointPort, EndpointSlice
from nftproxy.policy.choosing.verdicts import candidates_of
from tests.policy.choosing.makers import candidates, endpoints_of
from tests.support.factories import IPV4, IPV6, node, service, service_port, slice_of


@pytest.mark.parametrize(
    ("port", "slice_ports", "found"),
    [
        ("http:80", ["http:8080"], ["10.1.0.4:8080"]),
        ("http:80", ["http:8080", "admin:9090"], ["10.1.0.4:8080"]),
        ("http:80", ["http:8080/udp"], []),
        ("http:80/sctp", ["http:8080/tcp", "http:8081/sctp"], ["10.1.0.4:8081"]),
        ("http:80", ["8080"], []),
        ("80", ["8080"], ["10.1.0.4:8080"]),
        ("80", ["http:80"], []),
        ("http:80", [], []),
    ],
)
def test_endpoints_join_by_port_name_and_protocol(port: str, slice_ports: list[str], found: list[str]) -> None:
    """A slice's port joins a Service port of the same name, even empty, and protocol, and its number counts."""
    chosen = candidates(slice_of(endpoints=["10.1.0.4@node-a"], ports=slice_ports), port=port)
    assert [f"{candidate.address}:{candidate.port}" for candidate in chosen] == found


def test_endpoints_join_by_family() -> None:
    """A slice of the other family has no endpoint for this family."""
    both = slice_of(endpoints=["10.1.0.4"]), slice_of(endpoints=["fd00:1::4"], suffix="2")
    assert [candidate.address for candidate in candidates(*both, family=IPV4)] == ["10.1.0.4"]
    assert [candidate.address for candidate in candidates(*both, family=IPV6)] == ["fd00:1::4"]


def test_one_address_with_two_ports_is_two_endpoints() -> None:
    """Slices with different numbers of a port add up, even for the same pod."""
    found = candidates(
        slice_of(endpoints=["10.1.0.4"], ports=["http:8080"]),
        slice_of(endpoints=["10.1.0.4"], ports=["http:8081"], suffix="2"),
    )
    assert [candidate.port for candidate in found] == [8080, 8081]


@pytest.mark.parametrize(
    ("node_name", "is_local"),
    [("@node-a", True), ("@node-b", False), ("@node-", False), ("@NODE-A", False), ("", False)],
)
def test_an_endpoint_is_local_by_its_node_name(node_name: str, is_local: bool) -> None:
    """An endpoint is local if its nodeName is this node's, and never without a nodeName."""
    assert candidates(slice_of(endpoints=[f"10.1.0.4{node_name}"]))[0].is_local is is_local


def test_without_a_node_name_nothing_is_local() -> None:
    """An endpoint without a nodeName isn't local even where this node's name is not known."""
    assert not candidates(slice_of(endpoints=["10.1.0.4"]), at=node(""))[0].is_local


@pytest.mark.parametrize(
    ("one", "other", "winner"),
    [
        ("ready", "draining", "ready"),
        ("ready", "published-draining", "ready"),
        ("unready", "draining", "unready"),
        ("serving", "published-draining", "serving"),
        ("ready", "unready", "ready"),
        ("draining", "stopped", "draining"),
        ("published-stopped", "draining", "published-stopped"),
    ],
)
def test_one_address_and_port_in_two_slices_is_one_endpoint(one: str, other: str, winner: str) -> None:
    """A non-terminating entry wins over a terminating entry, then a ready, then a serving entry, in either order."""
    first, second, expected = (
        slice_of(endpoints=[f"10.1.0.4@node-a {word}".removesuffix(" ready")], suffix=word)
        for word in (one, other, winner)
    )
    assert candidates(first, second) == candidates(second, first) == candidates(expected)


@pytest.mark.parametrize("words", ["@node-a", " zone=a", " node=node-a", "@node-a zone=b node=node-b"])
def test_ghosts_that_differ_in_node_or_hints_are_one_endpoint(words: str) -> None:
    """Two ready entries for an ip:port count once: the local entry, or the entry with hints, in either order."""
    bare, told = slice_of(endpoints=["10.1.0.4"]), slice_of(endpoints=[f"10.1.0.4{words}"], suffix="2")
    assert candidates(bare, told) == candidates(told, bare) == candidates(told)


@quick()
@given(st.lists(slices, max_size=4).flatmap(lambda drawn: st.tuples(st.just(drawn), st.permutations(drawn))))
def test_the_order_of_slices_does_not_matter(drawn: tuple[list[EndpointSlice], list[EndpointSlice]]) -> None:
    """However slices are ordered, and their endpoints in them, the same candidates come out in the same order."""
    first, second = drawn
    for port in ["80", "80/udp", "web:80"]:
        assert candidates(*first, port=port) == candidates(*second, port=port)


@pytest.mark.parametrize(
    ("weights", "own", "found"),
    [
        ((), None, [100, 100]),
        ((), 0, [0, 0]),
        ((), 7, [7, 7]),
        ((("a", 3),), None, [300, 100]),
        ((("a", 3), ("b", 0)), 50, [150, 0]),
        ((("c", 3),), 50, [50, 50]),
    ],
)
def test_weights(weights: tuple[tuple[str, int], ...], own: int | None, found: list[int]) -> None:
    """An endpoint's weight is its slice's, 100 by default, times the Service's weight of its zone, 1 by default."""
    given = slice_of(endpoints=["10.1.0.1 in=a", "10.1.0.2 in=b"], weight=own)
    web = service(options=Options.of({WEIGHTS: weights}))
    assert [each.weight for each in candidates(given, of=web)] == found


def test_of_two_entries_the_lighter_counts() -> None:
    """An endpoint in two slices that differ in weight alone has the lesser weight, so that draining works."""
    both = [slice_of(endpoints=["10.1.0.1"], suffix=str(each), weight=each) for each in (5, 0, 9)]
    assert [each.weight for each in candidates(*both)] == [0]
    better = slice_of(endpoints=["10.1.0.1 serving"], suffix="worse", weight=3)
    assert [each.weight for each in candidates(both[0], better)] == [5]


class Looked(list[EndpointPort]):
    """A slice's ports that count how often each is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[EndpointPort]:
        for port in super().__iter__():
            Looked.looks += 1
            yield port


@pytest.mark.parametrize("count", [10, 100])
def test_each_port_of_a_slice_is_looked_at_once(count: int) -> None:
    """The slices' ports are looked through once, however many ports a Service has."""
    names = [f"p{number}" for number in range(count)]
    ports = Looked(EndpointPort(name, Protocol.TCP, 8080) for name in names)
    slices = [msgspec.structs.replace(slice_of(suffix=str(each)), ports=ports) for each in range(5)]
    Looked.looks = 0
    endpoints = endpoints_of(slices)
    found = [candidates_of(endpoints, service_port(f"{name}:80")) for name in names]
    assert {len(each) for each in found} == {2}
    assert Looked.looks == 5 * count
