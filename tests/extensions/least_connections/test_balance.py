"""Factors from connections: where they settle, their bounds, when they are published, and whose turn it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.extensions.least_connections.balance import Balance
from nftproxy.extensions.least_connections.balanced_lists import MOST_WRITTEN, BalancedLists
from nftproxy.extensions.least_connections.factors import ListKey, LoadFactors
from nftproxy.extensions.least_connections.known_factors import factors_of
from nftproxy.installed import INSTALLED
from nftproxy.model.addresses import Address, Family
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import Place, TrafficPolicy
from nftproxy.model.settings import Capabilities, Config
from nftproxy.model.steps import finish
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from tests.support.factories import key, pipeline, service, slice_of

LEAST = {"algorithm": "least-connections"}
PODS = [f"10.1.0.{number}@node-a" for number in (4, 5, 6)]
A, B, C = (Place(Address(f"10.1.0.{number}"), 8080) for number in (4, 5, 6))


def list_key(name: str = "shop/web", policy: TrafficPolicy = TrafficPolicy.CLUSTER) -> ListKey:
    """The key of a list of the port http."""
    return ListKey(key(name), "http", Family.IPV4, policy)


def web(name: str = "shop/web", *endpoints: str, **tweaks: object) -> list[Event]:
    """A Service with least connections, and its endpoints."""
    number = sum(name.encode()) % 200
    made = service(name, cluster_ips=[f"10.96.0.{number}"], annotations=LEAST, **tweaks)  # type: ignore[arg-type]
    return [Put(made), Put(slice_of(name, endpoints or PODS))]


def served(*events: Event) -> Pipeline:
    """The rules for these objects."""
    made = pipeline()
    made.ingest(events)
    return made


def looks(balance: Balance, made: Pipeline, counts: Mapping[Place, int], times: int = 1) -> list[list[ListKey]]:
    """Take in the same connections several times.  Return the lists that were published each time."""
    published = []
    for _ in range(times):
        published.append(finish(balance.observe(made.view(BalancedLists), counts)))
        made.ingest([Put(LoadFactors(balance.published))])
    return published


def shares(made: Pipeline, name: str = "shop/web") -> dict[str, int]:
    """The rows of each endpoint in the rules, at the Service's ClusterIP."""
    (front,) = made.state.services[key(name)].cluster_ips
    rows = [each for each in made.generations[Family.IPV4].elements() if each.container == "tcp-endpoints"]
    return dict(
        sorted(Counter(each.value.split(" . ")[0] for each in rows if each.key.startswith(f"{front} . ")).items())
    )


def test_an_endpoint_with_more_connections_gets_fewer() -> None:
    """Rows go from the endpoint with more connections to the others, as long as it has more, down to one."""
    made, balance = served(*web()), Balance()
    assert shares(made) == {"10.1.0.4": 8, "10.1.0.5": 8, "10.1.0.6": 8}
    looks(balance, made, {A: 5, B: 5, C: 40})
    assert shares(made) == {"10.1.0.4": 9, "10.1.0.5": 9, "10.1.0.6": 6}
    looks(balance, made, {A: 5, B: 5, C: 40}, 60)
    assert shares(made) == {"10.1.0.4": 12, "10.1.0.5": 11, "10.1.0.6": 1}
    looks(balance, made, {A: 40, B: 40, C: 5}, 60)
    assert shares(made) == {"10.1.0.4": 1, "10.1.0.5": 1, "10.1.0.6": 22}


def test_weights_count() -> None:
    """Connections in proportion to the weights are balanced."""
    made = pipeline()
    made.ingest([Put(service(cluster_ips=["10.96.0.9"], annotations=LEAST))])
    for number, weight in ((4, 100), (5, 25)):
        made.ingest([Put(slice_of("shop/web", [f"10.1.0.{number}"], suffix=str(number), weight=weight))])
    assert shares(made) == {"10.1.0.4": 16, "10.1.0.5": 4}
    balance = Balance()
    assert looks(balance, made, {A: 399, B: 99}, 20) == [[]] * 20
    looks(balance, made, {A: 100, B: 100}, 2)
    assert shares(made) == {"10.1.0.4": 18, "10.1.0.5": 2}


