"""The cluster's state as events change it, and the Services that each event touches: no more than necessary."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nftproxy_conformance.strategies import quick
from nftproxy_conformance.strategies.histories import batches, clusters, histories, survivors
from nftproxy_conformance.strategies.objects import Given
from nftproxy_conformance.strategies.values import SERVICES

from nftproxy.installed import INSTALLED
from nftproxy.model.addresses import Address
from nftproxy.model.events import ApiServers, Event, Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, Node, Place, Service, ServiceCIDR, key_of
from nftproxy.model.steps import finish
from nftproxy.policy.claims import ClaimKind, Denial
from nftproxy.policy.extension import Settings
from nftproxy.policy.limits import size
from nftproxy.policy.state import STEP_PACKED, ClusterState, Invalidation
from tests.support.factories import (
    claim,
    config_of,
    host_addresses,
    key,
    networks,
    node,
    service,
    service_cidr,
    slice_of,
)
from tools.bench.work import lines

WEB, CART = key("shop/web"), key("shop/cart")
NOTHING = Invalidation()
EVERYTHING = Invalidation(table=True, everything=True)

EXTENDED = Settings(extensions=INSTALLED).extended()


def state(*objects: Given) -> ClusterState:
    """The state of node-a with these objects."""
    made = ClusterState("node-a", extended=EXTENDED)
    for each in objects:
        made.ingest(Put(each))
    return made


def configured(**fields: Any) -> ClusterState:
    """The state of node-a with this configuration."""
    config = config_of(**fields)
    return ClusterState("node-a", config, Settings(config, extensions=INSTALLED).extended())


def touched(*names: str) -> Invalidation:
    """These Services, and nothing else."""
    return Invalidation(services=set(map(key, names)))


def touched_endpoints(*names: str) -> Invalidation:
    """The endpoints of these Services, and nothing else."""
    return Invalidation(endpoints=set(map(key, names)))


# Services


def test_a_service_touches_itself() -> None:
    """A Service that comes, changes or goes is touched, and no other."""
    made = state(service("shop/cart", cluster_ips=["10.96.0.20"]))
    assert made.ingest(Put(service())) == touched("shop/web")
    assert made.ingest(Put(service(ports=["81"]))) == touched("shop/web")
    assert made.ingest(Removed(Service, WEB)) == touched("shop/web")
    assert list(made.services) == [CART]


@pytest.mark.parametrize(
    "value", [service(), slice_of(), node(), service_cidr(), host_addresses("10.0.0.1")], ids=lambda v: type(v).__name__
)
def test_the_same_object_again_touches_nothing(value: Given) -> None:
    """An event that changes nothing that matters costs nothing."""
    made = state(service(), value)
    assert made.ingest(Put(structs.replace(value))) == NOTHING


def test_labels_touch_nothing() -> None:
    """A Service with new labels and no other change is stored, but isn't compiled again."""
    known = state(service("shop/web", labels=(("app", "web"),)))
    relabelled = service("shop/web", labels=(("app", "other"),))
    assert known.ingest(Put(relabelled)) == Invalidation()
    assert known.services[relabelled.key] == known.given[relabelled.key] == relabelled


def test_a_service_touches_those_it_contests() -> None:
    """When an older Service comes, moves away or goes, Services that win or lose a claim by it are compiled again."""
    made = state(service("shop/cart", created=1))
    assert made.ingest(Put(service())) == touched("shop/web", "shop/cart")
    assert made.ingest(Put(service(cluster_ips=["10.96.0.20"]))) == touched("shop/web", "shop/cart")
    assert made.ingest(Put(service())) == touched("shop/web", "shop/cart")
    assert made.ingest(Removed(Service, WEB)) == touched("shop/web", "shop/cart")


def test_a_changed_service_no_longer_claims_what_it_did() -> None:
    """A changed Service loses its previous claims."""
    made = state(service(ports=["80"]), service(ports=["81"]))
    assert made.claims.winner(claim("10.96.0.10 80/tcp")) is None
    assert made.claims.winner(claim("10.96.0.10 81/tcp")) == WEB


