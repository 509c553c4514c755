"""Loads over rules that are in force, against the real kernel: only differences are sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from unittest.mock import Mock

import pytest

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import nft_queries, read_ahead
from nftproxy.kernel.nfnetlink.comparison import FEW, ListSet, differences
from nftproxy.kernel.nfnetlink.element_codec import ElementLayout
from nftproxy.kernel.nfnetlink.elements import listings
from nftproxy.kernel.nfnetlink.sockets import BUFFER_SIZE, open_socket
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.objects import ClusterObject
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import CREATE, FAMILY_NUMBER, NESTED, attribute, messages_of, nested, split
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Difference, Installed, Transaction
from tests.kernel.ruleset import Held, execute, held, listing
from tests.support.examples import EXAMPLES, example_pipeline
from tests.support.factories import IPV4, pipeline, service, slice_of
from tests.support.selection import every

pytestmark = pytest.mark.usefixtures("namespace")

WEB = "10.96.0.1 . tcp . 80"

USERDATA = 6  # NFTA_SET_ELEM_USERDATA


def cluster(services: int) -> Pipeline:
    """So many Services with two endpoints each, the first of which has source ranges."""
    made: list[ClusterObject] = []
    for number in range(1, services + 1):
        name, rest = f"shop/s{number}", f"{number >> 8}.{number & 255}"
        made += [service(name, cluster_ips=[f"10.96.{rest}"]), slice_of(name, [f"10.1.{rest}", f"10.2.{rest}"])]
    made[0] = service(
        "shop/s1",
        type="LoadBalancer",
        cluster_ips=["10.96.0.1"],
        load_balancer_ips=["198.51.100.1"],
        source_ranges=["192.0.2.0/24"],
    )
    return pipeline(*made, families=[IPV4])


def loaded_over(made: Pipeline) -> tuple[Transaction, Mapping[Family, Installed]]:
    """Load rules over the present table, as the agent does.  Return the transaction and the table before it."""
    kernel, found = Kernel(), {}
    for family in made.generations:
        installed = kernel.read_back(family)
        generation = made.refilled(family, installed)
        assert installed
        found[family] = kernel.compare(installed, generation) if generation else installed
    transaction = made.full_transaction(found)
    kernel.apply(transaction)
    return transaction, found


def loaded(made: Pipeline) -> Held:
    """Load rules into a kernel without our table, and return its elements."""
    execute("add table ip nftproxy", "delete table ip nftproxy", made.full_transaction({}).text)
    return held()


@pytest.fixture
def made() -> Pipeline:
    """A cluster of 20 Services."""
    return cluster(20)


@pytest.fixture
def whole(made: Pipeline) -> Held:
    """The kernel's elements after the load."""
    return loaded(made)


@pytest.mark.parametrize("example", every(3, EXAMPLES))
def test_an_untouched_table_has_no_difference(example: str) -> None:
    """Every set and map of every example is unchanged, byte by byte.  Sets of ranges and packets aren't compared."""
    made = example_pipeline(example)
    before = loaded(made)
    for generation in made.generations.values():
        sets = [each for each in generation.declarations.values() if each.kind.value != "chain" and not each.is_dynamic]
        compared = {each.name for each in sets if not any("interval" in line for line in each.body)}
        assert differences(generation, listings) == dict.fromkeys(compared, Difference())
    loaded_over(made)
    assert held() == before


def test_a_load_sends_what_differs() -> None:
    """In a cluster of any size, a load over the same rules sends the same text, and a change just itself."""
    sizes = set()
    for count in (20, 200):
        made = cluster(count)
        loaded(made)
        sizes.add(loaded_over(made)[0].size())
    (size,) = sizes
    assert size.elements < 10
    old, new = cluster(200), cluster(203)
    loaded(old)
    for changed in (new, old):
        sent, _ = loaded_over(changed)
        assert sent.size().elements - size.elements == 3 * 5, "address, front, number, and two endpoints"
        assert held() == loaded(changed)


