"""The search for culprits finds exactly the culprits, in few trials."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.agent.sync.quarantine import Quarantine, find_culprits
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import Service
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Transaction
from tests.support.factories import IPV4, pipeline, service, slice_of


class Judge:
    """A judge that refuses any set with a bad member, or with both of two that don't go together."""

    def __init__(self, everyone: Collection[int], bad: Collection[int] = (), pair: Collection[int] = ()) -> None:
        self._everyone, self._bad, self._pair = frozenset(everyone), frozenset(bad), frozenset(pair)
        self.questions = 0

    def takes_without(self, left_out: Collection[int]) -> bool:
        """True if it takes the rest."""
        self.questions += 1
        rest = self._everyone.difference(left_out)
        return not self._bad & rest and not (self._pair and self._pair <= rest)

    def found(self) -> list[int]:
        """The findings of the search with these answers."""
        search = find_culprits(sorted(self._everyone))
        try:
            left_out = next(search)
            while True:
                left_out = search.send(self.takes_without(left_out))
        except StopIteration as end:
            return list(end.value)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_exactly_the_bad_members_are_found(case: tuple[int, set[int]]) -> None:
    """Exactly the bad members are found, however many there are, and wherever."""
    count, bad = case
    if bad:  # else there would be nothing to look for
        assert Judge(range(count), bad).found() == sorted(bad)


@given(st.integers(2, 100).flatmap(lambda n: st.sets(st.integers(0, n - 1), min_size=2, max_size=2)))
def test_of_two_incompatible_members_the_later_is_found(pair: set[int]) -> None:
    """The search finds the later of two members that conflict."""
    assert Judge(range(100), pair=pair).found() == [max(pair)]


@pytest.mark.parametrize("bad", [[0], [9_999], [5_000], [1, 2], [17, 4_000, 9_000]])
def test_few_trials_find_a_few_bad_among_many(bad: list[int]) -> None:
    """Each bad member costs at most twice as many trials as ten thousand can be halved."""
    judge = Judge(range(10_000), bad)
    assert judge.found() == bad
    assert judge.questions <= 2 * ceil(log2(10_000)) * len(bad)


@pytest.mark.parametrize(("bad", "questions"), [(1_023, 10), (0, 20)])
def test_no_trial_repeats_a_known_refusal(bad: int, questions: int) -> None:
    """No trial repeats a known refusal: of all together, or of the second half when the first was accepted."""
    judge = Judge(range(1_024), [bad])
    assert judge.found() == [bad]
    assert judge.questions == questions


def test_an_empty_search_finds_nothing() -> None:
    """An empty set needs no trial."""
    judge = Judge([])
    assert judge.found() == []
    assert judge.questions == 0


# ---- the Services of a family --------------------------------------------------------------------------------------

WEB, CART = service("shop/web"), service("shop/cart", cluster_ips=["10.96.0.20"])
CART_PODS = slice_of("shop/cart", ["10.1.0.7@node-a"])


class Asked:
    """A quarantine of IPv4, and a kernel that refuses transactions with one of these texts."""

    def __init__(self, made: Pipeline, *unwanted: str) -> None:
        self.quarantine = Quarantine(made, IPV4)
        self.quarantine.record_updates(made.pop_updated())
        self.unwanted = unwanted
        self.questions: list[Transaction] = []
        self._made = made

    def search(self) -> list[str]:
        """The Services that the search finds."""
        search = self.quarantine.search()
        try:
            self.questions.append(next(search))
            while True:
                self.questions.append(search.send(not any(each in self.questions[-1].text for each in self.unwanted)))
        except StopIteration as end:
            self.quarantine.record_updates(self._made.pop_updated())
            return [str(found) for found in end.value]


def test_a_refused_service_is_quarantined_with_its_reason() -> None:
    """Only the refused Service is quarantined, and its reason comes from a trial of it alone."""
    asked = Asked(pipeline(WEB, CART, CART_PODS), "10.96.0.20")
    assert asked.search() == ["shop/cart"]
    assert asked.quarantine.reasons == {CART.key: ""}
    assert asked.quarantine.accepted() == [CART.key]
    assert "10.96.0.20" in asked.quarantine.retry(CART.key).text
    asked.quarantine.keep(CART.key, "no")
    assert asked.quarantine.reasons == {CART.key: "no"}
    assert asked.quarantine.accepted() == []


def test_no_service_is_quarantined_if_all_are_accepted() -> None:
    """A single trial shows that the kernel accepts all."""
    asked = Asked(pipeline(WEB, CART))
    assert asked.search() == []
    assert len(asked.questions) == 1
    assert asked.quarantine.reasons == {}


def test_changed_services_are_suspected_first() -> None:
    """A culprit that changed since the last accepted load is found without trials of other Services."""
    many = [service(f"shop/s{number}", cluster_ips=[f"10.96.1.{number}"]) for number in range(100)]
    made = pipeline(WEB, *many)
    asked = Asked(made, "10.96.0.20")
    asked.quarantine.accepted()
    made.ingest([Put(CART)])
    asked.quarantine.record_updates(made.pop_updated())
    assert asked.search() == ["shop/cart"]
    assert len(asked.questions) == 2


def test_unchanged_services_are_suspected_next() -> None:
    """The kernel may refuse a Service that it accepted before, even if only other Services changed."""
    made = pipeline(WEB, CART)
    asked = Asked(made, "10.96.0.10")
    asked.quarantine.accepted()
    made.ingest([Put(CART_PODS)])
    asked.quarantine.record_updates(made.pop_updated())
    assert asked.search() == ["shop/web"]


def test_only_changes_of_quarantined_services_cause_retries() -> None:
    """Each change of a quarantined Service causes a retry, other changes cause none, and deletion clears it."""
    made = pipeline(WEB, CART)
    asked = Asked(made, "10.96.0.20")
    asked.search()
    asked.quarantine.accepted()
    for event, expected in ((Put(slice_of()), []), (Put(CART_PODS), [CART.key]), (Removed(Service, CART.key), [])):
        made.ingest([event])
        asked.quarantine.record_updates(made.pop_updated())
        assert asked.quarantine.accepted() == expected
        assert asked.quarantine.accepted() == []
    assert asked.quarantine.reasons == {}
