"""Addresses and ranges of the node, and its interfaces, as the configuration names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from nftproxy.api.decode import Report, show, virtual_address
from nftproxy.model.addresses import FAMILY_NAMES, AddressRange, Family, family_of

MOST_ADDRESSES = 256
"""The most addresses of a range.  Each of them must be one of the node's own."""
_SEEMS_ADDRESS = re.compile(r"[0-9.]+\Z|[0-9]+\.[0-9.]+-")


def address_ranges(
    given: Iterable[object], is_interface: Callable[[str], object], path: str, report: Report
) -> tuple[AddressRange | str, ...]:
    """Parse addresses and ranges, as in 192.0.2.1-192.0.2.4, at most one of each family, and names of interfaces."""
    found: dict[Family | str, AddressRange | str] = {}
    for index, value in enumerate(given):
        place = f"{path}[{index}]"
        if isinstance(value, str) and is_interface(value) and not _SEEMS_ADDRESS.match(value):
            found[value] = value
        elif (range_ := _address_range(value, place, report)) and found.setdefault(range_.family, range_) != range_:
            report(
                place, f"{range_} is a second {FAMILY_NAMES[range_.family]} address or range: at most one is allowed"
            )
    return tuple(found.values())


def _address_range(value: object, path: str, report: Report) -> AddressRange | None:
    first, _, last = value.partition("-") if isinstance(value, str) else (value, "", "")
    start = virtual_address(first, path, report)
    end = virtual_address(last, path, report) if last else start
    if start is None or end is None:
        return None
    found = AddressRange(start, end)
    if family_of(end) is not found.family or not 1 <= found.size <= MOST_ADDRESSES:
        report(path, f"{show(value)} is not a range of 1 to {MOST_ADDRESSES} addresses of a family")
        return None
    return found
