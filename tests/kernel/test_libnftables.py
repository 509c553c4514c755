"""Transactions against the real kernel, in throw-away network namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from nftproxy.kernel.child_process import in_scratch_namespace
from nftproxy.kernel.libnftables import Kernel, TooLarge
from nftproxy.kernel.nfnetlink import nft_queries, table_view
from nftproxy.kernel.nfnetlink.sockets import bodies
from nftproxy.kernel.threads import AsyncKernel
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.rules.ruleset import Block, Declaration, Element, Generation, NftKind
from nftproxy.rules.transaction import (
    Container,
    Installed,
    Transaction,
    change_transaction,
    delete_transaction,
    load_transaction,
)
from tests.conftest import NOBODY, Run
from tests.kernel.ruleset import execute, listing
from tests.support.examples import example_pipeline
from tests.support.factories import IPV4, IPV6
from tests.support.waiting import PATIENCE

SERVICES = Declaration(NftKind.MAP, "services", ("type ipv4_addr . inet_proto . inet_service : verdict",))
CLUSTER_IPS = Declaration(NftKind.SET, "cluster-ips", ("type ipv4_addr",))
RANGES = Declaration(NftKind.SET, "ranges", ("type ipv4_addr", "flags interval"))
ALLOWED = Declaration(
    NftKind.SET, "allowed", ("type ipv4_addr . inet_proto . inet_service . ipv4_addr", "flags interval")
)
ENDPOINTS = Declaration(
    NftKind.MAP, "tcp-endpoints", ("typeof ip daddr . tcp dport . numgen random mod 2 : ip daddr . tcp dport",)
)
AFFINITY = Declaration(
    NftKind.MAP,
    "tcp-affinity",
    ("type ipv4_addr . ipv4_addr . inet_service : ipv4_addr", "size 65536", "flags dynamic,timeout", "timeout 3h"),
)
NAT = Declaration(
    NftKind.CHAIN,
    "nat-prerouting",
    (
        "type nat hook prerouting priority -100",
        "ip daddr @cluster-ips ip daddr . meta l4proto . th dport vmap @services",
    ),
)
SKELETON = Block((CLUSTER_IPS, RANGES, ALLOWED, SERVICES, ENDPOINTS, AFFINITY, NAT))
REMEMBERED = "192.0.2.9 . 10.96.0.10 . 80 : 10.1.0.4"

pytestmark = pytest.mark.usefixtures("namespace")


def of_n(count: int) -> Declaration:
    """The chain that draws from `count` endpoints."""
    draw = f"ip daddr . tcp dport . numgen random mod {count} map @tcp-endpoints"
    return Declaration(NftKind.CHAIN, f"tcp-endpoints-of-{count}", (f"meta l4proto tcp dnat ip addr . port to {draw}",))


def service(address: str, *endpoints: str) -> Block:
    """A Service port's statements: port 80 at a virtual IP, with a source range."""
    chain = of_n(len(endpoints))
    slots = enumerate(endpoints)
    return Block(
        (chain,),
        (
            f"cluster-ips {address}",
            "ranges 10.0.0.0/8",
            f"allowed {address} . tcp . 80 . 198.51.100.0/24",
            f"services {address} . tcp . 80 : goto {chain.name}",
            *(f"tcp-endpoints {address} . 80 . {slot} : {endpoint} . 8080" for slot, endpoint in slots),
        ),
    )


def generation(**blocks: Block) -> Generation:
    """The skeleton and some Services."""
    made = Generation(IPV4)
    made.replace_blocks({"skeleton": SKELETON})
    for name, block in blocks.items():
        made.replace_blocks({name: block})
    return made


def web() -> Generation:
    """A Service with two endpoints."""
    return generation(web=service("10.96.0.10", "10.1.0.4", "10.1.1.4"))


def load(kernel: Kernel, wanted: Generation, shape: str = "a1") -> None:
    """Load a generation over the present table."""
    kernel.apply(load_transaction(wanted, shape, kernel.read_back(IPV4)))


