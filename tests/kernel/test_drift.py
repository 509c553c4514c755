"""Whether our tables are as we left them, by notifications that are made up."""

from __future__ import annotations

import pytest

from nftproxy.kernel.drift import LARGE, CommitNotice, TableWatch
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.rules.transaction import Commit

CHANGED_MEANWHILE = "another program has changed them at the same time"


class ScriptedCommits:
    """Reports the notices that were added."""

    def __init__(self) -> None:
        self.notices: list[CommitNotice] | None = []

    def add(self, first: int, *are_about_us: bool) -> None:
        """Add notices of generations in a row."""
        about = [frozenset(Family if each else ()) for each in are_about_us]
        made = [CommitNotice(first + number, families, "nft") for number, families in enumerate(about)]
        self.notices = [*(self.notices or ()), *made]

    def read(self) -> list[CommitNotice] | None:
        """Return the notices."""
        notices, self.notices = self.notices, []
        return notices

    def pause(self) -> None:
        """Go on."""

    resume = pause


@pytest.fixture
def commits() -> ScriptedCommits:
    """Commits of other programs and ours."""
    return ScriptedCommits()


@pytest.fixture
def watch(commits: ScriptedCommits) -> TableWatch:
    """A watch that hears of it."""
    return TableWatch(commits)


@pytest.mark.parametrize(
    ("told", "is_intact"),
    [((True, False), True), ((False, True), True), ((True, True), False), ((False, False), False)],
    ids=["ours first", "theirs first", "both about us", "neither"],
)
def test_commits_at_the_same_time_are_told_apart(
    commits: ScriptedCommits, watch: TableWatch, told: tuple[bool, bool], is_intact: bool
) -> None:
    """The generation that touches our tables is ours, if two come at once.  If both do, the state is unknown."""
    watch.record_load(Commit(4, 5), Family)
    with watch.committing(1):
        commits.add(6, *told)
        watch.record_change(Commit(5, 7), Family)
    assert watch.is_intact(7) == is_intact
    assert watch.reason_to_load() == (CHANGED_MEANWHILE if all(told) else "")
    assert watch.reason_to_load() == ""


def test_a_load_beside_foreign_commits_is_known_to_be_in_force(commits: ScriptedCommits, watch: TableWatch) -> None:
    """A load beside commits to other tables is known to be in force, unless harm follows."""
    with watch.committing(1):
        commits.add(5, False, True, False, False, True)
        watch.record_load(Commit(4, 8), Family)
    assert watch.is_intact(8)
    assert watch.reason_to_load() == "nft has changed them"


def test_a_load_at_the_same_time_as_harm(commits: ScriptedCommits, watch: TableWatch) -> None:
    """If both are about us, it isn't known whether the harm came before the load or after it."""
    with watch.committing(1):
        commits.add(5, True, True)
        watch.record_load(Commit(4, 6), Family)
    assert not watch.is_intact(6)
    assert watch.reason_to_load() == CHANGED_MEANWHILE


def test_unheard_commits_beside_a_load_cause_no_further_load(watch: TableWatch) -> None:
    """It isn't known whether they touched our tables, which is no reason to load everything again and again."""
    with watch.committing(LARGE):
        watch.record_load(Commit(4, 9), Family)
    assert not watch.is_intact(9)
    assert watch.reason_to_load() == ""


def test_a_commit_to_our_tables_beside_an_unheard_load_is_damage(commits: ScriptedCommits, watch: TableWatch) -> None:
    """A commit to our tables beside a load without listening can't be the load, so it is harm."""
    with watch.preparing():
        commits.add(5, True)
        with watch.committing(LARGE):
            watch.record_load(Commit(4, 6), Family)
    assert not watch.is_intact(6)
    assert watch.reason_to_load() == CHANGED_MEANWHILE


@pytest.mark.parametrize(("harm", "is_intact"), [(False, True), (True, False)], ids=["to theirs", "to ours"])
def test_commits_since_the_tables_were_read_count(
    commits: ScriptedCommits, watch: TableWatch, harm: bool, is_intact: bool
) -> None:
    """Commits since the tables were read count as if they came at the same time as the load."""
    with watch.preparing():
        commits.add(5, harm)
        watch.read_notices()
        with watch.committing(1):
            commits.add(6, True)
            watch.record_load(Commit(4, 6), Family)
    assert watch.is_intact(6) is is_intact
    assert bool(watch.reason_to_load()) is harm


def test_a_refusal_changes_nothing(watch: TableWatch) -> None:
    """After a refusal our tables are as intact as before."""
    watch.record_load(Commit(4, 5), Family)
    with pytest.raises(Refused), watch.committing(1):
        raise Refused("no")
    assert watch.is_intact(5)


@pytest.mark.parametrize("foreign", [0, 1])
def test_a_commit_in_parts_is_known_to_be_ours(watch: TableWatch, foreign: int) -> None:
    """All parts of a load or change count as ours, unless a foreign commit came among them."""
    for record in (watch.record_load, watch.record_change):
        watch.record_load(Commit(3, 4), Family)
        with watch.committing(LARGE):
            record(Commit(4, 7 + foreign, 3), Family)
        assert watch.is_intact(7 + foreign) == (not foreign)
        watch.record_change(Commit(7 + foreign, 8 + foreign), Family)
        assert watch.is_intact(8 + foreign) == (not foreign)


def test_a_lost_notification_makes_the_state_unknown(commits: ScriptedCommits, watch: TableWatch) -> None:
    """After a loss the state is unknown until the next load."""
    watch.record_load(Commit(4, 5), Family)
    commits.notices = None
    watch.read_notices()
    assert watch.reason_to_load() == "too much has changed at once to follow"
    assert watch.reason_to_load() == ""
    watch.record_change(Commit(5, 6), Family)
    assert not watch.is_intact(6)
    watch.record_load(Commit(6, 7), Family)
    assert watch.is_intact(7)


def test_after_a_failure_nothing_is_known(watch: TableWatch) -> None:
    """A transaction that failed may have happened or not, so until the next load our tables are not vouched for."""
    watch.record_load(Commit(4, 5), Family)
    with pytest.raises(Unavailable), watch.committing(1):
        raise Unavailable
    assert not watch.is_intact(5)


def test_a_reason_to_load_is_found_among_the_notifications_that_were_read(
    commits: ScriptedCommits, watch: TableWatch
) -> None:
    """Looking for a reason reads nothing: a change needs no further look at the socket."""
    watch.record_load(Commit(4, 5), Family)
    commits.add(6, True)
    assert watch.reason_to_load() == ""
    watch.read_notices()
    assert watch.reason_to_load() == "nft has changed them"
