"""Splits a large transaction into pieces that the kernel takes in turn.

A large transaction costs memory, and the kernel holds its lock meanwhile.  The time and memory of a piece are bounded,
however large the change is.

Packets see the table between two pieces, so the order of the pieces keeps every front usable:

1. Declarations come first: no packet reaches a new set, map or chain yet.  First come sets and maps, then empty
   chains, then their rules, which refer to all of these.
2. Then come elements of lists and shared maps that are added or replaced.  A front that grows draws the new rows only
   after step 3, and a front that shrinks has its surplus rows until step 4.
3. Then come fronts.  All elements of a front, in all sets and maps, change in the same piece.
4. Then elements of lists and shared maps go, and at last declarations.

Step 1 of a load that doesn't fit into one message (`parts_of_declarations`) begins with the table itself.

So a packet meets the rules of its front from before the change or from after it.  A source on a list of ranges is
treated likewise: a list changes as a whole.  Changes that have no statement of this change may go between two pieces.
If the kernel refuses a piece, the pieces before it stay, and a full load must follow.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Family, Protocol
from nftproxy.rules.transaction import Difference, Installed, Transaction

PIECE = 56 * 1024
"""Characters of a piece, some 1,300 elements: elements go as bytes, without libnftables, up to 64 KiB
(kernel/nfnetlink/element_batch.py).

100,000 elements of a Service take 0.5 s in such pieces, 19 ms at a time, and 1.7 s in pieces of 128 KiB.  A single
transaction takes 2.0 s, and 180 MB of memory."""

DECLARATIONS = 8
"""A piece of declarations is this many times `PIECE`, as libnftables executes it and reads all chains first.

