"""What the kernel holds that isn't ours, as far as other stages speak of it."""

from __future__ import annotations

import msgspec


class BaseChain(msgspec.Struct, frozen=True):
    """A chain of nftables that packets enter by themselves.

    `family` and `hook` are nft's words (inet, forward); `drops` is whether its policy is drop.
    """

    family: str
    table: str
    name: str
    hook: str
    drops: bool
