"""Transactions against the real kernel, in throw-away network namespaces."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from nftproxy.kernel.libnftables import AsyncKernel, Kernel, TooLarge
from nftproxy.kernel.netns import in_scratch_namespace
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.rules.ruleset import Block, Declaration, Element, Generation, Kind
from nftproxy.rules.transaction import (
    Container,
    Installed,
    Transaction,
    change_transaction,
    delete_transaction,
    load_transaction,
)
from tests.conftest import NOBODY, Run

SERVICES = Declaration(Kind.MAP, "services", ("type ipv4_addr . inet_proto . inet_service : verdict",))
CLUSTER_IPS = Declaration(Kind.SET, "cluster-ips", ("type ipv4_addr",))
RANGES = Declaration(Kind.SET, "ranges", ("type ipv4_addr", "flags interval"))
ALLOWED = Declaration(Kind.SET, "allowed", ("type ipv4_addr . inet_proto . inet_service . ipv4_addr", "flags interval"))
ENDPOINTS = Declaration(
    Kind.MAP, "tcp-endpoints", ("typeof ip daddr . tcp dport . numgen random mod 2 : ip daddr . tcp dport",)
)
AFFINITY = Declaration(
    Kind.MAP,
    "tcp-affinity",
    ("type ipv4_addr . ipv4_addr . inet_service : ipv4_addr", "size 65536", "flags dynamic,timeout", "timeout 3h"),
)
NAT = Declaration(
    Kind.CHAIN,
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
    """The chain that draws one of so many endpoints."""
    draw = f"ip daddr . tcp dport . numgen random mod {count} map @tcp-endpoints"
    return Declaration(Kind.CHAIN, f"tcp-endpoints-of-{count}", (f"meta l4proto tcp dnat ip addr . port to {draw}",))


def service(address: str, *endpoints: str) -> Block:
    """One Service port's statements: port 80 at a virtual IP, with a source range for good measure."""
    chain = of_n(len(endpoints))
    slots = enumerate(endpoints)
    return Block(
        (chain,),
        (
            Element("cluster-ips", address, ""),
            Element("ranges", "10.0.0.0/8", ""),
            Element("allowed", f"{address} . tcp . 80 . 198.51.100.0/24", ""),
            Element("services", f"{address} . tcp . 80", f"goto {chain.name}"),
            *(Element("tcp-endpoints", f"{address} . 80 . {slot}", f"{endpoint} . 8080") for slot, endpoint in slots),
        ),
    )


def generation(**blocks: Block) -> Generation:
    """The skeleton and some Services."""
    made = Generation(Family.IPV4)
    made.update({"skeleton": SKELETON})
    for name, block in blocks.items():
        made.update({name: block})
    return made


def web() -> Generation:
    """One Service with two endpoints."""
    return generation(web=service("10.96.0.10", "10.1.0.4", "10.1.1.4"))


def load(kernel: Kernel, wanted: Generation, shape: str = "a1") -> None:
    """Load a generation over whatever is there."""
    kernel.apply(load_transaction(wanted, shape, kernel.read_back(Family.IPV4)))


def listed(kernel: Kernel, name: str) -> str:
    """What is between the braces of one set or map in the listing."""
    found = re.search(rf"\t(?:map|set) {name} \{{\n(.*?)\n\t\}}", kernel.listing(Family.IPV4), re.DOTALL)
    assert found is not None
    return found[1]


def many(count: int) -> str:
    """So many elements, as text."""
    return ", ".join(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255} . tcp . 80 : drop" for i in range(count))


