"""Fields of the configuration that extensions declare, in the section `nftproxy`.

A `ConfigField` declares a field, and is the key by which its value is read: `config[PINGS]`.  An extension declares its
fields in its own folder, and installed_fields.py lists them.  The parser and /configz (config/declared_fields.py), and
the flags (config/flags.py), follow these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from nftproxy.model.annotations import Word

T_co = TypeVar("T_co", covariant=True)


class FieldForm(Enum):
    """How a value is written.  `Word` is the form for members of an Enum."""

    TRUTH = "true or false"
    INTERFACES = "a list of interfaces' names, or of the beginning of names and a star"
    NODE_ADDRESSES = "a list of addresses, ranges of addresses, and interfaces' names"


@dataclass(frozen=True, eq=False)
class ConfigField(Generic[T_co]):
    """A field, and the key of its value.

    Attributes:
        name: its path in the section, as in "serviceCounts" or "fastPath.interfaces".
        form: the form of its values.  A list of words is a frozenset, and any other list a tuple.
        default: the value without the field.
        help: the text about its flag, a sentence.
        needs: another field of the section that a value other than the default needs, and the reason.  None if it
            needs no other field.
    """

    name: str
    form: FieldForm | Word
    default: T_co
    help: str
    needs: tuple[str, str] | None = None

    @property
    def path(self) -> str:
        """Its path in the file."""
        return f"nftproxy.{self.name}"
