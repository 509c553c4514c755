"""The configuration of the fast path."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from nftproxy.model.annotations import Word
from nftproxy.model.config_fields import ConfigField, FieldForm


class FastPathScope(Enum):
    """The connections that the fast path takes (nftproxy.fastPath.connections)."""

    SERVICES = "Services"  # those with a translated destination
    ALL = "All"  # those that the node forwards


INTERFACES: ConfigField[tuple[str, ...]] = ConfigField(
    "fastPath.interfaces", FieldForm.INTERFACES, (), "Interfaces between which packets are fast."
)
"""Names, or the beginning of names and a star."""
CONNECTIONS = ConfigField(
    "fastPath.connections", Word(FastPathScope), FastPathScope.SERVICES, "Services, or All that is forwarded."
)


class FastPath(msgspec.Struct, frozen=True):
    """The interfaces of the fast path.  Without interfaces it is off."""

    interfaces: tuple[str, ...] = ()  # names, or the beginning of names and a star

    def chosen(self, present: Iterable[str]) -> list[str]:
        """Return the present interfaces that are chosen, whole names before prefixes.  Loopback is left out."""
        fitting = {name for name in present if name in self.interfaces or name.startswith(self.beginnings)} - {"lo"}
        return sorted(fitting, key=lambda name: (name not in self.interfaces, name))

    @property
    def beginnings(self) -> tuple[str, ...]:
        """The prefixes of names, the shortest first, without those that begin with another prefix."""
        beginnings: list[str] = []
        for each in sorted((name[:-1] for name in self.interfaces if name.endswith("*")), key=len):
            if not each.startswith(tuple(beginnings)):
                beginnings.append(each)
        return tuple(beginnings)
