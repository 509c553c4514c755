"""Transactions: nft text that makes the kernel follow a change, or hold a generation.

A transaction is an inert value: logs, tests and dry runs show the same text that the kernel gets.  The kernel accepts
its order: containers before references to them, removals before additions of the same key.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import TABLE, Family
from nftproxy.rules.ruleset import Declaration, Element, Generation, GenerationChange, Line, NftKind

BESIDE_ANOTHER = "-canary"
"""The suffix of a table's shape if the table has only some of the node's Services, and another proxy has the rest."""


class Container(msgspec.Struct, frozen=True, order=True):
    """A set, map or chain of our table in the kernel, by name only."""

    kind: NftKind
    name: str
    is_dynamic: bool = False


class Difference(msgspec.Struct, frozen=True):
    """How a set or map in the kernel differs from a generation.

    An element with another value is both surplus and missing: it is deleted, and added anew.
    """

    surplus: tuple[Element, ...] = ()
    missing: tuple[Element, ...] = ()


class Installed(msgspec.Struct, frozen=True):
    """Our table in the kernel without its rules, which is enough to reload it in one transaction."""

    shape: str = ""
    """The second word of the table's comment, "" if the comment isn't ours."""
    containers: tuple[Container, ...] = ()
    has_hooks: bool = True
    """False if there is no base chain, so that no packet comes by.  A first load adds base chains last."""
    differences: Mapping[str, Difference] = {}
    """How sets and maps differ from the generation to be loaded, by name.  The elements of any other are unknown."""


class Size(NamedTuple):
    """The number of statements, elements and characters of a transaction."""

    statements: int
    """Declarations, elements, and commands that delete or empty a container."""
    elements: int
    """Elements among these statements."""
    characters: int
    """The length of the text.  It is ASCII, so this is also its number of bytes."""


class Transaction(msgspec.Struct, frozen=True):
    """nft text that the kernel applies as a whole or not at all.  Empty text is no transaction."""

    text: str = ""

    def size(self) -> Size:
        """How large it is.  Counting takes 40 ms for 100,000 elements, so count only for a report."""
        statements = elements = 0
        for line in self.text.splitlines():
            if " element " in line[:16]:
                elements += line.count(", ") + 1
            else:  # a command, or the head of a declaration inside a table block.  The block's own head counts as none
                statements += line[:1].isalpha() != line.endswith(" {")
        return Size(statements + elements, elements, len(self.text))

    def __bool__(self) -> bool:
        return bool(self.text)


class Commit(msgspec.Struct, frozen=True):
    """The kernel's ruleset generation before and after a transaction.  Every commit of any program adds 1 to it."""

    before: int
    after: int
    count: int = 1
    """The number of our commits.  It is above one where a message can't be long enough (kernel/libnftables.py)."""

    @property
    def is_alone(self) -> bool:
        """True if no other program committed between the two looks at the generation."""
        return self.after == self.before + self.count

    @classmethod
    def of_several(cls, commits: Sequence[Commit]) -> Commit:
        """Combine several of our commits to one, from the first to the last."""
        return cls(commits[0].before, commits[-1].after, sum(each.count for each in commits))


def join(transactions: Iterable[Transaction]) -> Transaction:
    """Join transactions to a single transaction, in their order."""
    return Transaction("".join(transaction.text for transaction in transactions))


def change_transaction(family: Family, change: GenerationChange) -> Transaction:
    """The transaction that makes the kernel follow `change`.  Its size is in proportion to the change."""
    table = family.table
    parts = _declare(table, change.declared.values(), flush=True)
    parts += _element_commands("add", table, map(_line, change.entered))
    parts += _element_commands("delete", table, change.removed)
    parts += _element_commands("add", table, change.added)
    parts += _discard(table, change.discarded)
    return Transaction("".join(parts))


def _discard(table: str, declarations: Collection[Declaration]) -> list[str]:
    """Delete declarations that only each other refer to.

    References go first: elements that lead to these chains, then all rules.  Chains follow, and last sets and maps.
    """
    gone = {each.name for each in declarations if each.kind is not NftKind.CHAIN}
    entries = [entry for each in declarations for entry in each.entries if entry.container not in gone]
    chains_first = sorted(declarations, key=lambda each: each.kind is not NftKind.CHAIN)
    return [
        *_element_commands("delete", table, map(_line, entries)),
        *(f"flush {each.kind.value} {table} {each.name}\n" for each in chains_first if not each.is_dynamic),
        *(f"delete {each.kind.value} {table} {each.name}\n" for each in chains_first),
    ]


def load_transaction(generation: Generation, shape: str, installed: Installed | None) -> Transaction:
    """The transaction after which the kernel holds exactly `generation`, given the table that it holds now.

    `shape` names the set, map and base chain declarations.  The kernel changes none of these in place, so a table of
    another shape is replaced as a whole.  A table without hooks is left from an interrupted first load, and is replaced
    too.

    A table of the same shape is refilled.  Its dynamic sets are left alone.  If the difference of a set is known, only
    the difference is sent.

    A refill loses no connection.  A connection that begins in the instant of a replacement may be dropped, because the
    kernel doesn't exchange all base chains at once.
    """
    if installed and is_refilled(installed, shape):
        refill = _missing(generation, installed.differences)
        return Transaction("".join(_emptied(generation, installed) + _filled(generation, refill)))
    return Transaction("".join(_begun(generation, shape, installed) + _filled(generation, generation.elements())))


