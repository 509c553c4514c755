"""Transactions: inert nft text that makes the kernel follow a change, or hold a generation.

Logs, tests and dry runs show the same text that the kernel gets.  Order within it is what the kernel accepts:
containers before what refers to them, removals before additions of the same key.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import TABLE, Family
from nftproxy.rules.ruleset import Declaration, Element, Generation, GenerationChange, NftKind, element_text

BESIDE_ANOTHER = "-canary"
"""How the shape of a table ends whose Services are some of the node's, and another proxy's the others."""


class Container(msgspec.Struct, frozen=True, order=True):
    """A set, map or chain of our table as the kernel has it, by name only."""

    kind: NftKind
    name: str
    is_dynamic: bool = False


class Difference(msgspec.Struct, frozen=True):
    """What a set or map in the kernel has beyond a generation, and what is missing there.

    An element with another value is in both: it is deleted, and added anew.
    """

    surplus: tuple[Element, ...] = ()
    missing: tuple[Element, ...] = ()


class Installed(msgspec.Struct, frozen=True):
    """What the kernel holds of our table, except rules: enough to reload it in one transaction.

    `shape` is the second word of the table's comment, "" if it has none of ours.  Without `has_hooks` no packet comes
    by: there is no base chain, which is what a first load adds last.  `differences` are those of sets and maps, by
    name, from the generation to be loaded; of what isn't named there, the elements aren't known.
    """

    shape: str = ""
    containers: tuple[Container, ...] = ()
    has_hooks: bool = True
    differences: Mapping[str, Difference] = {}


class Size(NamedTuple):
    """How large a transaction is; `statements` counts declarations, elements, and what deletes or empties a container.

    `elements` are those of them that are elements, `characters` the length of the text (it is ASCII: so many bytes).
    """

    statements: int
    elements: int
    characters: int


class Transaction(msgspec.Struct, frozen=True):
    """nft text that happens as a whole or not at all; empty text is no transaction."""

    text: str = ""

    def size(self) -> Size:
        """How large it is, counted line by line: 40 ms for 100,000 elements, so only for what is reported."""
        statements = elements = 0
        for line in self.text.splitlines():
            if " element " in line[:16]:
                elements += line.count(", ") + 1
            else:  # a command, or the head of a declaration inside a table's block; that block's head is both
                statements += line[:1].isalpha() != line.endswith(" {")
        return Size(statements + elements, elements, len(self.text))

    def __bool__(self) -> bool:
        return bool(self.text)


class Commit(msgspec.Struct, frozen=True):
    """The kernel's ruleset generations around a transaction; every commit of anyone's adds one."""

    before: int
    after: int

    @property
    def is_alone(self) -> bool:
        """Whether nobody else committed in the moment between the two looks."""
        return self.after == self.before + 1

    @classmethod
    def of_several(cls, commits: Sequence[Commit]) -> Commit:
        """Some commits of ours as one: the last if nobody else committed from the first on, else all in between."""
        are_in_a_row = all(each.before == last.after for last, each in itertools.pairwise(commits))
        if are_in_a_row and all(each.is_alone for each in commits):
            return commits[-1]
        return cls(commits[0].before, commits[-1].after)


def join(transactions: Iterable[Transaction]) -> Transaction:
    """All of them as one transaction, in their order."""
    return Transaction("".join(transaction.text for transaction in transactions))


def change_transaction(family: Family, change: GenerationChange) -> Transaction:
    """The transaction that makes the kernel follow `change`, in proportion to it."""
    table = family.table
    parts = _declare(table, change.declared.values(), flush=True)
    parts += _element_commands("add", table, map(_item, change.entered))
    parts += _element_commands("delete", table, change.removed.items())
    parts += _element_commands("add", table, change.added.items())
    parts += _discard(table, change.discarded)
    return Transaction("".join(parts))


def _discard(table: str, declarations: Collection[Declaration]) -> list[str]:
    """Delete what nothing refers to but its likes: what leads to chains, all rules, chains, and last sets and maps."""
    gone = {each.name for each in declarations if each.kind is not NftKind.CHAIN}
    entries = [entry for each in declarations for entry in each.entries if entry.container not in gone]
    chains_first = sorted(declarations, key=lambda each: each.kind is not NftKind.CHAIN)
    return [
        *_element_commands("delete", table, map(_item, entries)),
        *(f"flush {each.kind.value} {table} {each.name}\n" for each in chains_first if not each.is_dynamic),
        *(f"delete {each.kind.value} {table} {each.name}\n" for each in chains_first),
    ]


def load_transaction(generation: Generation, shape: str, installed: Installed | None) -> Transaction:
    """What makes the kernel hold exactly `generation`, whatever it holds now, in one transaction.

    `shape` names the set, map and base chain declarations; a table of another shape is replaced whole, since the kernel
    changes none of these in place.  A table of the same shape is refilled, and its dynamic sets are left alone; of a
    set whose difference is known, only that is sent.  A refill loses no connection; of those that begin in the instant
    of a replacement, one may be dropped, as the old and the new base chains do not change places all at once.  A table
    without hooks is what an interrupted first load has left, so it is replaced too.
    """
    if installed and is_refilled(installed, shape):
        refill = _missing(generation, installed.differences)
        return Transaction("".join(_emptied(generation, installed) + _filled(generation, refill)))
    return Transaction("".join(_begun(generation, shape, installed) + _filled(generation, generation.elements())))


def is_refilled(installed: Installed, shape: str) -> bool:
    """Whether a load leaves a table where it is; else it replaces the table."""
    return installed.has_hooks and installed.shape == shape


def unhooked_transaction(generation: Generation, shape: str, installed: Installed | None) -> Transaction:
    """The first of the transactions that make the kernel hold a generation piece by piece, where no hook is in force.

    It has all that the generation has so far, but no base chain: no packet comes by, so nobody sees the table grow, and
    the kernel has nothing to validate.  `change_transaction` goes on as the generation grows, `hook_transaction` ends.
    """
    declared = [each for each in generation.declarations.values() if not each.is_base_chain]
    filled = _filled(generation, generation.elements(), declared)
    return Transaction("".join(_begun(generation, shape, installed) + filled))


def hook_transaction(generation: Generation) -> Transaction:
    """The last of these transactions: it adds the base chains, and with them all rules are in force at once."""
    declared = [each for each in generation.declarations.values() if each.is_base_chain]
    return Transaction("".join(_declare(generation.family.table, declared, flush=False)))


def delete_transaction(family: Family) -> Transaction:
    """What removes the table of one family, whether or not it is there (`destroy` is unknown to nft 1.0.6)."""
    return Transaction(f"add table {family.table}\ndelete table {family.table}\n")


def _begun(generation: Generation, shape: str, installed: Installed | None) -> list[str]:
    """Make the table anew."""
    table = generation.family.table
    gone = [] if installed is None else [f"delete table {table}\n"]
    return [*gone, f'table {table} {{\n  comment "{TABLE} {shape}"\n}}\n']


def _emptied(generation: Generation, installed: Installed) -> list[str]:
    """Empty what is there, then delete what the generation does not declare; dynamic sets keep their elements.

    Sets whose difference is known are rid of what they have beyond the generation.  That comes first: it may lead to a
    chain that is deleted.

    A base chain that is there would keep the policy that somebody gave it, so it gets the one that nft would choose.
    Before that the table is named, which wakes one that somebody made dormant; later the kernel would not allow it.
    """
    table = generation.family.table
    known = installed.differences
    surplus = (element for each in known.values() for element in each.surplus)
    static = [
        each
        for each in installed.containers
        if each.kind is NftKind.CHAIN or not (each.is_dynamic or each.name in known)
    ]
    unused = [c for c in installed.containers if (c.kind, c.name) not in generation.declarations]
    chains_first = sorted(unused, key=lambda container: container.kind is not NftKind.CHAIN)
    present = {(container.kind, container.name) for container in installed.containers}
    default = [each for identity, each in generation.declarations.items() if identity in present]
    return [
        f"add table {table}\n",
        *_element_commands("delete", table, map(_item, surplus)),
        *(f"flush {container.kind.value} {table} {container.name}\n" for container in static),
        *(f"delete {container.kind.value} {table} {container.name}\n" for container in chains_first),
        *(f"add chain {table} {each.name} {{ policy accept; }}\n" for each in default if each.has_default_policy),
    ]


def _missing(generation: Generation, differences: Mapping[str, Difference]) -> Iterator[Element]:
    """Every element that isn't in the kernel, as far as that is known."""
    for each in differences.values():
        yield from each.missing
    yield from (each for each in generation.elements() if each.container not in differences)


