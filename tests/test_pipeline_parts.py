"""A Service that changes alone changes port by port, and other Services may change between its ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies import quick

from nftproxy.extensions.failover.gone_addresses import GoneAddresses
from nftproxy.model.addresses import Address
from nftproxy.model.events import Event, HostAddresses, Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.pipeline import Pipeline
from nftproxy.rules.pieces import pieces_of
from nftproxy.rules.transaction import Transaction, join
from tests.support.factories import Ledger, key, pipeline, service, service_cidr, slice_of

PORTS, PODS, LARGE = 8, 10, "evil/one"
NAMES = [f"p{port}:{port}" for port in range(1, PORTS + 1)]
HOSTS = [f"10.2.0.{pod}" for pod in range(1, PODS + 1)]


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    """Parts of a port, which has at least four elements."""
    with mock.patch("nftproxy.pipeline.PART", 4):
        yield


@contextmanager
def small_pieces() -> Iterator[None]:
    """Pieces of an element or two of changes that have no parts."""
    pieces = partial(pieces_of, size=20)
    with mock.patch("nftproxy.pipeline.LARGE_PART", 4), mock.patch("nftproxy.pipeline.pieces_of", pieces):
        yield


def large(*, algorithm: str = "", failover: str = "", external: str = "", ranges: Sequence[str] = ()) -> Service:
    """A Service with many ports."""
    return service(
        LARGE,
        cluster_ips=["10.97.0.1"],
        ports=NAMES,
        external_ips=[external] if external else [],
        load_balancer_ips=["198.51.100.9"] if ranges else [],
        source_ranges=ranges,
        annotations={name: value for name, value in (("algorithm", algorithm), ("failover", failover)) if value},
    )


def offered(shift: int = 0, pods: Sequence[str] = HOSTS) -> Event:
    """Its endpoints at ports of their own."""
    return Put(slice_of(LARGE, pods, ports=[f"p{port}:{port + shift}" for port in range(1, PORTS + 1)]))


def served() -> list[Event]:
    """The Service, its endpoints, and two small Services."""
    return [
        Put(large()),
        offered(),
        Put(service("shop/web")),
        Put(slice_of("shop/web", ["10.1.0.4"])),
        Put(service("shop/other", cluster_ips=["10.96.0.11"], annotations={"algorithm": "round-robin"})),
    ]


class Applied:
    """A pipeline, a kernel that has its rules, and the transactions of a change in parts."""

    def __init__(self, *events: Event) -> None:
        self.made = pipeline()
        self.made.ingest([*served(), *events])
        self.kernel = Ledger()
        self.kernel.apply(self.made.full_transaction({}))
        self.parts: list[Transaction] = []

    def change(self, *events: Event, between: Callable[[Pipeline], None] = lambda _: None) -> Applied:
        """Apply a change in parts, and call `between` at each pause."""
        steps = self.made.ingest_in_steps(events, in_parts=True)
        while True:
            try:
                self.apply(join(next(steps).values()))
            except StopIteration as end:
                self.apply(join(end.value.values()))
                return self
            if self.made.is_compiling:
                between(self.made)

    def apply(self, transaction: Transaction) -> None:
        """Let the kernel follow, which refuses whatever makes no sense."""
        if transaction:
            self.kernel.apply(transaction)
            self.parts.append(transaction)

    def assert_same(self, *events: Event) -> None:
        """The rules are those of a pipeline that ingests everything at once, and the kernel has them."""
        anew = pipeline()
        anew.ingest([*served(), *events])
        for family, generation in self.made.generations.items():
            assert set(generation.used_elements()) == set(anew.generations[family].used_elements())
            assert self.kernel.held(family) == set(generation.elements())


@pytest.mark.parametrize(
    ("events", "parts"),
    [
        ([offered(100)], PORTS),
        ([offered(0, HOSTS[1:])], PORTS),
        ([offered(0, HOSTS[:1])], PORTS),
        ([Put(large(algorithm="round-robin"))], PORTS),
        ([Put(large(failover="refused"))], PORTS),
        ([Removed(Service, key(LARGE))], PORTS),
        ([Put(large(external="198.51.100.7"))], 1),
        ([Put(service("shop/web", source_ranges=["192.0.2.0/24"])), Put(large(external="198.51.100.7"))], 1),
        ([Put(service("shop/new", cluster_ips=["10.96.0.12"])), offered(100)], PORTS + 1),
        ([Removed(Service, key("shop/web")), offered(100)], PORTS + 1),
        ([Removed(Service, key("shop/web")), Removed(Service, key(LARGE))], PORTS + 1),
        ([Removed(Service, key("shop/web")), Put(large(external="198.51.100.7"))], 2),
        ([Removed(Service, key(LARGE)), Put(service("shop/new", cluster_ips=["10.97.0.1"]))], 1),
        ([Put(slice_of("shop/web", ["10.1.0.9"])), offered(100)], PORTS + 1),
    ],
    ids=[
        "ports",
        "endpoints",
        "most endpoints go",
        "algorithm",
        "the first with an extension",
        "removed",
        "fronts",
        "others' ranges",
        "a new Service too",
        "another is removed",
        "two are removed",
        "another is removed, and fronts",
        "an heir of its address",
        "endpoints of two",
    ],
)
def test_a_service_that_keeps_its_fronts_changes_port_by_port(events: list[Event], parts: int) -> None:
    """Each part is a port of the Service.  A change of fronts beside others is whole."""
    found = Applied().change(*events)
    found.assert_same(*events)
    assert len(found.parts) == parts


def test_a_new_service_comes_port_by_port() -> None:
    """A new Service has the first ports in the kernel before the last are compiled."""
    new = service("evil/new", cluster_ips=["10.97.0.2"], ports=NAMES)
    found = Applied(Put(slice_of("evil/new", HOSTS, ports=NAMES))).change(Put(new))
    found.assert_same(Put(slice_of("evil/new", HOSTS, ports=NAMES)), Put(new))
    assert len(found.parts) == PORTS


def test_an_extensions_chains_change_before_the_first_port_and_after_the_last() -> None:
    """The only Service that asks for a part of an extension changes port by port all the same."""
    found = Applied().change(Put(large(failover="refused")))
    assert [each for each, part in enumerate(found.parts) if "flush chain" in part.text] == [0]
    found.parts.clear()
    found.change(Put(large()))
    found.assert_same()
    assert [each for each, part in enumerate(found.parts) if "flush chain" in part.text] == [PORTS]


def test_another_service_changes_beside_the_first_of_an_extension() -> None:
    """A change that comes after the first part of such a change doesn't wait for its end."""
    moved = Put(slice_of("shop/web", ["10.1.0.9"]))
    beside: list[Transaction] = []
    found = Applied()
    found.change(Put(large(failover="refused")), between=lambda made: beside.append(made.ingest([moved])))
    assert [each for each, part in enumerate(beside) if "10.1.0.9" in part.text] == [0]


