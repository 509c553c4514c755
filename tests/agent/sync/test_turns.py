"""Small changes come first, and large changes by turns.  The time between turns is in proportion to their cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from unittest.mock import Mock

import pytest

from nftproxy.agent.sync.turns import (
    BUSY_ROUND,
    LARGE,
    MOST_LARGE,
    OWN_REST,
    PATIENCE,
    REST,
    ROUND,
    SHARED_ELEMENTS,
    TRIFLE,
    Turns,
    displaced,
)
from nftproxy.model.objects import ObjectKey
from tests.support.factories import key, service

BIG, OTHER_BIG, NEW = key("evil/big"), key("bad/big"), key("evil/new")
WEB, CART = key("shop/web"), key("shop/cart")
COST = 5.0


def turns(sizes: Mapping[ObjectKey, int] | None = None) -> Turns:
    """Turns of Services with these sizes, by default of two large Services and two small Services."""
    known = {BIG: 100_000, OTHER_BIG: 100_000, WEB: 10, CART: 10} if sizes is None else sizes
    return Turns(lambda service: known.get(service, 0))


def charged(*large: ObjectKey) -> Turns:
    """The same after changes of some Services at second 0, each of which cost `COST`."""
    made = turns()
    for each in large:
        made.choose({each: 0.0}, 0.0)
        made.charge(COST, 0.0)
    return made


def test_a_change_of_a_single_service_needs_no_size() -> None:
    """The cost of a transaction is divided by size only between several Services."""
    size_of = Mock()
    made = Turns(size_of)
    assert made.choose({WEB: 0.0}, 0.0) == [WEB]
    assert made.charge(COST, 0.0) == (WEB, COST, OWN_REST * COST)
    size_of.assert_not_called()


def test_small_changes_come_together() -> None:
    """Changes that have cost little so far are all in the next transaction."""
    waiting = {WEB: 1.0, BIG: 0.5, CART: 0.7}
    made = turns()
    assert set(made.choose(waiting, 2.0)) == set(waiting)
    assert made.charge(LARGE / 2, 2.0) is None
    assert set(made.choose(waiting, 2.1)) == set(waiting)


def test_a_large_change_waits_for_its_turn() -> None:
    """After a large change the next waits four times its cost, and all small changes come meanwhile."""
    made = charged(BIG)
    for at in (0.1, 1.0, OWN_REST * COST - 0.1):
        assert list(made.choose({BIG: 0.0, WEB: at}, at)) == [WEB]
        made.charge(0.01, at)
        assert list(made.choose({BIG: 0.0}, at)) == []
        assert made.next_due({BIG: 0.0}, at) == OWN_REST * COST
    assert list(made.choose({BIG: 0.0}, OWN_REST * COST)) == [BIG]


def test_a_large_change_has_a_transaction_of_its_own() -> None:
    """If several large changes have their turn, only the change that has waited longest comes, and no other with it."""
    made, later = charged(BIG, OTHER_BIG), 100.0
    waiting = {BIG: later - 5, OTHER_BIG: later - 10, WEB: later}
    assert list(made.choose(waiting, later)) == [OTHER_BIG]
    made.charge(COST, later)
    del waiting[OTHER_BIG]
    assert list(made.choose(waiting, later)) == [WEB]
    made.charge(0.01, later)
    del waiting[WEB]
    assert list(made.choose(waiting, later)) == []
    assert list(made.choose(waiting, later + REST * COST)) == [BIG]


def test_small_changes_go_first_for_a_while() -> None:
    """A large change whose turn has come lets small changes pass, but not for ever."""
    made, turn = charged(BIG), OWN_REST * COST
    assert list(made.choose({BIG: 0.0, WEB: turn}, turn)) == [WEB]
    assert list(made.choose({BIG: 0.0, WEB: turn}, turn + PATIENCE)) == [BIG]


def test_the_time_for_large_changes_is_bounded() -> None:
    """A tenant that changes all the time gets a fifth of the time, and any number of tenants get half."""
    for tenants, most in ((1, 1 / (1 + OWN_REST)), (50, 1 / (1 + REST))):
        services = [key(f"evil-{number}/big") for number in range(tenants)]
        made, now, spent, began = turns(dict.fromkeys(services, 100_000)), 0.0, 0.0, 0.0
        for each in services:
            made.choose({each: 0.0}, now)
            made.charge(COST, now)
            now = began = now + COST
        began = now = max(map(made.due, services))
        for _ in range(200):
            chosen = made.choose(dict.fromkeys(services, 0.0), now)
            spent += COST * len(chosen)
            now += COST * len(chosen)
            made.charge(COST * len(chosen), now)
            now = max(now, made.next_due(dict.fromkeys(services, 0.0), now))
        assert most * 0.8 <= spent / (now - began) <= most * 1.01


def test_a_large_service_with_small_changes_is_small_again() -> None:
    """The size of a Service makes no change large: after a cheap change the next doesn't wait."""
    made, turn = charged(BIG), OWN_REST * COST
    made.choose({BIG: 0.0}, turn)
    assert made.charge(LARGE / 2, turn) is None
    assert set(made.choose({BIG: turn, WEB: turn}, turn)) == {BIG, WEB}


