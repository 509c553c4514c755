"""Limits of a Service: at a limit it is served, and beyond the limit it counts as absent."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from msgspec import structs

from nftproxy.explanation.listing import notes
from nftproxy.model.events import Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.pipeline import PART
from nftproxy.policy import limits
from nftproxy.policy.limits import MAX_FRONTS, MAX_ROWS, MAX_SOURCE_RANGES, MostRows, excess
from nftproxy.policy.state import STEP, ClusterState
from tests.support.factories import IPV4, elements, endpoint, key, pipeline, service, slice_of

OTHER = service("shop/other", cluster_ips=["10.96.0.20"])


def wide(ports: int, addresses: int = 0, **tweaks: Any) -> Service:
    """A Service with `ports` ports and `addresses` external IPs."""
    ips = [f"203.{each // 250}.{each % 250}.9" for each in range(addresses)]
    return service(ports=[f"p{each}:{each + 1}" for each in range(ports)], external_ips=ips, **tweaks)


def deep(ports: int, endpoints: int) -> EndpointSlice:
    """A slice of `endpoints` endpoints with the ports of `wide`."""
    pods = [endpoint(f"10.1.{each // 250}.{each % 250 + 1}") for each in range(endpoints)]
    made = slice_of(endpoints=pods)
    own = slice_of(ports=[f"p{each}:8080" for each in range(ports)]).ports
    return structs.replace(made, ports=own)


@pytest.mark.parametrize(
    ("of", "slices", "what"),
    [
        (wide(100, 99), [], ""),
        (wide(100, 100), [], "fronts"),
        (wide(400, 400), [], "its addresses and ports come to 160400 fronts, and 10000 are allowed"),
        (service(ports=["a:80:30080"], external_ips=[], cluster_ips=["10.96.0.10", "fd00:96::10"]), [], ""),
        (wide(100), [deep(100, 1000)], ""),
        (
            wide(100),
            [deep(100, 1000), deep(100, 1)],
            "come to 100100 rows, and 100000 are allowed",
        ),
        (wide(1000), [deep(1000, 1000)], "rows"),
        (wide(1), [deep(1000, 1000)], ""),
        (wide(1), [*[deep(1, 1000)] * 65, deep(1, 535)], ""),
        (wide(1), [*[deep(1, 1000)] * 65, deep(1, 536)], "a port of it has 65536 endpoints, and 65535 are allowed"),
        (wide(2), [deep(1, 1000)] * 66, "a port of it has 66000 endpoints"),
        (wide(50, affinity_timeout=60), [deep(50, 1000)], ""),
        (wide(51, affinity_timeout=60), [deep(51, 1000)], "rows"),
        (wide(50, external_policy="Local"), [deep(50, 1000)], ""),
        (wide(51, external_policy="Local"), [deep(51, 1000)], "rows"),
        (service(source_ranges=[f"10.{i // 250}.{i % 250}.0/24" for i in range(1000)]), [], ""),
        (service(source_ranges=[f"10.{i // 250}.{i % 250}.0/24" for i in range(1001)]), [], "source ranges"),
    ],
)
def test_limits(of: Service, slices: list[EndpointSlice], what: str) -> None:
    """A Service at a limit is served, a Service beyond it is not, and the reason has both numbers."""
    assert (MAX_FRONTS, MAX_ROWS, MAX_SOURCE_RANGES) == (10_000, 100_000, 1_000)
    found = excess(of, slices)
    assert what in found
    assert bool(what) == bool(found)


def test_a_service_beyond_a_limit_claims_nothing_and_has_no_rules() -> None:
    """It takes no address from younger Services, has no rules, is named in render, and is served once it is smaller."""
    big, small = wide(101, 99), wide(1, 99)
    younger = service("shop/younger", cluster_ips=["10.96.0.30"], created=1, external_ips=["203.0.0.9"], ports=["x:1"])
    made = pipeline(big, younger, slice_of())
    assert {owner.service for owner in made.generations[IPV4].blocks if hasattr(owner, "service")} == {younger.key}
    assert "203.0.0.9 . tcp . 1" in elements(made, IPV4, "services")
    assert made.losses.by_service == {}
    (note,) = notes(made, (), ())
    assert note == "quarantined: NFT307: shop/web: its addresses and ports come to 10100 fronts, and 10000 are allowed"
    made.ingest([Put(small)])
    assert made.state.excessive == {}
    assert elements(made, IPV4, "services").keys() >= {"10.96.0.10 . tcp . 1"}
    made.ingest([Put(big)])
    assert "10.96.0.10 . tcp . 1" not in elements(made, IPV4, "services")
    made.ingest([Removed(Service, big.key)])
    assert made.state.excessive == {}


def test_nothing_of_a_service_beyond_a_limit_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of its rules is computed from counts, without the time and memory of expanding them."""
    monkeypatch.setattr("nftproxy.policy.claims.Claim", None)
    monkeypatch.setattr("nftproxy.policy.choosing.verdicts.Candidate", None)
    made = ClusterState("node-a")
    for each in (wide(400, 400), deep(400, 1000)):
        made.ingest(Put(each))
    assert made.excessive.keys() == {key("shop/web")}
    assert made.services == {}