def test_nothing_goes_between_the_parts_of_an_undivided_skeleton() -> None:
    """A change of the node's addresses, which concerns all Services, never begins anew for a small change."""
    paused: list[Pipeline] = []
    after = Put(HostAddresses(frozenset({Address("192.0.2.1")})))
    found = Applied().change(after, between=paused.append)
    found.assert_same(after)
    assert not paused


def test_small_changes_go_beside_an_undivided_skeleton() -> None:
    """A change that adds to the skeleton and takes from it is a single part, which never begins anew."""
    before, after = (Put(service_cidr(cidr)) for cidr in ("10.96.0.0/16", "10.97.0.0/16"))
    paused: list[Pipeline] = []
    Applied(before).change(after, Put(large(failover="refused")), between=paused.append)
    beside: list[Transaction] = []
    found = Applied(before)

    def between(made: Pipeline) -> None:
        beside.append(made.ingest([Put(slice_of("shop/web", [f"10.1.0.{len(beside) % 2 + 8}"]))]))
        found.apply(beside[-1])

    found.change(after, Put(large(failover="refused")), between=between)
    assert beside
    assert all(beside)
    assert len(beside) == len(paused)
    assert len(found.parts) == len(beside) + 1


def test_extensions_follow_the_end_of_their_last_service_beside_other_changes() -> None:
    """A view forgets the last Service that asks for it, though other Services have changed since it was removed."""
    found = Applied(Put(large(failover="gone")))
    moved = Put(slice_of("shop/web", ["10.1.0.9"]))
    found.change(Removed(Service, key(LARGE)), between=lambda made: found.apply(made.ingest([moved])))
    gone = found.made.view(GoneAddresses)
    assert [gone.look(found.made.state, at) for at in (0.0, 1000.0)] == [{}, {}]
    assert found.made.asked == pipeline().asked


