"""The budget of all Services together: fair between namespaces, oldest first, and at most what a Service comes to."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nftproxy.explanation.listing import notes
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, ObjectKey, Service
from nftproxy.model.settings import Config
from nftproxy.policy.budget import Budget, Shortage, _Demand
from nftproxy.policy.limits import ODD_TIMEOUT, SHARED_ROWS, crowd_of, size
from nftproxy.policy.state import ClusterState
from tests.support.factories import key, networks, pipeline, service, slice_of


def counted(budget: Budget, name: str, elements: int, created: int = 0) -> None:
    """Count a Service with this number of elements."""
    budget.put(service(name, created=created), elements)


def short(budget: Budget, *names: str) -> dict[str, tuple[int, int]]:
    """The elements left and the share, for the Services that don't fit."""
    found = {name: budget.shortage(key(name)) for name in names}
    return {name: (each.left, each.share) for name, each in found.items() if each}


def test_everything_is_served_up_to_the_budget() -> None:
    """A namespace may use the whole budget while no other namespace needs it."""
    budget = Budget(100)
    counted(budget, "a/x", 60)
    counted(budget, "a/y", 30)
    counted(budget, "b/x", 10)
    assert list(budget.settle()) == []
    counted(budget, "b/x", 11)
    assert budget.settle() == {key("a/y")}
    assert short(budget, "a/x", "a/y", "b/x") == {"a/y": (29, 89)}


def test_small_namespaces_lose_nothing() -> None:
    """A namespace that asks for less than an equal share gets all, and the larger ones divide the rest equally."""
    budget = Budget(100)
    for name, elements in (("a/x", 20), ("b/x", 41), ("c/x", 39), ("c/y", 50), ("d/x", 1000)):
        counted(budget, name, elements)
    budget.settle()
    assert short(budget, "a/x", "b/x", "c/x", "c/y", "d/x") == {
        "b/x": (26, 26),
        "c/x": (26, 26),
        "c/y": (26, 26),
        "d/x": (26, 26),
    }


def test_the_oldest_are_kept() -> None:
    """Within a namespace the oldest Services come first, then the first by name.  A younger, smaller one may fit."""
    budget = Budget(100)
    counted(budget, "a/young", 90, created=3)
    counted(budget, "a/old", 60, created=1)
    counted(budget, "a/b", 30, created=2)
    counted(budget, "a/a", 30, created=2)
    counted(budget, "a/small", 10, created=4)
    budget.settle()
    assert short(budget, "a/young", "a/old", "a/a", "a/b", "a/small") == {"a/b": (10, 100), "a/young": (10, 100)}


def test_a_service_comes_back() -> None:
    """The end of a shortage lets Services in: a removal, a smaller Service, less demand of another namespace."""
    budget = Budget(100)
    counted(budget, "a/x", 60, created=1)
    counted(budget, "a/y", 40, created=2)
    counted(budget, "b/x", 50)
    assert budget.settle() == {key("a/x")}
    counted(budget, "b/x", 10)
    assert budget.settle() == {key("a/x"), key("a/y")}
    assert short(budget, "a/x", "a/y") == {"a/y": (30, 90)}
    budget.remove(key("b/x"))
    assert budget.settle() == {key("a/y")}
    assert short(budget, "a/x", "a/y") == {}
    budget.remove(key("b/x"))
    assert not budget.settle()


def test_the_outcome_is_the_same_in_any_order() -> None:
    """The Services that are served depend on the objects, not on the order of their events."""
    given = [("a/x", 50, 2), ("a/y", 30, 1), ("b/x", 35, 5), ("b/y", 10, 4), ("c/x", 5, 0)]
    outcomes = set()
    for order in itertools.permutations(given):
        budget = Budget(90)
        for each in order:
            counted(budget, *each)
            budget.settle()
        outcomes.add(tuple(sorted(short(budget, *(name for name, _, _ in given)).items())))
    assert len(outcomes) == 1


