"""Enumerations whose members are keys of dicts and sets, which every change looks up."""

from __future__ import annotations

from enum import Enum


class KeyEnum(Enum):
    """An enumeration that hashes its members by identity, as each exists once.

    Enum itself hashes their names, by a method in Python: the change of an endpoint takes 120 hashes.
    """

    __hash__ = object.__hash__