def kilobytes(field: str) -> int:
    """One of this process's memory figures."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def memory_around_a_large_load() -> tuple[int, int]:
    """How many kilobytes one large transaction takes at its peak, and how many stay."""
    kernel = Kernel()
    load(kernel, generation())
    text = f"add element ip nftproxy services {{ {many(60_000)} }}\n"
    before = kilobytes("VmRSS")
    kernel.apply(Transaction(text))
    return kilobytes("VmHWM") - before, kilobytes("VmRSS") - before


def seconds(call: object, *arguments: object) -> float:
    """How long a call takes."""
    assert callable(call)
    started = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started


def test_a_transaction_happens() -> None:
    """What was applied is there: by name, and element by element."""
    kernel = Kernel()
    load(kernel, web())
    names = {container.name for container in kernel.read_back(Family.IPV4).containers}  # type: ignore[union-attr]
    assert names == {name for _, name in web().declarations}
    assert kernel.elements(Family.IPV4) == set(web().elements())


def test_an_empty_transaction_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction without text is no call, so it succeeds even where there is no library."""
    monkeypatch.setitem(sys.modules, "nftables", None)
    Kernel().apply(Transaction())
    Kernel().check(Transaction())


@pytest.mark.parametrize(
    ("text", "message", "statement"),
    [
        pytest.param(
            "add element ip nftproxy cluster-ips { 10.96.0.11 }\nadd element ip nftproxy nowhere { 10.96.0.12 }\n",
            "No such file or directory",
            "add element ip nftproxy nowhere { 10.96.0.12 }",
            id="no such set",
        ),
        pytest.param(
            "add element ip nftproxy services { 10.96.0.11 . tcp . 80 : goto refuse, 10.96.0.12 . tcp . 80 : drop }\n",
            "Could not process rule: No such file or directory",
            "add element ip nftproxy services { 10.96.0.11 . tcp . 80 : goto refuse }",
            id="an element that leads nowhere",
        ),
        pytest.param(
            "add element ip nftproxy services { 10.96.0.9 . tcp . 80 : drop, 10.96.0.10 . tcp . 80 : drop }\n",
            "Could not process rule: File exists",
            "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : drop }",
            id="an element that is there with another value",
        ),
        pytest.param(
            f"delete element ip nftproxy services {{ {many(2)} }}\n",
            "Could not process rule: No such file or directory",
            "delete element ip nftproxy services { 10.0.0.0 . tcp . 80 : drop }",
            id="an element that is not there",
        ),
        pytest.param(
            f"add element ip nftproxy services {{ {many(20_000)}, 10.96.0.10 . tcp . 80 : drop }}\n",
            "Could not process rule: File exists",
            "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : drop }",
            id="one element in a megabyte",
        ),
        pytest.param(
            "table ip nftproxy {\n  chain c {\n    drop\n    goto nowhere\n  }\n}\n",
            "Could not process rule: No such file or directory",
            "table ip nftproxy { chain c { goto nowhere",
            id="a rule in its blocks",
        ),
        pytest.param(
            "add element ip nftproxy cluster-ips { 10.96.0.11 }\nadd elephant\n",
            "syntax error, unexpected newline",  # what was expected, versions word differently
            "add elephant",
            id="syntax",
        ),
        pytest.param(
            "table ip nftproxy {\n  chain a { goto b; }\n  chain b { goto a; }\n}\n"
            "add rule ip nftproxy nat-prerouting jump a\n",
            "Could not process rule: Too many links",
            "add rule ip nftproxy nat-prerouting jump a",
            id="a loop of chains",
        ),
    ],
)
@pytest.mark.parametrize("call", [Kernel.apply, Kernel.check])
def test_a_refusal_names_the_statement(call: object, text: str, message: str, statement: str) -> None:
    """Applying and checking refuse alike, quote the statement at fault and the reason, and leave all as it was."""
    kernel = Kernel()
    load(kernel, web())
    before = kernel.listing(Family.IPV4)
    with pytest.raises(Refused) as caught:
        call(kernel, Transaction(text))  # type: ignore[operator]
    assert caught.value.message.startswith(message)
    assert caught.value.statement == statement
    assert kernel.listing(Family.IPV4) == before