# EndpointSlices


def test_a_slice_touches_its_service() -> None:
    """A slice that comes, changes or goes touches only its Service's endpoints, even of an unknown Service."""
    made = state()
    assert made.ingest(Put(slice_of())) == touched_endpoints("shop/web")
    assert made.ingest(Put(slice_of(endpoints=[]))) == touched_endpoints("shop/web")
    assert made.ingest(Removed(EndpointSlice, key("shop/web-1"))) == touched_endpoints("shop/web")
    assert list(made.slices_of(WEB)) == []


def test_slices_of_no_service_are_compressed_until_it_comes() -> None:
    """Slices that come before their Service, or stay after it, are kept in a few bytes, and are back with it."""
    addresses = [f"10.1.{each >> 8}.{each & 255}@node-{each % 50}" for each in range(1000)]
    names = " ".join(f"web-{each}" for each in range(1000))
    early, late = structs.replace(slice_of(endpoints=addresses), pods=names), slice_of(suffix="2")
    made = state(early)
    assert list(made.slices()) == list(made.slices_of(WEB)) == []
    assert made.service_of(early.key) == WEB
    assert sum(len(each.content) for each in made._orphans._orphans.values()) < 10 * 1000
    finish(made.ingest_in_steps([Put(late), Put(service())]))
    assert list(made.slices_of(WEB)) == [late, early]
    made.ingest(Removed(Service, WEB))
    assert list(made.slices()) == []
    made.ingest(Put(service()))
    assert {each.key: each for each in made.slices_of(WEB)} == {early.key: early, late.key: late}
    made.ingest(Removed(Service, WEB))
    made.ingest(Listed(EndpointSlice, (late,)))
    assert list(made._orphans.keys()) == [late.key]
    made.ingest(Removed(EndpointSlice, late.key))
    assert (list(made._orphans.keys()), made._orphans._of, made._slices_of) == ([], {}, {})


def test_orphans_let_others_in_between() -> None:
    """Slices of no Service are compressed and restored a few at a time, also when their Service comes and goes."""
    made = state()
    lone = [Put(slice_of(suffix=str(number))) for number in range(10 * STEP_PACKED)]
    assert len(list(made.ingest_in_steps(lone))) == 10
    assert len(list(made.ingest_in_steps([Put(service())]))) == 10
    assert len(list(made.ingest_in_steps([Removed(Service, WEB)]))) == 10


