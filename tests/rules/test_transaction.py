"""Transactions: changes and generations as nft text."""

from __future__ import annotations

import pytest
from hypothesis import given
from nftproxy_conformance.strategies import quick

from nftproxy.model.addresses import Family
from nftproxy.rules.ruleset import (
    MAX_UNUSED,
    Block,
    Declaration,
    Generation,
    GenerationChange,
    NftKind,
    Owner,
)
from nftproxy.rules.transaction import (
    Commit,
    Container,
    Difference,
    Installed,
    Size,
    Transaction,
    change_transaction,
    delete_transaction,
    hook_transaction,
    join,
    load_transaction,
    unhooked_transaction,
)
from tests.rules.statements import (
    CLIENTS,
    DRAW,
    HOOK,
    REFUSE,
    SERVICES,
    TO_DRAW,
    TO_REFUSE,
    VIPS,
    A,
    B,
    agreeing,
    block,
    generation,
    sticky,
    updates,
)
from tests.support.factories import IPV4, IPV6, Ledger


def test_a_change_leads_to_its_new_chains() -> None:
    """The element that leads to a chain is added after the chain."""
    made = generation(node=block(SERVICES))
    change = made.replace_blocks({"web": block(Declaration(NftKind.CHAIN, "draw", ("drop",), entries=(TO_DRAW,)))})
    assert change_transaction(IPV4, change).text == (
        "add chain ip nftproxy draw\nflush chain ip nftproxy draw\n"
        "table ip nftproxy {\n  chain draw {\n    drop\n  }\n}\n"
        "add element ip nftproxy services { 10.96.0.10 : goto draw }\n"
    )


def test_the_size_of_a_transaction() -> None:
    """Each declaration, element, and command that deletes or empties something is a statement."""
    text = (
        "add chain ip nftproxy draw\nflush chain ip nftproxy draw\n"
        'table ip nftproxy {\n  comment "nftproxy x"\n}\n'
        "table ip nftproxy {\n  set vips {\n    typeof ip daddr\n  }\n  chain draw {\n    drop\n    drop\n  }\n}\n"
        "add element ip nftproxy services { 10.96.0.10 : goto draw, 10.96.0.11 : goto draw }\n"
        "delete element ip nftproxy vips { 10.96.0.10 }\n"
    )
    assert Transaction(text).size() == Size(statements=7, elements=3, characters=len(text))
    assert Transaction().size() == Size(0, 0, 0)


def test_a_change_is_told_in_an_order_that_the_kernel_accepts() -> None:
    """The order is sets and maps, empty chains, their rules, removals, additions.

    All elements of a set are in one statement.
    """
    made = generation(node=block(SERVICES, REFUSE, VIPS, A), web=block(TO_REFUSE))
    change = made.replace_blocks({"node": block(SERVICES, REFUSE, VIPS, B), "web": block(CLIENTS, DRAW, HOOK, TO_DRAW)})
    assert change_transaction(IPV4, change).text == (
        "table ip nftproxy {\n"
        "  map clients {\n"
        "    typeof ip saddr : ip daddr\n"
        "    flags dynamic,timeout\n"
        "    timeout 60s\n"
        "  }\n"
        "}\n"
        "add chain ip nftproxy draw\n"
        "flush chain ip nftproxy draw\n"
        "add chain ip nftproxy nat { type nat hook prerouting priority -100; }\n"
        "flush chain ip nftproxy nat\n"
        "table ip nftproxy {\n"
        "  chain draw {\n"
        "    goto refuse\n"
        "  }\n"
        "  chain nat {\n"
        "    type nat hook prerouting priority -100\n"
        "    ip daddr vmap @services\n"
        "  }\n"
        "}\n"
        "delete element ip nftproxy vips { 10.96.0.10 }\n"
        "delete element ip nftproxy services { 10.96.0.10 : goto refuse }\n"
        "add element ip nftproxy vips { 10.96.0.20 }\n"
        "add element ip nftproxy services { 10.96.0.10 : goto draw }\n"
    )


def test_many_elements_are_one_statement() -> None:
    """All elements of a set are in one statement, in the order in which they came."""
    change = Generation(IPV6).replace_blocks({"web": block(B, A)})
    assert change_transaction(IPV6, change).text == "add element ip6 nftproxy vips { 10.96.0.20, 10.96.0.10 }\n"


def test_no_change_is_no_transaction() -> None:
    """The transaction of an empty change is empty, which is no transaction."""
    assert not change_transaction(IPV4, GenerationChange())
    assert not join([Transaction(), Transaction()])


def test_transactions_are_joined_in_order() -> None:
    """Joined transactions are one transaction, in their order."""
    assert join([Transaction("a\n"), Transaction(), Transaction("b\n")]) == Transaction("a\nb\n")


