"""Commits to our tables, by the kernel's own notifications."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nftproxy.kernel import drift
from nftproxy.kernel.drift import LARGE, CommitListener, TableWatch
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.model.addresses import Family
from nftproxy.rules.transaction import Transaction
from tests.conftest import Run
from tests.kernel.ruleset import execute

OURS = Transaction("table ip nftproxy {\n  set s {\n    type inet_service\n  }\n}\n")
ELEMENT = Transaction("add element ip nftproxy s { 80 }\n")
THEIRS = Transaction("table inet nftproxy {\n  set s {\n    type inet_service\n    elements = { 80 }\n  }\n}\n")
HARM = [
    "flush ruleset\n",
    "delete table ip nftproxy\n",
    "flush set ip nftproxy s\n",
    "delete element ip nftproxy s { 80 }\n",
    "add element ip nftproxy s { 81 }\n",
    "add chain ip nftproxy c\n",
    "add table ip other\nadd table ip6 other\nadd element ip nftproxy s { 82 }\nadd table ip another\n",
]


@pytest.fixture
def listener(namespace: None) -> Iterator[CommitListener]:  # noqa: ARG001 -- where they are from
    """A listener in this namespace."""
    made = CommitListener()
    yield made
    made.close()


@pytest.fixture
def watch(listener: CommitListener) -> TableWatch:
    """A watch over a table of ours that has been loaded, with an element."""
    made = TableWatch(listener)
    made.record_load(Kernel().apply(Transaction(OURS.text + ELEMENT.text)), Family)
    return made


@pytest.mark.parametrize("harm", HARM)
def test_foreign_changes_to_our_tables_are_reported(watch: TableWatch, harm: str) -> None:
    """Any change of another program to our tables is reported, once, with the program's name and process number."""
    assert watch.is_intact(nft_queries.generation())
    execute(harm)
    watch.read_notices()
    assert re.fullmatch(r".+ \(process [1-9]\d*\) has changed them", watch.reason_to_load())
    assert watch.reason_to_load() == ""
    assert not watch.is_intact(nft_queries.generation())
    watch.record_load(execute(OURS.text), Family)
    assert watch.is_intact(nft_queries.generation())


def test_changes_to_other_tables_are_not_reported(watch: TableWatch) -> None:
    """Changes to other tables, of our name in other families too, are no harm, before, beside and after ours."""
    kernel = Kernel()
    for text in ("add table ip nftproxy2\n", THEIRS.text, "delete table ip nftproxy2\n"):
        kernel.apply(Transaction(text))
        change = Transaction("delete element ip nftproxy s { 80 }\nadd element ip nftproxy s { 80 }\n")
        watch.record_change(kernel.apply(change), [Family.IPV4])
        kernel.apply(Transaction("flush table inet nftproxy\n" if text == THEIRS.text else "add table ip x\n"))
        watch.read_notices()
        assert watch.reason_to_load() == ""
        assert watch.is_intact(nft_queries.generation())


def test_a_large_transaction_is_not_listened_to(watch: TableWatch, listener: CommitListener) -> None:
    """The kernel sends no notification of our own large transactions.  They count as ours all the same."""
    numbers = ", ".join(map(str, range(10000, 10000 + LARGE // 7)))
    text = f"add element ip nftproxy s {{ {numbers} }}\n"
    assert len(text) >= LARGE
    with watch.committing(len(text)):
        commit = execute(text)
    assert listener.read() == []
    watch.record_change(commit, Family)
    assert watch.is_intact(nft_queries.generation())
    execute("delete element ip nftproxy s { 80 }")
    watch.read_notices()
    assert watch.reason_to_load()


def test_too_much_at_once(watch: TableWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the queue overflows, that is reported instead."""
    monkeypatch.setattr(drift, "QUEUE_SIZE", 4096)
    small = CommitListener()
    for number in range(100):
        execute(f"add table ip t{number}")
    assert small.read() is None
    assert small.read() == []
    small.close()
    watch.read_notices()
    assert watch.reason_to_load() == ""


def test_a_user_without_rights_is_told(as_nobody: Run) -> None:
    """Without CAP_NET_ADMIN the error says so in the system's words."""
    told = as_nobody(
        "from nftproxy.kernel.drift import CommitListener\n"
        "from nftproxy.model.errors import Unavailable\n"
        "try: CommitListener()\n"
        "except Unavailable as error: print(error)\n"
    )
    assert told == "the kernel doesn't notify of changes to nftables: Operation not permitted\n"
