"""Statements, blocks, generations and changes: rulesets as values.

Rule 1: nft is the only vocabulary.  A *statement* is a declaration (a set, a map, or a chain with its rules) or an
element.  Its identity is (container) or (container, key); the rest is its value.

Rule 2: a *block* is what one owner contributes: the table's skeleton, or one Service port.  A *generation* is the union
of the blocks of one family.  Two blocks may contribute the same statement; they may never disagree about one: who owns
a contested address is decided before rendering (claims.py).

Rule 3: a *change* is what replacing some blocks adds to and removes from the union, and costs what those blocks cost.

What makes the kernel follow a change, or hold a generation, is a *transaction* (transaction.py).

A base chain goes with the last block that uses it, as every packet pays for it.  Sets, maps and other chains that no
block uses any more are kept until the next full transaction, or until they are too many:
a rolling update makes and unmakes the same `of-N` chain over and over, a new chain makes the kernel validate the whole
table (docs/performance.md has what that costs), and before kernel 6.2 a chain stays busy for a moment after the last
element that pointed to it has gone.
"""

from __future__ import annotations

import itertools
import operator
from collections import ChainMap, Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Family
from nftproxy.model.keys import KeyEnum

Owner = Hashable


class NftKind(KeyEnum):
    """What a declaration declares; the value is nft's keyword."""

    SET = "set"
    MAP = "map"
    CHAIN = "chain"


class Element(msgspec.Struct, frozen=True, order=True, gc=False):
    """One element: of the set or map `container`, with `value` "" in a set."""

    container: str
    key: str
    value: str

    @property
    def text(self) -> str:
        """The element as it stands between the braces of `add element`."""
        return element_text(self.key, self.value)


def element_text(key: str, value: str) -> str:
    """An element as it stands between the braces of `add element`, `value` "" in a set."""
    return f"{key} : {value}" if value else key


class Declaration(msgspec.Struct, frozen=True, gc=False):
    """A set, a map, or a chain; `body` is the nft text between its braces, a line each, not indented.

    `comments` are the comment lines that its template has above it: for people, the kernel never sees them.  `entries`
    come and go with it: the elements that lead to a chain, or those that a map has whoever uses it.
    """

    kind: NftKind
    name: str
    body: tuple[str, ...]
    comments: tuple[str, ...] = ()
    entries: tuple[Element, ...] = ()

    @property
    def is_dynamic(self) -> bool:
        """Whether packets write it: such a set is session affinity, and survives reloads."""
        return self.kind is not NftKind.CHAIN and any("dynamic" in line for line in self.body if "flags" in line)

    @property
    def is_base_chain(self) -> bool:
        """Whether packets come to it by themselves: it has a hook."""
        return self.kind is NftKind.CHAIN and any(line.startswith("type ") for line in self.body)

    @property
    def has_default_policy(self) -> bool:
        """Whether this is a base chain that leaves its policy to nft, which makes it `accept` if the chain is new."""
        stated = (line for line in self.body if line.startswith(("type ", "policy ")))
        return self.is_base_chain and not any("policy" in line for line in stated)


class Block(msgspec.Struct, frozen=True, gc=False):
    """The statements that one owner contributes, in the order in which its template wrote them."""

    declarations: tuple[Declaration, ...] = ()
    elements: tuple[Element, ...] = ()


EMPTY = Block()

MAX_UNUSED = 1_000
"""Declarations that are kept although no block uses them: with more, all of these go in one transaction.

A cluster uses a few for each number of endpoints and each affinity timeout; but whoever changes a timeout again and
again makes new ones each time, and every one of them makes everybody's changes slower."""


class Disagreement(ValueError):
    """Two blocks contribute different values for one statement: a defect of the templates or of what feeds them."""


