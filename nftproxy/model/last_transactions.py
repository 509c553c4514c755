"""The last transactions of an agent, as it shows them.  Times are in seconds since the epoch, durations in seconds."""

from __future__ import annotations

import msgspec


class LastTransaction(msgspec.Struct, frozen=True, rename="camel"):
    """The last transaction that the kernel accepted.  `duration` counts from taking its events."""

    at: float
    duration: float
    size: int
    is_full: bool
    families: tuple[str, ...]


class LastRefusal(msgspec.Struct, frozen=True, rename="camel"):
    """The last transaction that wasn't applied, and why."""

    at: float
    families: tuple[str, ...]
    reason: str