def test_a_new_name_is_no_way_around() -> None:
    """While the large Services of a namespace wait, its Services without rules wait too.  All other Services don't."""
    made = charged(BIG)
    fresh = key("shop/new")
    assert set(made.choose({NEW: 1.0, fresh: 1.0, WEB: 1.0}, 1.0)) == {fresh, WEB}
    assert list(made.choose({NEW: 1.0}, OWN_REST * COST)) == [NEW]


def test_costs_go_to_the_large_service() -> None:
    """Only the large Services wait after a large transaction that Services shared."""
    made = turns()
    made.choose({BIG: 0.0, WEB: 0.0}, 0.0)
    expense = made.charge(COST, 0.0)
    assert expense
    assert expense.service == BIG
    assert (expense.seconds, expense.rest) == pytest.approx((COST, OWN_REST * COST), rel=1e-3)
    assert list(made.choose({BIG: 1.0, WEB: 1.0}, 1.0)) == [WEB]


def test_a_deletion_costs_the_deleted() -> None:
    """A deleted Service doesn't wait, and its cost isn't that of a Service beside it."""
    sizes = {BIG: 100_000, WEB: 10}
    made = turns(sizes)
    assert list(made.choose({WEB: 0.0}, 0.0, gone=[BIG])) == [WEB]
    del sizes[BIG]
    assert made.charge(COST, 0.0) is not None
    assert list(made.choose({WEB: 1.0, BIG: 1.0, NEW: 1.0}, 1.0)) == [WEB]


