"""The parts of the kernel's rules that other programs have, as values."""

from __future__ import annotations

import msgspec


class BaseChain(msgspec.Struct, frozen=True):
    """A chain of nftables that the kernel runs at a hook."""

    family: str  # in nft's words, such as inet
    table: str
    name: str
    hook: str  # in nft's words, such as forward
    drops: bool  # whether the chain's policy is drop


class DroppingChain(msgspec.Struct, frozen=True, order=True):
    """A base chain of another program, of nftables or iptables, that can drop packets."""

    family: str  # in nft's words, or the name of the tool of legacy iptables
    table: str
    name: str
    hook: str  # in nft's words
    why: str  # how it can drop them, in words

    def __str__(self) -> str:
        return f"the chain {self.name} in the table {self.family} {self.table} ({self.hook}): {self.why}"