def is_refilled(installed: Installed, shape: str) -> bool:
    """True if a load keeps the table and refills it.  Otherwise the load replaces the table."""
    return installed.has_hooks and installed.shape == shape


def unhooked_transaction(generation: Generation, shape: str, installed: Installed | None) -> Transaction:
    """The first transaction of a load in pieces, for a table without hooks in force.

    It has everything that the generation has so far, except base chains.  So no packet sees the table grow, and the
    kernel has nothing to validate.  As the generation grows, `change_transaction` makes the next transactions.
    `hook_transaction` makes the last.
    """
    declared = [each for each in generation.declarations.values() if not each.is_base_chain]
    parts = _begun(generation, shape, installed) + _filled(generation, generation.elements(), declared)
    return Transaction("".join(parts))


def hook_transaction(generation: Generation) -> Transaction:
    """The last transaction of a load in pieces.  It adds the base chains, which put all rules in force at once."""
    declared = [each for each in generation.declarations.values() if each.is_base_chain]
    return Transaction("".join(_declare(generation.family.table, declared, flush=False)))


def delete_transaction(family: Family) -> Transaction:
    """The transaction that removes a family's table, whether or not it exists (nft 1.0.6 doesn't know `destroy`)."""
    return _deleting(family.table)


def delete_own_table(name: str) -> Transaction:
    """The transaction that removes the table of an extension, of the family inet, whether or not it exists."""
    return _deleting(f"inet {name}")


def _deleting(table: str) -> Transaction:
    return Transaction(f"add table {table}\ndelete table {table}\n")


def _begun(generation: Generation, shape: str, installed: Installed | None) -> list[str]:
    """Commands that delete the table, if there is one, and create it empty."""
    table = generation.family.table
    gone = [] if installed is None else [f"delete table {table}\n"]
    return [*gone, f'table {table} {{\n  comment "{TABLE} {shape}"\n}}\n']


def _emptied(generation: Generation, installed: Installed) -> list[str]:
    """Commands that empty a table's containers, and delete the containers that the generation doesn't declare.

    Dynamic sets keep their elements.  Sets with a known difference lose only their surplus elements.  These commands
    come before the deletions, as a surplus element may lead to a chain that is deleted.

    An existing base chain would keep a policy that another program gave it, so it gets the policy of a new chain.

    The first command names the table, which wakes a table that another program made dormant.  Later in the transaction
    the kernel wouldn't allow that.
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
        *_element_commands("delete", table, map(_line, surplus)),
        *(f"flush {container.kind.value} {table} {container.name}\n" for container in static),
        *(f"delete {container.kind.value} {table} {container.name}\n" for container in chains_first),
        *(f"add chain {table} {each.name} {{ policy accept; }}\n" for each in default if each.has_default_policy),
    ]


def _missing(generation: Generation, differences: Mapping[str, Difference]) -> Iterator[Element]:
    """The elements to add: missing elements of sets with a known difference, and all elements of other sets."""
    for each in differences.values():
        yield from each.missing
    yield from (each for each in generation.elements() if each.container not in differences)


def _filled(
    generation: Generation, elements: Iterable[Element], declarations: Collection[Declaration] | None = None
) -> list[str]:
    """Commands that add these elements, after `declarations`, which defaults to all of the generation's."""
    table = generation.family.table
    wanted = generation.declarations.values() if declarations is None else declarations
    return _declare(table, wanted, flush=False) + _element_commands("add", table, map(_line, elements))


_line = operator.attrgetter("line")


def _declare(table: str, declarations: Collection[Declaration], *, flush: bool) -> list[str]:
    """Declare sets and maps first, then empty chains, then their rules: chains refer to each other in any order."""
    chains = [declaration for declaration in declarations if declaration.kind is NftKind.CHAIN]
    others = [declaration for declaration in declarations if declaration.kind is not NftKind.CHAIN]
    parts = [_table_block(table, others)] if others else []
    if flush:
        parts += [f"add chain {table} {_present(chain)}\nflush chain {table} {chain.name}\n" for chain in chains]
    parts += [_table_block(table, chains)] if chains else []
    return parts


def _present(chain: Declaration) -> str:
    """A chain without rules, as `add chain` takes it.

    A base chain has its hook from the start, as the kernel doesn't add a hook later (nft: File exists).
    """
    return f"{chain.name} {{ {chain.body[0]}; }}" if chain.is_base_chain else chain.name


def _table_block(table: str, declarations: Iterable[Declaration]) -> str:
    return f"table {table} {{\n" + "".join(_declaration_text(declaration) for declaration in declarations) + "}\n"


def _declaration_text(declaration: Declaration) -> str:
    lines = "".join(f"    {line}\n" for line in declaration.body)
    return f"  {declaration.kind.value} {declaration.name} {{\n{lines}  }}\n"


def _element_commands(verb: str, table: str, lines: Iterable[Line]) -> list[str]:
    by_container: dict[str, list[str]] = {}
    for line in lines:
        container, _, text = line.partition(" ")
        by_container.setdefault(container, []).append(text)
    return [_elements_command(verb, table, name, texts) for name, texts in by_container.items()]


def _elements_command(verb: str, table: str, container: str, texts: Iterable[str]) -> str:
    return f"{verb} element {table} {container} {{ {', '.join(texts)} }}\n"
