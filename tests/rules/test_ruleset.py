"""Statements, blocks, generations and changes, as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from nftproxy_conformance.strategies import quick

from nftproxy.rules.ruleset import (
    EMPTY,
    MAX_UNUSED,
    Block,
    Declaration,
    Disagreement,
    Element,
    Generation,
    GenerationChange,
    NftKind,
    Owner,
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
    values_of,
)
from tests.support.factories import IPV4


def net(change: GenerationChange) -> tuple[list[str], list[str]]:
    """The elements that a change removes, and the elements that it adds."""
    return list(change.removed), list(change.added)


# Statements


@pytest.mark.parametrize(
    ("element", "text"), [(A, "10.96.0.10"), (TO_DRAW, "10.96.0.10 : goto draw")], ids=["of a set", "of a map"]
)
def test_an_element_is_written_as_nft_has_it(element: Element, text: str) -> None:
    """The text of a map's element has its value after a colon.  A set's element has no value."""
    assert element.text == text


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        (CLIENTS, True),
        (VIPS, False),
        (SERVICES, False),
        (Declaration(NftKind.SET, "some", ("typeof ip daddr", "flags interval")), False),
        (Declaration(NftKind.SET, "dynamic", ("typeof ip daddr", "size 10")), False),
        (Declaration(NftKind.SET, "told", ("typeof ip daddr", 'comment "not dynamic"')), False),
        (Declaration(NftKind.CHAIN, "tcp", ("tcp flags dynamic",)), False),
    ],
    ids=lambda value: value.name if isinstance(value, Declaration) else "",
)
def test_a_set_that_packets_write_is_dynamic(declaration: Declaration, expected: bool) -> None:
    """A set or map with the flag is dynamic, whatever its name.  A chain never is."""
    assert declaration.is_dynamic is expected


# Generations


def test_a_block_contributes_its_statements() -> None:
    """The first block of an owner adds all of its statements."""
    made = Generation(IPV4)
    change = made.replace_blocks({"web": block(VIPS, A)})
    assert net(change) == ([], ["vips 10.96.0.10"])
    assert change.declared == {(NftKind.SET, "vips"): VIPS}
    assert list(made.elements()) == [A]
    assert made.element_count() == 1


def test_the_same_block_again_changes_nothing() -> None:
    """Replacing a block by an equal block is no change."""
    made = generation(web=block(VIPS, A))
    assert not made.replace_blocks({"web": block(VIPS, A)})


def test_a_new_block_changes_only_the_difference() -> None:
    """Statements of both the old and the new block are neither removed nor added."""
    made = generation(web=block(VIPS, SERVICES, A, TO_DRAW))
    change = made.replace_blocks({"web": block(VIPS, SERVICES, B, TO_DRAW)})
    assert net(change) == (["vips 10.96.0.10"], ["vips 10.96.0.20"])


def test_a_removal_alone_is_a_change() -> None:
    """A block that only loses an element is a change."""
    made = generation(web=block(VIPS, A, B))
    change = made.replace_blocks({"web": block(VIPS, B)})
    assert change
    assert net(change) == (["vips 10.96.0.10"], [])


def test_a_new_value_is_a_removal_and_an_addition() -> None:
    """An element with a new value is removed and added."""
    made = generation(web=block(TO_DRAW))
    assert net(made.replace_blocks({"web": block(TO_REFUSE)})) == (
        ["services 10.96.0.10 : goto draw"],
        ["services 10.96.0.10 : goto refuse"],
    )


def test_values_of_elements_are_found() -> None:
    """The value of a set's element is "".  What isn't there has none, as a key that another key begins with."""
    made = generation(web=block(SERVICES, VIPS, A, TO_DRAW))
    assert made.value("vips", A.key) == ""
    assert made.value("services", TO_DRAW.key) == "goto draw"
    assert [made.value(*where) for where in (("vips", B.key), ("services", "10.96.0.1"), ("others", A.key))] == [
        None
    ] * 3


def test_an_empty_block_contributes_nothing() -> None:
    """An empty block removes its owner and its elements, but not its declarations."""
    made = generation(web=block(VIPS, A))
    assert net(made.replace_blocks({"web": EMPTY, "unknown": EMPTY})) == (["vips 10.96.0.10"], [])
    assert made.blocks == {}
    assert made.declarations == {(NftKind.SET, "vips"): VIPS}


def test_a_shared_element_stays_until_its_last_owner_goes() -> None:
    """The first owner of an element adds it, and only the last owner removes it."""
    made = generation(web=block(A))
    assert not made.replace_blocks({"api": block(A), "cart": block(A)})
    assert not made.replace_blocks({"web": EMPTY})
    assert not made.replace_blocks({"api": EMPTY})
    assert net(made.replace_blocks({"cart": EMPTY})) == (["vips 10.96.0.10"], [])


def test_an_element_passes_from_owner_to_owner() -> None:
    """One update may move an element to another owner without a change, or give it another owner's value."""
    made = generation(web=block(TO_DRAW, A))
    assert net(made.replace_blocks({"api": block(TO_REFUSE, A), "web": EMPTY})) == (
        ["services 10.96.0.10 : goto draw"],
        ["services 10.96.0.10 : goto refuse"],
    )