def test_a_long_statement_is_cut() -> None:
    """A complaint about the whole of a huge command quotes its beginning only."""
    with pytest.raises(Refused) as caught:
        Kernel().apply(Transaction(f"add element ip nftproxy services {{ {many(20_000)} }}\n"))
    assert len(caught.value.statement) == 300
    assert caught.value.statement.startswith("add element ip nftproxy services { 10.0.0.0 . tcp . 80 : drop, ")


def test_more_complaints_are_counted() -> None:
    """Of many complaints the first is told, and how many more there are."""
    kernel = Kernel()
    load(kernel, web())
    delete = "delete element ip nftproxy cluster-ips { 10.9.9.9 }\n"
    with pytest.raises(Refused, match=r"No such file or directory \(and 4 more\)"):
        kernel.apply(Transaction(delete * 5))


def test_a_check_changes_nothing_and_is_no_habit() -> None:
    """A checked transaction does not happen; the next one that is applied does."""
    kernel = Kernel()
    add = Transaction("add element ip nftproxy cluster-ips { 10.96.0.11 }\n")
    load(kernel, web())
    kernel.check(add)
    assert Element("cluster-ips", "10.96.0.11", "") not in kernel.elements(Family.IPV4)
    kernel.apply(add)
    assert Element("cluster-ips", "10.96.0.11", "") in kernel.elements(Family.IPV4)


def test_without_permission(capfd: pytest.CaptureFixture[str]) -> None:
    """Without CAP_NET_ADMIN every call says what it takes, and libnftables prints nothing."""
    kernel = Kernel()
    os.seteuid(NOBODY)
    try:
        for call in (kernel.apply, kernel.check):
            with pytest.raises(Unavailable, match="CAP_NET_ADMIN"):
                call(delete_transaction(Family.IPV4))
        for ask in (kernel.read_back, kernel.elements, kernel.listing):
            with pytest.raises(Unavailable, match="CAP_NET_ADMIN"):
                ask(Family.IPV4)
    finally:
        os.seteuid(0)
    assert capfd.readouterr() == ("", "")


def test_permission_that_was_lost() -> None:
    """When the permission goes away after the first call, that is distinguished from a refusal."""
    kernel = Kernel()
    kernel.apply(delete_transaction(Family.IPV4))
    os.seteuid(NOBODY)
    try:
        with pytest.raises(Unavailable, match="CAP_NET_ADMIN"):
            kernel.apply(delete_transaction(Family.IPV4))
    finally:
        os.seteuid(0)


def test_without_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without python3-nftables the error says to install it, and reading back works all the same."""
    kernel = Kernel()
    load(kernel, web())
    monkeypatch.setitem(sys.modules, "nftables", None)
    assert Kernel().read_back(Family.IPV4) == kernel.read_back(Family.IPV4) != None  # noqa: E711
    with pytest.raises(Unavailable, match="install python3-nftables"):
        Kernel().apply(delete_transaction(Family.IPV4))


def test_a_transaction_too_large_for_a_user_is_told_from_a_refusal(as_nobody: Run) -> None:
    """In a user namespace a transaction of 20,000 elements is too large, which is nobody's fault."""
    code = "from nftproxy.kernel.netns import in_scratch_namespace as run"
    own = "from tests.kernel.test_libnftables import large_load_as_user"
    assert as_nobody(f"{code}; {own}; print(run(large_load_as_user))") == "too large\n"


def large_load_as_user() -> str:
    """Apply more than a user may send at once."""
    try:
        Kernel().apply(Transaction(f"table ip nftproxy {{\n  map services {{\n    {SERVICES.body[0]}\n  }}\n}}\n"))
        Kernel().apply(Transaction(f"add element ip nftproxy services {{ {many(20_000)} }}\n"))
    except TooLarge:
        return "too large"
    return "not too large"