In one piece the declarations of 5,500 affinity timeouts (5.7 MB) take 4.8 s and 150 MiB.  In such pieces the longest
takes 1.2 s, and all together 14 MiB."""

_BLOCK = re.compile(r"^table (.+) \{\n((?:  .*\n)*)\}\n", re.MULTILINE)
_DECLARATION = re.compile(r"  (set|map|chain) (\S+) \{\n(?:    (.*)\n)?(?:    .*\n)*  \}\n")
_PROTOCOLS = {protocol.value for protocol in Protocol}


class _Container(NamedTuple):
    """The table and the name of a set or map."""

    table: str
    name: str


class _Entry(NamedTuple):
    """An element that is added or deleted."""

    verb: str
    container: _Container
    text: str


_Group = list[_Entry]
"""Elements that change in the same piece."""


class _Statement(NamedTuple):
    """A command, and a declaration that comes after it, if there is one."""

    command: str
    table: str = ""
    declaration: str = ""


class _Parts:
    """The statements of a transaction by their kind, each kind in its order."""

    def __init__(self, text: str) -> None:
        self._tables: list[_Statement] = []
        self._headers: list[_Statement] = []
        self._containers: list[_Statement] = []
        self._chains: dict[_Statement, None] = {}
        self._bodies: list[_Statement] = []
        self._staying: set[str] = set()
        self.emptied: list[str] = []
        """Commands that empty sets and maps which stay."""
        self.discarded: list[_Statement] = []
        self.added: dict[_Container, list[str]] = {}
        self.deleted: dict[_Container, list[str]] = {}
        lines = _BLOCK.sub(self._read_block, text).splitlines(keepends=True)
        filled = {each.command for each in self._bodies}  # a chain is emptied in the piece that fills it
        for line in lines:
            verb, _, rest = line.partition(" ")
            if rest.startswith("element "):
                _, family, table, name, elements = rest.split(" ", 4)
                found = self.added if verb == "add" else self.deleted
                found.setdefault(_Container(f"{family} {table}", name), []).extend(elements[2:-3].split(", "))
            elif rest.startswith("table "):
                self._tables.append(_Statement(line))
            elif verb == "add":
                self._chains[_Statement(line)] = None
            elif line in self._staying:
                self.emptied.append(line)
            elif line not in filled:
                self.discarded.append(_Statement(line))

    @property
    def declarations(self) -> list[_Statement]:
        """The statements of step 1."""
        return [*self._tables, *self._headers, *self._containers, *self._chains, *self._bodies]

    def _read_block(self, block: re.Match[str]) -> str:
        """Note the declarations of a `table` block."""
        table, declarations = block.groups()
        for declaration in _DECLARATION.finditer(declarations):
            kind, name, first = declaration.groups()
            if kind == "chain":
                hook = f" {{ {first}; }}" if first and first.startswith("type ") else ""
                self._chains[_Statement(f"add chain {table} {name}{hook}\n")] = None
                self._bodies.append(_Statement(f"flush chain {table} {name}\n", table, declaration[0]))
            else:
                self._containers.append(_Statement("", table, declaration[0]))
                self._staying.add(f"flush {kind} {table} {name}\n")
        if header := _DECLARATION.sub("", declarations):
            self._headers.append(_Statement(f"table {table} {{\n{header}}}\n"))
        return ""


def pieces_of(transaction: Transaction, size: int = PIECE) -> list[Transaction]:
    """Split a change into pieces of about `size` characters of elements, in the order that this module describes.

    Pieces of declarations are `DECLARATIONS` times as long.  A transaction of up to `size` characters stays whole.  A
    front, or a list of ranges, is never split.

    Args:
        transaction: made by `change_transaction`, for any families.
        size: characters.
    """
    if len(transaction.text) <= size:
        return [transaction]
    parts = _Parts(transaction.text)
    early, fronts, late = _staged(parts)
    pieces = list(_gathered(parts.declarations, DECLARATIONS * size))
    pieces += itertools.chain.from_iterable(_pieces(stage, size) for stage in (early, fronts, late))
    pieces += _gathered(parts.discarded, DECLARATIONS * size)
    return [Transaction(text) for text in pieces if text]


def parts_of_declarations(transaction: Transaction, size: int = PIECE) -> list[Transaction]:
    """Split any transaction whose declarations don't fit into one message, and keep its elements together.

    This is for user namespaces (kernel/libnftables.py).  A chain in force is emptied in the part that fills it.  A
    table that is replaced has a gap.

    Args:
        transaction: any of rules/transaction.py.
        size: characters of declarations in a part, some 170 KB in a message.
    """
    parts = _Parts(transaction.text)
    elements = "".join(
        [
            *(_elements_command("delete", each, texts) for each, texts in parts.deleted.items()),
            *parts.emptied,
            *(_elements_command("add", each, texts) for each, texts in parts.added.items()),
        ]
    )
    texts = [*_gathered(parts.declarations, size), elements, *_gathered(parts.discarded, size)]
    return [Transaction(text) for text in texts if text]


def _gathered(statements: Iterable[_Statement], size: int) -> Iterator[str]:
    """Statements in their order, as texts of about `size` characters."""
    piece, length = list[_Statement](), 0
    for statement in statements:
        piece.append(statement)
        length += sum(map(len, statement))
        if length >= size:
            yield _together(piece)
            piece, length = [], 0
    yield _together(piece)


def _together(piece: Iterable[_Statement]) -> str:
    """The commands, and then the declarations in a few blocks: a block for each costs libnftables quadratic memory."""
    text = "".join(each.command for each in piece)
    for table, found in itertools.groupby(piece, lambda each: each.table):
        if table:
            text += f"table {table} {{\n{''.join(each.declaration for each in found)}}}\n"
    return text


class SplitRefill(NamedTuple):
    """A load of a table in force, whose elements change in pieces before and after the rest."""

    early: list[Transaction]
    """The pieces of step 2, which come before the load."""
    installed: Installed
    """The table as the load must assume it: these elements don't differ."""
    late: list[Transaction]
    """The pieces of steps 3 and 4, which come after the load."""


