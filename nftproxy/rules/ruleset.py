"""Statements, blocks, generations and changes: rulesets as values.

Rule 1: nft is the only vocabulary.  A *statement* is a declaration (a set, a map, or a chain with its rules) or an
element.  A declaration's identity is its container, an element's is its container and key.  The rest is its value.

Rule 2: a *block* has the statements of an owner: the table's skeleton, or a Service port.  A *generation* is the
union of the blocks of a family.  Two blocks may contribute the same statement, but never with different values:
policy/claims.py decides which Service owns a contested address before anything is rendered.

Rule 3: a *change* is the difference that replacing some blocks makes to the union.  It costs in proportion to those
blocks.

A *transaction* (transaction.py) makes the kernel follow a change, or hold a generation.

A base chain is deleted with the last block that uses it, because every packet pays for it.  Sets, maps and other chains
that no block uses any more stay until the next full transaction, or until there are more than `MAX_UNUSED`.  There are
three reasons.  A rolling update adds and removes the same `of-N` chain over and over.  A new chain makes the kernel
validate the whole table.  And before kernel 6.2 a chain stays busy for a moment after the last element that points to
it is deleted.
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
    """The kind of a declaration.  The value is nft's keyword."""

    SET = "set"
    MAP = "map"
    CHAIN = "chain"


class Element(msgspec.Struct, frozen=True, order=True, gc=False):
    """An element of the set or map `container`.  In a set, `value` is ""."""

    container: str
    key: str
    value: str

    @property
    def text(self) -> str:
        """The element as it stands between the braces of `add element`."""
        return element_text(self.key, self.value)


def element_text(key: str, value: str) -> str:
    """An element as it stands between the braces of `add element`.  In a set, `value` is ""."""
    return f"{key} : {value}" if value else key


class FoundElement(NamedTuple):
    """The kernel's element: its value as nft's text, "" in a set, and the seconds until it expires, None for never."""

    value: str
    seconds: float | None


class Declaration(msgspec.Struct, frozen=True, gc=False):
    """A set, a map, or a chain."""

    kind: NftKind
    name: str
    body: tuple[str, ...]
    """The lines of nft text between its braces, not indented."""
    comments: tuple[str, ...] = ()
    """The comment lines above it in its template, for people.  The kernel never sees them."""
    entries: tuple[Element, ...] = ()
    """Elements that are added and deleted with it: the elements that lead to a chain, or a map's fixed elements."""

    @property
    def is_dynamic(self) -> bool:
        """True for a set or map that packets write, such as session affinity.  Its elements survive reloads."""
        return self.kind is not NftKind.CHAIN and any("dynamic" in line for line in self.body if "flags" in line)

    @property
    def is_base_chain(self) -> bool:
        """True for a chain with a hook: the kernel sends packets to it without a jump."""
        return self.kind is NftKind.CHAIN and any(line.startswith("type ") for line in self.body)

    @property
    def has_default_policy(self) -> bool:
        """True for a base chain that states no policy.  nft gives such a chain the policy `accept` if it is new."""
        stated = (line for line in self.body if line.startswith(("type ", "policy ")))
        return self.is_base_chain and not any("policy" in line for line in stated)


class Block(msgspec.Struct, frozen=True, gc=False):
    """The statements of an owner, in the order in which the template wrote them."""

    declarations: tuple[Declaration, ...] = ()
    elements: tuple[Element, ...] = ()


EMPTY = Block()

MAX_UNUSED = 1_000
"""Most declarations that stay although no block uses them.  With more, one transaction deletes them all.

A cluster needs a few for each number of endpoints and each affinity timeout.  But a Service whose timeout changes again
and again adds new declarations each time, and each of them slows down every later change."""


class Disagreement(ValueError):
    """Two blocks contribute different values for one statement: a defect of the templates, or of their facts."""