@pytest.fixture
def kernel() -> Kernel:
    """A kernel that holds a Service's rules."""
    made = Kernel()
    load(made, web())
    return made


def listed(name: str) -> str:
    """Return the body of a set or map in the listing."""
    found = re.search(rf"\t(?:map|set) {name} \{{\n(.*?)\n\t\}}", listing(), re.DOTALL)
    assert found is not None
    return found[1]


def many(count: int) -> str:
    """So many elements, as text."""
    return ", ".join(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255} . tcp . 80 : drop" for i in range(count))


def kilobytes(field: str) -> int:
    """Return a figure of this process's memory."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def memory_around_a_large_load() -> tuple[int, int]:
    """Return the kilobytes of a large transaction at its peak, and afterwards."""
    kernel = Kernel()
    load(kernel, generation())
    text = f"add element ip nftproxy services {{ {many(60_000)} }}\n"
    before = kilobytes("VmRSS")
    kernel.apply(Transaction(text))
    return kilobytes("VmHWM") - before, kilobytes("VmRSS") - before


def test_a_transaction_happens(kernel: Kernel) -> None:
    """The applied rules are there: by name, and element by element."""
    names = {container.name for container in kernel.read_back(IPV4).containers}  # type: ignore[union-attr]
    assert names == {name for _, name in web().declarations}
    assert kernel.elements(IPV4) == set(web().elements())


def test_an_empty_transaction_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction without text is no call, so it succeeds even where there is no library."""
    monkeypatch.setitem(sys.modules, "nftables", None)
    Kernel().apply(Transaction())
    Kernel().check(Transaction())