def test_a_cluster_below_the_budget_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the budget nothing is sorted and no Service walked through, and beyond it only namespaces that changed."""
    walked: list[int] = []
    shortages = _Demand.shortages

    def walk(demand: _Demand, share: int) -> dict[ObjectKey, Shortage]:
        walked.append(share)
        return shortages(demand, share)

    monkeypatch.setattr(_Demand, "shortages", walk)
    budget = Budget(100)
    for number in range(50):
        counted(budget, f"a/{number}", 2)
        assert not budget.settle()
    assert walked == []
    counted(budget, "b/x", 200)
    budget.settle()
    assert walked == [50, 50]
    counted(budget, "b/x", 300)
    budget.settle()
    assert walked == [50, 50, 50]


def test_beyond_the_budget_a_change_costs_no_walk_through_all_namespaces() -> None:
    """Beside 2,000 namespaces that fit, a change of any namespace makes as many Python calls as beside two."""

    def calls(namespaces: int) -> list[int]:
        """The Python calls of a change of a small namespace, the change back, and a change of the large namespace."""
        budget = Budget(10 * namespaces + 1_000)
        for number in range(namespaces):
            counted(budget, f"n{number}/x", 10)
        counted(budget, "evil/x", 2_000)
        assert budget.settle() == {key("evil/x")}
        found = []
        for change in (service("n1/x"), 11), (service("n1/x"), 10), (service("evil/x"), 2_001):
            counts = Counter[str]()
            sys.setprofile(lambda _frame, event, _argument: counts.update([event]))  # noqa: B023  # it ends below
            budget.put(*change)
            budget.settle()
            sys.setprofile(None)
            found.append(counts["call"])
        return found

    assert calls(2_000) == calls(2)


def test_a_small_change_elsewhere_leaves_a_share_as_it_is() -> None:
    """A share of many elements is rounded, so that a few elements of another namespace touch no quarantined Service."""
    budget = Budget(600_000)
    counted(budget, "evil/x", 700_000)
    counted(budget, "shop/web", 600)
    assert budget.settle() == {key("evil/x")}
    assert short(budget, "evil/x") == {"evil/x": (599_040, 599_040)}
    counted(budget, "shop/web", 700)
    assert budget.settle() == set()
    counted(budget, "shop/web", 1_700)
    assert budget.settle() == {key("evil/x")}


NUMBERS = ["a:80:30080", "b:81", "c:82/udp"]
CLOSED: dict[str, Any] = {
    "external_addresses": "closed",
    "ping": "answer",
    "external_ip_cidrs": networks(["203.0.113.0/24"]),
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "both families": {"cluster_ips": ["10.96.0.10", "fd00:96::10"]},
    "external": {"external_ips": ["203.0.113.1", "203.0.113.2"], "load_balancer_ips": ["203.0.113.3"]},
    "local": {"external_ips": ["203.0.113.1"], "external_policy": "Local", "internal_policy": "Local"},
    "sticky": {"affinity_timeout": 60},
    "sticky and local": {"affinity_timeout": 60, "external_policy": "Local", "external_ips": ["203.0.113.1"]},
    "round-robin": {"annotations": {"algorithm": "round-robin"}},
    "least-connections": {"annotations": {"algorithm": "least-connections"}},
    "least-connections by weight": {"annotations": {"algorithm": "least-connections", "weights": "zone:a=3"}},
    "consistent": {"annotations": {"algorithm": "consistent-hash"}},
    "weighted": {"annotations": {"weights": "zone:a=3"}},
    "screened": {
        "annotations": {
            "denied-source-ranges": "10.9.0.0/16,10.8.0.0/16",
            "client-connections": "5",
            "client-connection-rate": "10",
        }
    },
    "ranges": {"source_ranges": ["10.9.0.0/16", "10.64.0.0/11", "10.7.0.0/25"], "load_balancer_ips": ["203.0.113.3"]},
    "closed": {"external_ips": ["203.0.113.1", "203.0.113.2"], "external_policy": "Local"},
    "failover": {"annotations": {"failover": "silent,refused"}},
    "failover and local": {
        "annotations": {"failover": "refused"},
        "external_ips": ["203.0.113.1"],
        "external_policy": "Local",
    },
}


@pytest.mark.parametrize("count", [0, 1, 7, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_size_is_never_too_small(shape: str, count: int) -> None:
    """A Service adds at most the reckoned elements to the tables, apart from chains that Services share."""
    tweaks = {"ports": NUMBERS} | SHAPES[shape]
    made = service("shop/web", **tweaks)
    names = ["a:8080", "b:8081", "c:8082/udp"]
    slices = [slice_of("shop/web", [f"10.1.0.{each}@node-a" for each in range(1, count + 1)], ports=names)]
    if "both" in shape:
        slices.append(
            slice_of("shop/web", [f"fd00:1::{each}" for each in range(1, count + 1)], ports=names, suffix="6")
        )
    agent = pipeline(made, *slices, **CLOSED if shape == "closed" else {})
    blocks = [
        block for each in agent.generations.values() for owner, block in each.blocks.items() if owner != "this node"
    ]
    found = {
        element
        for block in blocks
        for element in block.elements
        if not element.value.startswith(("goto", "jump")) and "-slots-" not in element.container
    }
    crowded = sum((crowd_of(each) + 1) * len(each.ports) for each in slices)
    extended = agent.settings.extended()
    reckoned = size(made, slices, crowded, extended.elements(made), extended.most_rows)
    assert any(each.container == "external-ips" for each in found) is (shape == "closed")
    assert len(found) <= reckoned
    assert reckoned <= 5 * len(found)


def test_a_plain_service_is_counted_exactly() -> None:
    """100,000 Services of two endpoints come to 500,000 elements, as in the kernel, and fit into the default budget."""
    made, endpoints = service("shop/web"), slice_of("shop/web", ["10.1.0.1@node-b", "10.1.0.2@node-b"])
    agents = pipeline(made, endpoints), pipeline()
    with_it, without = (sum(each.element_count() for each in agent.generations.values()) for agent in agents)
    shared = 1  # the draw of two endpoints
    assert size(made, [endpoints]) == with_it - without - shared == 5
    assert Config().element_budget >= 100_000 * 5


def test_maps_of_long_ipv6_lists_count() -> None:
    """A long list of IPv6 has a map from numbers to addresses that no other Service needs."""
    made = service("shop/web", cluster_ips=["fd00:96::10"])
    slices = [slice_of("shop/web", [f"fd00:1::{each:x}" for each in range(1, SHARED_ROWS + 2)])]
    assert size(made, slices) == 3 + 3 * (SHARED_ROWS + 1)


def test_declarations_of_affinity_timeouts_are_bounded() -> None:
    """Services with ever other affinity timeouts exceed the budget before their declarations are many.

    So do Services with as many whole minutes.
    """
    alike = _with_timeouts(lambda _: 10_800)
    for declared in (_with_timeouts(lambda number: number + 1), _with_timeouts(lambda number: 60 * (number + 61))):
        assert alike < declared <= alike + 4 * 5_000 / ODD_TIMEOUT


def test_declarations_of_draws_are_bounded() -> None:
    """Services with ever other numbers of endpoints exceed the budget before the chains for these are many."""
    made = [service(f"a/s{number}", cluster_ips=[f"10.96.1.{number}"]) for number in range(1, 201)]
    endpoints = [slice_of(f"a/s{n}", [f"10.1.0.{each}" for each in range(1, n + 1)]) for n in range(1, 201)]
    declared = pipeline(*made, *endpoints, element_budget=5_000).generations[Family.IPV4].declarations
    assert sum("-endpoints-of-" in name for _, name in declared) < (2 * 5_000) ** 0.5


@pytest.mark.parametrize("internal", ["Cluster", "Local"])
@pytest.mark.parametrize("external", ["Cluster", "Local"])
@pytest.mark.parametrize("node_ports", [False, True])
def test_an_affinity_timeout_counts_in_each_list(internal: str, external: str, node_ports: bool) -> None:
    """A timeout counts for at least each chain of its own: in each family, protocol and list of endpoints."""
    tweaks: dict[str, Any] = {
        "cluster_ips": ["10.96.0.10", "fd00:96::10"],
        "ports": ["a:80:30080", "b:53:30053/udp"] if node_ports else ["a:80", "b:53/udp"],
        "external_ips": ["203.0.113.1", "2001:db8::1"],
        "internal_policy": internal,
        "external_policy": external,
    }
    odd, common = (service("shop/web", **tweaks, affinity_timeout=timeout) for timeout in (3601, 3600))
    counted, rest = divmod(size(odd, []) - size(common, []), ODD_TIMEOUT)
    slices = [
        slice_of("shop/web", [f"{first}1@node-a"], ports=["a:80", "b:53/udp"], suffix=first[:2])
        for first in ("10.1.0.", "fd00:1::")
    ]
    declared = (name for each in pipeline(odd, *slices).generations.values() for _, name in each.declarations)
    chains = sum(name.startswith("follow-") and name.endswith("-3601") for name in declared)
    assert rest == 0
    assert 4 <= chains <= counted <= 2 * chains


def _with_timeouts(timeout_of: Callable[[int], int]) -> int:
    """The declarations that 200 Services with such affinity timeouts cause, with a budget of 5,000 elements."""
    made = [service(f"a/s{n}", cluster_ips=[f"10.96.1.{n}"], affinity_timeout=timeout_of(n)) for n in range(200)]
    endpoints = [slice_of(f"a/s{number}", ["10.1.0.4"]) for number in range(200)]
    return len(pipeline(*made, *endpoints, element_budget=5_000).generations[Family.IPV4].declarations)


def test_endpoints_on_a_single_node_count_twice() -> None:
    """An endpoint on this node has an element in `hairpin`.  The node with most counts, and a lone pod doesn't."""
    ports = ["a:8080", "b:8081"]
    spread, crowded, nowhere = (
        slice_of("shop/web", [f"10.1.0.{each}{where}".format(each) for each in range(1, 5)], ports=ports)
        for where in ("@node-{}", "@node-b", "")
    )
    assert [crowd_of(each) for each in (spread, crowded, nowhere)] == [0, 3, 0]
    state = ClusterState("node-a", Config(element_budget=1_000))
    state.ingest(Put(service("shop/web", ports=["a:80", "b:81"])))
    state.ingest(Put(crowded))
    assert state.excessive == {}
    small = ClusterState("node-a", Config(element_budget=5 + 9 + 5))
    small.ingest(Put(service("shop/web", ports=["a:80", "b:81"])))
    small.ingest(Put(spread))
    assert small.excessive == {}
    small.ingest(Put(crowded))
    assert small.excessive[key("shop/web")].reason.startswith("its rules come to 20 elements, and 19 are left")


