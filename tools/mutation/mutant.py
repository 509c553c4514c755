"""A mutant: one small fault in one file, and what it is known by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class Identity(NamedTuple):
    """What a mutant is known by, for as long as the line stays as it is, wherever it moves within its surroundings.

    `where` is the function or class, or the nft chain, set or map; `line` is the text, blanks around it left out;
    `change` says what is done to it, with a number if the same can be done at several places of the line.
    """

    file: str
    where: str
    line: str
    change: str

    def __str__(self) -> str:
        return f"{self.file}: {self.where}: {self.line}: {self.change}"


class Fault(NamedTuple):
    """A replacement in a text, by offsets in bytes, and its name."""

    start: int
    end: int
    new: str
    change: str
    where: str
    lines: tuple[int, int]
    """The numbers of the first and the last line of the statement that it is in."""


class Mutant(NamedTuple):
    """A fault of a file, and what it is known by."""

    identity: Identity
    fault: Fault

    def applied(self, source: bytes) -> bytes:
        """The file's text with the fault in it."""
        return source[: self.fault.start] + self.fault.new.encode() + source[self.fault.end :]


def mutants_of(file: str, source: bytes, faults: Iterable[Fault]) -> list[Mutant]:
    """The mutants of a file, in the order of their places; each text once."""
    seen: Counter[Identity] = Counter()
    texts: set[tuple[int, int, str]] = set()
    made = []
    for fault in sorted(faults):
        place = fault[:3]
        if place in texts or source[fault.start : fault.end] == fault.new.encode():
            continue
        texts.add(place)
        number = source.count(b"\n", 0, fault.start) + 1
        line = source.split(b"\n")[number - 1].decode().strip()
        identity = Identity(file, fault.where, line, fault.change)
        seen[identity] += 1
        if seen[identity] > 1:
            identity = identity._replace(change=f"{fault.change} ({seen[identity]})")
        made.append(Mutant(identity, fault))
    return made