LOADED = (
    "table ip nftproxy {\n"
    "  set vips {\n"
    "    typeof ip daddr\n"
    "  }\n"
    "  map clients {\n"
    "    typeof ip saddr : ip daddr\n"
    "    flags dynamic,timeout\n"
    "    timeout 60s\n"
    "  }\n"
    "}\n"
    "table ip nftproxy {\n"
    "  chain refuse {\n"
    "    reject\n"
    "  }\n"
    "}\n"
    "add element ip nftproxy vips { 10.96.0.10 }\n"
)
HEAD = 'table ip nftproxy {\n  comment "nftproxy 0123"\n}\n'


@pytest.mark.parametrize(
    ("installed", "first"),
    [
        (None, HEAD),
        (Installed(), f"delete table ip nftproxy\n{HEAD}"),
        (Installed("4567", (Container(NftKind.SET, "vips"),)), f"delete table ip nftproxy\n{HEAD}"),
        (Installed("0123", (Container(NftKind.SET, "vips"),), has_hooks=False), f"delete table ip nftproxy\n{HEAD}"),
        (Installed("0123"), "add table ip nftproxy\n"),
        (
            Installed(
                "0123",
                (
                    Container(NftKind.CHAIN, "refuse"),
                    Container(NftKind.MAP, "clients", is_dynamic=True),
                    Container(NftKind.MAP, "old-clients", is_dynamic=True),
                    Container(NftKind.MAP, "services"),
                    Container(NftKind.SET, "vips"),
                    Container(NftKind.CHAIN, "unused"),
                ),
            ),
            "add table ip nftproxy\n"
            "flush chain ip nftproxy refuse\n"
            "flush map ip nftproxy services\n"
            "flush set ip nftproxy vips\n"
            "flush chain ip nftproxy unused\n"
            "delete chain ip nftproxy unused\n"
            "delete map ip nftproxy old-clients\n"
            "delete map ip nftproxy services\n",
        ),
    ],
    ids=["nothing there", "not ours", "another shape", "without hooks", "empty", "the same shape"],
)
def test_loading_starts_from_what_is_there(installed: Installed | None, first: str) -> None:
    """A table of another shape is replaced.  A table of the same shape is refilled, except sets that packets write."""
    made = generation(node=block(VIPS, CLIENTS, REFUSE, A))
    assert load_transaction(made, "0123", installed).text == first + LOADED


def test_loading_gives_base_chains_their_policy_back() -> None:
    """An existing base chain gets nft's default policy, unless its declaration has a policy.

    A new chain needs none.
    """
    made = Generation(IPV4)
    closed = Declaration(NftKind.CHAIN, "closed", ("type filter hook input priority 0", "policy drop"))
    out = Declaration(NftKind.CHAIN, "out", ("type nat hook output priority -100",))
    made.replace_blocks({"node": block(HOOK, closed, out, REFUSE)})
    installed = Installed("0123", tuple(Container(NftKind.CHAIN, name) for name in ("nat", "closed", "out", "refuse")))
    told = "add chain ip nftproxy nat { policy accept; }\nadd chain ip nftproxy out { policy accept; }\n"
    assert load_transaction(made, "0123", installed).text.count("policy") == 3
    assert told in load_transaction(made, "0123", installed).text
    assert told not in load_transaction(made, "0123", Installed("0123")).text


@pytest.mark.parametrize("installed", [None, Installed("0123", has_hooks=False)], ids=["nothing there", "a rest"])
def test_a_table_grows_without_hooks(installed: Installed | None) -> None:
    """A load in pieces adds base chains last, and ends with the same table as a load in one transaction."""
    made = generation(node=block(SERVICES, VIPS, REFUSE, HOOK, A))
    ledger, whole = Ledger(), Ledger()
    if installed:
        ledger.apply(load_transaction(generation(node=block(VIPS, B)), "0123", None))
    ledger.apply(unhooked_transaction(made, "0123", installed))
    ledger.apply(change_transaction(IPV4, made.replace_blocks({"web": block(DRAW, TO_DRAW)})))
    assert not ledger.installed(IPV4).has_hooks  # type: ignore[union-attr]
    ledger.apply(hook_transaction(made))
    whole.apply(load_transaction(made, "0123", None))
    assert ledger.comments == whole.comments
    assert ledger.held(IPV4) == whole.held(IPV4)
    assert ledger.declared(IPV4) == whole.declared(IPV4)


@pytest.mark.parametrize(
    ("commits", "whole", "is_alone"),
    [
        ([(4, 5)], (4, 5, 1), True),
        ([(4, 5), (5, 8, 3), (8, 9)], (4, 9, 5), True),
        ([(4, 5), (5, 5, 0)], (4, 5, 1), True),
        ([(4, 5), (6, 7)], (4, 7, 2), False),
        ([(4, 6), (6, 7)], (4, 7, 2), False),
    ],
)
def test_several_commits_are_alone_together_if_nobody_else_committed(
    commits: list[tuple[int, ...]], whole: tuple[int, ...], is_alone: bool
) -> None:
    """Commits count as one from the first to the last, which is alone unless there is a foreign commit in between."""
    together = Commit.of_several([Commit(*each) for each in commits])
    assert together == Commit(*whole)
    assert together.is_alone is is_alone