def test_reading_back_nothing() -> None:
    """Without a table of ours there is nothing to read back, whatever others have."""
    kernel = Kernel()
    kernel.apply(Transaction('table ip other {\n  comment "nftproxy a1"\n  chain services {\n  }\n}\n'))
    assert kernel.read_back(Family.IPV4) is None
    assert kernel.elements(Family.IPV4) == frozenset()


def test_reading_back_names_and_shape() -> None:
    """Sets, maps, which of them are dynamic, chains, and the shape are read back, of our table only."""
    kernel = Kernel()
    other = 'table {} {{\n  comment "nftproxy z9"\n  set s {{\n    type ipv4_addr\n  }}\n  chain c {{\n  }}\n}}\n'
    kernel.apply(Transaction(other.format("ip other") + other.format("ip6 nftproxy") + other.format("inet nftproxy")))
    load(kernel, web())
    assert kernel.read_back(Family.IPV4) == Installed(
        "a1",
        (
            Container(Kind.CHAIN, "nat-prerouting"),
            Container(Kind.CHAIN, "tcp-endpoints-of-2"),
            Container(Kind.MAP, "services"),
            Container(Kind.MAP, "tcp-affinity", is_dynamic=True),
            Container(Kind.MAP, "tcp-endpoints"),
            Container(Kind.SET, "allowed"),
            Container(Kind.SET, "cluster-ips"),
            Container(Kind.SET, "ranges"),
        ),
    )


@pytest.mark.parametrize("comment", ["", '  comment "mine"\n', '  comment "nftproxy"\n'])
def test_a_table_without_our_comment_has_no_shape(comment: str) -> None:
    """A table of our name that we did not write, or that `render` did, has the shape ""."""
    kernel = Kernel()
    kernel.apply(Transaction(f"table ip nftproxy {{\n{comment}}}\n"))
    assert kernel.read_back(Family.IPV4) == Installed(has_hooks=False)


def test_anonymous_sets_are_not_read_back() -> None:
    """A set that stands in a rule has no name that one could flush."""
    kernel = Kernel()
    kernel.apply(Transaction("table ip nftproxy {\n  chain c {\n    ip saddr { 10.1.0.4, 10.1.0.5 } drop\n  }\n}\n"))
    assert kernel.read_back(Family.IPV4) == Installed("", (Container(Kind.CHAIN, "c"),), has_hooks=False)


def test_reading_back_lists_no_elements() -> None:
    """With 100,000 elements, reading back takes less than a fiftieth of the time of listing them."""
    kernel = Kernel()
    load(kernel, web())
    kernel.apply(Transaction(f"add element ip nftproxy services {{ {many(100_000)} }}\n"))
    listing = seconds(kernel.elements, Family.IPV4)
    reading = min(seconds(kernel.read_back, Family.IPV4) for _ in range(5))
    assert len(kernel.elements(Family.IPV4)) == 100_000 + len(set(web().elements()))
    assert reading < listing / 50


