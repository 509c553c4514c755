"""Statements, blocks, generations and changes: rulesets as values.

Rule 1: nft is the only vocabulary.  A *statement* is a declaration (a set, a map, or a chain with its rules) or an
element.  A declaration's identity is its container, an element's is its container and key.  The rest is its value.

Rule 2: a *block* has the statements of an owner: the table's skeleton, or a Service port.  A *generation* is the
union of the blocks of a family.  Two blocks may contribute the same statement, but never with different values:
policy/claims.py decides which Service owns a contested address before anything is rendered.  The kernel refuses a
second value of a key.

A cluster has many elements, so blocks and generations hold each as a *line*, a single text that both share.

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
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Set
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Family
from nftproxy.model.keys import KeyEnum

Owner = Hashable
Line = str
"""An element as a single text: its container, a blank, and its text between the braces of `add element`."""


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

    @classmethod
    def of(cls, line: Line) -> Element:
        """Return the element of a line."""
        container, _, text = line.partition(" ")
        key, _, value = text.partition(" : ")
        return cls(container, key, value)

    @property
    def text(self) -> str:
        """The element as it stands between the braces of `add element`."""
        return f"{self.key} : {self.value}" if self.value else self.key

    @property
    def line(self) -> Line:
        """The element as a single text."""
        return f"{self.container} {self.text}"


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
    lines: tuple[Line, ...] = ()

    @property
    def elements(self) -> Iterator[Element]:
        """Return a new list of the elements."""
        return map(Element.of, self.lines)


EMPTY = Block()


def is_part(smaller: Block, larger: Block) -> bool:
    """Whether a block has all statements of another, and perhaps more.  A chain may have more lines between its own."""
    bodies = {(each.kind, each.name): each.body for each in larger.declarations}
    return set(smaller.lines) <= set(larger.lines) and all(
        _is_subsequence(each.body, bodies.get((each.kind, each.name), ())) for each in smaller.declarations
    )


def _is_subsequence(shorter: Iterable[str], longer: Iterable[str]) -> bool:
    """Whether lines are found in others, in their order."""
    remaining = iter(longer)
    return all(line in remaining for line in shorter)


MAX_UNUSED = 1_000
"""Most declarations that stay although no block uses them.  With more, one transaction deletes them all.

