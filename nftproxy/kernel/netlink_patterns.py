"""Regular expressions for attributes in netlink messages.

Where an answer has tens of thousands of entries, one pattern that finds the few bytes that matter takes a tenth of the
time that taking each entry apart does.
"""

from __future__ import annotations

import re
import struct

from nftproxy.kernel.netlink import ATTRIBUTE, NESTED


def head(length: int, kind: int) -> bytes:
    """The head of an attribute whose value has so many bytes."""
    return re.escape(ATTRIBUTE.pack(ATTRIBUTE.size + length, kind))


def nest(kind: int) -> bytes:
    """The head of an attribute that holds others; kernels may mark it as such or not (6.18 does not)."""
    marked, plain = (re.escape(struct.pack("=H", each)) for each in (kind | NESTED, kind))
    return b"..(?:" + marked + b"|" + plain + b")"
