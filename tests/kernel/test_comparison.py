"""Loads over rules that are in force, against the real kernel: what differs is sent, whatever that is, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nftproxy.kernel import nftables_netlink, read_ahead
from nftproxy.kernel.comparison import FEW, Reading, differences
from nftproxy.kernel.element_layout import Layout, declaration_of
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.netlink import (
    FAMILY_NUMBER,
    NESTED,
    attribute,
    messages_of,
    named,
    nested,
    open_socket,
    request,
    split,
)
from nftproxy.kernel.set_elements import items, listings
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.objects import ClusterObject
from nftproxy.model.settings import Capabilities, Settings
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Difference, Installed, Transaction
from nftproxy.sources.files import load, load_config
from tests.support.factories import IPV4, pipeline, renderer, service, slice_of

pytestmark = pytest.mark.usefixtures("namespace")

EXAMPLES = sorted(path.parent for path in (Path(__file__).resolve().parents[2] / "examples").glob("*/manifests"))
NOTHING = Difference()
WEB = "10.96.0.1 . tcp . 80"

USERDATA = 6  # NFTA_SET_ELEM_USERDATA

Held = dict[tuple[Family, str], list[bytes]]


def cluster(services: int) -> Pipeline:
    """So many Services with two endpoints each, the first of which has source ranges."""
    made: list[ClusterObject] = []
    for number in range(1, services + 1):
        address, pods = (
            f"10.96.{number >> 8}.{number & 255}",
            [f"10.{each}.{number >> 8}.{number & 255}" for each in (1, 2)],
        )
        made += [service(f"shop/s{number}", cluster_ips=[address]), slice_of(f"shop/s{number}", pods)]
    made[0] = service(
        "shop/s1",
        type="LoadBalancer",
        cluster_ips=["10.96.0.1"],
        load_balancer_ips=["198.51.100.1"],
        source_ranges=["192.0.2.0/24"],
    )
    return pipeline(*made, families=[IPV4])


def held() -> Held:
    """All elements of our tables, as the kernel describes them byte by byte, in one order."""
    return {
        (family, each.name): sorted(item for part in items(family, TABLE, each.name) for item in part)
        for family in Family
        for each in nftables_netlink.sets(family, TABLE)
    }


def loaded_over(made: Pipeline) -> tuple[Transaction, Mapping[Family, Installed]]:
    """Load rules over what is there, as the agent does, and return the transaction and what it started from."""
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
    """Load rules into a kernel without any."""
    Kernel().apply(made.full_transaction({}))
    return held()


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_what_was_left_alone_differs_in_nothing(example: Path) -> None:
    """Every set and map of every example is as it was, byte by byte; those of ranges and of packets aren't compared."""
    config, _ = load_config(example / "config.yaml")
    made = Pipeline("node-a", Settings(config, Capabilities(wide_maps=False)), renderer())
    made.apply(load([example / "manifests"]).listing())
    before = loaded(made)
    for generation in made.generations.values():
        sets = [each for each in generation.declarations.values() if each.kind.value != "chain" and not each.is_dynamic]
        compared = {each.name for each in sets if not any("interval" in line for line in each.body)}
        assert differences(generation, listings) == dict.fromkeys(compared, NOTHING)
    loaded_over(made)
    assert held() == before


def test_a_load_sends_what_differs() -> None:
    """However large the cluster is, a load over the same rules sends the same text, and one for a change just that."""
    sizes = set()
    for count in (20, 200):
        made = cluster(count)
        Kernel().apply(made.full_transaction({}))
        sizes.add(loaded_over(made)[0].size())
        Kernel().apply(Transaction("delete table ip nftproxy\n"))
    (size,) = sizes
    assert size.elements < 10
    old, new = cluster(200), cluster(203)
    Kernel().apply(old.full_transaction({}))
    assert loaded_over(new)[0].size().elements - size.elements == 3 * 5, "address, front, number, and two endpoints"
    assert held() == loaded_anew(new)
    assert loaded_over(old)[0].size().elements - size.elements == 3 * 5
    assert held() == loaded_anew(old)


def loaded_anew(made: Pipeline) -> Held:
    """What the kernel has when rules are loaded into none."""
    Kernel().apply(Transaction("delete table ip nftproxy\n"))
    return loaded(made)


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
    "a set of ranges is empty": "flush set ip nftproxy allowed",
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
def test_damage_is_repaired(damage: str) -> None:
    """Whatever another program has done to a table, it holds afterwards what one does that is loaded into no table."""
    made = cluster(20)
    whole = loaded(made)
    listing = sorted(Kernel().listing(IPV4).splitlines())
    Kernel().apply(Transaction(f"{damage}\n"))
    loaded_over(made)
    assert held() == whole
    assert sorted(Kernel().listing(IPV4).splitlines()) == listing


def test_an_element_for_all_others_is_repaired() -> None:
    """The kernel's element without a key, which nothing of ours can say, goes with all others of its map."""
    made = cluster(20)
    whole = loaded(made)
    Kernel().apply(Transaction("add element ip nftproxy services { * : 0.0.0.9 }\n"))
    assert "services" not in differences(made.generations[IPV4], listings)
    transaction, _ = loaded_over(made)
    assert "flush map ip nftproxy services\n" in transaction.text
    assert held() == whole


