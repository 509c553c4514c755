"""What iptables-save prints, taken apart as far as the checks need it: chains, policies, rules with their counters.

It is what any program wrote into the kernel, so a line that doesn't read as expected is passed over; nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_CHAIN = re.compile(r":(\S+) (\S+) \[\d+:\d+\]")
_RULE = re.compile(r"(?:\[(\d+):\d+\] )?-A (\S+) ?(.*)")
_TARGET = re.compile(r"(?:^| )(?:-j|-g) (\S+)(.*)$")
_COMMENT = re.compile(r'-m comment --comment (?:"(?:[^"\\]|\\.)*"|\S+) ?')


class Rule(msgspec.Struct, frozen=True):
    """A rule: its chain, what it asks of a packet (comments left out), its target, and how many packets it has met."""

    chain: str
    matches: str
    target: str
    packets: int

    @property
    def is_unconditional(self) -> bool:
        """Whether every packet meets its target."""
        return not self.matches


class Table(msgspec.Struct, frozen=True):
    """One table: the policy of each built-in chain, the names of the others, and all rules in their order."""

    name: str
    policies: dict[str, str]
    chains: tuple[str, ...]
    rules: tuple[Rule, ...]

    def of(self, chain: str) -> Iterator[Rule]:
        """The rules of one chain."""
        return (rule for rule in self.rules if rule.chain == chain)


class SavedTables(msgspec.Struct, frozen=True):
    """What one variant of iptables has: `tool` is its name, as in iptables-legacy."""

    tool: str
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table | None:
        """A table by its name."""
        return next((table for table in self.tables if table.name == name), None)


def read_saved(tool: str, text: str) -> SavedTables:
    """What `iptables-save -c` has printed."""
    parts = re.split(r"^\*", text, flags=re.MULTILINE)[1:]
    return SavedTables(tool, tuple(_table(lines) for part in parts if (lines := part.splitlines())))


def _table(lines: list[str]) -> Table:
    chains = [match.groups() for line in lines if (match := _CHAIN.match(line))]
    return Table(
        name=lines[0],
        policies={name: policy for name, policy in chains if policy != "-"},
        chains=tuple(name for name, policy in chains if policy == "-"),
        rules=tuple(_rule(match) for line in lines if (match := _RULE.match(line))),
    )


def _rule(match: re.Match[str]) -> Rule:
    packets, chain, rest = match.groups()
    rest = _COMMENT.sub("", rest)
    target = _TARGET.search(rest)
    matches = rest[: target.start()] if target else rest
    return Rule(chain, matches.strip(), target[1] if target else "", int(packets or 0))
