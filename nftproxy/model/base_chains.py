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
