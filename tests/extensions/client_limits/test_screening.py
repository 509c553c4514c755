"""Clients denied by annotations, as memberships. The effect on packets is tested in tests/system/packets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nftproxy.api.annotation_parsers import BURSTS, LADDER
from nftproxy.extensions.client_limits.annotations import CONNECTION_RATE
from nftproxy.model.addresses import Family
from nftproxy.model.annotations import Rate
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import Denial
from nftproxy.rules.ruleset import NftKind
from tests.support.factories import IPV4, IPV6, options, pipeline, service, slice_of

SETS = (
    "screened", "denying", "denied", "guarded", "nodeport-guarded", "allowed", "rates", "of-rate", "connections",
    "of-connections", "nodeport-screened", "nodeport-denying", "nodeport-rates", "nodeport-connections",
)  # fmt: skip


def asking(annotations: Mapping[str, str], name: str = "shop/web", **tweaks: Any) -> Service:
    """A Service with a ClusterIP, an external IP, a load balancer's, and a node port."""
    fields: dict[str, Any] = {"cluster_ips": ["10.96.0.10", "fd00:96::10"], "ports": ["http:80:30080/tcp"]} | tweaks
    return service(
        name,
        type="LoadBalancer",
        external_ips=["203.0.113.9"],
        load_balancer_ips=["203.0.113.7"],
        annotations=annotations,
        **fields,
    )


def served(*services: Service) -> list[Service | EndpointSlice]:
    """Services with an endpoint in each family: where nothing serves, nobody is screened."""
    pods = {"10.1.0.4@node-a": "ip", "fd00:1::4@node-a": "ip6"}
    ports = ["http:8080/tcp", "old:8081/tcp", "dns:5353/udp"]
    slices = [
        slice_of(str(one.key), [pod], ports=ports, suffix=suffix) for one in services for pod, suffix in pods.items()
    ]
    return [*services, *slices]


def memberships(made: Pipeline, family: Family = IPV4) -> dict[str, set[str]]:
    """The contents of the sets and maps that annotations fill."""
    found: dict[str, set[str]] = {}
    for element in made.generations[family].elements():
        if element.container in SETS:
            found.setdefault(element.container, set()).add(element.text)
    return found


FRONTS = {f"{address} . tcp . 80" for address in ("10.96.0.10", "203.0.113.9", "203.0.113.7")}


def at_all(value: str) -> set[str]:
    """Every front with this value."""
    return {f"{front} : {value}" for front in FRONTS}


def test_limits_are_numbers_of_fronts() -> None:
    """Each front has its limits as numbers, and each number leads to the chain of that limit."""
    made = pipeline(*served(asking({"client-connection-rate": "20,burst=30", "client-connections": "100"})))
    number = "0.40.0.40"  # 20 << 17 | 40
    assert memberships(made) == {
        "screened": FRONTS,
        "nodeport-screened": {"tcp . 30080"},
        "rates": at_all(number),
        "nodeport-rates": {f"tcp . 30080 : {number}"},
        "of-rate": {f"{number} : jump rate-20-40"},
        "connections": at_all("0.0.0.100"),
        "nodeport-connections": {"tcp . 30080 : 0.0.0.100"},
        "of-connections": {"0.0.0.100 : jump connections-100"},
    }
    assert memberships(made, IPV6)["of-rate"] == {"::28:28 : jump rate-20-40"}


@pytest.mark.parametrize(
    ("name", "value", "own"),
    [("client-connection-rate", "20", "rate-20-20"), ("client-connections", "9", "connections-10")],
)
def test_one_limit_is_enough(name: str, value: str, own: str) -> None:
    """Every front is screened for either limit alone, and source ranges that hold for no front make no list."""
    made = pipeline(
        service(ports=["http:80:30080/tcp"], annotations={name: value}, source_ranges=["198.51.100.0/24"]),
        slice_of(endpoints=["10.1.0.4"]),
    )
    found = memberships(made)
    assert found["screened"] == {"10.96.0.10 . tcp . 80"}
    assert found["nodeport-screened"] == {"tcp . 30080"}
    assert "allowed" not in found
    declared = [each.name for each in made.generations[IPV4].declarations.values()]
    assert [each for each in declared if each.startswith(("rate-", "connections-"))] == [own, own]  # a set and a chain