def _filled(
    generation: Generation, elements: Iterable[Element], declarations: Collection[Declaration] | None = None
) -> list[str]:
    """Declare everything, or just this, and add these elements."""
    table = generation.family.table
    wanted = generation.declarations.values() if declarations is None else declarations
    return _declare(table, wanted, flush=False) + _element_commands("add", table, map(_item, elements))


def _item(element: Element) -> tuple[tuple[str, str], str]:
    return (element.container, element.key), element.value


def _declare(table: str, declarations: Collection[Declaration], *, flush: bool) -> list[str]:
    """Sets and maps first, then empty chains, then their rules: chains refer to each other in any order."""
    chains = [declaration for declaration in declarations if declaration.kind is NftKind.CHAIN]
    others = [declaration for declaration in declarations if declaration.kind is not NftKind.CHAIN]
    parts = [_table_block(table, others)] if others else []
    if flush:
        parts += [f"add chain {table} {_present(chain)}\nflush chain {table} {chain.name}\n" for chain in chains]
    parts += [_table_block(table, chains)] if chains else []
    return parts


def _present(chain: Declaration) -> str:
    """What makes a chain be there, empty if it is new: a base chain can't become one later (nft: File exists)."""
    return f"{chain.name} {{ {chain.body[0]}; }}" if chain.is_base_chain else chain.name


def _table_block(table: str, declarations: Iterable[Declaration]) -> str:
    return f"table {table} {{\n" + "".join(_declaration_text(declaration) for declaration in declarations) + "}\n"


def _declaration_text(declaration: Declaration) -> str:
    lines = "".join(f"    {line}\n" for line in declaration.body)
    return f"  {declaration.kind.value} {declaration.name} {{\n{lines}  }}\n"


def _element_commands(verb: str, table: str, items: Iterable[tuple[tuple[str, str], str]]) -> list[str]:
    by_container: dict[str, list[str]] = {}
    for (container, key), value in items:
        by_container.setdefault(container, []).append(element_text(key, value))
    return [_elements_command(verb, table, name, texts) for name, texts in by_container.items()]


def _elements_command(verb: str, table: str, container: str, texts: Iterable[str]) -> str:
    return f"{verb} element {table} {container} {{ {', '.join(texts)} }}\n"
