"""libnftables beside tables of other programs, of which it would die."""

from __future__ import annotations

import gc
import importlib
import socket
import threading
from pathlib import Path

import pytest

from nftproxy.kernel.child_process import in_scratch_namespace
from nftproxy.kernel.libnftables import EMPTY_RULESET, Kernel
from nftproxy.kernel.nfnetlink import table_view
from nftproxy.kernel.nfnetlink.table_view import THREAD_NAME, TableView, ours_of
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import DONE, GENERAL, message, messages_of, named
from nftproxy.rules.transaction import Transaction
from tests.kernel.ruleset import execute
from tests.support.background import repeating
from tests.support.newer_nft import DEADLY, delete_table, is_deadly, make_deadly_table

pytestmark = pytest.mark.usefixtures("namespace")

LOAD = """\
table ip nftproxy {
  set ranges { type ipv4_addr; flags interval; }
  map services { type ipv4_addr . inet_service : verdict; }
  chain c { ip daddr @ranges ip daddr . tcp dport vmap @services; ip saddr { 192.0.2.1, 192.0.2.2 } drop; }
}
table ip6 nftproxy { set s { type ipv6_addr; }; }
"""
CHANGES = (
    "add chain ip nftproxy d\nadd rule ip nftproxy d drop\n",
    "add element ip nftproxy ranges { 192.0.2.1-192.0.2.9 }\n",
    "add element ip nftproxy services { 192.0.2.1 . 80 : goto d }\n",
    "delete element ip nftproxy ranges { 192.0.2.1-192.0.2.9 }\nflush chain ip nftproxy d\n",
)
REFUSED = "add element ip nftproxy services { 192.0.2.1 . 80 : goto nowhere }\n"
TRANSACTIONS = 100


def view() -> TableView:
    """A view in this namespace."""
    return TableView(importlib.import_module("nftables").Nftables)


def follow(kind: int) -> tuple[bool, str, str]:
    """Load and change tables beside a deadly table.  Return whether nft dies of it, our table, and a refusal."""
    make_deadly_table(kind)
    kernel = Kernel()
    for text in (LOAD, *CHANGES):
        kernel.check(Transaction(text))
        kernel.apply(Transaction(text))
    refusal = ""
    try:
        kernel.apply(Transaction(REFUSED))
    except Refused as error:
        refusal = str(error)
    return is_deadly(), kernel.listing(Family.IPV4), refusal


@pytest.mark.parametrize("kind", DEADLY.values(), ids=DEADLY)
def test_transactions_beside_a_deadly_table(kind: int) -> None:
    """Loads, changes, dry runs, listings and refusals are the same as without another program's table."""
    kills, listing, refusal = in_scratch_namespace(follow, kind)
    if not kills:
        pytest.skip("this version of nft reads this table")
    for text in (LOAD, *CHANGES):
        execute(text)
    with pytest.raises(Refused) as caught:
        execute(REFUSED)
    assert listing == Kernel().listing(Family.IPV4)
    assert refusal == str(caught.value)


def follow_beside_a_busy_program(kind: int) -> bool:
    """Make transactions while another program commits all the time.  Return whether nft dies of its table."""
    make_deadly_table(kind)
    execute(LOAD)
    kernel = Kernel()
    with repeating(_commit_elsewhere):
        for number in range(TRANSACTIONS):
            kernel.apply(Transaction(f"add chain ip nftproxy c{number}\nadd rule ip nftproxy c{number} drop\n"))
    installed = kernel.read_back(Family.IPV4)
    assert installed is not None
    assert {f"c{number}" for number in range(TRANSACTIONS)} <= {each.name for each in installed.containers}
    return is_deadly()


def _commit_elsewhere() -> None:
    make_deadly_table(DEADLY["value"], "busy")
    delete_table("busy")


@pytest.mark.parametrize("kind", DEADLY.values(), ids=DEADLY)
def test_transactions_while_another_program_commits(kind: int) -> None:
    """Libnftables never sees another table, also if the ruleset changes while it reads ours."""
    if not in_scratch_namespace(follow_beside_a_busy_program, kind):
        pytest.skip("this version of nft reads this table")


def test_other_programs_tables_are_hidden() -> None:
    """A listing of all tables has ours only."""
    execute(LOAD + "table ip theirs { chain c { }; }\ntable inet nftproxy { chain c { }; }\n")
    with view() as made:
        code, output, _ = made.run(lambda context: context.cmd("list tables"))
    assert code == 0
    assert output.splitlines() == ["table ip nftproxy", "table ip6 nftproxy"]


def test_a_transaction_that_comes_before_the_tables_are_read() -> None:
    """If libnftables reads nothing first, nothing happens, and the error says so."""
    execute(LOAD)
    with view() as made, pytest.raises(Unavailable, match="before it has read the tables"):
        made.run(lambda context: context.cmd(EMPTY_RULESET))
    assert Kernel().read_back(Family.IPV4) is not None


def test_an_error_of_the_kernel() -> None:
    """The kernel's error to a request of libnftables becomes its usual refusal."""
    with pytest.raises(Refused, match="No such file or directory"):
        Kernel().listing(Family.IPV4)


def test_a_ruleset_that_changes_during_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the tables can't be read, nothing happens, and the next transaction reads them again."""
    execute(LOAD)
    kernel = Kernel()
    with monkeypatch.context() as patch:
        patch.setattr(table_view, "_is_interrupted", lambda _: True)
        with pytest.raises(Unavailable, match="has changed during each of 50 attempts"):
            kernel.apply(Transaction(CHANGES[0]))
    kernel.apply(Transaction(CHANGES[0]))
    assert "chain d" in kernel.listing(Family.IPV4)


@pytest.mark.slow
def test_nothing_is_left_open() -> None:
    """Contexts that are closed leave neither descriptors nor threads."""
    execute(LOAD)
    gc.collect()
    before = _open_descriptors()
    for _ in range(20):
        Kernel().listing(Family.IPV4)
    gc.collect()
    assert _open_descriptors() == before
    assert not [each for each in threading.enumerate() if each.name == THREAD_NAME]


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_only_messages_of_our_tables_are_kept() -> None:
    """Only an answer's messages about our tables are kept, with another generation, and the messages that end it."""
    ours, theirs = (message(nft.SUBSYSTEM << 8 | nft.NEW_SET, 0, _set(table)) for table in ("nftproxy", "theirs"))
    inet = message(nft.SUBSYSTEM << 8 | nft.NEW_SET, 0, GENERAL.pack(1, 0, 0) + named(nft.OF_TABLE, "nftproxy"))
    end = message(DONE, 0, bytes(4))
    kept = ours_of(theirs + ours + inet + end, generation=7)
    assert list(messages_of(kept)) == [
        (nft.SUBSYSTEM << 8 | nft.NEW_SET, _set("nftproxy", generation=7)),
        (DONE, bytes(4)),
    ]


def _set(table: str, generation: int = 0) -> bytes:
    return GENERAL.pack(2, 0, socket.htons(generation)) + named(nft.OF_TABLE, table) + named(nft.SET_NAME, "s")
