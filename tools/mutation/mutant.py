"""A mutant: a small fault in a file, and its identity."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

RULE_COMMENT = re.compile(r' comment "[^"]*"$')
"""The comment at the end of a rule in a template: it has no effect on packets, so it isn't part of a mutant."""


class Identity(NamedTuple):
    """The identity of a mutant, which is stable while its line is unchanged, even if the line moves within `where`.

    `where` is the function or class, or the nft chain, set or map.  `line` is the stripped text without a rule's
    comment.  `change` describes the damage, with a number if the same change is possible at several places of the line.
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
    """The numbers of the first and last line of the damaged statement."""


class Mutant(NamedTuple):
    """A fault of a file, and its identity."""

    identity: Identity
    fault: Fault

    def applied(self, source: bytes) -> bytes:
        """Return the file's text with the fault in it."""
        return source[: self.fault.start] + self.fault.new.encode() + source[self.fault.end :]


def mutants_of(file: str, source: bytes, faults: Iterable[Fault]) -> list[Mutant]:
    """Return the mutants of a file in the order of their places, without duplicate texts."""
    seen: Counter[Identity] = Counter()
    texts: set[tuple[int, int, str]] = set()
    made = []
    for fault in sorted(faults):
        place = fault[:3]
        if place in texts or source[fault.start : fault.end] == fault.new.encode():
            continue
        texts.add(place)
        number = source.count(b"\n", 0, fault.start) + 1
        line = RULE_COMMENT.sub("", source.split(b"\n")[number - 1].decode().strip())
        identity = Identity(file, fault.where, line, fault.change)
        seen[identity] += 1
        if seen[identity] > 1:
            identity = identity._replace(change=f"{fault.change} ({seen[identity]})")
        made.append(Mutant(identity, fault))
    return made