def test_denied_ranges_are_a_list_for_all_fronts() -> None:
    """Denied ranges are merged by family into one list for all ports, and a family without ranges has no screening."""
    denied = "198.51.100.0/25, 198.51.100.128/25,192.0.2.7/32"
    made = pipeline(*served(asking({"denied-source-ranges": denied}, ports=["http:80:30080/tcp", "dns:53/udp"])))
    found = memberships(made)
    assert found["denied"] == {"10.96.0.10 . 198.51.100.0 . 24", "10.96.0.10 . 192.0.2.7 . 32"}
    assert found["denying"] == at_all("10.96.0.10") | {
        f"{front.replace('tcp . 80', 'udp . 53')} : 10.96.0.10" for front in FRONTS
    }
    assert found["nodeport-denying"] == {"tcp . 30080 : 10.96.0.10"}
    assert found["screened"] == {row.partition(" : ")[0] for row in found["denying"]}
    assert found["nodeport-screened"] == {"tcp . 30080"}
    assert memberships(made, IPV6) == {}


@pytest.mark.parametrize(
    ("words", "guarded", "node_ports"),
    [
        ("external-ips", {"203.0.113.7", "203.0.113.9"}, False),
        ("node-ports", {"203.0.113.7"}, True),
        ("node-ports, external-ips", {"203.0.113.7", "203.0.113.9"}, True),
    ],
)
def test_source_ranges_for_others(words: str, guarded: set[str], node_ports: bool) -> None:
    """Source ranges hold for the annotation's fronts beside the load balancer's address, and share its list."""
    made = pipeline(*served(asking({"source-ranges-for": words}, source_ranges=["198.51.100.0/24"])))
    expected = {
        "guarded": {f"{address} . tcp . 80 : 10.96.0.10" for address in guarded},
        "allowed": {"10.96.0.10 . 198.51.100.0 . 24"},
    }
    if node_ports:
        row = {"tcp . 30080 : 10.96.0.10"}
        expected |= {"nodeport-guarded": row, "nodeport-screened": {"tcp . 30080"}}
    assert memberships(made) == expected


@pytest.mark.parametrize("ranges", [[], ["0.0.0.0/0", "::/0"]])
def test_source_ranges_that_restrict_nobody(ranges: list[str]) -> None:
    """Without source ranges, or with a range for everybody, no front is restricted."""
    made = pipeline(*served(asking({"source-ranges-for": "node-ports,external-ips"}, source_ranges=ranges)))
    assert memberships(made) == {}


def test_lists_of_a_shared_cluster_ip_close() -> None:
    """If two Services have one ClusterIP, the younger can have no list, so it denies every source, and reports that."""
    both = ["10.96.0.10", "fd00:96::10"]
    older = service("shop/a", cluster_ips=both, ports=["old:81/tcp"])
    asked = {"denied-source-ranges": "192.0.2.0/24,2001:db8::/32"}
    made = pipeline(*served(older, service("shop/b", created=5, cluster_ips=both, annotations=asked)))
    for family, address, everybody in ((IPV4, "0.0.0.0", "0.0.0.0 . 0"), (IPV6, "::", ":: . 0")):
        found = memberships(made, family)
        assert found["denied"] == {f"{address} . {everybody}"}
        assert {row.partition(" : ")[2] for row in found["denying"]} == {address}
    assert {(str(lost.service), lost.denial) for lost in made.losses.all()} == {("shop/b", Denial.CLOSED)}


def test_the_younger_service_with_a_shared_cluster_ip_keeps_its_limits() -> None:
    """The younger of two Services with one ClusterIP has the limits of its annotations, and denies no source."""
    older = service("shop/a", cluster_ips=["10.96.0.10"], ports=["old:81/tcp"])
    made = pipeline(*served(older, service("shop/b", created=5, annotations={"client-connections": "5"})))
    assert memberships(made) == {
        "screened": {"10.96.0.10 . tcp . 80"},
        "connections": {"10.96.0.10 . tcp . 80 : 0.0.0.5"},
        "of-connections": {"0.0.0.5 : jump connections-5"},
    }


def test_ranges_of_both_families_are_denied() -> None:
    """Each family denies its own ranges."""
    made = pipeline(*served(asking({"denied-source-ranges": "2001:db8::/32,192.0.2.0/24"})))
    assert memberships(made)["denied"] == {"10.96.0.10 . 192.0.2.0 . 24"}
    assert memberships(made, IPV6)["denied"] == {"fd00:96::10 . 2001:db8:: . 32"}