class GenerationChange:
    """What happened to one generation since the last transaction, as statements: the difference, net."""

    def __init__(self) -> None:
        self.declared: dict[tuple[NftKind, str], Declaration] = {}
        self.entered: list[Element] = []
        self.removed: dict[tuple[str, str], str] = {}
        self.added: dict[tuple[str, str], str] = {}
        self.discarded: list[Declaration] = []

    def __bool__(self) -> bool:
        return bool(self.declared or self.removed or self.added or self.discarded)

    def leave_out_base_chains(self) -> None:
        """Declare no chain that packets come to by themselves."""
        self.declared = {identity: each for identity, each in self.declared.items() if not each.is_base_chain}

    def remove(self, element: Element) -> None:
        """Note that the union has lost an element; an addition since the last transaction is taken back."""
        if self.added.pop((element.container, element.key), None) is None:
            self.removed[element.container, element.key] = element.value

    def add(self, element: Element) -> None:
        """Note that the union has gained an element; the removal of the very same is taken back."""
        if self.removed.get((element.container, element.key)) == element.value:
            del self.removed[element.container, element.key]
        else:
            self.added[element.container, element.key] = element.value


class Savepoint(NamedTuple):
    """What a generation had before an update that may have to be taken back."""

    blocks: dict[Owner, Block]
    declarations: dict[tuple[NftKind, str], Declaration]