A cluster needs a few for each number of endpoints and each affinity timeout.  But a Service whose timeout changes again
and again adds new declarations each time, and each of them slows down every later change."""


class Disagreement(ValueError):
    """Two blocks declare one set in different ways: a defect of the templates, or of their facts."""


class Statements(NamedTuple):
    """The identities of statements: of declarations, and of elements."""

    declared: Set[tuple[NftKind, str]]
    elements: Set[str]

    def has_some_of(self, block: Block) -> bool:
        """Whether a statement of a block is among these, perhaps with another value."""
        declared = any((each.kind, each.name) in self.declared for each in block.declarations)
        return declared or not self.elements.isdisjoint(map(_identity, block.lines))


def _identity(line: Line) -> str:
    """The container and the key of an element."""
    return line.partition(" : ")[0]


class GenerationChange:
    """The net difference that an update makes to a generation, as statements.

    An element that is removed and added again with the same value is not part of it.
    """

    def __init__(self) -> None:
        self.declared: dict[tuple[NftKind, str], Declaration] = {}
        self.entered: list[Element] = []
        self.removed: dict[Line, None] = {}
        self.added: dict[Line, None] = {}
        self.discarded: list[Declaration] = []

    def __bool__(self) -> bool:
        return bool(self.declared or self.removed or self.added or self.discarded)

    def statements(self) -> Statements:
        """The identities of the statements."""
        declared = {*self.declared, *((each.kind, each.name) for each in self.discarded)}
        return Statements(declared, {_identity(line) for lines in (self.removed, self.added) for line in lines})

    def leave_out_base_chains(self) -> None:
        """Leave every chain with a hook out of the declarations."""
        self.declared = {identity: each for identity, each in self.declared.items() if not each.is_base_chain}

    def remove(self, line: Line) -> None:
        """Record that the union has lost an element.  If this change added it, both cancel out."""
        if line in self.added:
            del self.added[line]
        else:
            self.removed[line] = None

    def add(self, line: Line) -> None:
        """Record that the union has gained an element.  If this change removed it, both cancel out."""
        if line in self.removed:
            del self.removed[line]
        else:
            self.added[line] = None


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
        self._counts: defaultdict[str, dict[Line, int]] = defaultdict(dict)
        """By container, how many blocks have each element."""
        self._uses: Counter[tuple[NftKind, str]] = Counter()
        self._unused: set[tuple[NftKind, str]] = set()
        self._base: set[tuple[NftKind, str]] = set()

    def replace_blocks(self, blocks: Mapping[Owner, Block], *, keeps_unused: bool = False) -> GenerationChange:
        """Replace the blocks of these owners.  An empty block removes the owner.

        With `keeps_unused` declarations stay that no block uses, until another change.

        Everything is withdrawn before anything is contributed, so that a statement may pass from owner to owner.

        Raises:
            Disagreement: two owners declare one set in different ways.
        """
        change = GenerationChange()
        gained: list[Line] = []
        for owner, block in blocks.items():
            gained += self._withdraw_lost(self.blocks.get(owner, EMPTY), block, change)
        for block in blocks.values():
            for declaration in block.declarations:
                self._declare(declaration, change)
        self._contribute(gained, change)
        for owner, block in blocks.items():
            self._count_uses(self.blocks.get(owner, EMPTY), block)
        self.blocks.update(blocks)
        for owner in [owner for owner, block in blocks.items() if block == EMPTY]:
            del self.blocks[owner]
        if keeps_unused:
            return change
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

    def _withdraw_lost(self, old: Block, new: Block, change: GenerationChange) -> Iterable[Line]:
        """Withdraw the elements that only `old` has.  Return the elements that only `new` has, to contribute later."""
        if not old.lines:
            return new.lines
        # In a block of a thousand elements most are the same objects at the same places.  Identity needs no hashing.
        both = min(len(old.lines), len(new.lines))
        differ = list(map(operator.is_not, old.lines, new.lines))
        had = dict.fromkeys([*itertools.compress(old.lines, differ), *old.lines[both:]])
        has = dict.fromkeys([*itertools.compress(new.lines, differ), *new.lines[both:]])
        for line in had:
            if line not in has:
                self._withdraw(line, change)
        return [line for line in has if line not in had]

    def elements(self) -> Iterator[Element]:
        """Every element, by container.  The entries of declarations come first."""
        yield from _entries(self.declarations)
        yield from self._union()

    def lines_of(self, container: str) -> Collection[Line]:
        """The elements of a set or map.  The entries of declarations are included."""
        entries = [each.line for each in _entries(self.declarations) if each.container == container]
        held = self._counts.get(container, {})
        return {**dict.fromkeys(entries), **held} if entries else held.keys()

    def value(self, container: str, key: str) -> str | None:
        """The value of an element, "" in a set.  None if there is no such element.  A scan of the set or map."""
        held, line = self._counts.get(container, {}), f"{container} {key}"
        if line in held:
            return ""
        return next((Element.of(each).value for each in held if each.startswith(f"{line} : ")), None)

    def used_elements(self) -> Iterator[Element]:
        """Every element, without the entries of declarations that no block uses any more."""
        yield from _entries(self.used_declarations())
        yield from self._union()

    def _union(self) -> Iterator[Element]:
        return map(Element.of, itertools.chain.from_iterable(self._counts.values()))

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
        """The number of elements in all sets and maps."""
        return sum(map(len, self._counts.values())) + sum(1 for _ in _entries(self.declarations))

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

    def _contribute(self, lines: Iterable[Line], change: GenerationChange) -> None:
        for line in lines:
            counts = self._counts[line[: line.index(" ")]]
            if line in counts:
                counts[line] += 1
            else:
                counts[line] = 1
                change.add(line)

    def _withdraw(self, line: Line, change: GenerationChange) -> None:
        counts = self._counts[line[: line.index(" ")]]
        if counts[line] > 1:
            counts[line] -= 1
        else:
            del counts[line]
            change.remove(line)


def _order(identity: tuple[NftKind, str]) -> tuple[str, str]:
    return identity[0].value, identity[1]


def _entries(declarations: Mapping[tuple[NftKind, str], Declaration]) -> Iterator[Element]:
    return itertools.chain.from_iterable(each.entries for each in declarations.values())
