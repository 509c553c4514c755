"""Fields of the configuration that extensions declare, in the section `nftproxy`.

A `ConfigField` declares a field, and is the key by which its value is read: `config[PINGS]`.  An extension declares its
fields in its own folder, and installed_fields.py lists them.  The parser and /configz (config/declared_fields.py), and
the flags (config/flags.py), follow these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar, cast

from nftproxy.model.annotations import Word
from nftproxy.model.codes import Code

T_co = TypeVar("T_co", covariant=True)


class FieldForm(Enum):
    """How a value is written.  `Word` is the form for members of an Enum."""

    TRUTH = "true or false"
    INTERFACES = "a list of interfaces' names, or of the beginning of names and a star"
    NODE_ADDRESSES = "a list of addresses, ranges of addresses, and interfaces' names"


class Replacement(NamedTuple):
    """The value in place of a text of kube-proxy's.

    `difference` says in words what becomes otherwise, "" if nothing does.
    """

    value: Enum
    difference: str = ""


class InsteadOf(NamedTuple):
    """A text field of kube-proxy's that gives the value of a field that isn't set, with a warning.

    It counts in the mode after which its section is named: `ipvs.scheduler` counts in mode ipvs.  `values` has the
    replacements of the texts that are known.
    """

    path: str
    code: Code
    values: Mapping[str, Replacement]


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
        instead_of: a field of kube-proxy's that it replaces, None if it replaces none.
    """

    name: str
    form: FieldForm | Word
    default: T_co
    help: str
    needs: tuple[str, str] | None = None
    instead_of: InsteadOf | None = None

    @property
    def path(self) -> str:
        """Its path in the file."""
        return f"nftproxy.{self.name}"

    def replacement(self, text: str) -> Replacement:
        """Return what takes the place of a text of `instead_of`, the default if the text isn't known."""
        assert self.instead_of
        kind = self.instead_of.path.rpartition(".")[2]
        unknown = Replacement(cast("Enum", self.default), f"nftproxy doesn't know this {kind}")
        return self.instead_of.values.get(text, unknown)

    def and_of(self, other: ConfigField[Any]) -> ConfigField[T_co]:
        """Return the field that also has the words and replacements of a field with the same name."""
        assert isinstance(self.form, Word)
        assert isinstance(other.form, Word)
        instead_of = self.instead_of
        if instead_of and other.instead_of:
            instead_of = instead_of._replace(values={**other.instead_of.values, **instead_of.values})
        return replace(self, form=self.form.and_of(other.form), instead_of=instead_of)