DAMAGE = {
    "an element is gone": "delete element ip nftproxy services { 10.96.0.1 . tcp . 80 }",
    "an element has another value": (
        "delete element ip nftproxy tcp-endpoints { 10.96.0.1 . 80 . 0.0.0.0 }\n"
        "add element ip nftproxy tcp-endpoints { 10.96.0.1 . 80 . 0.0.0.0 : 192.0.2.1 . 8080 }"
    ),
    "an element is somebody's": "add element ip nftproxy fronts { 192.0.2.1 . udp . 53 }",
    "an element leads to somebody's chain": (
        "add chain ip nftproxy own\nadd element ip nftproxy draws { 9.9.9.9 : goto own }"
    ),
    "an element leads to another chain": (
        "delete element ip nftproxy draws { 0.0.0.2 }\n"
        "add chain ip nftproxy own\n"
        "add element ip nftproxy draws { 0.0.0.2 : goto own }"
    ),
    "an element has a verdict without a chain": "add element ip nftproxy draws { 9.9.9.9 : drop }",
    "an element has a comment": (
        "delete element ip nftproxy fronts { 10.96.0.1 . tcp . 80 }\n"
        'add element ip nftproxy fronts { 10.96.0.1 . tcp . 80 comment "mine" }'
    ),
    "an element has a protocol of its own": "add element ip nftproxy fronts { 192.0.2.1 . 99 . 53 }",
    "a set is empty": "flush map ip nftproxy tcp-endpoints",
    "a list of ranges is empty": "flush set ip nftproxy allowed",
    "all sets are empty": "\n".join(f"flush map ip nftproxy {name}" for name in ("services", "tcp-endpoints", "draws")),
    "a chain has no rules": "flush chain ip nftproxy draw",
    "a chain has another rule": "insert rule ip nftproxy services accept",
    "a chain is somebody's": "add chain ip nftproxy own { type filter hook input priority 0; policy drop; }",
    "a set is somebody's": (
        "add set ip nftproxy own { type ipv4_addr; elements = { 192.0.2.1 }; }\n"
        "insert rule ip nftproxy services ip daddr @own drop"
    ),
    "a policy is another": "add chain ip nftproxy filter-forward { policy drop; }",
    "the table sleeps": "add table ip nftproxy { flags dormant; }",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_repaired(made: Pipeline, whole: Held, damage: str) -> None:
    """After any damage by another program, a load leads to the same table as a load into an empty kernel."""
    before = sorted(listing().splitlines())
    execute(damage)
    loaded_over(made)
    assert held() == whole
    assert sorted(listing().splitlines()) == before


def test_an_element_for_all_others_is_repaired(made: Pipeline, whole: Held) -> None:
    """The kernel's catch-all element, which our text can't say, goes with all elements of its map."""
    execute("add element ip nftproxy services { * : 0.0.0.9 }")
    assert "services" not in differences(made.generations[IPV4], listings)
    transaction, _ = loaded_over(made)
    assert "flush map ip nftproxy services\n" in transaction.text
    assert held() == whole


@pytest.mark.parametrize("name", ["fronts", "services"])
def test_bytes_hidden_in_a_foreign_element_are_repaired(made: Pipeline, whole: Held, name: str) -> None:
    """Bytes of ours that another program hides in an element of its own aren't taken for the element that is gone."""
    value = made.generations[IPV4].value(name, WEB)
    assert value is not None
    with open_socket() as kernel:
        declared = nft_queries.declaration_of(kernel, IPV4, name)
    assert declared
    hidden = ElementLayout(declared, 0).element(WEB, value)
    own = ElementLayout(declared, NESTED).element("192.0.2.1 . udp . 53", value)
    filling = attribute(USERDATA, bytes(len(hidden) - 4) + hidden)
    execute(f"delete element ip nftproxy {name} {{ {WEB} }}")
    add(name, nested(nft.LIST_ELEMENT, own[4:] + filling))
    parts = list(listings(IPV4, name))
    pieces = [part[at : at + len(hidden)] for part in parts for at in range(0, len(part), len(hidden))]
    assert hidden in pieces, "where each element is taken to be as long as ours"
    assert name not in differences(made.generations[IPV4], listings)
    loaded_over(made)
    assert held() == whole


def add(name: str, element: bytes) -> None:
    """Add an element to a set of ours that nft's text can't say."""
    body = nft.of_set(name) + nested(nft.LIST_ELEMENTS, element)
    message = nft.request(nft.NEW_ELEMENTS, CREATE, FAMILY_NUMBER[IPV4], body)
    with open_socket() as kernel:
        kernel.sendto(nft.batch([message]), (0, 0))
        list(messages_of(kernel.recv(BUFFER_SIZE)))


def strays(count: int) -> list[str]:
    """So many keys that aren't ours."""
    return [f"192.{number >> 8}.{number & 255}.1 . tcp . 80" for number in range(count)]


def test_a_set_full_of_foreign_elements_is_emptied(made: Pipeline, whole: Held) -> None:
    """More than a few foreign elements aren't deleted individually, nor even read."""
    execute(f"add element ip nftproxy fronts {{ {', '.join(strays(20 * FEW))} }}")
    transaction, found = loaded_over(made)
    assert "fronts" not in found[IPV4].differences
    assert "flush set ip nftproxy fronts\n" in transaction.text
    assert held() == whole


def test_few_elements_that_are_not_ours_are_deleted(made: Pipeline) -> None:
    """Up to a limit, foreign elements are deleted individually, and no other element of that set is sent."""
    loaded(made)
    execute(f"add element ip nftproxy fronts {{ {', '.join(strays(FEW))} }}")
    difference = differences(made.generations[IPV4], listings)["fronts"]
    assert sorted(each.key for each in difference.surplus) == sorted(strays(FEW))
    assert difference.missing == ()
    execute("add element ip nftproxy fronts { 192.0.2.1 . udp . 53 }")
    assert "fronts" not in differences(made.generations[IPV4], listings)


def without_the_first(family: Family, name: str) -> Iterator[bytes]:
    """A listing of a set that the kernel has rehashed: an element is missing, and another comes twice."""
    for part in listings(family, name):
        elements = list(split(part))
        yield b"".join([*elements[1:], *elements[-1:]])


def failing(family: Family, name: str) -> Iterator[bytes]:
    """A listing that breaks off."""
    yield next(listings(family, name))
    raise Unavailable("the kernel doesn't answer")


@pytest.mark.parametrize("reading", [without_the_first, failing])
def test_an_unreadable_set_is_emptied_and_filled(
    made: Pipeline, whole: Held, monkeypatch: pytest.MonkeyPatch, reading: ListSet
) -> None:
    """A set whose listing breaks off, or has an element twice, is emptied and filled."""
    monkeypatch.setattr(read_ahead, "listings", reading)
    transaction, found = loaded_over(made)
    assert not {"fronts", "services", "tcp-endpoints"} & found[IPV4].differences.keys()
    assert transaction.text.count(WEB) == 2, "in services and fronts"
    assert held() == whole


def test_a_kernel_that_does_not_answer_gets_everything(made: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel's sets can't be listed at all, nothing is known of any of them."""
    loaded(made)
    monkeypatch.setattr(nft_queries, "declarations", Mock(side_effect=Unavailable("the kernel doesn't answer")))
    assert differences(made.generations[IPV4], listings) == {}


def test_entries_written_by_packets_are_left_alone() -> None:
    """The map of session affinity keeps its clients over a load, and isn't compared."""
    sticky = service("shop/web", cluster_ips=["10.96.0.1"], affinity_timeout=60)
    made = pipeline(sticky, slice_of("shop/web", ["10.1.0.4"]), families=[IPV4])
    loaded(made)
    execute("add element ip nftproxy tcp-affinity-60 { 192.0.2.9 . 10.96.0.1 . 80 : 10.1.0.4 }")
    _, found = loaded_over(made)
    assert "tcp-affinity-60" not in found[IPV4].differences
    assert "192.0.2.9 . 10.96.0.1 . 80" in listing()


def test_another_shape_is_not_compared() -> None:
    """A table that is replaced has nothing that a load could keep."""
    made = cluster(2)
    assert made.refilled(IPV4, None) is None
    assert made.refilled(IPV4, Installed("another")) is None
    loaded(made)
    assert made.refilled(IPV4, Kernel().read_back(IPV4)) is made.generations[IPV4]
