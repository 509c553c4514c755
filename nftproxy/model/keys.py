"""Enumerations whose members are keys: of dicts, or members of sets, that are looked up for every change."""

from __future__ import annotations

from enum import Enum


class KeyEnum(Enum):
    """An enumeration that hashes its members by identity, as each exists once.

    Enum itself hashes their names, by a method in Python: a change of one endpoint needs 120 hashes.
    """

    __hash__ = object.__hash__
