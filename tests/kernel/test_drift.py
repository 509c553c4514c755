"""Whether our tables are as we left them, by notifications that are made up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nftproxy.kernel.drift import LARGE, Custody
from nftproxy.kernel.notifications import Notice
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.rules.transaction import Commit


class Rumour:
    """Reports what it has been given."""

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
    about = [frozenset(Family if each else ()) for each in are_about_us]
    return [Notice(first + number, families, "nft") for number, families in enumerate(about)]


@pytest.mark.parametrize(
    ("told", "is_intact"),
    [((True, False), True), ((False, True), True), ((True, True), False), ((False, False), False)],
    ids=["ours first", "theirs first", "both about us", "neither"],
)
def test_commits_at_the_same_time_are_told_apart(told: tuple[bool, bool], is_intact: bool) -> None:
    """Of two generations at once, ours is the one that is about us; if both are, it isn't known what is there."""
    rumour = Rumour()
    kept = Custody(rumour)
    kept.loaded(Commit(4, 5), Family)
    with kept.during(1):
        rumour.tell(*notices(6, *told))
        kept.changed(Commit(5, 7), Family)
    assert kept.is_intact(7) == is_intact
    assert kept.alarm() == ("another program has changed them at the same time as this one" if all(told) else "")
    assert kept.alarm() == ""


def test_a_load_beside_others() -> None:
    """A load during which others commit to their tables is known to be what is there, one that harm follows is not."""
    rumour = Rumour()
    kept = Custody(rumour)
    with kept.during(1):
        rumour.tell(*notices(5, False, True, False, False, True))
        kept.loaded(Commit(4, 8), Family)
    assert kept.is_intact(8)
    assert kept.alarm() == "nft has changed them"


def test_a_load_at_the_same_time_as_harm() -> None:
    """If both are about us, it isn't known whether the harm came before the load or after it."""
    rumour = Rumour()
    kept = Custody(rumour)
    with kept.during(1):
        rumour.tell(*notices(5, True, True))
        kept.loaded(Commit(4, 6), Family)
    assert not kept.is_intact(6)
    assert kept.alarm() == "another program has changed them at the same time as this one"


def test_others_beside_a_load_that_nobody_listened_to() -> None:
    """It isn't known whether they touched our tables, which is no reason to load everything again and again."""
    kept = Custody(Rumour())
    with kept.during(LARGE):
        kept.loaded(Commit(4, 9), Family)
    assert not kept.is_intact(9)
    assert kept.alarm() == ""


def test_harm_beside_a_load_that_nobody_listened_to() -> None:
    """If the only commit about us that was heard of can't be the load, which nobody listened to, it is harm."""
    rumour = Rumour()
    kept = Custody(rumour)
    with kept.watching():
        rumour.tell(*notices(5, True))
        with kept.during(LARGE):
            kept.loaded(Commit(4, 6), Family)
    assert not kept.is_intact(6)
    assert kept.alarm() == "another program has changed them at the same time as this one"


@pytest.mark.parametrize(("harm", "is_intact"), [(False, True), (True, False)], ids=["to theirs", "to ours"])
def test_what_a_load_depends_on_is_watched(harm: bool, is_intact: bool) -> None:
    """What others did since it was read what our tables hold counts as if it came at the same time as the load."""
    rumour = Rumour()
    kept = Custody(rumour)
    with kept.watching():
        rumour.tell(*notices(5, harm))
        kept.listen()
        with kept.during(1):
            rumour.tell(*notices(6, True))
            kept.loaded(Commit(4, 6), Family)
    assert kept.is_intact(6) is is_intact
    assert bool(kept.alarm()) is harm


def test_a_refusal_changes_nothing() -> None:
    """What was known of our tables is known after it."""
    kept = Custody(Rumour())
    kept.loaded(Commit(4, 5), Family)
    with pytest.raises(Refused), kept.during(1):
        raise Refused("no")
    assert kept.is_intact(5)


def test_what_is_lost_is_looked_at_once() -> None:
    """After a loss it isn't known what is there, until the next load."""
    rumour = Rumour()
    kept = Custody(rumour)
    kept.loaded(Commit(4, 5), Family)
    rumour.tell(None)
    assert kept.alarm() == "too much has changed at once to follow"
    assert kept.alarm() == ""
    kept.changed(Commit(5, 6), Family)
    assert not kept.is_intact(6)
    kept.loaded(Commit(6, 7), Family)
    assert kept.is_intact(7)


def test_after_a_failure_nothing_is_known() -> None:
    """A transaction that failed may have happened or not, so until the next load our tables are not vouched for."""
    kept = Custody(Rumour())
    kept.loaded(Commit(4, 5), Family)
    with pytest.raises(Unavailable), kept.during(1):
        raise Unavailable
    assert not kept.is_intact(5)
