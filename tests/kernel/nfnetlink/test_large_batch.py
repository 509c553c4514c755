"""Large transactions lead to the same tables as the same text by libnftables, and take little memory."""

from __future__ import annotations

from pathlib import Path
from socket import SOL_SOCKET

import pytest

from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.child_process import in_scratch_namespace
from nftproxy.kernel.libnftables import Kernel, TooLarge
from nftproxy.kernel.nfnetlink import large_batch, nft_queries, table_view
from nftproxy.kernel.nfnetlink.large_batch import LONG, cut
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused
from nftproxy.rules.transaction import Commit, Installed, Transaction, delete_transaction, join
from tests.kernel.ruleset import Held, execute, held, listing
from tests.rules.test_pieces import timeouts
from tests.support.examples import EXAMPLES, example_pipeline
from tests.support.factories import IPV4, pipeline
from tests.support.selection import every

pytestmark = pytest.mark.usefixtures("namespace")

ENDPOINTS = "map endpoints { typeof ip daddr . tcp dport : ip daddr . tcp dport; }"
TABLE = f"""\
table ip nftproxy {{
  {ENDPOINTS}
  map services {{ typeof ip daddr : verdict; }}
  set ranges {{ typeof ip daddr; flags interval; }}
  chain c {{ ip daddr vmap @services; ip daddr @ranges drop; dnat ip to ip daddr . tcp dport map @endpoints; }}
}}
"""


def address(number: int) -> str:
    """An address of a client."""
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def rows(count: int, first: int = 0, port: int = 80) -> list[str]:
    """Elements of the map `endpoints`."""
    return [f"{address(each)} . {port} : 10.1.2.3 . 8080" for each in range(first, first + count)]


def command(verb: str, container: str, elements: list[str]) -> str:
    """A command of elements."""
    return f"{verb} element ip nftproxy {container} {{ {', '.join(elements)} }}\n"


@pytest.fixture
def all_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each command of elements go as bytes, in messages of a few elements."""
    monkeypatch.setattr(large_batch, "LONG", 1)
    monkeypatch.setattr(large_batch, "CUT_AFTER", 100)


def tables() -> tuple[Held, dict[Family, list[str]]]:
    """The elements and the listings of our tables."""
    return held(), {family: sorted(listing(family).splitlines()) for family in Family}


@pytest.mark.parametrize("example", every(4, EXAMPLES))
def test_a_load_makes_the_same_table(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is replaced, or refilled, by bytes is the table that libnftables makes."""
    made = example_pipeline(example)
    full = made.full_transaction({})
    execute(full.text)
    before = tables()
    monkeypatch.setattr(large_batch, "LONG", 1)
    monkeypatch.setattr(large_batch, "CUT_AFTER", 100)
    kernel = Kernel()
    replacement = made.full_transaction(dict.fromkeys(Family, Installed()))
    assert cut(replacement.text).commands
    kernel.apply(replacement)
    assert tables() == before
    kernel.apply(made.full_transaction({family: kernel.read_back(family) for family in Family}))
    assert tables() == before


@pytest.mark.usefixtures("all_are_long")
def test_elements_are_deleted_first_and_added_last() -> None:
    """A transaction may delete the elements of a chain before the chain, and add elements of a new chain."""
    execute(TABLE, "add chain ip nftproxy old", command("add", "services", ["192.0.2.1 : goto old"]))
    execute(
        command("delete", "services", ["192.0.2.1 : goto old"]),
        "delete chain ip nftproxy old",
        "add chain ip nftproxy new",
        command("add", "services", ["192.0.2.1 : goto new"]),
    )
    assert "192.0.2.1 : goto new" in listing()


def test_ranges_are_compiled_by_libnftables() -> None:
    """A long list of ranges is added beside elements that go as bytes."""
    ranges = [f"{address(each << 8)}/24" for each in range(500)]
    execute(TABLE, command("add", "ranges", ranges), command("add", "endpoints", rows(500)))
    elements = Kernel().elements(IPV4)
    assert {each.key for each in elements if each.container == "ranges"} == set(ranges)
    assert sum(each.container == "endpoints" for each in elements) == 500


JUMP = "table ip nftproxy { chain base { type nat hook output priority 0; jump c; }"


def memory_of_a_load(count: int) -> tuple[int, int]:
    """Replace a table of `count` elements.  Return the growth of this process's peak, and the characters, in bytes."""
    kernel = Kernel()
    kernel.apply(Transaction(TABLE))
    text = "delete table ip nftproxy\n" + TABLE + command("add", "endpoints", rows(count))
    before = _peak()
    kernel.check(Transaction(text))
    kernel.apply(Transaction(text))
    assert nft_queries.sets(IPV4)[0].count in (count, None)
    return _peak() - before, len(text)


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.slow
def test_a_replacement_takes_little_memory() -> None:
    """A replaced table takes less than 8 bytes of memory for each byte of text (libnftables takes 45).

    The dry run of the same transaction does, too.
    """
    grown, size = in_scratch_namespace(memory_of_a_load, 100_000)
    assert size > 3_000_000
    assert grown < 8 * size


@pytest.mark.parametrize("is_trial", [False, True])
@pytest.mark.parametrize("number", [0, 777, 1_499])
def test_a_refusal_names_the_element(number: int, is_trial: bool) -> None:
    """The kernel's error to an element among many names it, and nothing has happened."""
    kernel = Kernel()
    kernel.apply(Transaction(TABLE + "add chain ip nftproxy d\n"))
    before, generation = listing(), kernel.generation()
    elements = [f"{address(each)} : goto d" for each in range(1_500)]
    elements[number] = f"{address(number)} : goto nowhere"
    with pytest.raises(Refused) as caught:
        (kernel.check if is_trial else kernel.apply)(
            Transaction("add chain ip nftproxy e\n" + command("add", "services", elements))
        )
    assert caught.value.message == "Could not process rule: No such file or directory"
    assert caught.value.statement == command("add", "services", [elements[number]]).strip()
    assert (listing(), kernel.generation()) == (before, generation)
    kernel.apply(Transaction(command("add", "services", ["192.0.2.1 : goto d"])))