ROUND_TRIP = {
    Family.IPV4: (
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
    Family.IPV6: (
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
    """One container of each kind that templates declare, with these elements."""
    address, name = {Family.IPV4: "ipv4_addr", Family.IPV6: "ipv6_addr"}[family], family.value
    slot = f"{name} daddr . tcp dport . numgen random mod 2"
    bodies = {
        "addresses": (Kind.SET, f"type {address}"),
        "verdicts": (Kind.MAP, f"type {address} . inet_proto . inet_service : verdict"),
        "ports": (Kind.MAP, "type inet_proto . inet_service : verdict"),
        "endpoints": (Kind.MAP, f"typeof {slot} : {name} daddr . tcp dport"),
        "sources": (Kind.SET, f"type {address}; flags interval"),
        "allowed": (Kind.SET, f"type {address} . inet_proto . inet_service . {address}; flags interval"),
        "counted": (Kind.MAP, f"typeof {name} daddr . meta l4proto . th dport : verdict; counter"),
        "seen": (Kind.MAP, f"type {address} : {address}; size 65536; flags dynamic,timeout; timeout 3h"),
    }
    declarations = [Declaration(kind, each, tuple(body.split("; "))) for each, (kind, body) in bodies.items()]
    made = Generation(family)
    chain = Declaration(Kind.CHAIN, "tcp-endpoints-of-3", ("drop",))
    made.update({"all": Block((*declarations, chain), tuple(elements))})
    return made


@pytest.mark.parametrize("family", Family)
def test_elements_read_back_as_they_were_written(family: Family) -> None:
    """Each kind of element comes back in the very text in which it went in; what packets remember does not count."""
    kernel = Kernel()
    kernel.apply(load_transaction(kinds_of_containers(family, ROUND_TRIP[family]), "a1", None))
    address = ROUND_TRIP[family][0].key
    kernel.apply(Transaction(f"add element {family.table} seen {{ {address} : {address} }}\n"))
    assert kernel.elements(family) == set(ROUND_TRIP[family])


def test_reloading_one_shape_keeps_what_packets_wrote() -> None:
    """A reload replaces every element and rule, deletes chains nobody uses, and keeps the dynamic map's entries."""
    kernel = Kernel()
    load(kernel, web())
    kernel.apply(Transaction(f"add element ip nftproxy tcp-affinity {{ {REMEMBERED} }}\n"))
    kernel.apply(Transaction("add rule ip nftproxy nat-prerouting drop\n"))
    wanted = generation(api=service("10.96.0.1", "10.1.0.7"))
    load(kernel, wanted)
    assert kernel.elements(Family.IPV4) == set(wanted.elements())
    assert REMEMBERED.split(" : ")[0] in listed(kernel, "tcp-affinity")
    assert Container(Kind.CHAIN, "tcp-endpoints-of-2") not in kernel.read_back(Family.IPV4).containers  # type: ignore[union-attr]
    assert "\t\tdrop\n" not in kernel.listing(Family.IPV4)


@pytest.mark.parametrize(
    "harm",
    [
        "add chain ip nftproxy nat-prerouting { policy drop; }\n",
        "add table ip nftproxy { flags dormant; }\n",
        "add table ip nftproxy { flags dormant; }\nadd chain ip nftproxy nat-prerouting { policy drop; }\n",
    ],
)
def test_a_reload_repairs_what_has_no_rules(harm: str) -> None:
    """A base chain gets its policy back, and a table that somebody made dormant is awake again."""
    kernel = Kernel()
    load(kernel, web())
    before = kernel.listing(Family.IPV4)
    kernel.apply(Transaction(harm))
    assert kernel.listing(Family.IPV4) != before
    load(kernel, web())
    assert kernel.listing(Family.IPV4) == before


def test_a_reload_twice_is_the_same() -> None:
    """Loading what is there already changes nothing that one could list."""
    kernel = Kernel()
    load(kernel, web())
    before = kernel.elements(Family.IPV4), kernel.read_back(Family.IPV4)
    load(kernel, web())
    assert (kernel.elements(Family.IPV4), kernel.read_back(Family.IPV4)) == before


def test_loading_another_shape_replaces_the_table() -> None:
    """A table of another shape, even with other types behind the same names, is replaced whole."""
    kernel = Kernel()
    kernel.apply(
        Transaction(
            'table ip nftproxy {\n  comment "nftproxy a0"\n  map cluster-ips {\n    type ipv4_addr : verdict\n  }\n'
            "  map tcp-affinity {\n    type ipv4_addr . ipv4_addr . inet_service : ipv4_addr\n    flags timeout\n  }\n"
            "  chain old {\n  }\n}\nadd element ip nftproxy cluster-ips { 10.96.0.10 : goto old }\n"
            f"add element ip nftproxy tcp-affinity {{ {REMEMBERED} }}\n"
        )
    )
    load(kernel, web(), "a1")
    assert kernel.read_back(Family.IPV4).shape == "a1"  # type: ignore[union-attr]
    assert kernel.elements(Family.IPV4) == set(web().elements())
    assert "elements" not in listed(kernel, "tcp-affinity")


def test_a_change_makes_the_difference() -> None:
    """After a change the kernel holds what a load from nothing would: new chains, moved elements, no lost ones."""
    kernel = Kernel()
    running = generation(web=service("10.96.0.10", "10.1.0.4"), api=service("10.96.0.1", "10.1.0.7"))
    load(kernel, running)
    change = running.update({"web": service("10.96.0.10", "10.1.2.4", "10.1.0.4"), "api": Block()})
    kernel.apply(change_transaction(Family.IPV4, change))
    assert kernel.elements(Family.IPV4) == set(running.elements())
    assert Element("services", "10.96.0.10 . tcp . 80", "goto tcp-endpoints-of-2") in kernel.elements(Family.IPV4)


def test_deleting_is_idempotent() -> None:
    """Deleting our tables works where they are and where they aren't, and touches nothing else."""
    kernel = Kernel()
    kernel.apply(Transaction("table ip other {\n}\n"))
    load(kernel, web())
    for _ in range(2):
        for family in Family:
            kernel.apply(delete_transaction(family))
            assert kernel.read_back(family) is None
    kernel.apply(Transaction("delete table ip other\n"))


def test_another_program_s_changes_are_noticed() -> None:
    """A kernel object that libnftables has cached and another program replaced is looked at again."""
    kernel, other = Kernel(), Kernel()
    load(kernel, web())
    other.apply(delete_transaction(Family.IPV4))
    with pytest.raises(Refused, match="No such file or directory"):
        kernel.apply(Transaction("add element ip nftproxy cluster-ips { 10.96.0.11 }\n"))
    load(kernel, web())
    assert kernel.elements(Family.IPV4) == set(web().elements())


def test_memory_of_a_large_load_is_given_back() -> None:
    """Of the memory that a transaction of 60,000 elements takes, less than a quarter stays."""
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

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kernel.elements(Family.IPV4)) == 200


def test_the_event_loop_runs_meanwhile() -> None:
    """While a large transaction is applied, the event loop goes on, and the calls come in their order."""

    async def ticks_while_loading() -> tuple[int, Installed | None, frozenset[Element]]:
        kernel, ticks = AsyncKernel(), 0
        try:
            await kernel.apply(load_transaction(generation(), "a1", await kernel.read_back(Family.IPV4)))
            text = f"add element ip nftproxy services {{ {many(50_000)} }}\n"
            await kernel.check(Transaction(text))
            loading = asyncio.create_task(kernel.apply(Transaction(text)))
            while not loading.done():
                await asyncio.sleep(0.001)
                ticks += 1
            await loading
            return ticks, await kernel.read_back(Family.IPV4), await kernel.elements(Family.IPV4)
        finally:
            kernel.close()

    ticks, installed, elements = asyncio.run(ticks_while_loading())
    assert ticks > 10
    assert installed is not None
    assert len(elements) == 50_000


def test_the_version_is_a_number() -> None:
    """The library's version is told, for messages."""
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", Kernel().version())


def test_clients_are_counted() -> None:
    """The maps that packets write are counted, where the kernel tells, without their elements being listed."""
    kernel = Kernel()
    elements = ", ".join(f"10.0.0.{number} : 10.1.0.1" for number in range(5))
    kernel.apply(
        Transaction(
            f"table {Family.IPV4.table} {{\n  map clients {{\n    typeof ip saddr : ip daddr\n    size 1000\n"
            "    flags dynamic,timeout\n    timeout 1h\n  }\n  set others { typeof ip saddr; }\n}\n"
            f"add element {Family.IPV4.table} clients {{ {elements} }}\n"
        )
    )
    assert kernel.client_counts(Family.IPV4) in ({"clients": 5}, {})  # Linux 6.1 doesn't tell