def test_service_without_a_front_has_no_limit() -> None:
    """A Service that loses all its fronts to another Service is not screened, and has no declarations."""
    older, younger = (
        service(name, created=created, annotations={"client-connections": limit})
        for name, created, limit in (("shop/a", 0, "5"), ("shop/b", 5, "7"))
    )
    made = pipeline(*served(older, younger))
    assert memberships(made)["of-connections"] == {"0.0.0.5 : jump connections-5"}
    assert "connections-7" not in {each.name for each in made.generations[IPV4].declarations.values()}


def test_plain_services_pay_nothing() -> None:
    """Services with annotations leave the rules of Services without annotations unchanged."""
    plain = service("shop/plain", cluster_ips=["10.96.0.9"]), slice_of("shop/plain", ["10.1.0.4@node-a"])
    alone = pipeline(*plain)
    both = pipeline(*plain, *served(asking({"client-connections": "5"})))
    gone = served(asking({}))
    without = both.ingest([Removed(type(each), each.key) for each in gone])
    for family in Family:
        blocks, others = alone.generations[family].blocks, both.generations[family].blocks
        assert others == blocks
        names = [each.name for each in alone.generations[family].declarations.values()]
        assert not [name for name in names if name.startswith(("screen", "rate", "connections", "den", "drop"))]
    assert "delete chain ip nftproxy screen-postrouting" in without.text


def test_base_chains_come_and_go() -> None:
    """The base chains, for which every packet pays, exist only while some Service needs them."""

    def bases() -> set[str]:
        return {each.name for each in made.generations[IPV4].declarations.values() if each.is_base_chain}

    made = pipeline(service())
    before = bases()
    one, two = (
        service(f"shop/{name}", cluster_ips=[f"10.96.0.{n}"], annotations={"client-connections": "5"})
        for n, name in enumerate("ab", 20)
    )
    made.ingest([Put(each) for each in served(one)])
    assert bases() - before == {"screen-input", "screen-postrouting"}
    made.ingest([Put(each) for each in served(two)])
    made.ingest([Removed(Service, one.key)])
    assert bases() - before == {"screen-input", "screen-postrouting"}
    made.ingest([Removed(Service, two.key)])
    assert bases() == before
    made.ingest([Put(each) for each in served(one)])
    assert bases() - before == {"screen-input", "screen-postrouting"}


def test_there_are_few_limits() -> None:
    """With any annotations of ten thousand Services, there is a bounded number of chains for limits."""
    asked = {options({"client-connection-rate": str(rate)})[CONNECTION_RATE] for rate in range(1, 10_001)}
    bursts = {
        options({"client-connection-rate": f"1000,burst={burst}"})[CONNECTION_RATE] for burst in range(1000, 10_001, 7)
    }
    assert asked == {Rate(limit, limit) for limit in LADDER}
    assert bursts == {Rate(1000, 1000 * times) for times in BURSTS}
    assert len(LADDER) == 21


def test_limits_are_shared() -> None:
    """Services with the same limit share its set and its chain, and no statement is for a single Service."""
    made = pipeline(
        *served(
            *(
                service(f"shop/s{n}", cluster_ips=[f"10.96.1.{n}"], annotations={"client-connections": str(n)})
                for n in range(20, 40)
            )
        )
    )
    names = {each.name for each in made.generations[IPV4].declarations.values() if each.kind is NftKind.SET}
    found = {name for name in names if name.startswith("connections-")}
    assert found == {"connections-20", "connections-30", "connections-50"}


def test_services_that_ask_for_different_things_agree() -> None:
    """Services with different annotations declare shared sets and chains alike, comments included."""
    asked: list[dict[str, str]] = [
        {"client-connections": "5"},
        {"client-connection-rate": "5"},
        {"client-connection-rate": "5", "client-connections": "5"},
        {"denied-source-ranges": "192.0.2.0/24"},
    ]
    made = pipeline()
    for number, wish in enumerate(asked, 20):
        new = service(f"shop/s{number}", cluster_ips=[f"10.96.0.{number}"], annotations=wish)
        before = made.generations[IPV4].declarations.copy()
        made.ingest([Put(each) for each in served(new)])
        after = made.generations[IPV4].declarations
        assert {identity: after[identity] for identity in before} == before


def test_where_nothing_serves_nobody_is_screened() -> None:
    """A Service port without endpoints rejects everybody, with any annotations."""
    made = pipeline(asking({"client-connections": "5", "denied-source-ranges": "192.0.2.0/24"}))
    assert memberships(made) == {}
    made.ingest([Put(each) for each in served(asking({"client-connections": "5"}))])
    assert memberships(made)["screened"] == FRONTS