@pytest.mark.parametrize("name", ["fronts", "services"])
def test_what_hides_in_an_element_is_repaired(name: str) -> None:
    """Bytes of ours that another program hides in an element of its own aren't taken for the element that is gone."""
    made = cluster(20)
    whole = loaded(made)
    value = made.generations[IPV4].values(name)[WEB]
    with open_socket() as kernel:
        declared = declaration_of(kernel, IPV4, name)
    assert declared
    hidden = Layout(declared, 0).element(WEB, value)
    own = Layout(declared, NESTED).element("192.0.2.1 . udp . 53", value)
    filling = attribute(USERDATA, bytes(len(hidden) - 4) + hidden)
    Kernel().apply(Transaction(f"delete element ip nftproxy {name} {{ {WEB} }}\n"))
    add(name, nested(nftables_netlink.LIST_ELEMENT, own[4:] + filling))
    parts = list(listings(IPV4, TABLE, name))
    pieces = [part[at : at + len(hidden)] for part in parts for at in range(0, len(part), len(hidden))]
    assert hidden in pieces, "where each element is taken to be as long as ours"
    assert name not in differences(made.generations[IPV4], listings)
    loaded_over(made)
    assert held() == whole


def add(name: str, element: bytes) -> None:
    """Add an element to a set of ours that nft's text can't say."""
    where = named(nftables_netlink.LIST_TABLE, TABLE) + named(nftables_netlink.LIST_SET, name)
    body = where + nested(nftables_netlink.LIST_ELEMENTS, element)
    flags = nftables_netlink.CREATE
    message = request(nftables_netlink.SUBSYSTEM, nftables_netlink.NEW_ELEMENTS, flags, FAMILY_NUMBER[IPV4], body)
    with open_socket() as kernel:
        kernel.sendto(nftables_netlink.batch([message]), (0, 0))
        list(messages_of(kernel.recv(nftables_netlink.BUFFER_SIZE)))


def test_a_set_full_of_what_is_not_ours_is_emptied() -> None:
    """More than a few elements of somebody's aren't deleted one by one, nor even read."""
    made = cluster(20)
    whole = loaded(made)
    strays = ", ".join(f"192.{number >> 8}.{number & 255}.1 . tcp . 80" for number in range(20 * FEW))
    Kernel().apply(Transaction(f"add element ip nftproxy fronts {{ {strays} }}\n"))
    transaction, found = loaded_over(made)
    assert "fronts" not in found[IPV4].differences
    assert "flush set ip nftproxy fronts\n" in transaction.text
    assert held() == whole


def test_few_elements_that_are_not_ours_are_deleted() -> None:
    """As many as are few, and no more, go one by one, and nothing else of that set is sent."""
    made = cluster(20)
    loaded(made)
    strays = [f"192.{number >> 8}.{number & 255}.1 . tcp . 80" for number in range(FEW)]
    Kernel().apply(Transaction(f"add element ip nftproxy fronts {{ {', '.join(strays)} }}\n"))
    difference = differences(made.generations[IPV4], listings)["fronts"]
    assert sorted(each.key for each in difference.surplus) == sorted(strays)
    assert difference.missing == ()
    Kernel().apply(Transaction("add element ip nftproxy fronts { 192.0.2.1 . udp . 53 }\n"))
    assert "fronts" not in differences(made.generations[IPV4], listings)


def without_the_first(family: Family, table: str, name: str) -> Iterator[bytes]:
    """A listing of a set that the kernel has ordered anew: one element is missing, and another comes twice."""
    for part in listings(family, table, name):
        elements = list(split(part))
        yield b"".join([*elements[1:], *elements[-1:]])


def failing(family: Family, table: str, name: str) -> Iterator[bytes]:
    """A listing that breaks off."""
    yield next(listings(family, table, name))
    raise Unavailable("the kernel doesn't answer")


@pytest.mark.parametrize("reading", [without_the_first, failing])
def test_what_cannot_be_read_is_loaded_as_a_whole(monkeypatch: pytest.MonkeyPatch, reading: Reading) -> None:
    """A set whose listing breaks off, or has an element twice, is emptied and filled."""
    made = cluster(20)
    whole = loaded(made)
    monkeypatch.setattr(read_ahead, "listings", reading)
    transaction, found = loaded_over(made)
    assert not {"fronts", "services", "tcp-endpoints"} & found[IPV4].differences.keys()
    assert transaction.text.count(WEB) == 2, "in services and fronts"
    assert held() == whole


def test_a_kernel_that_does_not_answer_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel's sets can't be listed at all, nothing is known of any of them."""
    made = cluster(20)
    loaded(made)

    def fail(_family: Family, _table: str) -> None:
        raise Unavailable("the kernel doesn't answer")

    monkeypatch.setattr(nftables_netlink, "declarations", fail)
    assert differences(made.generations[IPV4], listings) == {}


def test_what_packets_wrote_is_left_alone() -> None:
    """The map of session affinity keeps its clients over a load, and isn't compared."""
    sticky = service("shop/web", cluster_ips=["10.96.0.1"], affinity_timeout=60)
    made = pipeline(sticky, slice_of("shop/web", ["10.1.0.4"]), families=[IPV4])
    loaded(made)
    client = "192.0.2.9 . 10.96.0.1 . 80 : 10.1.0.4"
    Kernel().apply(Transaction(f"add element ip nftproxy tcp-affinity-60 {{ {client} }}\n"))
    _, found = loaded_over(made)
    assert "tcp-affinity-60" not in found[IPV4].differences
    assert "192.0.2.9 . 10.96.0.1 . 80" in Kernel().listing(IPV4)


def test_another_shape_is_not_compared() -> None:
    """A table that is replaced has nothing that a load could keep."""
    made = cluster(2)
    assert made.refilled(IPV4, None) is None
    assert made.refilled(IPV4, Installed("another")) is None
    loaded(made)
    assert made.refilled(IPV4, Kernel().read_back(IPV4)) is made.generations[IPV4]