def test_deleting_works_without_a_table() -> None:
    """The table is added first, so that its deletion can't fail."""
    assert delete_transaction(IPV6).text == "add table ip6 nftproxy\ndelete table ip6 nftproxy\n"


@pytest.mark.parametrize(("before", "after", "is_alone"), [(7, 8, True), (7, 9, False), (7, 7, False)])
def test_a_commit_is_alone_if_the_generation_grew_by_one(before: int, after: int, is_alone: bool) -> None:
    """A commit adds exactly 1 to the ruleset's generation, unless another program commits beside it."""
    assert Commit(before, after).is_alone is is_alone


@quick(60)
@given(updates)
def test_transactions_follow_the_generation(updates: list[dict[Owner, Block]]) -> None:
    """A strict reader accepts each transaction, and after all of them holds the generation."""
    base = block(*(Declaration(NftKind.MAP, name, ("typeof ip daddr : ip daddr",)) for name in ("one", "two")))
    made = generation(node=base)
    ledger = Ledger()
    ledger.apply(load_transaction(made, "0123", None))
    for update in agreeing(updates):
        ledger.apply(change_transaction(IPV4, made.replace_blocks(update)))
        assert ledger.held(IPV4) == set(made.elements())
        assert ledger.declared(IPV4) == {(d.kind, d.name, d.body) for d in made.declarations.values()}


@pytest.mark.parametrize("family", Family)
def test_a_full_transaction_loads_from_any_generation(family: Family) -> None:
    """The same transaction text loads one generation over another, and leaves none of it behind."""
    old, new = Generation(family), Generation(family)
    old.replace_blocks({"node": block(SERVICES, REFUSE, CLIENTS), "web": block(DRAW, TO_DRAW)})
    new.replace_blocks({"node": block(SERVICES, REFUSE, VIPS, A), "web": block(TO_REFUSE)})
    ledger = Ledger()
    for made in (old, new):
        ledger.apply(load_transaction(made, "0123", ledger.installed(family)))
    assert ledger.held(family) == {A, TO_REFUSE}
    assert ledger.declared(family) == {(d.kind, d.name, d.body) for d in new.declarations.values()}


def test_a_full_transaction_sends_what_is_known_to_differ() -> None:
    """Sets with a known difference keep their other elements.  Chains get their rules again, and unused chains go."""
    old, new = Generation(IPV4), Generation(IPV4)
    old.replace_blocks({"node": block(SERVICES, REFUSE, HOOK, VIPS, A, B), "web": block(DRAW, TO_DRAW)})
    new.replace_blocks({"node": block(SERVICES, REFUSE, HOOK, VIPS, A), "web": block(TO_REFUSE)})
    ledger = Ledger()
    ledger.apply(load_transaction(old, "0123", None))
    installed = ledger.installed(IPV4)
    assert installed
    made = load_transaction(new, "0123", ledger.compared(installed, new))
    assert "add element ip nftproxy vips" not in made.text
    assert f"delete element ip nftproxy vips {{ {B.key} }}\n" in made.text
    assert "flush map" not in made.text
    assert "flush set" not in made.text
    assert "flush chain ip nftproxy refuse\n" in made.text
    ledger.apply(made)
    assert ledger.held(IPV4) == {A, TO_REFUSE}
    assert ledger.declared(IPV4) == {(d.kind, d.name, d.body) for d in new.declarations.values()}


def test_a_chain_and_a_map_of_one_name_are_two() -> None:
    """A chain is emptied even if a map of the same name has a known difference."""
    made = generation(node=block(SERVICES, Declaration(NftKind.CHAIN, "services", ("accept",))))
    containers = Container(NftKind.CHAIN, "services"), Container(NftKind.MAP, "services")
    text = load_transaction(made, "0123", Installed("0123", containers, differences={"services": Difference()})).text
    assert "flush chain ip nftproxy services\n" in text
    assert "flush map" not in text


def test_deletions_have_an_order_that_the_kernel_accepts() -> None:
    """Deletions begin with references to chains, then come rules, chains, and last sets and maps.

    The ledger then holds the generation.
    """
    made = generation(node=block(SERVICES))
    ledger = Ledger()
    ledger.apply(load_transaction(made, "0123", None))
    text = ""
    for number in range(MAX_UNUSED // 3 + 2):
        text = change_transaction(IPV4, made.replace_blocks({"web": sticky(number)})).text
        ledger.apply(Transaction(text))
    assert ledger.declared(IPV4) == {(d.kind, d.name, d.body) for d in made.declarations.values()}
    assert ledger.held(IPV4) == set(made.elements())
    last = [text.rindex(start) for start in ("delete element", "flush chain", "delete chain", "delete map")]
    assert last == sorted(last)
