"""Sample statements, blocks and generations for the tests of rulesets and transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from hypothesis import strategies as st

from nftproxy.rules.ruleset import Block, Declaration, Element, Generation, NftKind, Owner
from tests.support.factories import IPV4

SERVICES = Declaration(NftKind.MAP, "services", ("typeof ip daddr : verdict",))
VIPS = Declaration(NftKind.SET, "vips", ("typeof ip daddr",))
CLIENTS = Declaration(NftKind.MAP, "clients", ("typeof ip saddr : ip daddr", "flags dynamic,timeout", "timeout 60s"))
HOOK = Declaration(NftKind.CHAIN, "nat", ("type nat hook prerouting priority -100", "ip daddr vmap @services"))
DRAW = Declaration(NftKind.CHAIN, "draw", ("goto refuse",), ("# above",))
REFUSE = Declaration(NftKind.CHAIN, "refuse", ("reject",))
A = Element("vips", "10.96.0.10", "")
B = Element("vips", "10.96.0.20", "")
TO_DRAW = Element("services", "10.96.0.10", "goto draw")
TO_REFUSE = Element("services", "10.96.0.10", "goto refuse")


def block(*statements: Declaration | Element) -> Block:
    """A block of these statements."""
    return Block(
        tuple(each for each in statements if isinstance(each, Declaration)),
        tuple(each.line for each in statements if isinstance(each, Element)),
    )


def generation(**blocks: Block) -> Generation:
    """An IPv4 generation of these blocks.  Each block's name is its owner."""
    made = Generation(IPV4)
    made.replace_blocks(dict(blocks.items()))
    return made


def sticky(number: int) -> Block:
    """The declarations of an affinity timeout: a map, a chain, and a second chain to which the first leads."""
    follow = Declaration(NftKind.CHAIN, f"follow-{number}", (f"ip daddr @clients-{number}",))
    draw = Declaration(
        NftKind.CHAIN,
        f"draw-{number}",
        (f"goto follow-{number}",),
        entries=(Element("services", f"10.97.{number // 250}.{number % 250}", f"goto draw-{number}"),),
    )
    clients = Declaration(NftKind.MAP, f"clients-{number}", ("typeof ip saddr : ip daddr", "flags dynamic,timeout"))
    return block(clients, follow, draw)


_KEYS = st.sampled_from(["k1", "k2"])
_VALUES = st.sampled_from(["", "v1", "v2"])
_elements = st.builds(Element, st.sampled_from(["one", "two"]), _KEYS, _VALUES)
_chains = st.builds(
    Declaration, st.just(NftKind.CHAIN), st.sampled_from(["c1", "c2"]), st.sampled_from([("accept",), ("drop",)])
)
_blocks = st.builds(
    Block,
    st.lists(_chains, max_size=2, unique_by=lambda chain: chain.name).map(tuple),
    st.lists(_elements, max_size=4, unique_by=lambda element: (element.container, element.key)).map(
        lambda elements: tuple(each.line for each in elements)
    ),
)
_owners: st.SearchStrategy[Owner] = st.sampled_from(["a", "b", "c"])
updates = st.lists(st.dictionaries(_owners, _blocks, min_size=1), max_size=5)
"""Batches of updates: in each batch, the new blocks of some owners."""


def values_of(blocks: Mapping[Owner, Block]) -> dict[tuple[str, str], set[str]]:
    """The values that blocks contribute for each key, of which two are a disagreement."""
    values = defaultdict[tuple[str, str], set[str]](set)
    for each in blocks.values():
        for element in each.elements:
            values[element.container, element.key].add(element.value)
    return dict(values)


def agreeing(updates: Iterable[dict[Owner, Block]]) -> Iterator[dict[Owner, Block]]:
    """The updates after which no two blocks disagree, up to the first after which some do."""
    blocks: dict[Owner, Block] = {}
    for update in updates:
        blocks |= update
        if any(len(values) > 1 for values in values_of(blocks).values()):
            return
        yield update
