"""The parts of the kernel's rules that other programs have, as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec


class BaseChain(msgspec.Struct, frozen=True):
    """A chain of nftables that the kernel runs at a hook."""

    family: str  # in nft's words, such as inet
    table: str
    name: str
    hook: str  # in nft's words, such as forward
    drops: bool  # whether the chain's policy is drop
    priority: int = 0


class Effect(StrEnum):
    """An effect of another program's chain on packets to Services, in words."""

    DROPS = "drops or rejects"
    EXEMPTS = "exempts packets from connection tracking"
    TRANSLATES = "translates destinations"


class ForeignChain(msgspec.Struct, frozen=True, order=True):
    """A base chain of another program, of nftables or iptables, and an effect that it can have."""

    family: str  # in nft's words, or the name of the tool of legacy iptables
    table: str
    name: str
    hook: str  # in nft's words
    effect: Effect
    why: str  # how it can have the effect, in words

    def __str__(self) -> str:
        return f"the chain {self.name} in the table {self.family} {self.table} ({self.hook}): {self.why}"


def rule_with(effect: Effect, start: str, has: Callable[[str], bool], near: Callable[[str], Iterable[str]]) -> str:
    """Name the first rule with an effect that packets in a chain can come to, "" if there is none.

    Args:
        effect: the effect.
        start: the chain.
        has: returns whether a chain has a rule with the effect.
        near: returns the chains that a chain leads to.
    """
    seen, waiting = {start}, [start]
    while waiting:
        name = waiting.pop()
        if has(name):
            return f"a rule {effect}" if name == start else f"a rule in the chain {name} {effect}"
        further = sorted({*near(name)} - seen)
        seen.update(further)
        waiting += further
    return ""
