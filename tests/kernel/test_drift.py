"""Who changed our tables, by the kernel's own word, and by words made up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from nftproxy.kernel import drift, nftables_netlink
from nftproxy.kernel.drift import LARGE, Custody, Notice, Notifications
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.rules.ruleset import Commit, Transaction
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


# ---- the kernel's word ---------------------------------------------------------------------------------------------


@pytest.fixture
def notifications(namespace: None) -> Iterator[Notifications]:  # noqa: ARG001 -- where they are from
    """What this namespace's kernel tells."""
    made = Notifications()
    yield made
    made.close()


@pytest.fixture
def kept(notifications: Notifications) -> Custody:
    """Custody of a table of ours that has been loaded, with an element."""
    made = Custody(notifications)
    made.loaded(Kernel().apply(Transaction(OURS.text + ELEMENT.text)))
    return made


@pytest.mark.parametrize("harm", HARM)
def test_harm_is_told(kept: Custody, harm: str) -> None:
    """Whatever somebody else does to our tables is told, once, with the name of the program."""
    assert kept.is_intact(nftables_netlink.generation())
    Kernel().apply(Transaction(harm))
    assert kept.alarm().endswith(" has changed them")
    assert kept.alarm() == ""
    assert not kept.is_intact(nftables_netlink.generation())
    kept.loaded(Kernel().apply(OURS))
    assert kept.is_intact(nftables_netlink.generation())


def test_others_tables_are_theirs(kept: Custody) -> None:
    """What is done to other tables, of our name in other families too, is no harm, before, beside and after ours."""
    kernel = Kernel()
    for text in ("add table ip nftproxy2\n", THEIRS.text, "delete table ip nftproxy2\n"):
        kernel.apply(Transaction(text))
        kept.changed(
            kernel.apply(Transaction("delete element ip nftproxy s { 80 }\nadd element ip nftproxy s { 80 }\n"))
        )
        kernel.apply(Transaction("flush table inet nftproxy\n" if text == THEIRS.text else "add table ip x\n"))
        assert kept.alarm() == ""
        assert kept.is_intact(nftables_netlink.generation())


def test_a_large_transaction_is_not_listened_to(kept: Custody, notifications: Notifications) -> None:
    """Of our own large transactions the kernel tells nothing; they are ours all the same."""
    numbers = ", ".join(map(str, range(10000, 10000 + LARGE // 7)))
    text = f"add element ip nftproxy s {{ {numbers} }}\n"
    assert len(text) >= LARGE
    with kept.during(Transaction(text)):
        commit = Kernel().apply(Transaction(text))
    assert notifications.read() == []
    kept.changed(commit)
    assert kept.is_intact(nftables_netlink.generation())
    Kernel().apply(Transaction("delete element ip nftproxy s { 80 }\n"))
    assert kept.alarm()


def test_too_much_at_once(kept: Custody, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the queue overflows, that is told instead."""
    monkeypatch.setattr(drift, "QUEUE_SIZE", 4096)
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
        "from nftproxy.kernel.drift import Notifications\n"
        "from nftproxy.model.errors import Unavailable\n"
        "try: Notifications()\n"
        "except Unavailable as error: print(error)\n"
    )
    assert told == "the kernel doesn't tell of changes to nftables: Operation not permitted\n"


# ---- words made up -------------------------------------------------------------------------------------------------


class Rumour:
    """Tells what it was told to."""

    def __init__(self, *notices: Notice | None) -> None:
        self.notices: list[Notice] | None = []
        self.tell(*notices)

    def tell(self, *notices: Notice | None) -> None:
        """Have more to tell; None is a loss."""
        self.notices = None if None in notices else [*(self.notices or ()), *filter(None, notices)]

    def read(self) -> list[Notice] | None:
        """What there is to tell."""
        notices, self.notices = self.notices, []
        return notices

    def pause(self) -> None:
        """Go on."""

    resume = pause


def notices(first: int, *are_about_us: bool) -> Sequence[Notice]:
    """Notices of generations in a row."""
    return [Notice(first + number, about, "nft") for number, about in enumerate(are_about_us)]


@pytest.mark.parametrize(
    ("told", "is_intact"),
    [((True, False), True), ((False, True), True), ((True, True), False), ((False, False), False)],
    ids=["ours first", "theirs first", "both about us", "neither"],
)
def test_commits_at_the_same_time_are_told_apart(told: tuple[bool, bool], is_intact: bool) -> None:
    """Of two generations at once, ours is the one that is about us; if both are, it isn't known what is there."""
    rumour = Rumour()
    kept = Custody(rumour)
    kept.loaded(Commit(4, 5))
    with kept.during(Transaction("x")):
        rumour.tell(*notices(6, *told))
        kept.changed(Commit(5, 7))
    assert kept.is_intact(7) == is_intact
    assert kept.alarm() == ("somebody has changed them in the same moment as we" if all(told) else "")
    assert kept.alarm() == ""


def test_a_load_beside_others() -> None:
    """A load during which others commit to their tables is known to be what is there, one that harm follows is not."""
    rumour = Rumour()
    kept = Custody(rumour)
    with kept.during(Transaction("x")):
        rumour.tell(*notices(5, False, True, False, False, True))
        kept.loaded(Commit(4, 8))
    assert kept.is_intact(8)
    assert kept.alarm() == "nft has changed them"


def test_a_load_at_the_same_time_as_harm() -> None:
    """If both are about us, it isn't known whether the harm came before the load or after it."""
    rumour = Rumour()
    kept = Custody(rumour)
    with kept.during(Transaction("x")):
        rumour.tell(*notices(5, True, True))
        kept.loaded(Commit(4, 6))
    assert not kept.is_intact(6)
    assert kept.alarm() == "somebody has changed them in the same moment as we"


def test_others_beside_a_load_that_nobody_listened_to() -> None:
    """It isn't known whether they touched our tables, which is no reason to load everything again and again."""
    kept = Custody(Rumour())
    with kept.during(Transaction("x" * LARGE)):
        kept.loaded(Commit(4, 9))
    assert not kept.is_intact(9)
    assert kept.alarm() == ""


def test_a_refusal_changes_nothing() -> None:
    """What was known of our tables is known after it."""
    kept = Custody(Rumour())
    kept.loaded(Commit(4, 5))
    with pytest.raises(Refused), kept.during(Transaction("x")):
        raise Refused("no")
    assert kept.is_intact(5)


def test_what_is_lost_is_looked_at_once() -> None:
    """After a loss it isn't known what is there, until the next load."""
    rumour = Rumour()
    kept = Custody(rumour)
    kept.loaded(Commit(4, 5))
    rumour.tell(None)
    assert kept.alarm() == "too much was changed at once to follow"
    assert kept.alarm() == ""
    kept.changed(Commit(5, 6))
    assert not kept.is_intact(6)
    kept.loaded(Commit(6, 7))
    assert kept.is_intact(7)


def test_after_a_failure_nothing_is_known() -> None:
    """A transaction that failed may have happened or not, so until the next load our tables are not vouched for."""
    kept = Custody(Rumour())
    kept.loaded(Commit(4, 5))
    with pytest.raises(Unavailable), kept.during(Transaction("x")):
        raise Unavailable
    assert not kept.is_intact(5)