def test_a_flood_comes_in_rounds() -> None:
    """A transaction has a bounded number of changes, first the changes of the namespaces with the least cost."""
    flood = [key(f"evil/s{number}") for number in range(100)]
    made = turns({**dict.fromkeys(flood, SHARED_ELEMENTS // 10), WEB: 10})
    waiting = dict.fromkeys(flood, 0.0)
    first = list(made.choose(waiting, 0.0))
    assert len(first) == 10
    made.charge(LARGE * 5, 0.0)
    assert made.next_due(waiting, 1.0) == REST * LARGE * 5
    assert next(iter(made.choose(waiting | {WEB: 1.0}, 1.0))) == WEB, "although the others have waited longer"


def test_new_services_come_in_rounds_by_the_size_that_they_will_have() -> None:
    """Services without rules count with the elements that they may come to."""
    flood = [key(f"evil/s{number}") for number in range(100)]
    made, waiting = turns(), dict.fromkeys(flood, 0.0)
    assert len(made.choose(waiting, 0.0, coming=dict.fromkeys(flood, SHARED_ELEMENTS // 10))) == 10


def test_a_large_new_service_has_a_transaction_of_its_own() -> None:
    """A change that adds a round of elements waits for small changes, and the next such change for what it cost."""
    made = turns({WEB: 10, BIG: 100_000})
    coming = {NEW: ROUND, OTHER_BIG: 5 * ROUND, WEB: 10, BIG: 100_000 + ROUND - 1}
    waiting = {NEW: 0.0, OTHER_BIG: 0.1, WEB: 0.5, BIG: 0.5}
    assert set(made.choose(waiting, 0.5, coming=coming)) == {WEB, BIG}
    made.charge(LARGE / 2, 0.5)
    del waiting[BIG]
    assert list(made.choose(waiting, PATIENCE, coming=coming)) == [NEW]
    made.charge(COST, PATIENCE + COST)
    del waiting[NEW]
    assert list(made.choose(waiting, 10.0, coming=coming)) == [WEB]
    made.charge(LARGE / 2, 10.0)
    del waiting[WEB]
    due = PATIENCE + COST + REST * COST
    assert list(made.choose(waiting, 10.0, coming=coming)) == []
    assert made.next_due(waiting, 10.0, coming) == due
    assert list(made.choose(waiting, due, coming=coming)) == [OTHER_BIG]


def busy(*namespaces: str, seconds: float = 2.0) -> Turns:
    """Turns after small changes of some namespaces, each of which has cost `seconds`."""
    made = turns({})
    for name in namespaces:
        made.choose({key(f"{name}/s{number}"): 0.0 for number in range(20)}, 0.0)
        made.charge(seconds, 0.0)
    return made


def test_small_changes_of_a_busy_namespace_come_after_all_others() -> None:
    """A namespace that has used more than its allowance waits while others don't, for `PATIENCE` at most."""
    made, noise = busy("evil"), key("evil/s0")
    assert list(made.choose({noise: 1.0, WEB: 1.5}, 1.5)) == [WEB]
    turn = REST * 2.0 + PATIENCE
    assert list(made.choose({noise: 1.0, WEB: 1.9}, turn)) == [noise]
    made.charge(0.2, turn + 0.2)
    again = turn + 0.2 + REST * 0.2
    assert list(made.choose({noise: turn}, turn + 0.2)) == []
    assert made.next_due({noise: turn}, turn + 0.2) == again
    assert list(made.choose({noise: turn, WEB: again}, again)) == [WEB]
    assert list(made.choose({noise: turn}, again)) == [noise]


def test_busy_namespaces_get_half_of_the_time_in_small_rounds() -> None:
    """However many changes ten busy namespaces have, each round is small, and after it comes as long a rest."""
    names = [f"evil-{number}" for number in range(10)]
    made = busy(*names, seconds=4.0)
    waiting = {key(f"{name}/t{number}"): 0.0 for name in names for number in range(100)}
    coming, spent, served = dict.fromkeys(waiting, BUSY_ROUND // 4), 0.0, Counter[str]()
    began = now = made.next_due(waiting, 0.0)
    for _ in range(40):
        chosen = made.choose(waiting, now, coming=coming)
        assert len(chosen) == 4
        served.update(each.namespace for each in chosen)
        made.charge(0.1, now + 0.1)
        spent, now = spent + 0.1, made.next_due(waiting, now + 0.1, coming)
    assert spent / (now - began) == pytest.approx(0.5, rel=1e-6)
    assert set(served) == set(names)
    assert max(served.values()) - min(served.values()) <= 4, "they take turns"


def test_namespaces_take_turns_before_anything_is_known_of_their_cost() -> None:
    """A change of a quiet namespace waits for no backlog of others, although all of that has waited longer."""
    backlog = {key(f"evil-{name}/s{number}"): 0.0 for name in range(3) for number in range(100)}
    made = turns({**dict.fromkeys(backlog, SHARED_ELEMENTS), WEB: 10})
    first = list(made.choose({**backlog, WEB: 5.0, CART: 5.1}, 5.1))
    assert first == [WEB, key("evil-0/s0")]
    assert next(iter(made.choose({**backlog, CART: 5.1}, 5.1))) == CART


def test_a_debt_is_paid_off_by_time() -> None:
    """A namespace whose changes have rested is as quick as any other."""
    made, noise = busy("evil", seconds=2.0), key("evil/s0")
    assert set(made.choose({noise: 9.9, WEB: 9.9}, 9.9)) == {noise, WEB}


def test_nobody_is_charged_for_a_noisy_namespace() -> None:
    """A namespace that owes next to nothing shares no transaction with a namespace that owes more."""
    made, noise = busy("evil", seconds=0.8), key("evil/s0")
    assert list(made.choose({noise: 0.0, WEB: 0.5}, 0.5)) == [WEB]
    assert list(made.choose({noise: 0.0}, 0.5)) == [noise], "it owes less than its allowance, so nothing else waits"


def test_a_trifle_makes_nobody_wait() -> None:
    """A busy namespace whose transactions cost next to nothing goes on at once."""
    made, noise, now = busy("evil"), key("evil/s0"), REST * 2.0
    assert list(made.choose({noise: 0.0}, now)) == [noise]
    made.charge(TRIFLE / 2, now)
    assert made.next_due({noise: now}, now) == now


def test_memory_is_bounded() -> None:
    """The number of remembered large Services is bounded."""
    made = turns({})
    for number in range(MOST_LARGE + 10):
        made.choose({key(f"evil/s{number}"): 0.0}, 1e6 * number)
        made.charge(COST, 1e6 * number)
    assert len(made._large) == MOST_LARGE  # nothing else shows it


def test_an_address_that_was_given_up_is_free() -> None:
    """A waiting Service goes if another Service claims its former address, port of the address, or node port."""
    before = service("evil/big", cluster_ips=["10.96.0.9"], ports=["a:80:30080", "b:81"])
    present = {before.key: before}
    moved = service("evil/big", cluster_ips=["10.96.0.8"], ports=["a:80:30081"])
    narrower = service("evil/big", cluster_ips=["10.96.0.9"], ports=["a:80:30080"])
    asks = {
        "the ClusterIP": service("shop/web", cluster_ips=["10.96.0.9"], ports=["x:80"]),
        "the node port": service("shop/web", cluster_ips=["10.96.0.7"], ports=["x:90:30080"]),
        "another port": service("shop/web", cluster_ips=["10.96.0.9"], ports=["x:82"]),
        "nothing of it": service("shop/web", cluster_ips=["10.96.0.7"], ports=["x:80"]),
    }
    removed = {what: displaced([each], [moved], present) for what, each in asks.items()}
    gone = [before.key]
    assert removed == {"the ClusterIP": gone, "the node port": gone, "another port": [], "nothing of it": []}
    assert displaced([asks["the ClusterIP"]], [narrower], present) == []
    assert displaced([service("shop/web", cluster_ips=["10.96.0.9"], ports=["x:81"])], [narrower], present) == gone
    assert displaced([asks["the ClusterIP"]], [moved], {}) == []


def test_the_work_grows_with_the_services() -> None:
    """To choose among 16 times as many Services, and to charge them, takes some 16 times as long."""

    def seconds(number: int) -> float:
        made, waiting = turns({}), {key(f"shop/s{index}"): 0.0 for index in range(number)}
        began = time.process_time()
        made.choose(waiting, 0.0)
        made.charge(0.1, 0.0)
        return time.process_time() - began

    assert min(seconds(16_000) for _ in range(3)) < 64 * min(seconds(1_000) for _ in range(9))


def test_small_changes_of_others_go_between_the_parts_of_a_change() -> None:
    """Between parts go Services of other namespaces that are small, not large, and owe little."""
    sizes = {BIG: 100_000, key("evil/small"): 10, OTHER_BIG: ROUND, WEB: 10, CART: 10, key("noisy/one"): 10}
    made = turns(sizes)
    made.choose({key("noisy/one"): 0.0}, 0.0)
    made.charge(LARGE - 0.01, 0.0)
    made.choose({key("noisy/one"): 0.0}, 0.0)
    made.charge(LARGE - 0.01, 0.0)
    assert made.choose({BIG: 0.0}, 0.0) == [BIG]
    waiting = dict.fromkeys(sizes, 0.0)
    assert sorted(made.choose_beside(waiting, 0.0)) == [CART, WEB]


def test_changes_between_parts_bear_their_own_cost() -> None:
    """The cost of changes between parts isn't that of the large change, which stays charged."""
    made = turns()
    made.choose({BIG: 0.0}, 0.0)
    made.choose_beside({WEB: 0.0}, 0.0)
    made.charge_beside(COST, 0.0)
    assert made.charge(LARGE, 0.0) == (BIG, LARGE, OWN_REST * LARGE)
    made.choose({BIG: 0.0, WEB: 0.0, CART: 0.0}, 0.0)
    assert made.choose({WEB: 0.0, CART: 0.0}, 0.0) == [CART]
