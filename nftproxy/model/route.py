"""A route of this machine, as far as checks look at it."""

from __future__ import annotations

import msgspec


class Route(msgspec.Struct, frozen=True):
    """A route: the length of its prefix in bits, 0 for a default route, its interface, and its own MTU, 0 for none.

    `why_not` is the system's reason if there is no route, else "".
    """

    prefix: int = 0
    interface: str = ""
    mtu: int = 0
    why_not: str = ""
