"""The spellings of addresses and ranges that API servers have stored, and deny since Kubernetes 1.36 (KEP-4858).

A number may have leading zeros, which are decimal in IPv4, and an IPv4 address may be IPv4-mapped IPv6.  ServiceCIDRs
never had either.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any

FIELDS = frozenset(
    {"clusterIP", "clusterIPs", "externalIPs", "loadBalancerSourceRanges", "ip", "address", "addresses", "podCIDRs"}
)
"""The fields of Services, EndpointSlices and Nodes that have addresses or ranges."""
_NUMBERS = re.compile("[0-9a-f]+")


def respelt(document: Any, field: str = "") -> Any:
    """A document, or a field of it, with other spellings of all its addresses and ranges.

    Every second IPv4 address becomes IPv4-mapped.  All other addresses, and ranges, get leading zeros.
    """
    match document:
        case dict():
            return {name: respelt(value, name) for name, value in document.items()}
        case list():
            return [respelt(item, field) for item in document]
        case str() if field in FIELDS and _is_known(document):
            return _respelt(document)
        case _:
            return document


def _is_known(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return True


def _respelt(text: str) -> str:
    if ":" not in text and "/" not in text and int(ipaddress.ip_address(text)) % 2:
        return f"::ffff:{text}"
    return _NUMBERS.sub(lambda number: f"0{number[0]}", text)