Call = Callable[[Kernel, Transaction], object]
SERVICE = "{} element ip nftproxy services {{ {} }}"
REFUSALS = {
    "no such set": (
        "add element ip nftproxy cluster-ips { 10.96.0.11 }\nadd element ip nftproxy nowhere { 10.96.0.12 }\n",
        "No such file or directory",
        "add element ip nftproxy nowhere { 10.96.0.12 }",
    ),
    "an element that leads nowhere": (
        SERVICE.format("add", "10.96.0.11 . tcp . 80 : goto refuse, 10.96.0.12 . tcp . 80 : drop"),
        "Could not process rule: No such file or directory",
        SERVICE.format("add", "10.96.0.11 . tcp . 80 : goto refuse"),
    ),
    "an element that is there with another value": (
        SERVICE.format("add", "10.96.0.9 . tcp . 80 : drop, 10.96.0.10 . tcp . 80 : drop"),
        "Could not process rule: File exists",
        SERVICE.format("add", "10.96.0.10 . tcp . 80 : drop"),
    ),
    "an element that is not there": (
        SERVICE.format("delete", many(2)),
        "Could not process rule: No such file or directory",
        SERVICE.format("delete", "10.0.0.0 . tcp . 80 : drop"),
    ),
    "one element in a megabyte": (
        SERVICE.format("add", f"{many(20_000)}, 10.96.0.10 . tcp . 80 : drop"),
        "Could not process rule: File exists",
        SERVICE.format("add", "10.96.0.10 . tcp . 80 : drop"),
    ),
    "a rule in its blocks": (
        "table ip nftproxy {\n  chain c {\n    drop\n    goto nowhere\n  }\n}\n",
        "Could not process rule: No such file or directory",
        "table ip nftproxy { chain c { goto nowhere",
    ),
    "syntax": (
        "add element ip nftproxy cluster-ips { 10.96.0.11 }\nadd elephant\n",
        "syntax error, unexpected newline",  # what was expected, versions word differently
        "add elephant",
    ),
    "a loop of chains": (
        "table ip nftproxy {\n  chain a { goto b; }\n  chain b { goto a; }\n}\n"
        "add rule ip nftproxy nat-prerouting jump a\n",
        "Could not process rule: Too many links",
        "add rule ip nftproxy nat-prerouting jump a",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
@pytest.mark.parametrize("call", [Kernel.apply, Kernel.check])
def test_a_refusal_names_the_statement(kernel: Kernel, call: Call, what: str) -> None:
    """Applying and checking refuse alike, quote the statement at fault and the reason, and leave all as it was."""
    text, message, statement = REFUSALS[what]
    before = listing()
    with pytest.raises(Refused) as caught:
        call(kernel, Transaction(text))
    assert caught.value.message.startswith(message)
    assert caught.value.statement == statement
    assert listing() == before


def test_a_long_statement_is_cut() -> None:
    """A complaint about the whole of a huge command quotes its beginning only."""
    with pytest.raises(Refused) as caught:
        execute(f"add element ip nftproxy services {{ {many(20_000)} }}")
    assert len(caught.value.statement) == 300
    assert caught.value.statement.startswith("add element ip nftproxy services { 10.0.0.0 . tcp . 80 : drop, ")


def test_more_complaints_are_counted(kernel: Kernel) -> None:
    """An error has the first of many complaints, and the number of the others."""
    delete = "delete element ip nftproxy cluster-ips { 10.9.9.9 }\n"
    with pytest.raises(Refused, match=r"No such file or directory \(and 4 more\)"):
        kernel.apply(Transaction(delete * 5))


def test_a_check_changes_nothing_and_is_no_habit(kernel: Kernel) -> None:
    """A checked transaction does not happen.  The next applied transaction does."""
    added = Element("cluster-ips", "10.96.0.11", "")
    transaction = Transaction(f"add element ip nftproxy {added.container} {{ {added.key} }}\n")
    kernel.check(transaction)
    assert added not in kernel.elements(IPV4)
    kernel.apply(transaction)
    assert added in kernel.elements(IPV4)


@pytest.mark.parametrize("is_lost", [False, True], ids=["never there", "lost"])
def test_without_permission(capfd: pytest.CaptureFixture[str], is_lost: bool) -> None:
    """Without CAP_NET_ADMIN, from the beginning or later, errors name it, and libnftables prints nothing."""
    kernel = Kernel()
    if is_lost:
        kernel.apply(delete_transaction(IPV4))
    os.seteuid(NOBODY)
    try:
        for call in (kernel.apply, kernel.check):
            with pytest.raises(Unavailable, match="CAP_NET_ADMIN"):
                call(delete_transaction(IPV4))
        for ask in (kernel.read_back, kernel.elements, kernel.listing):
            with pytest.raises(Unavailable, match="CAP_NET_ADMIN"):
                ask(IPV4)
    finally:
        os.seteuid(0)
    assert capfd.readouterr() == ("", "")


def test_without_the_binding(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without python3-nftables the error says to install it, and reading back works all the same."""
    monkeypatch.setitem(sys.modules, "nftables", None)
    assert Kernel().read_back(IPV4) == kernel.read_back(IPV4) != None  # noqa: E711
    with pytest.raises(Unavailable, match="install python3-nftables"):
        Kernel().apply(delete_transaction(IPV4))


class OldBinding:
    """The contexts of python3-nftables 1.0.2, as far as they matter."""


class NewBinding(OldBinding):
    """The contexts of python3-nftables 1.1, with a library that is older."""

    def __init__(self) -> None:
        raise AttributeError("undefined symbol: nft_ctx_input_get_flags")

    def set_dry_run(self) -> None:
        """Be there, as since 1.0.3."""


@pytest.mark.parametrize(
    ("binding", "text"),
    [
        (OldBinding, "this nftables module is too old: install nft 1.0.6 or later"),
        (NewBinding, "libnftables is older than the nftables module of Python: undefined symbol"),
    ],
)
def test_an_old_nft(monkeypatch: pytest.MonkeyPatch, binding: type, text: str) -> None:
    """With an nft or a Python binding that is too old, the error says so."""
    monkeypatch.setitem(sys.modules, "nftables", SimpleNamespace(Nftables=binding))
    with pytest.raises(Unavailable, match=text):
        Kernel().apply(delete_transaction(IPV4))


@pytest.mark.slow
def test_a_transaction_too_large_for_a_user_is_told_from_a_refusal(as_nobody: Run) -> None:
    """In a user namespace a transaction of 20,000 elements is too large, which is no refusal."""
    code = "from nftproxy.kernel.child_process import in_scratch_namespace as run"
    own = "from tests.kernel.test_libnftables import large_load_as_user"
    assert as_nobody(f"{code}; {own}; print(run(large_load_as_user))") == "too large\n"


def large_load_as_user() -> str:
    """Apply more than a user may send at once, by a socket with the room that it has from the start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_view, "make_room", lambda *_: None)
        return _large_load()


def _large_load() -> str:
    try:
        execute(f"table ip nftproxy {{ map services {{ {SERVICES.body[0]}; }}; }}")
        execute(f"add element ip nftproxy services {{ {many(20_000)} }}")
    except TooLarge:
        return "too large"
    return "not too large"


@pytest.mark.slow
def test_a_user_may_replace_both_tables(as_nobody: Run) -> None:
    """In a user namespace the examples' largest tables are replaced, although libnftables has no room of its own."""
    code = "from nftproxy.kernel.child_process import in_scratch_namespace as run"
    own = "from tests.kernel.test_libnftables import replacement_as_user"
    assert as_nobody(f"{code}; {own}; print(run(replacement_as_user))") == "True\n"


def replacement_as_user() -> bool:
    """Load tables and replace them, and return whether the kernel has them."""
    made = example_pipeline("external-ips")
    Kernel().apply(made.full_transaction({}))
    Kernel().apply(made.full_transaction(dict.fromkeys(Family, Installed())))
    return all(map(Kernel().read_back, Family))


def test_reading_back_nothing() -> None:
    """Without a table of ours there is nothing to read back, whichever tables other programs have."""
    execute('table ip other { comment "nftproxy a1"; chain services { }; }')
    assert Kernel().read_back(IPV4) is None
    assert Kernel().elements(IPV4) == frozenset()


def test_reading_back_names_and_shape(kernel: Kernel) -> None:
    """Sets, maps, which of them are dynamic, chains, and the shape are read back, of our table only."""
    other = 'table {} {{ comment "nftproxy z9"; set s {{ type ipv4_addr; }}; chain c {{ }}; }}'
    execute(*map(other.format, ("ip other", "ip6 nftproxy", "inet nftproxy")))
    assert kernel.read_back(IPV4) == Installed(
        "a1",
        (
            Container(NftKind.CHAIN, "nat-prerouting"),
            Container(NftKind.CHAIN, "tcp-endpoints-of-2"),
            Container(NftKind.MAP, "services"),
            Container(NftKind.MAP, "tcp-affinity", is_dynamic=True),
            Container(NftKind.MAP, "tcp-endpoints"),
            Container(NftKind.SET, "allowed"),
            Container(NftKind.SET, "cluster-ips"),
            Container(NftKind.SET, "ranges"),
        ),
    )


@pytest.mark.parametrize("comment", ["", 'comment "mine";', 'comment "nftproxy";'])
def test_a_table_without_our_comment_has_no_shape(comment: str) -> None:
    """A table of our name that we did not write, or that `render` did, has the shape ""."""
    execute(f"table ip nftproxy {{ {comment} }}")
    assert Kernel().read_back(IPV4) == Installed(has_hooks=False)


def test_anonymous_sets_are_not_read_back() -> None:
    """A set in a rule has no name by which it could be flushed."""
    execute("table ip nftproxy { chain c { ip saddr { 10.1.0.4, 10.1.0.5 } drop; }; }")
    assert Kernel().read_back(IPV4) == Installed("", (Container(NftKind.CHAIN, "c"),), has_hooks=False)


def test_reading_back_lists_no_elements(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel answers with as many messages as before if a map has 10,000 elements more."""
    found: list[bytes] = []

    def noted(kernel: socket.socket, asked: bytes, *, may_change: bool = False) -> Iterator[bytes]:
        for each in bodies(kernel, asked, may_change=may_change):
            found.append(each)
            yield each

    monkeypatch.setattr(nft_queries, "bodies", noted)

    def messages() -> int:
        found.clear()
        kernel.read_back(IPV4)
        return len(found)

    before = messages()
    execute(f"add element ip nftproxy services {{ {many(10_000)} }}")
    assert len(kernel.elements(IPV4)) == 10_000 + len(set(web().elements()))
    assert before > 1
    assert messages() == before


ROUND_TRIP = {
    IPV4: (
        Element("addresses", "10.96.0.10", ""),
        Element("verdicts", "10.96.0.10 . tcp . 80", "goto tcp-endpoints-of-3"),
        Element("verdicts", "10.96.0.10 . udp . 53", "jump tcp-endpoints-of-3"),
        Element("verdicts", "10.96.0.10 . sctp . 65535", "drop"),
        Element("ports", "tcp . 30443", "goto tcp-endpoints-of-3"),
        Element("endpoints", "10.96.0.10 . 80 . 0", "10.1.0.4 . 8080"),
        Element("endpoints", "10.96.0.10 . 80 . 256", "10.1.1.4 . 22"),
        Element("sources", "10.0.0.0/8", ""),
        Element("sources", "192.0.2.1", ""),
        Element("sources", "198.51.100.0-198.51.100.9", ""),
        Element("allowed", "10.96.0.10 . tcp . 443 . 198.51.100.0/24", ""),
        Element("allowed", "10.96.0.11 . udp . 443 . 0.0.0.0/0", ""),
        Element("allowed", "10.96.0.12 . tcp . 443 . 192.0.2.1", ""),
        Element("counted", "10.96.0.10 . tcp . 80", "goto tcp-endpoints-of-3"),
    ),
    IPV6: (
        Element("addresses", "fd00:96::a", ""),
        Element("addresses", "2001:db8::1:0:0:1", ""),
        Element("addresses", "::102:304", ""),
        Element("verdicts", "fd00:96::a . tcp . 80", "goto tcp-endpoints-of-3"),
        Element("verdicts", "fd00:96::a . udp . 53", "jump tcp-endpoints-of-3"),
        Element("verdicts", "fd00:96::a . sctp . 65535", "drop"),
        Element("ports", "tcp . 30443", "goto tcp-endpoints-of-3"),
        Element("endpoints", "fd00:96::a . 80 . 0", "fd00:1::4 . 8080"),
        Element("endpoints", "fd00:96::a . 80 . 256", "fd00:1:1::4 . 22"),
        Element("sources", "fd00::/8", ""),
        Element("sources", "2001:db8::1", ""),
        Element("allowed", "fd00:96::a . tcp . 443 . 2001:db8::/32", ""),
        Element("allowed", "fd00:96::b . udp . 443 . ::/0", ""),
        Element("allowed", "fd00:96::c . tcp . 443 . 2001:db8::1", ""),
        Element("counted", "fd00:96::a . tcp . 80", "goto tcp-endpoints-of-3"),
    ),
}


def kinds_of_containers(family: Family, elements: Iterable[Element]) -> Generation:
    """A container of each kind that templates declare, with these elements."""
    address, name = {IPV4: "ipv4_addr", IPV6: "ipv6_addr"}[family], family.value
    slot = f"{name} daddr . tcp dport . numgen random mod 2"
    bodies = {
        "addresses": (NftKind.SET, f"type {address}"),
        "verdicts": (NftKind.MAP, f"type {address} . inet_proto . inet_service : verdict"),
        "ports": (NftKind.MAP, "type inet_proto . inet_service : verdict"),
        "endpoints": (NftKind.MAP, f"typeof {slot} : {name} daddr . tcp dport"),
        "sources": (NftKind.SET, f"type {address}; flags interval"),
        "allowed": (NftKind.SET, f"type {address} . inet_proto . inet_service . {address}; flags interval"),
        "counted": (NftKind.MAP, f"typeof {name} daddr . meta l4proto . th dport : verdict; counter"),
        "seen": (NftKind.MAP, f"type {address} : {address}; size 65536; flags dynamic,timeout; timeout 3h"),
    }
    declarations = [Declaration(kind, each, tuple(body.split("; "))) for each, (kind, body) in bodies.items()]
    made = Generation(family)
    chain = Declaration(NftKind.CHAIN, "tcp-endpoints-of-3", ("drop",))
    made.replace_blocks({"all": Block((*declarations, chain), tuple(each.line for each in elements))})
    return made


@pytest.mark.parametrize("family", Family)
def test_elements_read_back_as_they_were_written(family: Family) -> None:
    """Each kind of element is read back as the text that was written.  Elements of packets don't count."""
    kernel = Kernel()
    kernel.apply(load_transaction(kinds_of_containers(family, ROUND_TRIP[family]), "a1", None))
    address = ROUND_TRIP[family][0].key
    execute(f"add element {family.table} seen {{ {address} : {address} }}")
    assert kernel.elements(family) == set(ROUND_TRIP[family])


def test_reloading_one_shape_keeps_what_packets_wrote(kernel: Kernel) -> None:
    """A reload replaces every element and rule, deletes unused chains, and keeps the dynamic map's entries."""
    execute(f"add element ip nftproxy tcp-affinity {{ {REMEMBERED} }}")
    execute("add rule ip nftproxy nat-prerouting drop")
    wanted = generation(api=service("10.96.0.1", "10.1.0.7"))
    load(kernel, wanted)
    assert kernel.elements(IPV4) == set(wanted.elements())
    assert REMEMBERED.split(" : ")[0] in listed("tcp-affinity")
    assert Container(NftKind.CHAIN, "tcp-endpoints-of-2") not in kernel.read_back(IPV4).containers  # type: ignore[union-attr]
    assert "\t\tdrop\n" not in listing()


@pytest.mark.parametrize(
    "harm",
    [
        "add chain ip nftproxy nat-prerouting { policy drop; }\n",
        "add table ip nftproxy { flags dormant; }\n",
        "add table ip nftproxy { flags dormant; }\nadd chain ip nftproxy nat-prerouting { policy drop; }\n",
    ],
)
def test_a_reload_repairs_what_has_no_rules(kernel: Kernel, harm: str) -> None:
    """A base chain gets its policy back, and a dormant table is awake again."""
    before = listing()
    kernel.apply(Transaction(harm))
    assert listing() != before
    load(kernel, web())
    assert listing() == before


def test_a_reload_twice_is_the_same(kernel: Kernel) -> None:
    """A second load of the same rules changes nothing in the listing."""
    before = kernel.elements(IPV4), kernel.read_back(IPV4)
    load(kernel, web())
    assert (kernel.elements(IPV4), kernel.read_back(IPV4)) == before


def test_loading_another_shape_replaces_the_table() -> None:
    """A table of another shape, even with other types behind the same names, is replaced whole."""
    affinity = "map tcp-affinity { type ipv4_addr . ipv4_addr . inet_service : ipv4_addr; flags timeout; };"
    verdicts = "map cluster-ips { type ipv4_addr : verdict; }; chain old { };"
    execute(
        f'table ip nftproxy {{ comment "nftproxy a0"; {verdicts} {affinity} }}',
        "add element ip nftproxy cluster-ips { 10.96.0.10 : goto old }",
        f"add element ip nftproxy tcp-affinity {{ {REMEMBERED} }}",
    )
    kernel = Kernel()
    load(kernel, web(), "a1")
    assert kernel.read_back(IPV4).shape == "a1"  # type: ignore[union-attr]
    assert kernel.elements(IPV4) == set(web().elements())
    assert "elements" not in listed("tcp-affinity")


def test_a_change_makes_the_difference() -> None:
    """After a change the kernel holds the same as after a fresh load: new chains, moved elements, no lost elements."""
    kernel = Kernel()
    running = generation(web=service("10.96.0.10", "10.1.0.4"), api=service("10.96.0.1", "10.1.0.7"))
    load(kernel, running)
    change = running.replace_blocks({"web": service("10.96.0.10", "10.1.2.4", "10.1.0.4"), "api": Block()})
    kernel.apply(change_transaction(IPV4, change))
    assert kernel.elements(IPV4) == set(running.elements())
    assert Element("services", "10.96.0.10 . tcp . 80", "goto tcp-endpoints-of-2") in kernel.elements(IPV4)


def test_deleting_is_idempotent(kernel: Kernel) -> None:
    """Deleting our tables works where they are and where they aren't, and touches nothing else."""
    execute("add table ip other")
    for family in [*Family, *Family]:
        kernel.apply(delete_transaction(family))
        assert kernel.read_back(family) is None
    execute("delete table ip other")


def test_another_program_s_changes_are_noticed(kernel: Kernel) -> None:
    """A kernel object that libnftables has cached and another program replaced is looked at again."""
    Kernel().apply(delete_transaction(IPV4))
    with pytest.raises(Refused, match="No such file or directory"):
        kernel.apply(Transaction("add element ip nftproxy cluster-ips { 10.96.0.11 }\n"))
    load(kernel, web())
    assert kernel.elements(IPV4) == set(web().elements())


@pytest.mark.slow
def test_memory_of_a_large_load_is_given_back() -> None:
    """Less than a quarter of the memory that a transaction of 60,000 elements takes is kept."""
    peak, stays = in_scratch_namespace(memory_around_a_large_load)
    assert peak > 60_000
    assert stays < peak / 4


def test_threads_take_turns() -> None:
    """Threads that share a kernel all get their transactions through."""
    kernel = Kernel()
    load(kernel, generation())

    def add(thread: int) -> None:
        for number in range(50):
            kernel.apply(Transaction(f"add element ip nftproxy cluster-ips {{ 10.96.{thread}.{number} }}\n"))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(4)))
    assert len(kernel.elements(IPV4)) == 200


@pytest.mark.slow
async def test_the_event_loop_runs_meanwhile() -> None:
    """While a large transaction is applied, the event loop goes on, and the calls come in their order."""
    with contextlib.closing(AsyncKernel()) as kernel:
        await kernel.apply(load_transaction(generation(), "a1", await kernel.read_back(IPV4)))
        text = f"add element ip nftproxy services {{ {many(15_000)} }}\n"
        await kernel.check(Transaction(text))
        loading, ticks = asyncio.create_task(kernel.apply(Transaction(text))), 0
        while not loading.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await loading
        assert await kernel.read_back(IPV4) is not None
    assert ticks > 10
    assert len(Kernel().elements(IPV4)) == 15_000


def test_the_version_is_a_number() -> None:
    """The library's version is known, for messages."""
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", Kernel().version())


def test_clients_are_counted() -> None:
    """The maps that packets write are counted, where the kernel tells, without their elements being listed."""
    clients = "map clients { typeof ip saddr : ip daddr; size 1000; flags dynamic,timeout; timeout 1h; };"
    elements = ", ".join(f"10.0.0.{number} : 10.1.0.1" for number in range(5))
    execute(
        f"table ip nftproxy {{ {clients} set others {{ typeof ip saddr; }}; }}",
        f"add element ip nftproxy clients {{ {elements} }}",
    )
    assert Kernel().client_counts(IPV4) in ({"clients": 5}, {})  # Linux 6.1 doesn't tell


def test_a_program_ends_with_a_session_that_nobody_closed() -> None:
    """A program ends, too, if the interpreter's last garbage collection finds a kernel.  No thread runs then."""
    code = """
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
kernel = Kernel()
kernel.prepare()
kernel.read_back(Family.IPV4)
kernel.itself = kernel
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