def crowd(namespace: str, count: int, endpoints: int, second: int) -> Iterator[Service | EndpointSlice]:
    """Services of a namespace, each younger than the one before, with `endpoints` endpoints each."""
    for number in range(count):
        name = f"{namespace}/s{number}"
        yield service(name, cluster_ips=[f"10.{second}.0.{number}"], created=number)
        yield slice_of(name, [f"10.1.{each >> 8}.{each & 255}" for each in range(endpoints)])


def test_a_greedy_namespace_harms_only_itself() -> None:
    """Beyond the budget the youngest Services of the greedy namespace have no rules, and the reason has all numbers."""
    honest, greedy = list(crowd("shop", 10, 7, 96)), list(crowd("evil", 5, 97, 97))
    agent = pipeline(*honest, *greedy, element_budget=1000)
    assert agent.state.excessive == {}
    agent.ingest([Put(each) for each in crowd("evil", 12, 97, 97)])
    assert sorted(agent.state.excessive) == [key(f"evil/s{number}") for number in (10, 11, 9)]
    assert agent.state.excessive[key("evil/s9")] == Shortage("evil", 100, 0, 900)
    text = "NFT313: evil/s9: its rules come to 100 elements, and 0 are left of the 900 that namespace evil may have"
    assert f"quarantined: {text}: older Services come first" in list(notes(agent, (), ()))
    assert sum(each.element_count() for each in agent.generations.values()) < 1100


