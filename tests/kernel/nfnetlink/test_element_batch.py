"""Transactions of elements alone lead to the same elements as the same text by libnftables."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.nfnetlink.element_batch import LONGEST_LIST, MOST_CHARACTERS, ElementWriter, commands_of
from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event, Put, Removed
from nftproxy.model.objects import Service
from nftproxy.rules.ruleset import Element, GenerationChange
from nftproxy.rules.transaction import Commit, Transaction, change_transaction
from tests.kernel.ruleset import execute, held, listing
from tests.support.examples import EXAMPLES, example_pipeline
from tests.support.factories import IPV4, IPV6, pipeline, service, slice_of
from tests.support.selection import every

pytestmark = pytest.mark.usefixtures("namespace")

DECLARED = "set s { typeof ip daddr; }; map m { typeof ip daddr . tcp dport : verdict; }; chain c { };"
SMALL = f"table ip nftproxy {{ {DECLARED} }}"


@pytest.fixture
def writer() -> Iterator[ElementWriter]:
    """A writer with a new socket."""
    with open_socket() as kernel:
        yield ElementWriter(kernel)


def transaction(family: Family, elements: Iterable[Element], *, is_new: bool) -> Transaction:
    """A transaction that adds elements, or deletes them."""
    change = GenerationChange()
    for element in elements:
        (change.add if is_new else change.remove)(element.line)
    return change_transaction(family, change)


@pytest.mark.parametrize("example", every(3, EXAMPLES))
def test_elements_are_the_same_bytes(example: str, writer: ElementWriter) -> None:
    """Elements that libnftables has written, deleted and written again without it, are the same bytes.  Ranges are
    left.
    """
    made = example_pipeline(example)
    execute(made.full_transaction({}).text)
    generations = made.generations
    before, listings = held(), {family: sorted(listing(family).splitlines()) for family in generations}
    for family, generation in generations.items():
        ranges = {name for (_, name), each in generation.declarations.items() if "flags interval" in each.body}
        elements = [each for each in generation.elements() if each.container not in ranges]
        assert writer.apply(transaction(family, elements, is_new=False).text)
        names = {each.container for each in elements}
        assert not any(found for (of, name), found in held().items() if of is family and name in names)
        assert writer.apply(transaction(family, elements, is_new=True).text)
    assert held() == before
    assert {family: sorted(listing(family).splitlines()) for family in generations} == listings


def test_a_range_is_left_to_libnftables(writer: ElementWriter) -> None:
    """Nothing of a transaction happens in which there is an element of a set of ranges."""
    execute("table ip nftproxy { set r { typeof ip daddr; flags interval; }; }")
    assert writer.apply("add element ip nftproxy r { 192.0.2.0/24 }\n") is None
    assert not any(held().values())
    execute("add element ip nftproxy r { 192.0.2.0/24 }")
    assert "192.0.2.0/24" in listing()


@pytest.mark.parametrize(
    "text",
    [
        "add chain ip nftproxy d\nadd element ip nftproxy s { 192.0.2.1 }\n",
        "add element ip nftproxy s { 192.0.2.0/24 }\n",
        "add element ip nftproxy s { 192.0.2.1 . 80 }\n",
        "add element ip nftproxy m { 192.0.2.1 . 80 : drop }\n",
        "add element ip nftproxy none { 192.0.2.1 }\n",
        "delete element ip nftproxy s { 192.0.2.1 }\n",
        "add element ip nftproxy s { 192.0.2.2 }\ndelete element ip nftproxy s { 192.0.2.1 }\n",
        "",
        "add element ip nftproxy s { " + ", ".join(["192.0.2.1"] * (MOST_CHARACTERS // 11 + 1)) + " }\n",
    ],
)
def test_nothing_happens_by_what_is_left_to_libnftables(writer: ElementWriter, text: str) -> None:
    """Unknown and refused transactions change nothing, and the writer can be used again."""
    execute(SMALL)
    assert writer.apply(text) is None
    assert not any(held().values())
    assert writer.apply("add element ip nftproxy s { 192.0.2.9 }\n")
    assert "192.0.2.9" in listing()


def test_a_refusal_says_which_statement_is_at_fault() -> None:
    """A refusal is explained by libnftables, and nothing of the transaction happens."""
    execute(SMALL)
    with pytest.raises(Refused, match=r"(?s)No such file or directory.*delete element.*192\.0\.2\.1"):
        execute("add element ip nftproxy s { 192.0.2.2 }", "delete element ip nftproxy s { 192.0.2.1 }")
    assert not any(held().values())


def test_generations_are_those_around_the_transaction(writer: ElementWriter) -> None:
    """The generations returned are the kernel's before and after, also after commits of other programs."""
    execute(SMALL)
    for number in range(1, 4):
        before = nft_queries.generation()
        commit = writer.apply(f"add element ip nftproxy s {{ 192.0.2.{number} }}\n")
        assert commit == Commit(before, nft_queries.generation())
        execute(f"add element ip nftproxy s {{ 192.0.2.{number + 100} }}")
        execute(f"add table ip another-{number}")
    (elements,) = filter(None, held().values())
    assert len(elements) == 6


