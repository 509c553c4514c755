"""Annotations of nftproxy's own: how each is declared, and the typed values that objects have by them.

An `Option` declares an annotation, and is the key by which its value is read: `service.options[WEIGHTS]`.  It has the
form of the annotation's values, and its effect.  An extension declares its options in its own folder, and lists them in
its `Extension`.  Extensions share an annotation if each declares it with its own words (`joined`).  The parsers
(api/annotation_parsers.py), the table in docs/semantics.md and the clusters of `conformance` follow these declarations.

An object without annotations of ours has `PLAIN`, which is the same object for all: it takes no memory, and policy
needs no None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast
from typing import Protocol as Interface

import msgspec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PREFIX = "nftproxy.dev/"
"""The prefix of the names of nftproxy's own annotations."""


NONE = "none"
"""The value of an annotation that is a list of words, if no word is on it."""

ZoneWeight = tuple[str, int]
"""A zone, and the weight of each endpoint in it."""


class Rate(NamedTuple):
    """New connections per second of a client.  After a pause, `burst` of them may come in a row."""

    per_second: int
    burst: int


class Form(Enum):
    """How a value is written, as docs/semantics.md shows it.  `Word` is the form for members of an Enum."""

    WEIGHT = '`"0"` to `"100"`'
    ZONE_WEIGHTS = '`"zone:a=3,zone:b=1"`'
    RATE = '`"20"`, or `"20,burst=40"`'
    LIMIT = '`"100"`'
    RANGES = '`"192.0.2.0/24,2001:db8::/32"`'


class Word(NamedTuple):
    """The form of a member of an Enum, or of several of them separated by commas (`is_list`), or `NONE`.

    `words` are the members that may be given, by their values.
    """

    words: type[Enum] | Sequence[Enum]
    is_list: bool = False

    def and_of(self, other: Word) -> Word:
        """Return the form that also has another form's words.  Of words with the same value, the first counts."""
        found: dict[object, Enum] = {}
        for each in (*self.words, *other.words):
            found.setdefault(each.value, each)
        return self._replace(words=tuple(found.values()))


@dataclass(frozen=True, eq=False)
class Option(Generic[T_co]):
    """An annotation, and the key of its value.

    Attributes:
        name: the annotation's name, without the prefix.
        form: the form of its values.
        default: the value without the annotation.
        effect: a sentence without its subject, for docs/semantics.md.
        sets: the sets and maps that differ by the annotation.
        restricts: whether it excludes clients, unless its value is empty.
        is_of_slices: whether EndpointSlices have it, and not Services.
    """

    name: str
    form: Form | Word
    default: T_co
    effect: str
    sets: tuple[str, ...]
    restricts: bool = False
    is_of_slices: bool = False

    @property
    def annotation(self) -> str:
        """The name with the prefix."""
        return PREFIX + self.name

    def and_of(self, other: Option[Any]) -> Option[T_co]:
        """Return the option that also has the words of an option with the same name."""
        assert isinstance(self.form, Word)
        assert isinstance(other.form, Word)
        return replace(self, form=self.form.and_of(other.form))


class Declared(Interface):
    """An annotation, or a field of the configuration, as an extension declares it."""

    @property
    def name(self) -> str:
        """The name, which declarations of several extensions may share."""

    def and_of(self, other: Self) -> Self:
        """Return the declaration that also has the words of a declaration with the same name."""


D = TypeVar("D", bound=Declared)


def joined(declared: Iterable[D]) -> tuple[D, ...]:
    """Return the declarations.  Declarations with the same name become one, which has the words of all of them.

    Each of these declarations is a key of its value.  An extension ignores words that other extensions declare.
    """
    found: dict[str, D] = {}
    for each in declared:
        first = found.get(each.name)
        found[each.name] = each if first is None else first.and_of(each)
    return tuple(found.values())


class Options(msgspec.Struct, frozen=True, gc=False):
    """The values that an object has by annotations, by the names of their options.

    `given` is sorted by name.  `restricts` is true if one of the values excludes clients.
    """

    given: tuple[tuple[str, object], ...] = ()
    restricts: bool = False

    @classmethod
    def of(cls, values: Mapping[Option[Any], object]) -> Options:
        """Return the options with these values, `PLAIN` without any."""
        if not values:
            return PLAIN
        given = sorted((option.name, value) for option, value in values.items())
        return cls(tuple(given), any(option.restricts and bool(value) for option, value in values.items()))

    def __getitem__(self, option: Option[T]) -> T:
        """Return the value of an option."""
        return option.default if self is PLAIN else self.get(option, option.default)

    def get(self, option: Option[T], default: T) -> T:
        """Return the value of an option, or the default if the object doesn't have the annotation."""
        return cast("T", next((value for name, value in self.given if name == option.name), default))

    def over(self, defaults: Options) -> Options:
        """Return these options, with defaults in place of annotations that the object doesn't have."""
        if self is PLAIN:
            return defaults
        given = tuple(sorted((dict(defaults.given) | dict(self.given)).items()))
        return Options(given, self.restricts or defaults.restricts)


PLAIN = Options()


WEIGHTS: Option[tuple[ZoneWeight, ...]] = Option(
    "weights",
    Form.ZONE_WEIGHTS,
    (),
    "[weighs](#weights) endpoints by their zones; zones that it doesn't name have weight 1",
    ("tcp-endpoints",),
)
"""In the order of the zones' names.  Without weights all endpoints weigh the same."""
WEIGHT: Option[int | None] = Option(
    "weight",
    Form.WEIGHT,
    None,
    "[weighs](#weights) each endpoint of the slice; the default is 100",
    ("tcp-endpoints",),
    is_of_slices=True,
)