def test_another_service_changes_between_the_ports() -> None:
    """A change that comes after the first part is in the kernel before the second part, with its own elements only."""
    moved = Put(slice_of("shop/web", ["10.1.0.9"]))
    beside: list[Transaction] = []
    found = Applied()

    def between(made: Pipeline) -> None:
        if not beside:
            beside.append(made.ingest([moved]))
            found.apply(beside[0])

    found.change(offered(100), between=between)
    found.assert_same(offered(100), moved)
    assert found.parts.index(beside[0]) == 1
    assert beside[0].text == (
        "delete element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.0 : 10.1.0.4 . 8080 }\n"
        "add element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.0 : 10.1.0.9 . 8080 }\n"
    )


def test_another_service_changes_between_the_pieces_of_an_undivided_change() -> None:
    """A change that comes after the first piece of a change of fronts is in the kernel before the second piece."""
    fronts, moved = Put(large(external="198.51.100.7")), Put(slice_of("shop/web", ["10.1.0.9"]))
    beside: list[Transaction] = []
    found = Applied()

    def between(made: Pipeline) -> None:
        if found.parts and not beside:
            beside.append(made.ingest([moved]))
            found.apply(beside[0])

    with small_pieces():
        found.change(fronts, between=between)
    found.assert_same(fronts, moved)
    assert found.parts.index(beside[0]) == 1
    assert len(found.parts) > PORTS * PODS
    assert max(each.size().elements for each in found.parts) <= 3


def test_a_change_with_a_statement_of_an_undivided_change_waits_for_its_last_piece() -> None:
    """A Service that gets as many endpoints as the large change has draws them by a chain that may be missing."""
    fronts, fewer = Put(large(external="198.51.100.7")), offered(0, HOSTS[:7])
    moved = Put(slice_of("shop/web", HOSTS[:7]))
    beside: list[Transaction] = []
    found = Applied()

    def between(made: Pipeline) -> None:
        if found.parts and not beside:
            beside.append(made.ingest([moved]))

    with small_pieces():
        found.change(fronts, fewer, between=between)
    found.assert_same(fronts, fewer, moved)
    assert beside == [Transaction()]
    changed = [[each for each, part in enumerate(found.parts) if ip in part.text] for ip in ("10.97.0.1", "10.96.0.10")]
    assert max(changed[0]) < min(changed[1])


@pytest.mark.parametrize(
    "meanwhile",
    [
        [offered(200)],
        [Removed(Service, key(LARGE))],
        [Put(large(external="198.51.100.7"))],
        [Put(slice_of("shop/web", ["10.1.0.9"])), offered(200, HOSTS[:3])],
        [Removed(Service, key(LARGE)), Put(service("shop/heir", cluster_ips=["10.97.0.1"], ports=NAMES[:2]))],
    ],
    ids=["endpoints", "removed", "fronts", "beside another", "an heir of its address"],
)
def test_a_change_of_the_same_service_waits_for_its_last_port(meanwhile: list[Event]) -> None:
    """Other changes of the Service that come at a pause give no transaction of their own, and come last."""
    left = [meanwhile]
    found = Applied()

    def between(made: Pipeline) -> None:
        if left:
            found.apply(made.ingest(left.pop()))

    found.change(offered(100), between=between)
    found.assert_same(offered(100), *meanwhile)