def test_endpoints_decide_as_they_come_and_go() -> None:
    """A Service that was served is quarantined when its endpoints become too many, and served again with fewer."""
    made = pipeline(wide(100), deep(100, 1000), OTHER)
    assert len(elements(made, IPV4, "tcp-endpoints")) == MAX_ROWS
    made.ingest([Put(deep(100, 1001))])
    assert elements(made, IPV4, "tcp-endpoints") == {}
    assert elements(made, IPV4, "services").keys() == {"10.96.0.20 . tcp . 80"}
    made.ingest([Put(deep(100, 2))])
    assert len(elements(made, IPV4, "tcp-endpoints")) == 200


def test_listings_tell_of_services_beyond_a_limit_too() -> None:
    """A Service that is no longer listed is gone, quarantined or not."""
    made = ClusterState("node-a")
    made.ingest(Put(wide(400, 400)))
    made.ingest(Listed(Service, (OTHER,)))
    assert made.excessive == {}
    assert made.services.keys() == {OTHER.key}


def test_one_large_service_lets_others_in_between() -> None:
    """A Service at the limit is compiled in steps of a bounded number of elements."""
    made = pipeline()
    steps = made.ingest_in_steps([Put(wide(100)), Put(deep(100, 1000))])
    assert sum(1 for _ in steps) >= MAX_ROWS // PART - 1


def test_a_large_listing_lets_others_in_between() -> None:
    """Many Services that all claim one address are taken in by steps of a bounded number."""
    crowd = tuple(service(f"shop/s{each}", created=each) for each in range(4 * STEP))
    made = ClusterState("node-a")
    assert sum(1 for _ in made.ingest_in_steps([Listed(Service, crowd)])) == 12
    assert limits.excess(crowd[0], ()) == ""


def test_a_service_is_judged_once_for_many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that come together are counted together, and not again for each of them."""
    judged: list[int] = []

    def judge(of: Service, slices: Collection[EndpointSlice], most_rows: MostRows) -> str:
        judged.append(len(slices))
        return excess(of, slices, most_rows)

    monkeypatch.setattr("nftproxy.policy.state.excess", judge)
    slices = [structs.replace(deep(3, 1), key=key(f"shop/web-{each}")) for each in range(20)]
    pipeline().ingest([Put(wide(3)), *map(Put, slices)])
    assert judged == [20]


def test_what_algorithms_and_weights_make_of_endpoints_counts() -> None:
    """The rows of consistent hashing, rounds and weights count towards the limit before they are made."""
    most_rows = pipeline().settings.extended().most_rows

    def excess_of(of: Service, slices: Collection[EndpointSlice]) -> str:
        return excess(of, slices, most_rows)

    consistent = {"algorithm": "consistent-hash"}
    fits, exceeds = (wide(1, addresses, annotations=consistent) for addresses in (23, 24))
    assert excess_of(fits, [deep(1, 2)]) == ""
    assert excess_of(exceeds, [deep(1, 2)]) == "its fronts and endpoints come to 102325 rows, and 100000 are allowed"
    assert excess_of(exceeds, []) == ""
    plain = wide(1, 99)
    assert excess_of(plain, [deep(1, 20)]) == ""
    assert excess_of(plain, [slice_of(ports=["p0:8080"], endpoints=["10.1.0.1"], weight=3)]) == ""
    weighted = wide(1, 100, annotations={"weights": "zone:a=3"})
    assert excess_of(weighted, [deep(1, 20)]) == "its fronts and endpoints come to 101000 rows, and 100000 are allowed"
    few = wide(1, 0, annotations={"weights": "zone:a=3"})
    assert excess_of(few, [deep(1, 16_383)]) == ""
    assert (
        excess_of(few, [deep(1, 16_384)]) == "the endpoints of a port of it come to 65536 rows, and 65535 are allowed"
    )
    turns = wide(1, 999, annotations={"algorithm": "round-robin"})
    assert excess_of(turns, [deep(1, 12)]) == ""
    assert excess_of(turns, [deep(1, 13)]) == "its fronts and endpoints come to 104000 rows, and 100000 are allowed"