def test_two_declarations_of_one_set_are_a_disagreement() -> None:
    """A set has a single declaration, as the kernel changes none in place."""
    made = generation(web=block(VIPS))
    with pytest.raises(Disagreement, match=r"^set vips is declared in two ways$"):
        made.replace_blocks({"api": block(Declaration(NftKind.SET, "vips", ("typeof ip6 daddr",)))})


def test_a_set_and_a_chain_may_share_a_name() -> None:
    """A chain may have the name of a set or map, as in the kernel."""
    made = generation(web=block(SERVICES, Declaration(NftKind.CHAIN, "services", ("accept",))))
    assert made.declarations.keys() == {(NftKind.MAP, "services"), (NftKind.CHAIN, "services")}


def test_a_chain_may_be_declared_anew() -> None:
    """A chain is declared again only if its rules change."""
    made = generation(node=block(REFUSE, DRAW))
    drop = Declaration(NftKind.CHAIN, "refuse", ("drop",))
    assert made.replace_blocks({"node": block(drop, DRAW)}).declared == {(NftKind.CHAIN, "refuse"): drop}


def test_the_element_that_leads_to_a_chain_comes_with_it() -> None:
    """The element that leads to a chain is added with a new chain, but not again when its rules change.

    No block has it, and it stays as long as the chain.
    """
    entry = Element("services", "10.96.0.10", "goto draw")
    chains = [Declaration(NftKind.CHAIN, "draw", (rule,), entries=(entry,)) for rule in ("accept", "drop")]
    made = generation(node=block(SERVICES))
    assert made.replace_blocks({"web": block(chains[0])}).entered == [entry]
    assert made.replace_blocks({"web": block(chains[1]), "api": block(chains[1])}).entered == []
    assert (list(made.elements()), made.element_count()) == ([entry], 1)
    other = Declaration(NftKind.CHAIN, "other", ("drop",), entries=(Element("services", "10.96.0.20", "goto other"),))
    made.replace_blocks({"api": block(chains[1], other, VIPS, A)})
    assert list(made.elements()) == list(made.used_elements()) == [entry, *other.entries, A]
    assert made.element_count() == 3
    made.replace_blocks({"api": EMPTY})
    assert list(made.used_elements()) == [entry]
    made.replace_blocks({"web": EMPTY})
    assert (list(made.elements()), list(made.used_elements())) == ([entry, *other.entries], [])
    made.drop_unused()
    assert list(made.elements()) == []
    assert made.replace_blocks({"web": block(chains[0])}).entered == [entry]


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        (HOOK, True),
        (Declaration(NftKind.CHAIN, "late", ('comment "x"', "type nat hook output priority -100")), True),
        (DRAW, False),
        (Declaration(NftKind.SET, "typed", ("type ipv4_addr",)), False),
    ],
    ids=["base chain", "its type in a later line", "chain", "set"],
)
def test_base_chains_have_a_policy(declaration: Declaration, expected: bool) -> None:
    """A chain with a hook has nft's default policy unless it states another.  Nothing else has a policy."""
    assert declaration.has_default_policy is expected


def test_unused_declarations_are_kept_until_they_are_forgotten() -> None:
    """Unused declarations stay until a full transaction is about to delete them."""
    made = generation(node=block(REFUSE), web=block(DRAW))
    made.replace_blocks({"web": EMPTY})
    assert made.declarations.keys() == {(NftKind.CHAIN, "refuse"), (NftKind.CHAIN, "draw")}
    assert made.used_declarations().keys() == {(NftKind.CHAIN, "refuse")}
    made.drop_unused()
    assert made.declarations.keys() == {(NftKind.CHAIN, "refuse")}
    assert made.replace_blocks({"web": block(DRAW)}).declared == {(NftKind.CHAIN, "draw"): DRAW}