def test_the_ranges_of_all_ports_change_at_once() -> None:
    """A change of ranges, which the first port's block has for all ports, is a single transaction."""
    before, after = Put(large(ranges=["192.0.2.0/24"])), Put(large(ranges=["198.51.100.0/24"]))
    found = Applied(before).change(after)
    found.assert_same(after)
    assert len(found.parts) == 1


def test_an_abandoned_change_leaves_the_service_invalid() -> None:
    """After an end in the middle the whole Service is compiled again by the next change."""
    found = Applied()
    steps = found.made.ingest_in_steps([offered(100)], in_parts=True)
    found.apply(join(next(steps).values()))
    steps.close()
    assert not found.made.is_compiling
    found.change(Put(slice_of("shop/web", ["10.1.0.9"])))
    found.assert_same(offered(100), Put(slice_of("shop/web", ["10.1.0.9"])))


TWO_PORTS = ["a:80", "b:81"]
KEPT = [
    service(f"{name}/s", cluster_ips=[f"10.96.0.{number}"], ports=ports)
    for number, name in enumerate(["w", "x", "y", "z"], 1)
    for ports in (TWO_PORTS, TWO_PORTS[1:], ["b:80", "a:81"])
]
MOVING = [service("x/s", cluster_ips=["10.96.0.1"], ports=TWO_PORTS), service("v/s", cluster_ips=["10.96.0.2"])]
ODD = [
    service("w/s", cluster_ips=["10.96.0.1"], ports=TWO_PORTS, annotations=asked)
    for asked in ({"algorithm": "round-robin"}, {"failover": "refused"})
]
PLACED = [
    slice_of(f"{name}/s", pods, ports=["a:8080", "b:8081"], suffix=suffix)
    for name in ("w", "x", "y", "z")
    for suffix in "12"
    for pods in (["10.1.0.4"], ["10.1.0.5", "10.1.0.6"], [])
]
SERVICES: list[Event] = [*map(Put, [*KEPT, *MOVING, *ODD]), *(Removed(Service, each.key) for each in KEPT)]
SLICES: list[Event] = [*map(Put, PLACED), *(Removed(EndpointSlice, each.key) for each in PLACED)]
LISTINGS: list[Event] = [Listed(Service, tuple(KEPT[::4])), Listed(EndpointSlice, tuple(PLACED[::5]))]
changes = st.lists(st.sampled_from([*SERVICES, *SLICES, *LISTINGS]), max_size=6)


@quick(30)
@given(st.lists(st.tuples(changes, st.lists(changes, max_size=3)), min_size=1, max_size=6), st.booleans())
def test_any_changes_between_any_parts(
    history: list[tuple[list[Event], list[list[Event]]]], has_small_pieces: bool
) -> None:
    """The kernel takes each part, and in the end has the rules of a pipeline without parts."""
    with small_pieces() if has_small_pieces else nullcontext():
        _change_in_parts(history)


def _change_in_parts(history: list[tuple[list[Event], list[list[Event]]]]) -> None:
    found, anew = Applied(), pipeline()
    anew.ingest(served())
    for events, meanwhile in history:
        left = list(reversed(meanwhile))

        def between(made: Pipeline, left: list[list[Event]] = left) -> None:
            if left:
                found.apply(made.ingest(left.pop()))

        found.change(*events, between=between)
        for each in reversed(left):
            found.apply(found.made.ingest(each))
        for each in (events, *meanwhile):
            anew.ingest(each)
        for family, generation in found.made.generations.items():
            assert set(generation.used_elements()) == set(anew.generations[family].used_elements())
            assert found.kernel.held(family) == set(generation.elements())
