"""From JSON-like values to msgspec Structs; what is bad costs itself and nothing else.

A `Shape` is a Struct that says which fields matter and of what type they are.  msgspec converts one whole, in C, and
rejects it whole at the first fault.  So msgspec comes first, and good input needs nothing else; `salvage` walks a value
that msgspec rejects piece by piece, beside the types that were wanted:

* A list loses the element that doesn't fit.  The others stay, and still know at which index they stood (`numbered`).
* An object loses the field that doesn't fit, unless that is one without which it would mean something else: then the
  fault costs the object itself (`Shape.essential`).
* Every loss is reported once, with its path.

Each piece is looked at once for each level above it, so hostile input costs time in proportion to its size.  Only types
are judged here; what values mean is for whoever asked.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, Protocol, TypeVar, cast, get_args, get_origin

import msgspec

from nftproxy.model.codes import Code


class Report(Protocol):
    """Takes note of one fault.

    That is the path of what was lost, as in "spec.ports[0].port", what is wrong with it, and the code where it is
    another than that of every part of the object or file.
    """

    def __call__(self, field: str, message: str, code: Code | None = None, /) -> None:
        """Take note of it."""


MISFITS = (msgspec.ValidationError, UnicodeError)
"""What msgspec raises for a value that doesn't fit: UnicodeError for half a surrogate pair in a key of a dict."""

T = TypeVar("T")
S = TypeVar("S", bound="Shape")

_SHOWN = 60
"""Characters of a value that are shown in a message: an IPv6 CIDR or a DNS label fits, a log line stays readable."""

_ACRONYMS = {"ip": "IP", "ips": "IPs", "cidr": "CIDR", "cidrs": "CIDRs"}


def _field_name(name: str) -> str:
    """The API's name for a field: cluster_ips is clusterIPs."""
    first, *others = name.split("_")
    return first + "".join(_ACRONYMS.get(word, word.capitalize()) for word in others)


class Shape(msgspec.Struct, gc=False, rename=_field_name):
    """A JSON object of which only the named fields matter.

    Every field has a default, which also stands where the value is null: to the API that is the same as absent.
    A field of type `object` takes any value.
    """

    essential: ClassVar[frozenset[str]] = frozenset()
    """The fields, by their API names, whose loss is the loss of the whole object."""


class _Field(msgspec.Struct, frozen=True):
    """A field of a Shape: its names here and in the API, and its type."""

    name: str
    api_name: str
    type: object


@functools.cache
def _fields(shape: type[Shape]) -> tuple[_Field, ...]:
    return tuple(_Field(field.name, field.encode_name, field.type) for field in msgspec.structs.fields(shape))


class Survivors(list[T]):
    """What is left of a list that lost elements; `places` are the indexes that the survivors had."""

    def __init__(self, elements: Iterable[T], places: Iterable[int]) -> None:
        super().__init__(elements)
        self.places = list(places)


def numbered(elements: list[T] | None) -> Iterable[tuple[int, T]]:
    """The elements of a list, each with the index that it had where it was given; none for null."""
    if isinstance(elements, Survivors):
        return zip(elements.places, elements, strict=True)
    return enumerate(elements or ())


def convert(value: object, shape: type[S], report: Report) -> S | None:
    """One value as the shape says, without what is bad in it; None if it is no object, or loses an essential field.

    Never raises for anything that can be made of JSON.
    """
    try:
        return msgspec.convert(value, shape)
    except MISFITS:
        return salvage(value, shape, report)


def salvage(value: object, shape: type[S], report: Report) -> S | None:
    """As `convert`, for a value that msgspec is known to refuse."""
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
    """The type without its `| None`."""
    if isinstance(wanted, types.UnionType):
        (wanted,) = (member for member in get_args(wanted) if member is not types.NoneType)
    return wanted


_DESCRIPTIONS: dict[object, str] = {int: "an integer", str: "a string", bool: "true or false", list: "a list"}


def _describe(wanted: object) -> str:
    return _DESCRIPTIONS.get(get_origin(wanted) or wanted, "an object")


def join(path: str, field: str) -> str:
    """The path of a field of the object at `path`."""
    return f"{path}.{field}" if path else field


def show(value: object) -> str:
    """A value as messages show it: on one line, printable and short, whatever it is."""
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
    """The fields of a shape by their API names, each with the shape of what it holds; None if it is of another type."""
    found = {field.api_name: _not_null(field.type) for field in _fields(shape)}
    return {
        name: type_ if isinstance(type_, type) and issubclass(type_, Shape) else None for name, type_ in found.items()
    }
