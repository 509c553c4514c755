"""Parse the output of iptables-save as far as the checks need it: chains, policies, rules with their counters.

Any program may have written these rules, so lines that can't be parsed are skipped.  Nothing raises.
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
    """A rule: its chain, its matches (without comments), its target, and its packet counter.

    `CT --notrack` counts as the target NOTRACK.
    """

    chain: str
    matches: str
    target: str
    packets: int

    @property
    def is_unconditional(self) -> bool:
        """True if every packet goes to the target."""
        return not self.matches


class Table(msgspec.Struct, frozen=True):
    """A table: the policy of each built-in chain, the names of all other chains, and all rules in order."""

    name: str
    policies: dict[str, str]
    chains: tuple[str, ...]
    rules: tuple[Rule, ...]

    def of(self, chain: str) -> Iterator[Rule]:
        """Yield the rules of a chain."""
        return (rule for rule in self.rules if rule.chain == chain)


class SavedTables(msgspec.Struct, frozen=True):
    """The tables of a variant of iptables: `tool` is its name, as in iptables-legacy.

    Legacy iptables has all tables that can drop packets, the other variant only the table filter.
    """

    tool: str
    tables: tuple[Table, ...]
    is_legacy: bool = False

    def table(self, name: str) -> Table | None:
        """Return the table of this name."""
        return next((table for table in self.tables if table.name == name), None)


def read_saved(tool: str, text: str, *, is_legacy: bool = False) -> SavedTables:
    """Parse the output of `iptables-save -c`."""
    parts = re.split(r"^\*", text, flags=re.MULTILINE)[1:]
    return SavedTables(tool, tuple(_table(lines) for part in parts if (lines := part.splitlines())), is_legacy)


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
    is_untracked = target and target[1] == "CT" and "--notrack" in target[2]
    name = "NOTRACK" if is_untracked else target[1] if target else ""
    return Rule(chain, matches.strip(), name, int(packets or 0))
