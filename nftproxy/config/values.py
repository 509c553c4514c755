"""Values of fields that several sections have: words, and names of interfaces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from nftproxy.api.decode import Report, show

E = TypeVar("E", bound=Enum)

INTERFACE = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.@-]{1,15}")
"""The names of interfaces that the kernel takes (IFNAMSIZ, dev_valid_name), without characters that nft or a shell
would interpret: quotes, stars, other signs, anything beyond ASCII."""


def member(value: str | None, default: E, path: str, report: Report) -> E:
    """Return the member of an Enum with this value, or the default for an empty value."""
    found = word(type(default), value, path, report) if value else None
    return default if found is None else found


def word(words: Iterable[E], value: object, path: str, report: Report) -> E | None:
    """Return the member of an Enum with this value, None if there is none."""
    found = next((each for each in words if each.value == value), None)
    if found is None:
        report(path, f"{show(value)} is not one of {', '.join(each.value for each in words)}")
    return found


def interfaces(value: object, path: str, report: Report) -> str | None:
    """Parse the name of an interface, or the beginning of names, which ends with a star."""
    name = value.removesuffix("*") if isinstance(value, str) else ""
    if value != "*" and not INTERFACE.fullmatch(name):
        report(path, f"{show(value)} is not an interface's name, or the beginning of names and a star, as in veth*")
        return None
    return str(value)