def test_an_endpoint_that_takes_the_place_of_another_is_not_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service is weighed against limits and budget if its endpoints or ports become more or fewer, or its own
    spec changes.
    """
    weighed: list[Service] = []

    def counting(given: Service, *others: Any, **tweaks: Any) -> int:
        weighed.append(given)
        return size(given, *others, **tweaks)

    monkeypatch.setattr("nftproxy.policy.state.size", counting)
    state = ClusterState("node-a", extended=EXTENDED)
    changes: list[tuple[Service | EndpointSlice, int]] = [
        (service("shop/web"), 1),
        (slice_of("shop/web", ["10.1.0.4@node-a"]), 1),
        (slice_of("shop/web", ["10.1.0.5@node-b serving"]), 0),
        (slice_of("shop/web", ["10.1.0.5@node-b"], suffix="2"), 1),
        (slice_of("shop/web", ["10.1.0.5@node-b", "10.1.0.6@node-c"]), 1),
        (slice_of("shop/web", ["10.1.0.5@node-b", "10.1.0.6@node-b"]), 1),
        (slice_of("shop/web", ["10.1.0.5@node-b", "10.1.0.7@node-b"]), 0),
        (slice_of("shop/web", ["10.1.0.5@node-b", "10.1.0.7@node-b"], ports=["8081"]), 1),
        (slice_of("shop/web", ["10.1.0.5@node-b", "10.1.0.7@node-b"], ports=["8081"], weight=2), 1),
        (service("shop/web", ports=["81"]), 1),
    ]
    for change, expected in changes:
        before = len(weighed)
        state.ingest(Put(change))
        assert len(weighed) - before == expected, change


def test_the_size_of_a_change_is_known_before_it_is_ingested() -> None:
    """The expected size of a Service counts the new versions of its objects, and is 0 beyond a limit."""
    state = ClusterState("node-a", extended=EXTENDED)
    for change in (slice_of("shop/web", ["10.1.0.4"], suffix="2"), slice_of("shop/web", ["10.1.0.5"])):
        state.ingest(Put(change))
    web, more = service("shop/web"), slice_of("shop/web", ["10.1.0.5", "10.1.0.6", "10.1.0.7"])
    assert state.expected_size(web.key, [more]) == 0
    both = [slice_of("shop/web", ["10.1.0.4"], suffix="2"), more]
    assert state.expected_size(web.key, [more, web]) == size(web, both) > size(web, both[:1])
    beyond = service("shop/web", source_ranges=[f"10.{each >> 8}.{each & 255}.0/24" for each in range(1_001)])
    assert state.expected_size(web.key, [more, beyond]) == 0


def test_a_slice_that_moves_touches_both_services() -> None:
    """A slice whose label changes moves between Services and touches both."""
    moved = structs.replace(slice_of(), service=CART)
    made = state(service("shop/cart", cluster_ips=["10.96.0.20"]), slice_of())
    assert made.ingest(Put(moved)) == touched_endpoints("shop/web", "shop/cart")
    assert list(made.slices_of(WEB)) == []
    assert list(made.slices_of(CART)) == [moved]


def test_a_service_has_all_of_its_slices() -> None:
    """Several slices of a Service add up, and slices of other Services don't count."""
    one, two, other = slice_of(), slice_of(suffix="2"), slice_of("shop/cart")
    assert list(state(service(), one, other, two).slices_of(WEB)) == [one, two]


def test_a_slice_that_goes_leaves_the_others() -> None:
    """If one of two slices goes, the other stays.  After both, nothing is kept of either."""
    one, two = slice_of(), slice_of(suffix="2")
    made = state(service(), one, two)
    made.ingest(Removed(EndpointSlice, one.key))
    assert list(made.slices_of(WEB)) == [two]
    made.ingest(Removed(EndpointSlice, two.key))
    assert made._slices_of == {}


def test_a_slice_costs_the_same_among_few_and_many() -> None:
    """A slice that changes costs as much among a thousand slices of its Service as among two."""

    def cost(siblings: int) -> int:
        made = state(service(), *(slice_of(suffix=str(number)) for number in range(siblings)))
        return lines(lambda: made.ingest(Put(slice_of(suffix="0", triggered=1.0))))

    assert cost(1_000) == cost(2)


# Node, addresses, ServiceCIDRs


def test_the_node_touches_everything() -> None:
    """A change of this node concerns the skeleton and every Service."""
    made = state()
    assert made.ingest(Put(node())) == EVERYTHING
    assert made.ingest(Put(node(zone="b"))) == EVERYTHING
    assert made.node == node(zone="b")


def test_other_nodes_are_none_of_our_business() -> None:
    """A Node of another name neither touches nor replaces this node."""
    made = state(node())
    assert made.ingest(Put(node("node-b"))) == NOTHING
    assert made.ingest(Removed(Node, "node-b")) == NOTHING
    assert made.node == node()


def test_a_node_that_is_gone_leaves_its_name() -> None:
    """Without its Node object the node has no zone, addresses or pod CIDRs."""
    made = state(node())
    assert made.ingest(Removed(Node, "node-a")) == EVERYTHING
    assert made.node == Node("node-a", is_deleted=True)
    assert made.ingest(Removed(Node, "node-a")) == NOTHING


def test_a_list_without_the_node_takes_it_away() -> None:
    """An empty list of Nodes removes this node."""
    made = state(node())
    assert made.ingest(Listed(Node, ())) == EVERYTHING
    assert made.node == Node("node-a", is_deleted=True)


