"""From JSON-like values to msgspec Structs.  A bad part costs itself and nothing else.

A `Shape` is a Struct that names the fields that matter, with their types.  msgspec converts a whole value, in C, and
rejects it as a whole at the first fault.  So msgspec comes first, and good input needs nothing else.  `salvage` takes a
value that msgspec has rejected, and walks it beside the types:

* A list loses the element that doesn't fit.  The rest stays, and keeps its indexes (`numbered`).
* An object loses the field that doesn't fit.  If the object would mean something else without the field, the fault
  costs the object itself (`Shape.essential`).
* Every loss is reported once, with its path.

Each part is visited once for each level above it, so hostile input costs time in proportion to its size.  Only types
are judged here.  The callers judge the meaning of values.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, Protocol, TypeVar, cast, get_args, get_origin

import msgspec

from nftproxy.model.codes import Code


class Report(Protocol):
    """A function that records a fault of a field."""

    def __call__(self, field: str, message: str, code: Code | None = None, /) -> None:
        """Record a fault.

        Args:
            field: the path of the part that is lost, as in "spec.ports[0].port".
            message: the fault.
            code: None for the usual code of the object or file.
        """


MISFITS = (msgspec.ValidationError, UnicodeError)
"""The exceptions of msgspec for a value that doesn't fit: UnicodeError for half a surrogate pair in a key of a dict."""

T = TypeVar("T")
S = TypeVar("S", bound="Shape")

_SHOWN = 60
"""Characters of a value in a message: an IPv6 CIDR or a DNS label fits, and a log line stays readable."""

_ACRONYMS = {"ip": "IP", "ips": "IPs", "cidr": "CIDR", "cidrs": "CIDRs"}


def _field_name(name: str) -> str:
    """Return the API's name for a field: clusterIPs for cluster_ips."""
    first, *others = name.split("_")
    return first + "".join(_ACRONYMS.get(word, word.capitalize()) for word in others)


class Shape(msgspec.Struct, gc=False, rename=_field_name):
    """A JSON object of which only the named fields matter.

    Every field has a default, which also stands for null: the API takes null as absent.  A field of type `object` takes
    any value.
    """

    essential: ClassVar[frozenset[str]] = frozenset()
    """The fields, by their API names, without which the whole object is lost."""


class _Field(msgspec.Struct, frozen=True):
    """A field of a Shape."""

    name: str
    api_name: str
    type: object


@functools.cache
def _fields(shape: type[Shape]) -> tuple[_Field, ...]:
    return tuple(_Field(field.name, field.encode_name, field.type) for field in msgspec.structs.fields(shape))


class Survivors(list[T]):
    """A list that has lost elements.  `places` are the indexes that the remaining elements had."""

    def __init__(self, elements: Iterable[T], places: Iterable[int]) -> None:
        super().__init__(elements)
        self.places = list(places)


def numbered(elements: list[T] | None) -> Iterable[tuple[int, T]]:
    """Return the elements of a list, each with its index in the input.  Null has no elements."""
    if isinstance(elements, Survivors):
        return zip(elements.places, elements, strict=True)
    return enumerate(elements or ())


def convert(value: object, shape: type[S], report: Report) -> S | None:
    """Convert a value to a shape, without the parts that are bad.

    It never raises for anything that can be made of JSON.  It returns None if the value is no object, or loses an
    essential field.
    """
    try:
        return msgspec.convert(value, shape)
    except MISFITS:
        return salvage(value, shape, report)


def salvage(value: object, shape: type[S], report: Report) -> S | None:
    """Convert a value that msgspec has rejected, as `convert` does: without the parts that are bad."""
    found = _salvage(value, shape, report, "")
    return None if found is _LOST else cast("S", found)


class _Lost:
    """The type of `_LOST`, which stands for a value that could not be read and was reported."""


_LOST: Final = _Lost()


def _salvage(value: object, wanted: object, report: Report, path: str) -> object:
    try:
        return msgspec.convert(value, wanted)
    except MISFITS:
        wanted = _not_null(wanted)
    if isinstance(value, Mapping) and isinstance(wanted, type) and issubclass(wanted, Shape):
        return _salvage_object(value, wanted, report, path)
    if isinstance(value, list) and get_origin(wanted) is list:
        return _salvage_list(value, get_args(wanted)[0], report, path)
    report(path, f"{show(value)} is not {_describe(wanted)}")
    return _LOST


def _salvage_object(value: Mapping[object, object], shape: type[Shape], report: Report, path: str) -> object:
    kept = {}
    for field in _fields(shape):
        if field.api_name in value:
            found = _salvage(value[field.api_name], field.type, report, join(path, field.api_name))
            if found is not _LOST:
                kept[field.name] = found
            elif field.api_name in shape.essential:
                return _LOST
    return shape(**kept)


def _salvage_list(value: list[object], wanted: object, report: Report, path: str) -> object:
    found = [(index, _salvage(item, wanted, report, f"{path}[{index}]")) for index, item in enumerate(value)]
    kept = [(index, item) for index, item in found if item is not _LOST]
    return Survivors((item for _, item in kept), (index for index, _ in kept))


def _not_null(wanted: object) -> object:
    if isinstance(wanted, types.UnionType):
        (wanted,) = (member for member in get_args(wanted) if member is not types.NoneType)
    return wanted


_DESCRIPTIONS: dict[object, str] = {int: "an integer", str: "a string", bool: "true or false", list: "a list"}


def _describe(wanted: object) -> str:
    return _DESCRIPTIONS.get(get_origin(wanted) or wanted, "an object")


def join(path: str, field: str) -> str:
    """Return the path of a field of the object at `path`."""
    return f"{path}.{field}" if path else field


def show(value: object) -> str:
    """Return a value as messages show it: on a single line, printable and short."""
    match value:
        case str():
            quoted = repr(value[: _SHOWN + 1])  # escapes may make it longer than the text was
            return quoted if len(quoted) <= _SHOWN + 2 else f"{quoted[:_SHOWN]}..."
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return str(value) if abs(value) < 10**20 else "a huge number"
        case float():
            return str(value)
        case list():
            return "a list"
        case _:
            return "an object"


def inner_shapes(shape: type[Shape]) -> dict[str, type[Shape] | None]:
    """Return the fields of a shape by their API names, each with the shape of its value, or None for another type."""
    found = {field.api_name: _not_null(field.type) for field in _fields(shape)}
    return {
        name: type_ if isinstance(type_, type) and issubclass(type_, Shape) else None for name, type_ in found.items()
    }