def test_unused_declarations_stay_while_elements_of_a_large_change_lead_to_them() -> None:
    """A change between the pieces of another discards nothing: the kernel may still have elements that lead there."""
    made = generation(node=block(REFUSE), web=block(HOOK))
    assert made.replace_blocks({"web": EMPTY}, keeps_unused=True).discarded == []
    assert made.replace_blocks({"node": block(REFUSE, VIPS)}).discarded == [HOOK]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (block(TO_REFUSE), True),
        (block(VIPS), True),
        (block(DRAW), True),
        (block(A), True),
        (block(B), False),
        (block(REFUSE, SERVICES), False),
    ],
    ids=["key of another value", "set", "chain", "element", "another element", "other declarations"],
)
def test_the_statements_of_a_change_are_found_in_blocks(other: Block, expected: bool) -> None:
    """A block has a statement of a change if it has its declaration, or an element with its key."""
    made = generation(web=block(A), node=block(SERVICES))
    change = made.replace_blocks({"web": block(VIPS, DRAW, TO_DRAW)})
    assert change.statements().has_some_of(other) is expected


# Changes


def test_a_change_is_net() -> None:
    """An element that is added and removed again, or removed and added again, is no change."""
    change = GenerationChange()
    change.add(A.line)
    change.remove(A.line)
    change.remove(TO_DRAW.line)
    change.add(TO_DRAW.line)
    assert not change


def test_a_change_keeps_what_the_kernel_holds() -> None:
    """If a value changes several times, the change removes the first value and adds the last."""
    change = GenerationChange()
    change.remove(TO_DRAW.line)
    change.add(TO_REFUSE.line)
    change.remove(TO_REFUSE.line)
    assert net(change) == (["services 10.96.0.10 : goto draw"], [])
    change.add(TO_REFUSE.line)
    assert net(change) == (["services 10.96.0.10 : goto draw"], ["services 10.96.0.10 : goto refuse"])


# Properties


@quick(60)
@given(updates)
def test_a_generation_is_the_union_of_its_blocks(updates: list[dict[Owner, Block]]) -> None:
    """After any updates the elements are those of the blocks."""
    made = Generation(IPV4)
    blocks: dict[Owner, Block] = {}
    for update in agreeing(updates):
        blocks |= update
        made.replace_blocks(update)
        assert {(each.container, each.key): {each.value} for each in made.elements()} == values_of(blocks)
        assert made.element_count() == len(values_of(blocks))
        assert made.blocks == {owner: each for owner, each in blocks.items() if each != EMPTY}
        assert made.used_declarations().items() <= made.declarations.items()


@quick(60)
@given(updates)
def test_changes_follow_the_generation(updates: list[dict[Owner, Block]]) -> None:
    """Applying each change in turn gives the generation: removed elements exist before it, added elements don't."""
    made = Generation(IPV4)
    held: set[str] = set()
    declared: dict[tuple[NftKind, str], Declaration] = {}
    for update in agreeing(updates):
        change = made.replace_blocks(update)
        assert change.removed.keys() <= held
        held -= change.removed.keys()
        assert held.isdisjoint(change.added)
        held |= change.added.keys()
        declared |= change.declared
        assert held == {each.line for each in made.elements()}
        assert declared == made.declarations


def test_what_is_unused_is_bounded() -> None:
    """If a Service changes its timeout again and again, at most `MAX_UNUSED` unused maps and chains stay."""
    made = generation(node=block(SERVICES))
    discarded = 0
    for number in range(2 * MAX_UNUSED):
        change = made.replace_blocks({"web": sticky(number)})
        discarded += len(change.discarded)
        assert len(made.declarations) <= MAX_UNUSED + 1 + 6
    assert discarded + len(made.declarations) == 2 * MAX_UNUSED * 3 + 1
    used = {(NftKind.MAP, "services"), *((each.kind, each.name) for each in sticky(2 * MAX_UNUSED - 1).declarations)}
    assert made.used_declarations().keys() == used


def test_what_is_used_again_is_not_discarded() -> None:
    """A declaration that some block uses, still or again, stays when the unused declarations are discarded."""
    made = generation(node=block(SERVICES), other=sticky(1))
    made.replace_blocks({"web": sticky(0)})
    for number in (1, 0, *range(2, MAX_UNUSED)):
        made.replace_blocks({"again": sticky(0), "web": sticky(number)})
    assert made.declarations.keys() >= {(NftKind.CHAIN, "draw-0"), (NftKind.CHAIN, "draw-1")}
    assert made.replace_blocks({"again": EMPTY, "other": EMPTY, "web": EMPTY}).discarded == []