def test_a_list_takes_away_all_that_it_lacks() -> None:
    """Services on the list stay, and all other Services go."""
    names = ("shop/web", "shop/cart", "blog/api", "blog/site")
    services = [service(name, cluster_ips=[f"10.96.0.{number}"]) for number, name in enumerate(names, 10)]
    made = state(*services)
    assert made.ingest(Listed(Service, tuple(services[:2]))) == touched("blog/api", "blog/site")
    assert list(made.services.values()) == services[:2]


def test_a_service_cidr_may_be_called_like_the_node() -> None:
    """Objects of different kinds may have the same name."""
    made = state(node(), service_cidr(name="node-a"))
    assert made.ingest(Removed(ServiceCIDR, "node-a")) == Invalidation(table=True)
    assert made.node == node()
    made.ingest(Put(service_cidr(name="node-b")))
    assert made.ingest(Removed(Node, "node-b")) == NOTHING
    assert made.service_cidrs


def test_the_nodes_addresses_are_known_to_claims() -> None:
    """No external IP captures ssh of an address of the node, internal or external, while it has it."""
    made = state(
        node(internal_ips=["192.168.0.2"], external_ips=["203.0.113.2"]),
        service(ports=["22"], external_ips=["192.168.0.2", "203.0.113.2"]),
    )

    def denials() -> list[Denial | None]:
        places = (claim("192.168.0.2 22/tcp"), claim("203.0.113.2 22/tcp"))
        return [made.claims.denial(place, ClaimKind.EXTERNAL_IP, WEB) for place in places]

    assert denials() == [Denial.PROTECTED] * 2
    made.ingest(Removed(Node, "node-a"))
    assert denials() == [None, None]


def test_where_the_api_server_is_touches_those_who_claim_it() -> None:
    """When the API server's address becomes known, only a Service that claims it is compiled again."""
    made = state(service(ports=["6443"], external_ips=["192.0.2.1"]), service("shop/cart", cluster_ips=["10.96.0.11"]))
    known = Put(ApiServers(frozenset({Place(Address("192.0.2.1"), 6443)})))
    assert made.ingest(known) == Invalidation(services={WEB})
    assert made.claims.denial(claim("192.0.2.1 6443/tcp"), ClaimKind.EXTERNAL_IP, WEB) is Denial.API_SERVER
    assert made.ingest(known) == NOTHING


def test_addresses_on_interfaces_touch_everything() -> None:
    """Node ports may come and go with the machine's addresses, so all is compiled again."""
    made = state()
    assert made.host_addresses is None
    assert made.ingest(Put(host_addresses("192.168.0.2"))) == EVERYTHING
    assert made.host_addresses == {"192.168.0.2"}


def test_a_service_cidr_touches_the_skeleton_only() -> None:
    """Ranges that come, change and go leave all Services alone."""
    made = state()
    for event in (Put(service_cidr()), Put(service_cidr("10.97.0.0/16")), Removed(ServiceCIDR, "kubernetes")):
        assert made.ingest(event) == Invalidation(table=True)
    assert made.service_cidrs == []


def test_the_ranges_of_all_service_cidrs_count() -> None:
    """Ranges are sorted by the names of their objects, in any order of events."""
    made = state(service_cidr("10.97.0.0/16", name="more"), service_cidr("10.96.0.0/16", "fd00:96::/112"))
    assert made.service_cidrs == list(networks(["10.96.0.0/16", "fd00:96::/112", "10.97.0.0/16"]))


# Removals and lists


@pytest.mark.parametrize(
    "event",
    [
        Removed(Service, WEB),
        Removed(EndpointSlice, key("shop/web-1")),
        Removed(ServiceCIDR, "kubernetes"),
        Removed(Node, "node-a"),
        Listed(Service, ()),
        Listed(EndpointSlice, ()),
        Listed(ServiceCIDR, ()),
        Listed(Node, ()),
    ],
)
def test_what_is_not_there_can_be_removed(event: Event) -> None:
    """The removal of an unknown object touches nothing."""
    assert state().ingest(event) == NOTHING


