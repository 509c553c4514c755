"""An interface of a machine, as far as checks look at it."""

from __future__ import annotations

import msgspec


class Link(msgspec.Struct, frozen=True, order=True):
    """An interface: `kind` is its type as `ip -d link` names it, "" for hardware, and `mtu` is in bytes.

    `bridge` is the bridge that it is a port of, "" for none.  `hairpin` says whether that bridge sends a packet back
    through the port that it came from.
    """

    name: str
    kind: str
    mtu: int
    bridge: str = ""
    hairpin: bool = False
