"""Who changed our tables, by the kernel's own notifications."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nftproxy.kernel import nftables_netlink, notifications
from nftproxy.kernel.drift import LARGE, Custody
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.notifications import Notifications
from nftproxy.model.addresses import Family
from nftproxy.rules.transaction import Transaction
from tests.conftest import Run

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
def listener(namespace: None) -> Iterator[Notifications]:  # noqa: ARG001 -- where they are from
    """What this namespace's kernel tells."""
    made = Notifications()
    yield made
    made.close()


@pytest.fixture
def kept(listener: Notifications) -> Custody:
    """Custody of a table of ours that has been loaded, with an element."""
    made = Custody(listener)
    made.loaded(Kernel().apply(Transaction(OURS.text + ELEMENT.text)), Family)
    return made


@pytest.mark.parametrize("harm", HARM)
def test_harm_is_told(kept: Custody, harm: str) -> None:
    """Whatever somebody else does to our tables is told, once, with the name of the program."""
    assert kept.is_intact(nftables_netlink.generation())
    Kernel().apply(Transaction(harm))
    assert kept.alarm().endswith(" has changed them")
    assert kept.alarm() == ""
    assert not kept.is_intact(nftables_netlink.generation())
    kept.loaded(Kernel().apply(OURS), Family)
    assert kept.is_intact(nftables_netlink.generation())


def test_others_tables_are_theirs(kept: Custody) -> None:
    """What is done to other tables, of our name in other families too, is no harm, before, beside and after ours."""
    kernel = Kernel()
    for text in ("add table ip nftproxy2\n", THEIRS.text, "delete table ip nftproxy2\n"):
        kernel.apply(Transaction(text))
        change = Transaction("delete element ip nftproxy s { 80 }\nadd element ip nftproxy s { 80 }\n")
        kept.changed(kernel.apply(change), [Family.IPV4])
        kernel.apply(Transaction("flush table inet nftproxy\n" if text == THEIRS.text else "add table ip x\n"))
        assert kept.alarm() == ""
        assert kept.is_intact(nftables_netlink.generation())


def test_a_large_transaction_is_not_listened_to(kept: Custody, listener: Notifications) -> None:
    """Of our own large transactions the kernel tells nothing; they are ours all the same."""
    numbers = ", ".join(map(str, range(10000, 10000 + LARGE // 7)))
    text = f"add element ip nftproxy s {{ {numbers} }}\n"
    assert len(text) >= LARGE
    with kept.during(len(text)):
        commit = Kernel().apply(Transaction(text))
    assert listener.read() == []
    kept.changed(commit, Family)
    assert kept.is_intact(nftables_netlink.generation())
    Kernel().apply(Transaction("delete element ip nftproxy s { 80 }\n"))
    assert kept.alarm()


def test_too_much_at_once(kept: Custody, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the queue overflows, that is reported instead."""
    monkeypatch.setattr(notifications, "QUEUE_SIZE", 4096)
    small = Notifications()
    for number in range(100):
        Kernel().apply(Transaction(f"add table ip t{number}\n"))
    assert small.read() is None
    assert small.read() == []
    small.close()
    assert kept.alarm() == ""


def test_a_user_without_rights_is_told(as_nobody: Run) -> None:
    """Without CAP_NET_ADMIN the error says so in the system's words."""
    told = as_nobody(
        "from nftproxy.kernel.notifications import Notifications\n"
        "from nftproxy.model.errors import Unavailable\n"
        "try: Notifications()\n"
        "except Unavailable as error: print(error)\n"
    )
    assert told == "the kernel doesn't notify of changes to nftables: Operation not permitted\n"