@pytest.mark.parametrize(
    ("kind", "kept", "expected"),
    [
        (Service, service(cluster_ips=["10.96.0.20"]), touched("shop/cart")),
        (EndpointSlice, slice_of(), touched_endpoints("shop/cart")),
        (ServiceCIDR, service_cidr(), Invalidation(table=True)),
        (Node, node(), NOTHING),
    ],
)
def test_what_is_not_listed_is_gone(kind: type[Given], kept: Given, expected: Invalidation) -> None:
    """A list removes the objects of its kind that it lacks, and touches only what these changes touch."""
    made = state(
        service(cluster_ips=["10.96.0.20"]),
        service("shop/cart"),
        slice_of(),
        slice_of("shop/cart"),
        service_cidr(),
        service_cidr("10.97.0.0/16", name="more"),
        node(),
    )
    assert made.ingest(Listed(kind, (kept,))) == expected  # type: ignore[arg-type]  # each of its own kind
    assert made.ingest(Listed(kind, (kept,))) == NOTHING  # type: ignore[arg-type]


def test_a_list_brings_what_is_new() -> None:
    """A list adds and changes objects like the same number of events."""
    made = state(service(ports=["80"]))
    assert made.ingest(Listed(Service, (service(ports=["81"]), service("shop/cart", cluster_ips=["10.96.0.20"])))) == (
        touched("shop/web", "shop/cart")
    )


@pytest.mark.parametrize(
    ("value", "name"),
    [(service(), WEB), (slice_of(), key("shop/web-1")), (node(), "node-a"), (service_cidr(), "kubernetes")],
)
def test_objects_are_known_by_their_keys(value: Service | EndpointSlice | Node | ServiceCIDR, name: object) -> None:
    """Namespaced objects have namespace and name as their key, and all other objects their name."""
    assert key_of(value) == name


def test_touched_adds_up() -> None:
    """The touched Services of several events are the union of each event's."""
    both = touched("shop/web")
    both.merge(Invalidation(services={CART}, table=True))
    both.merge(touched_endpoints("shop/web"))
    both.merge(NOTHING)
    assert both == Invalidation(services={WEB, CART}, endpoints={WEB}, table=True)


# Order


@quick()
@given(st.data(), clusters)
def test_the_order_of_events_does_not_matter(data: st.DataObject, cluster: list[Given]) -> None:
    """The same objects make the same state, in any order of events."""
    states = [ClusterState("node-a", extended=EXTENDED), ClusterState("node-a", extended=EXTENDED)]
    for made in states:
        for batch in data.draw(batches(cluster)):
            for event in batch:
                made.ingest(event)
    assert _contents(states[0]) == _contents(states[1])


@quick()
@given(histories)
def test_the_state_is_what_events_left(history: list[list[Event]]) -> None:
    """After any events the state is that of the present objects."""
    made = ClusterState("node-a", extended=EXTENDED)
    for batch in history:
        for event in batch:
            made.ingest(event)
    assert _contents(made) == _contents(state(*survivors(history)))


def _contents(made: ClusterState) -> object:
    slices = {name: {each.key: each for each in made.slices_of(name)} for name in SERVICES}
    places = [f"{place} {port}" for place in ("10.96.0.10", "203.0.113.7") for port in ("80/tcp", "53/udp")]
    owners = [made.claims.winner(claim(place)) for place in [*places, "30080/tcp", "32000/tcp"]]
    last_node = structs.replace(made.node, is_deleted=False)  # an earlier Node is remembered, for /healthz
    return made.services, slices, owners, last_node, made.host_addresses, made.service_cidrs


def test_a_taint_touches_no_rule() -> None:
    """A Node that only gets a taint, or is to be deleted, makes nothing be compiled again."""
    made = state(node())
    assert made.ingest(Put(node(taints=("x",), is_deleted=True))) == NOTHING
    assert made.node.taints == ("x",)
