"""Elements in libnftables' JSON, as our own text."""

from __future__ import annotations

import ipaddress
from typing import Any

from nftproxy.kernel.nfnetlink.element_codec import PROTOCOL, PROTOCOL_NAMES, TYPE_BITS
from nftproxy.kernel.nfnetlink.nft_queries import NamedSet
from nftproxy.rules.ruleset import Element


def element_of(container: NamedSet, entry: Any) -> Element:
    """An element of a set's JSON listing."""
    key, value = entry if container.is_map else (entry, "")
    if isinstance(key, dict) and "elem" in key:  # with a counter, a timeout or a comment
        key = key["elem"]["val"]
    return Element(container.name, _text(key, container.key_type), _text(value, container.data_type))


def _text(value: Any, kind: int) -> str:
    """Return a key, datum or verdict of nft's JSON as nft's text.  `kind` is its type number."""
    match value:
        case {"concat": parts}:
            last = len(parts) - 1
            kinds = (kind >> TYPE_BITS * (last - index) & (1 << TYPE_BITS) - 1 for index in range(len(parts)))
            return " . ".join(map(_text, parts, kinds))
        case {"prefix": {"addr": address, "len": length}}:
            return f"{_text(address, kind)}/{length}"
        case {"range": [low, high]}:
            return f"{_text(low, kind)}-{_text(high, kind)}"
        case {"goto": {"target": chain}}:
            return f"goto {chain}"
        case {"jump": {"target": chain}}:
            return f"jump {chain}"
        case dict():
            return str(next(iter(value)))  # a verdict without a chain
        case int() if kind == PROTOCOL:
            return PROTOCOL_NAMES.get(value, str(value))
        case str() if ":" in value:
            return str(ipaddress.ip_address(value))  # glibc writes ::1.2.3.4 where Python writes ::102:304
        case _:
            return str(value)