class Generation:
    """The union of the blocks of one family, kept up to date block by block."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.blocks: dict[Owner, Block] = {}
        self.declarations: dict[tuple[NftKind, str], Declaration] = {}
        self._values: dict[str, dict[str, str]] = {}
        self._shares: dict[tuple[str, str], int] = {}
        self._uses: Counter[tuple[NftKind, str]] = Counter()
        self._unused: set[tuple[NftKind, str]] = set()
        self._base: set[tuple[NftKind, str]] = set()

    def replace_blocks(self, blocks: Mapping[Owner, Block]) -> GenerationChange:
        """Put these blocks in the place of what their owners contributed before; an empty block contributes nothing.

        All that goes is withdrawn before anything is contributed, so that a statement may pass from owner to owner.

        Raises:
            Disagreement: two owners contribute different values for one statement.
        """
        change = GenerationChange()
        gained: list[Element] = []
        for owner, block in blocks.items():
            gained += self._withdraw_lost(self.blocks.get(owner, EMPTY), block, change)
        for block in blocks.values():
            for declaration in block.declarations:
                self._declare(declaration, change)
        for element in gained:
            self._contribute(element, change)
        for owner, block in blocks.items():
            self._count_uses(self.blocks.get(owner, EMPTY), block)
        self.blocks.update(blocks)
        for owner in [owner for owner, block in blocks.items() if block == EMPTY]:
            del self.blocks[owner]
        discarded = set(self._unused) if len(self._unused) > MAX_UNUSED else self._base & self._unused
        change.discarded = [self.declarations.pop(identity) for identity in sorted(discarded, key=_order)]
        self._unused -= discarded
        return change

    def _count_uses(self, old: Block, new: Block) -> None:
        before, after = ({(each.kind, each.name) for each in block.declarations} for block in (old, new))
        for identity in after - before:
            self._uses[identity] += 1
            self._unused.discard(identity)
        for identity in before - after:
            self._uses[identity] -= 1
            if not self._uses[identity]:
                del self._uses[identity]
                self._unused.add(identity)

    def savepoint(self, owners: Iterable[Owner]) -> Savepoint:
        """What `restore` needs after an update of these owners' blocks that the kernel refuses."""
        return Savepoint({owner: self.blocks.get(owner, EMPTY) for owner in owners}, dict(self.declarations))

    def restore(self, savepoint: Savepoint) -> None:
        """Take back an update: nothing that came with it is left, not even what is kept when no block uses it."""
        self.replace_blocks(savepoint.blocks)
        self.declarations = savepoint.declarations
        self._unused = self.declarations.keys() - self._uses.keys()

    def _withdraw_lost(self, old: Block, new: Block, change: GenerationChange) -> Iterable[Element]:
        """Withdraw what `new` no longer has of `old`; what it has beyond `old`, for later."""
        if not old.elements:
            return new.elements
        # In a block of a thousand elements most are the same objects at the same places, which takes no hashing to see.
        both = min(len(old.elements), len(new.elements))
        differ = list(map(operator.is_not, old.elements, new.elements))
        had = dict.fromkeys([*itertools.compress(old.elements, differ), *old.elements[both:]])
        has = dict.fromkeys([*itertools.compress(new.elements, differ), *new.elements[both:]])
        for element in had:
            if element not in has:
                self._withdraw(element, change)
        return [element for element in has if element not in had]

    def elements(self) -> Iterator[Element]:
        """Every element, by container; first those that come with declarations."""
        yield from _entries(self.declarations)
        yield from self._union()

    def values(self, container: str) -> Mapping[str, str]:
        """The elements of a set or map by key, with those that come with declarations; "" in a set."""
        entries = {each.key: each.value for each in _entries(self.declarations) if each.container == container}
        return ChainMap(entries, self._values.get(container, {})) if entries else self._values.get(container, {})

    def value(self, container: str, key: str) -> str | None:
        """The value of an element, "" in a set; None if there is no such element."""
        return self._values.get(container, {}).get(key)

    def used_elements(self) -> Iterator[Element]:
        """Every element, except those of declarations that are kept although no block uses them any more."""
        yield from _entries(self.used_declarations())
        yield from self._union()

    def _union(self) -> Iterator[Element]:
        for container, values in self._values.items():
            for key, value in values.items():
                yield Element(container, key, value)

    def used_declarations(self) -> dict[tuple[NftKind, str], Declaration]:
        """What the blocks declare, without what is kept although no block uses it any more."""
        return {identity: each for identity, each in self.declarations.items() if identity not in self._unused}

    def drop_unused(self) -> None:
        """Keep no declaration that no block uses: the next transaction is a full one, which deletes the others."""
        self.declarations = self.used_declarations()
        self._unused.clear()

    def without(self, owners: Collection[Owner]) -> Generation:
        """The union of all blocks but those of some owners, as a generation of its own."""
        made = Generation(self.family)
        made.replace_blocks({owner: block for owner, block in self.blocks.items() if owner not in owners})
        return made

    def element_count(self) -> int:
        """How many elements there are."""
        return sum(map(len, self._values.values())) + sum(1 for _ in _entries(self.declarations))

    def _declare(self, declaration: Declaration, change: GenerationChange) -> None:
        identity = (declaration.kind, declaration.name)
        known = self.declarations.get(identity)
        if known == declaration:
            return
        if known is not None and declaration.kind is not NftKind.CHAIN:
            raise Disagreement(f"{declaration.kind.value} {declaration.name} is declared in two ways")
        if known is None:
            change.entered += declaration.entries
        if known is None and declaration.is_base_chain:
            self._base.add(identity)
        self.declarations[identity] = change.declared[identity] = declaration

    def _contribute(self, element: Element, change: GenerationChange) -> None:
        container, key, value = element.container, element.key, element.value
        values = self._values.setdefault(container, {})
        known = values.get(key)
        if known is None:
            values[key] = value
            change.add(element)
        elif known == value:
            self._shares[container, key] = self._shares.get((container, key), 1) + 1
        else:
            raise Disagreement(f"{container}: {key} is given as both {known!r} and {value!r}")

    def _withdraw(self, element: Element, change: GenerationChange) -> None:
        container, key = element.container, element.key
        shares = self._shares.get((container, key), 1)
        if shares == 1:
            del self._values[container][key]
            change.remove(element)
        elif shares == 2:
            del self._shares[container, key]
        else:
            self._shares[container, key] = shares - 1


def _order(identity: tuple[NftKind, str]) -> tuple[str, str]:
    return identity[0].value, identity[1]


def _entries(declarations: Mapping[tuple[NftKind, str], Declaration]) -> Iterator[Element]:
    return itertools.chain.from_iterable(each.entries for each in declarations.values())