def test_small_differences_write_nothing() -> None:
    """Factors are published when a row or more, and a tenth, would move: not for chance differences."""
    made, balance = served(*web()), Balance()
    for counts in ({A: 11, B: 10, C: 9}, {A: 9, B: 10, C: 11}) * 20:
        assert looks(balance, made, counts) == [[]]
    assert balance.published == {}


def test_without_connections_factors_stay() -> None:
    """A list without any connection keeps the factors that it has."""
    made, balance = served(*web()), Balance()
    looks(balance, made, {C: 40}, 5)
    before = balance.published
    assert looks(balance, made, {}, 100) == [[]] * 100
    assert balance.published is before


@given(
    st.lists(st.tuples(*[st.integers(0, 10**6)] * 3), min_size=1, max_size=40),
    st.tuples(*[st.integers(1, 100)] * 3),
)
def test_factors_are_bounded(history: list[tuple[int, int, int]], weights: tuple[int, int, int]) -> None:
    """Whatever connections there are, no endpoint falls below a row, nor does the number of rows change."""
    weighted = zip(PODS, weights, strict=True)
    slices = [slice_of("shop/web", [pod], suffix=pod[:8], weight=weight) for pod, weight in weighted]
    made = pipeline(service(annotations=LEAST), *slices)
    total, balance = sum(shares(made).values()), Balance()
    for counts in history:
        looks(balance, made, dict(zip((A, B, C), counts, strict=True)))
        rows = shares(made)
        assert len(rows) == 3
        assert sum(rows.values()) == total
        assert all(12 <= factor <= 800 for factors in balance.published.values() for factor in factors.values())


def test_a_flooded_endpoint_keeps_an_eighth() -> None:
    """Clients that flood an endpoint lower its share to an eighth of an equal share, and no further."""
    made, balance = served(*web("shop/web", *[f"10.1.0.{number}" for number in range(4, 14)])), Balance()
    looks(balance, made, {A: 100_000}, 100)
    rows = shares(made)
    assert (rows.pop("10.1.0.4"), sum(rows.values())) == (1, 79)


def test_other_services_are_left_alone() -> None:
    """Connections to a tenant's own pods change no other Service's shares."""
    mine = web("evil/a", "10.1.0.40", "10.1.0.41")
    made, balance = served(*web(), *mine), Balance()
    flood = {Place(Address("10.1.0.40"), 8080): 10_000}
    published = looks(balance, made, {A: 5, B: 5, C: 5, **flood}, 50)
    assert {each for some in published for each in some} == {list_key("evil/a")}
    assert shares(made) == {"10.1.0.4": 8, "10.1.0.5": 8, "10.1.0.6": 8}
    assert shares(made, "evil/a") == {"10.1.0.40": 1, "10.1.0.41": 15}


def test_each_list_is_balanced_by_itself() -> None:
    """The local list compares this node's endpoints alone, which get all of its connections."""
    external = {"external_ips": ["203.0.113.1"], "external_policy": "Local"}
    made = served(*web("shop/web", PODS[0], PODS[1], "10.1.1.4@node-b", **external))
    balance = Balance()
    looks(balance, made, {A: 10, B: 40}, 40)
    assert factors_of(made.state).keys() == {list_key(), list_key(policy=TrafficPolicy.LOCAL)}
    local = factors_of(made.state)[list_key(policy=TrafficPolicy.LOCAL)]
    assert local[A] > 100 > local[B]


def test_remembered_clients_stay() -> None:
    """A shift changes nothing for clients that session affinity remembers: each endpoint is still on the list."""
    made, balance = served(*web("shop/web", *PODS, affinity_timeout=60)), Balance()

    def remembered() -> set[str]:
        return {each.text for each in made.generations[Family.IPV4].elements() if "sticky" in each.container}

    before = remembered()
    assert before
    looks(balance, made, {C: 10_000}, 60)
    assert shares(made)["10.1.0.6"] == 1
    assert remembered() == before


