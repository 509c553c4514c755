"""Enters into an explanation what the kernel holds: each element asked for by its key, and the pod of one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from nftproxy.explanation.answer import Affinity, Expected, Explanation, Place, Remembered
from nftproxy.model.addresses import Address, Family


class Held(Protocol):
    """An element of the kernel's: its value, "" in a set, and the seconds until it expires, None if it doesn't."""

    @property
    def value(self) -> str:
        """As our statements write it."""

    @property
    def seconds(self) -> float | None:
        """Until it expires."""


Find = Callable[[Family, str, str], Held | None]
"""Finds the element with a key in a set or map of our table: family, name of the set, key (kernel/elements.py)."""


def with_kernel(explanation: Explanation, find: Find) -> Explanation:
    """The explanation with what `find` says of each element that the kernel must hold or must not."""
    places = tuple(_place(place, find) for place in explanation.places)
    return msgspec.structs.replace(explanation, places=places)


def _place(place: Place, find: Find) -> Place:
    expected = tuple(_compared(each, find(place.family, each.container, each.key)) for each in place.expected)
    affinity = _remembered(place.affinity, place.family, find) if place.affinity else None
    return msgspec.structs.replace(place, expected=expected, affinity=affinity)


def _compared(expected: Expected, held: Held | None) -> Expected:
    found = held.value if held else None
    return msgspec.structs.replace(expected, is_held=found == expected.value, found=found)


def _remembered(affinity: Affinity, family: Family, find: Find) -> Affinity:
    if not affinity.map or not affinity.key:
        return affinity
    held = find(family, affinity.map, affinity.key)
    remembered = Remembered(Address(held.value), held.seconds or 0.0) if held else None
    return msgspec.structs.replace(affinity, is_known=True, remembered=remembered)