class GenerationChange:
    """The net difference that an update makes to a generation, as statements.

    An element that is removed and added again with the same value is not part of it.
    """

    def __init__(self) -> None:
        self.declared: dict[tuple[NftKind, str], Declaration] = {}
        self.entered: list[Element] = []
        self.removed: dict[tuple[str, str], str] = {}
        self.added: dict[tuple[str, str], str] = {}
        self.discarded: list[Declaration] = []

    def __bool__(self) -> bool:
        return bool(self.declared or self.removed or self.added or self.discarded)

    def leave_out_base_chains(self) -> None:
        """Leave every chain with a hook out of the declarations."""
        self.declared = {identity: each for identity, each in self.declared.items() if not each.is_base_chain}

    def remove(self, element: Element) -> None:
        """Record that the union has lost an element.  If this change added it, both cancel out."""
        if self.added.pop((element.container, element.key), None) is None:
            self.removed[element.container, element.key] = element.value

    def add(self, element: Element) -> None:
        """Record that the union has gained an element.  If this change removed the same element, both cancel out."""
        if self.removed.get((element.container, element.key)) == element.value:
            del self.removed[element.container, element.key]
        else:
            self.added[element.container, element.key] = element.value


class Savepoint(NamedTuple):
    """The blocks of some owners and all declarations of a generation before an update, for a rollback."""

    blocks: dict[Owner, Block]
    declarations: dict[tuple[NftKind, str], Declaration]


class Generation:
    """The union of the blocks of a family, updated block by block."""

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
        """Replace the blocks of these owners.  An empty block removes the owner.

        Everything is withdrawn before anything is contributed, so that a statement may pass from owner to owner.

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
        """Count the blocks that use each declaration, and note declarations that no block uses any more."""
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
        """The present blocks of these owners, for `restore` if the kernel refuses their update."""
        return Savepoint({owner: self.blocks.get(owner, EMPTY) for owner in owners}, dict(self.declarations))

    def restore(self, savepoint: Savepoint) -> None:
        """Roll an update back, including the declarations that would otherwise stay unused."""
        self.replace_blocks(savepoint.blocks)
        self.declarations = savepoint.declarations
        self._unused = self.declarations.keys() - self._uses.keys()

    def _withdraw_lost(self, old: Block, new: Block, change: GenerationChange) -> Iterable[Element]:
        """Withdraw the elements that only `old` has.  Return the elements that only `new` has, to contribute later."""
        if not old.elements:
            return new.elements
        # In a block of a thousand elements most are the same objects at the same places.  Identity needs no hashing.
        both = min(len(old.elements), len(new.elements))
        differ = list(map(operator.is_not, old.elements, new.elements))
        had = dict.fromkeys([*itertools.compress(old.elements, differ), *old.elements[both:]])
        has = dict.fromkeys([*itertools.compress(new.elements, differ), *new.elements[both:]])
        for element in had:
            if element not in has:
                self._withdraw(element, change)
        return [element for element in has if element not in had]

    def elements(self) -> Iterator[Element]:
        """Every element, by container.  The entries of declarations come first."""
        yield from _entries(self.declarations)
        yield from self._union()

    def values(self, container: str) -> Mapping[str, str]:
        """The value of each key of a set or map, "" in a set.  The entries of declarations are included."""
        entries = {each.key: each.value for each in _entries(self.declarations) if each.container == container}
        return ChainMap(entries, self._values.get(container, {})) if entries else self._values.get(container, {})

    def value(self, container: str, key: str) -> str | None:
        """The value of an element, "" in a set.  None if there is no such element."""
        return self._values.get(container, {}).get(key)

    def used_elements(self) -> Iterator[Element]:
        """Every element, without the entries of declarations that no block uses any more."""
        yield from _entries(self.used_declarations())
        yield from self._union()

    def _union(self) -> Iterator[Element]:
        for container, values in self._values.items():
            for key, value in values.items():
                yield Element(container, key, value)

    def used_declarations(self) -> dict[tuple[NftKind, str], Declaration]:
        """The declarations that some block uses."""
        return {identity: each for identity, each in self.declarations.items() if identity not in self._unused}

    def drop_unused(self) -> None:
        """Drop declarations that no block uses.  A full transaction must follow, which deletes them in the kernel."""
        self.declarations = self.used_declarations()
        self._unused.clear()

    def without(self, owners: Collection[Owner]) -> Generation:
        """A new generation with all blocks except the blocks of these owners."""
        made = Generation(self.family)
        made.replace_blocks({owner: block for owner, block in self.blocks.items() if owner not in owners})
        return made

    def element_count(self) -> int:
        """The number of elements."""
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