@pytest.mark.parametrize(
    ("declared", "message", "statement"),
    [
        ("chain d { frobnicate; }", "syntax error", "table ip nftproxy { chain d { frobnicate; }"),
        ("chain c { jump d; }\n  chain d { jump c; }", "Could not process rule: Too many links", JUMP),
    ],
    ids=["a word", "a loop"],
)
def test_a_refusal_names_the_declaration(declared: str, message: str, statement: str) -> None:
    """A refused declaration among many elements is named as it is without these."""
    kernel = Kernel()
    kernel.apply(Transaction(TABLE))
    before = listing()
    text = f"table ip nftproxy {{\n  {declared}\n  chain base {{ type nat hook output priority 0; jump c; }}\n}}\n"
    with pytest.raises(Refused) as caught:
        kernel.apply(Transaction(text + command("add", "endpoints", rows(500))))
    assert caught.value.message.startswith(message)
    assert caught.value.statement == statement
    assert listing() == before


def test_more_errors_than_fit_are_one_refusal() -> None:
    """If every message is refused, the socket's buffer overflows.  The refusal has the first element."""
    kernel = Kernel()
    kernel.apply(Transaction(TABLE))
    with pytest.raises(Refused) as caught:
        kernel.apply(Transaction(command("delete", "endpoints", rows(50_000))))
    assert caught.value.message == "Could not process rule: No such file or directory"
    assert caught.value.statement == command("delete", "endpoints", rows(1)).strip()


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets have as little room as in a user namespace of a kernel before 6.18: 208 KiB, which is doubled."""
    for module in (large_batch, table_view):
        monkeypatch.setattr(module, "make_room", lambda made, buffer, _: made.setsockopt(SOL_SOCKET, buffer, 208 << 10))


@pytest.mark.usefixtures("little_room")
def test_a_load_without_room_for_a_batch_makes_the_same_table() -> None:
    """A load that is larger than a message may be goes in several batches, which count as ours alone."""
    kernel = Kernel()
    load = Transaction("delete table ip nftproxy\n" + TABLE + command("add", "endpoints", rows(12_000)))
    kernel.apply(Transaction(TABLE))
    before = kernel.generation()
    assert kernel.apply(load) == Commit(before, kernel.generation(), 2)
    assert kernel.generation() == before + 2
    assert sum(each.container == "endpoints" for each in kernel.elements(IPV4)) == 12_000
    kernel.apply(Transaction(command("delete", "endpoints", rows(12_000)) + command("add", "ranges", ["10.0.0.0/8"])))
    assert {each.key for each in kernel.elements(IPV4)} == {"10.0.0.0/8"}


@pytest.mark.usefixtures("little_room")
def test_an_element_that_a_later_batch_has_is_named() -> None:
    """A refusal of one of several batches names its element.  A dry run, which must be a single batch, is too large."""
    kernel = Kernel()
    elements = [f"{address(each)} : goto {'nowhere' if each == 9_000 else 'd'}" for each in range(20_000)]
    load = Transaction("add chain ip nftproxy d\n" + command("add", "services", elements))
    kernel.apply(Transaction(TABLE))
    with pytest.raises(TooLarge):
        kernel.check(load)
    with pytest.raises(Refused) as caught:
        kernel.apply(load)
    assert caught.value.statement == command("add", "services", [elements[9_000]]).strip()


@pytest.mark.slow
def test_declarations_without_room_come_in_parts(request: pytest.FixtureRequest) -> None:
    """With more maps and chains than a message has room for, tables are replaced, refilled and made as by one."""
    kernel, agent = Kernel(), pipeline(wide_maps=probe().capabilities.wide_maps)
    agent.ingest(timeouts(160))
    kernel.apply(agent.full_transaction({}))
    wanted = tables()
    request.getfixturevalue("little_room")
    read_back = {family: kernel.read_back(family) for family in Family}
    for installed in ({family: Installed() for family in Family}, read_back, {}):
        if not installed:
            kernel.apply(join(map(delete_transaction, Family)))
        commit = Kernel().apply(agent.full_transaction(installed))
        assert commit.is_alone
        assert commit.count > 3
        assert tables() == wanted


def test_declarations_that_are_too_large_to_be_compiled_go_by_libnftables() -> None:
    """A transaction happens, and happens once, with more declarations than a socket pair takes."""
    chains = "".join(f"  chain c{each} {{ ip saddr {address(each)} counter drop; }}\n" for each in range(20_000))
    kernel = Kernel()
    kernel.apply(Transaction(TABLE))
    before = kernel.generation()
    text = f"table ip nftproxy {{\n{chains}}}\n" + command("add", "endpoints", rows(500))
    kernel.apply(Transaction(text))
    assert kernel.generation() == before + 1
    installed = kernel.read_back(IPV4)
    assert installed is not None
    assert len(installed.containers) > 20_000
    assert sum(each.container == "endpoints" for each in kernel.elements(IPV4)) == 500


def test_short_commands_are_no_large_transaction() -> None:
    """A command is long from `LONG` characters on, the newline included."""
    stem = len(command("add", "s", [""]))
    assert not cut(command("add", "s", ["1" * (LONG - stem - 1)])).commands
    assert cut(command("add", "s", ["1" * (LONG - stem)])).commands