def test_another_declaration_is_noticed(writer: ElementWriter) -> None:
    """A set that another program has declared anew, with keys of the same length, gets keys of its new type."""
    execute(SMALL)
    assert writer.apply("add element ip nftproxy s { 192.0.2.1 }\n")
    execute("delete set ip nftproxy s", "table ip nftproxy { set s { typeof meta mark; }; }")
    assert writer.apply("add element ip nftproxy s { 192.0.2.2 }\n") is None
    assert not any(held().values())


def test_a_long_transaction_is_one(writer: ElementWriter) -> None:
    """Elements that need several messages are a single transaction all the same."""
    execute(SMALL)
    keys = [f"10.{number >> 8}.{number & 255}.1" for number in range(LONGEST_LIST // 20)]
    before = nft_queries.generation()
    assert writer.apply(f"add element ip nftproxy s {{ {', '.join(keys)} }}\n") == Commit(before, before + 1)
    assert len(held()[IPV4, "s"]) == len(keys)


def test_a_batch_beyond_the_room_of_a_socket_is_left_to_others(writer: ElementWriter) -> None:
    """Of a batch that the socket doesn't take nothing is sent, and the writer goes on afterwards."""
    execute("table ip6 nftproxy { set s { typeof ip6 daddr; }; }")
    text = f"add element ip6 nftproxy s {{ {', '.join(f'1::{each:x}' for each in range(7_700))} }}\n"
    assert len(text) <= MOST_CHARACTERS
    before = nft_queries.generation()
    assert writer.apply(text) is None
    assert execute(text) == Commit(before, before + 1)
    assert len(held()[IPV6, "s"]) == 7_700
    assert writer.apply("add element ip6 nftproxy s { 2:: }\n") == Commit(before + 1, before + 2)


class Counted:
    """A socket that counts messages, and may lose an answer."""

    def __init__(self, kernel: socket.socket) -> None:
        self.setblocking = kernel.setblocking
        self._kernel = kernel
        self.sent = 0
        self.is_losing = False

    def sendto(self, data: bytes, address: tuple[int, int]) -> int:
        """Send a message, and count it."""
        self.sent += 1
        return self._kernel.sendto(data, address)

    def recv(self, size: int) -> bytes:
        """Receive an answer."""
        if self.is_losing:
            raise OSError(errno.ENOBUFS, "No buffer space available")
        return self._kernel.recv(size)


@pytest.fixture
def counted() -> Iterator[Counted]:
    """Such a socket, and a table with a set and a map."""
    execute(SMALL)
    with open_socket() as kernel:
        yield Counted(kernel)


def test_a_transaction_is_one_message(counted: Counted) -> None:
    """The first transaction asks for the generation and for types once.  Later transactions ask for nothing."""
    text = "add element ip nftproxy s { 192.0.2.%d }\nadd element ip nftproxy m { 192.0.2.%d . 80 : goto c }\n"
    writer = ElementWriter(counted)  # type: ignore[arg-type]
    assert writer.apply(text % (1, 1))
    assert counted.sent == 4
    for number in range(2, 12):
        assert writer.apply(text % (number, number))
    assert counted.sent == 4 + 10


def test_a_lost_answer_is_not_a_success(counted: Counted) -> None:
    """If the kernel's answer is lost, the outcome is unknown, and an error says so."""
    writer = ElementWriter(counted)  # type: ignore[arg-type]
    assert writer.apply("add element ip nftproxy s { 192.0.2.1 }\n")
    counted.is_losing = True
    with pytest.raises(OSError, match="No buffer space"):
        writer.apply("add element ip nftproxy s { 192.0.2.2 }\n")


def test_the_kernel_module_raises_what_is_not_known() -> None:
    """`Kernel` raises a lost answer as Unavailable, and opens everything anew for the next call."""
    kernel = Kernel()
    kernel.apply(Transaction(SMALL))
    lost = OSError(errno.ENOBUFS, "No buffer space available")
    with patch.object(ElementWriter, "apply", side_effect=lost), pytest.raises(Unavailable, match="No buffer space"):
        kernel.apply(Transaction("add element ip nftproxy s { 192.0.2.1 }\n"))
    kernel.apply(Transaction("add element ip nftproxy s { 192.0.2.2 }\n"))
    assert len(held()[IPV4, "s"]) == 1


WEB, OTHER = "shop/web", "shop/other"
PODS = {
    IPV4: ["10.1.0.4@node-a", "10.1.1.4@node-b", "10.1.1.5@node-b"],
    IPV6: ["2001:db8:1::4@node-a", "2001:db8:2::4@node-b", "2001:db8:2::5@node-b"],
}


def slices(name: str, change: Callable[[list[str]], list[str]] = list, port: str = "http:8080/tcp") -> list[Event]:
    """The slices of a Service, one for each family, with its pods or a change of them."""
    return [
        Put(slice_of(name, change(pods), suffix=family.name, family=family, ports=[port]))
        for family, pods in PODS.items()
    ]


def reached(name: str, number: int, **tweaks: Any) -> Service:
    """A Service of both families, which is reached at a node port and from outside too."""
    addresses = [f"10.96.0.{number}", f"2001:db8:96::{number}"]
    outside = [f"192.0.2.{number}", f"2001:db8:99::{number}"]
    ports = tweaks.pop("ports", [f"http:80:{30000 + number}/tcp"])
    return service(name, cluster_ips=addresses, type="NodePort", external_ips=outside, ports=ports, **tweaks)


def denying(count: int) -> dict[str, str]:
    """The annotation that denies `count` ranges of IPv4."""
    return {"denied-source-ranges": ",".join(f"198.18.{2 * number}.0/25" for number in range(count))}


def _applied(writer: ElementWriter, change: Transaction, *, may_declare: bool) -> bool:
    """Make a change happen, and return False for an empty change.

    The first time it may declare chains, which libnftables does.
    """
    if change and not writer.apply(change.text):
        assert may_declare, f"this needs libnftables: {change.text}"
        assert commands_of(change.text) == [], f"the kernel has not taken this: {change.text}"
        Kernel().apply(change)
    return bool(change)


def test_no_ordinary_change_needs_libnftables(writer: ElementWriter) -> None:
    """Endpoints, Services and denied ranges that come, go and change are elements alone, of types known here."""
    made = pipeline(wide_maps=False)
    # OTHER makes a chain for each number of endpoints, and the sets for denied ranges.
    beside = [Put(reached(OTHER, 9, annotations=denying(1))), *slices(OTHER)]
    made.ingest([*beside, Put(reached(WEB, 10)), *slices(WEB)])
    Kernel().apply(made.full_transaction({}))
    without_last, replaced = (lambda pods: pods[:-1]), (lambda pods: [*pods[:-1], pods[-1].replace("5@", "77@")])
    unready = lambda pods: [*pods[:-1], f"{pods[-1]} unready"]  # noqa: E731
    local, sticky = {"external_policy": "Local"}, {"affinity_timeout": 60}
    steps: list[list[Event]] = [
        [Put(reached(WEB, 10)), *slices(WEB)],
        slices(WEB, without_last),
        slices(WEB),
        slices(WEB, replaced),
        slices(WEB, unready),
        slices(WEB, lambda _: []),
        slices(WEB),
        [Put(reached(WEB, 10, **local))],
        [Put(reached(WEB, 10, **sticky))],
        [Put(reached(WEB, 10))],
        [Put(reached(WEB, 10, annotations=denying(50)))],
        [Put(reached(WEB, 10, annotations=denying(20)))],
        [Put(reached(WEB, 10))],
        [Removed(Service, made.state.services[reached(WEB, 10).key].key)],
        [Put(reached(WEB, 10, ports=["dns:53:30010/udp"])), *slices(WEB, port="dns:8053/udp")],
    ]
    for is_first in (True, False):
        done = [_applied(writer, made.ingest(step), may_declare=is_first) for step in steps]
        assert sum(done) >= len(steps) - is_first, "each of them changes rules, but that Service is there at first"
        held_by_kernel = {family: Kernel().elements(family) for family in Family}
        assert held_by_kernel == {family: frozenset(each.elements()) for family, each in made.generations.items()}