def test_endpoints_come_and_go() -> None:
    """A new endpoint begins with an equal share, and the others keep their factors.  An endpoint that
    comes back counts as new.
    """
    made, balance = served(*web()), Balance()
    looks(balance, made, {A: 5, B: 5, C: 40}, 10)
    made.ingest(web("shop/web", *PODS, "10.1.0.7@node-a"))
    rows = shares(made)
    assert rows == {"10.1.0.4": 12, "10.1.0.5": 11, "10.1.0.6": 1, "10.1.0.7": 8}
    looks(balance, made, {A: 5, B: 5})
    made.ingest(web("shop/web", *PODS[:2]))
    looks(balance, made, {A: 5, B: 5})
    made.ingest(web())
    looks(balance, made, {A: 5, B: 5, C: 5})
    assert set(shares(made).values()) == {8}


def test_a_service_that_goes_is_forgotten() -> None:
    """The factors of a Service that has gone, or has another algorithm, are forgotten at the next look."""
    made, balance = served(*web()), Balance()
    looks(balance, made, {C: 40}, 5)
    made.ingest([Put(service(cluster_ips=["10.96.0.9"], annotations={"algorithm": "random"}))])
    looks(balance, made, {C: 40})
    assert (balance.published, factors_of(made.state), made.view(BalancedLists).by_key) == ({}, {}, {})
    assert not made.view(BalancedLists).places


@pytest.mark.parametrize(
    ("annotations", "tweaks"),
    [
        ({}, {}),
        ({"algorithm": "round-robin"}, {}),
        (LEAST, {"ports": ["http:80/udp"]}),
        (LEAST, {"cluster_ips": ["fd00:96::10"], "affinity_timeout": 60}),
    ],
)
def test_lists_that_are_not_balanced(annotations: Mapping[str, str], tweaks: Mapping[str, object]) -> None:
    """Other algorithms, other protocols, and IPv6 affinity by a hash have nothing to balance."""
    given = service(annotations=annotations, **tweaks)  # type: ignore[arg-type]
    address = "fd00:1::" if ":" in given.cluster_ips[0] else "10.1.0."
    ports = [f"http:8080/{given.ports[0].protocol.value}"]
    made = Pipeline("node-a", Settings(Config(), Capabilities(wide_maps=False), INSTALLED), pipeline()._renderer)
    made.ingest([Put(given), Put(slice_of("shop/web", [f"{address}4", f"{address}5"], ports=ports))])
    assert (made.view(BalancedLists).by_key, made.view(BalancedLists).oversized) == ({}, set())


def test_long_lists_are_not_balanced() -> None:
    """Lists with more than 128 endpoints are not, nor are lists of Services with more than 4,096 elements."""
    many = [f"10.1.{number // 200}.{number % 200 + 1}" for number in range(129)]
    assert served(*web("shop/web", *many)).view(BalancedLists).oversized == {list_key()}
    for count, is_oversized in ((29, False), (31, True)):
        addresses = [f"203.0.113.{number}" for number in range(1, count + 1)]
        lists = served(*web("shop/web", *many[:16], external_ips=addresses)).view(BalancedLists)
        assert (lists.sizes[key("shop/web")] > MOST_WRITTEN) is is_oversized
        assert lists.oversized == ({list_key()} if is_oversized else set())


def test_namespaces_take_turns() -> None:
    """A look publishes so many rows, and a tenant with many flapping lists doesn't hold up another's."""
    many = [f"10.1.9.{number}" for number in range(1, 129)]
    names = [f"evil/{number}" for number in range(8)]
    made, balance = served(*[event for name in names for event in web(name, *many)], *web()), Balance()
    published = [looks(balance, made, {Place(Address(many[0]), 8080): 10**6, C: 40})[0] for _ in range(4)]
    assert list_key() in published[0]
    assert all(sum(made.view(BalancedLists).sizes[each.service] for each in some) <= MOST_WRITTEN for some in published)
    assert {each.service for some in published for each in some} == {key("shop/web"), *map(key, names)}


def test_services_that_change_at_each_look_take_turns() -> None:
    """Where a namespace has more lists due than its share, lists that were published wait for lists that weren't."""
    many = [f"10.1.9.{number}" for number in range(1, 129)]
    names = [f"evil/{number}" for number in range(8)]
    made, balance = served(*[event for name in names for event in web(name, *many)]), Balance()
    published = [looks(balance, made, {Place(Address(many[look % 2]), 8080): 10**6})[0] for look in range(3)]
    assert [len(some) for some in published] == [3, 3, 3]
    assert {each.service for some in published for each in some} == set(map(key, names))