def split_refill(family: Family, installed: Installed, size: int = PIECE) -> SplitRefill:
    """Split the differing elements off a load that refills a table.  Elements that lead to chains stay in the load.

    Args:
        family: the family of the table.
        installed: the table, with its differences.
        size: characters of a piece.
    """
    plain = {name: each for name, each in installed.differences.items() if not _has_verdicts(each)}
    parts = _Parts("")
    for name, each in plain.items():
        for found, elements in ((parts.deleted, each.surplus), (parts.added, each.missing)):
            if elements:
                found[_Container(family.table, name)] = [element.text for element in elements]
    early, fronts, late = ([Transaction(text) for text in _pieces(stage, size) if text] for stage in _staged(parts))
    known = {**installed.differences, **dict.fromkeys(plain, Difference())}
    return SplitRefill(early, msgspec.structs.replace(installed, differences=known), fronts + late)


def _has_verdicts(difference: Difference) -> bool:
    return any(each.value.startswith(("goto ", "jump ")) for each in (*difference.surplus[:1], *difference.missing[:1]))


def _staged(parts: _Parts) -> tuple[Iterable[_Group], Iterable[_Group], Iterable[_Group]]:
    """The groups of elements of steps 2, 3 and 4."""
    early: list[Iterable[_Group]] = []
    late: list[Iterable[_Group]] = []
    fronts: dict[tuple[str, str], _Group] = {}
    for container in dict.fromkeys([*parts.deleted, *parts.added]):
        deleted, added = parts.deleted.get(container, []), parts.added.get(container, [])
        if _is_of_fronts(container.name, (added or deleted)[0]):
            for entry in _entries(container, deleted, added):
                fronts.setdefault((container.table, _key(entry.text)), []).append(entry)
        elif not deleted:
            early.append([entry] for entry in _entries(container, deleted, added))
        elif not added:
            late.append([entry] for entry in _entries(container, deleted, added))
        else:
            groups = _grouped(container, deleted, added)
            early.append(group for group in groups if group[-1].verb == "add")
            late.append(group for group in groups if group[-1].verb == "delete")
    return itertools.chain(*early), fronts.values(), itertools.chain(*late)


def _entries(container: _Container, deleted: Iterable[str], added: Iterable[str]) -> Iterator[_Entry]:
    yield from (_Entry("delete", container, text) for text in deleted)
    yield from (_Entry("add", container, text) for text in added)


def _grouped(container: _Container, deleted: Iterable[str], added: Iterable[str]) -> list[_Group]:
    """Group the elements of a map by key, the elements of a set by the first part of the key: the name of a list."""
    groups: dict[str, _Group] = {}
    for entry in _entries(container, deleted, added):
        key, _, value = entry.text.partition(" : ")
        groups.setdefault(key if value else key.partition(" . ")[0], []).append(entry)
    return list(groups.values())


def _is_of_fronts(name: str, element: str) -> bool:
    """Whether a set or map has fronts as keys: address, protocol and port, or protocol and node port."""
    match _key(element).split(" . "):
        case [_, protocol, _]:
            return protocol in _PROTOCOLS
        case [protocol, _]:
            return protocol in _PROTOCOLS and name.startswith("nodeport-")
    return False


def _key(element: str) -> str:
    return element.partition(" : ")[0]


def _pieces(groups: Iterable[_Group], size: int) -> Iterator[str]:
    """The commands for some groups, as texts of about `size` characters."""
    piece: list[_Entry] = []
    length = 0
    for group in groups:
        piece += group
        length += sum(len(entry.text) + 2 for entry in group)
        if length >= size:
            yield _text(piece)
            piece, length = [], 0
    yield _text(piece)


def _text(piece: Iterable[_Entry]) -> str:
    """The commands for some elements: deletions come first."""
    commands: dict[tuple[str, _Container], list[str]] = {}
    for verb, container, text in piece:
        commands.setdefault((verb, container), []).append(text)
    ordered = sorted(commands.items(), key=lambda item: item[0][0] == "add")
    return "".join(_elements_command(verb, container, texts) for (verb, container), texts in ordered)


def _elements_command(verb: str, container: _Container, texts: Iterable[str]) -> str:
    return f"{verb} element {container.table} {container.name} {{ {', '.join(texts)} }}\n"
