"""The search for what is refused: it finds exactly that, and doesn't ask too often."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.agent.quarantine import find_culprits


class Judge:
    """Refuses whatever has one of the bad ones in it, or both of two that don't go together."""

    def __init__(self, everyone: Collection[int], bad: Collection[int] = (), pair: Collection[int] = ()) -> None:
        self._everyone, self._bad, self._pair = frozenset(everyone), frozenset(bad), frozenset(pair)
        self.questions = 0

    def takes_without(self, left_out: Collection[int]) -> bool:
        """Whether it takes the rest."""
        self.questions += 1
        rest = self._everyone.difference(left_out)
        return not self._bad & rest and not (self._pair and self._pair <= rest)

    def found(self) -> list[int]:
        """What the search finds with these answers."""
        search = find_culprits(sorted(self._everyone))
        try:
            left_out = next(search)
            while True:
                left_out = search.send(self.takes_without(left_out))
        except StopIteration as end:
            return list(end.value)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_exactly_the_bad_ones_are_found(case: tuple[int, set[int]]) -> None:
    """However many there are, and wherever, each is found, and nobody else."""
    count, bad = case
    if bad:  # else there would be nothing to look for
        assert Judge(range(count), bad).found() == sorted(bad)


@given(st.integers(2, 100).flatmap(lambda n: st.sets(st.integers(0, n - 1), min_size=2, max_size=2)))
def test_of_two_that_do_not_go_together_the_later_one_is_found(pair: set[int]) -> None:
    """One of them is let in."""
    assert Judge(range(100), pair=pair).found() == [max(pair)]


@pytest.mark.parametrize("bad", [[0], [9_999], [5_000], [1, 2], [17, 4_000, 9_000]])
def test_few_questions_find_a_few_among_many(bad: list[int]) -> None:
    """For each of them at most twice as many as ten thousand can be halved."""
    judge = Judge(range(10_000), bad)
    assert judge.found() == bad
    assert judge.questions <= 2 * ceil(log2(10_000)) * len(bad)


@pytest.mark.parametrize(("bad", "questions"), [(1_023, 10), (0, 20)])
def test_what_is_known_is_not_asked(bad: int, questions: int) -> None:
    """That everyone together is refused is known, and so is what is left of a group when one half of it is taken."""
    judge = Judge(range(1_024), [bad])
    assert judge.found() == [bad]
    assert judge.questions == questions


def test_among_none_there_is_none() -> None:
    """Nothing is asked."""
    judge = Judge([])
    assert judge.found() == []
    assert judge.questions == 0