def test_a_quarantined_service_comes_back_in_the_kernel() -> None:
    """A Service that fits again has its rules again."""
    agent = pipeline(*crowd("evil", 4, 97, 97), element_budget=300)
    assert set(agent.state.excessive) == {key("evil/s3")}
    assert agent.state.excessive[key("evil/s3")].code is Code.BUDGET_EXCEEDED
    change = agent.ingest([Removed(Service, key("evil/s0"))])
    assert agent.state.excessive == {}
    assert "10.97.0.3 . tcp . 80" in change.text


@pytest.mark.parametrize("backwards", [False, True])
def test_all_nodes_agree(backwards: bool) -> None:
    """The same Services are quarantined after a listing and after single events in any order."""
    objects = [*crowd("evil", 8, 97, 97), *crowd("shop", 3, 47, 96), *crowd("more", 9, 47, 98)]
    listed, followed = (ClusterState(name, Config(element_budget=700)) for name in ("node-a", "node-b"))
    for kind in (Service, EndpointSlice):
        listed.ingest(Listed(kind, tuple(each for each in objects if isinstance(each, kind))))
    events: list[Event] = [Put(each) for each in objects]
    for event in reversed(events) if backwards else events:
        followed.ingest(event)
    assert listed.excessive
    assert listed.excessive == followed.excessive
    assert listed.services == followed.services


def test_ports_of_slices_that_a_service_does_not_have_count_for_nothing() -> None:
    """A Service with a single port has the size of the rows that are made, whatever other ports its slices offer."""
    for asked in ({}, {"algorithm": "round-robin"}):
        made = service("shop/web", ports=["a:80"], annotations=asked)
        addresses = [f"10.1.0.{each}@node-{each}" for each in range(1, 41)]
        alone = slice_of("shop/web", addresses, ports=["a:8080"])
        beside = slice_of("shop/web", addresses, ports=["a:8080", *(f"x{port}:{port}" for port in range(1, 90))])
        assert size(made, [beside]) == size(made, [alone])


def test_crowds_at_ports_that_a_service_does_not_have_count_for_nothing() -> None:
    """Endpoints on a single node count at the Service's own ports, whatever other ports their slice offers."""
    addresses = [f"10.1.0.{each}@node-b" for each in range(1, 41)]
    for others in (0, 90):
        state = ClusterState("node-a")
        state.ingest(Put(service("shop/web", ports=["a:80"])))
        ports = ["a:8080", *(f"x{port}:{port}" for port in range(1, 1 + others))]
        state.ingest(Put(slice_of("shop/web", addresses, ports=ports)))
        assert state.counted_size(key("shop/web")) == 3 + 40 + 39
