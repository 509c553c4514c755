"""Annotations of nftproxy's own, as in `nftproxy.dev/algorithm: round-robin`: from texts to typed values.

A table for each kind of object says which are known, which field of the options (model/annotations.py) each one sets,
and what parses it.  An annotation is in the table only once the proxy does what it asks for.  So one that isn't known,
misspelt or of a later version, is reported, as is a value that can't be right: it costs itself, and the object is
served as if it weren't there.  Annotations of others are none of our business.

Whoever may write a Service decides how much there is to read: no value is read that is longer than `LONGEST_VALUE`,
and of what is not known so many are reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from nftproxy.api import schema
from nftproxy.api.decode import Report, show
from nftproxy.api.validate import is_label_value
from nftproxy.model.annotations import (
    PLAIN,
    PLAIN_SLICE,
    PREFIX,
    ServiceOptions,
    SilentEndpoints,
    SliceOptions,
    ZoneWeight,
)
from nftproxy.model.codes import Code

LONGEST_VALUE = 32_768
"""Characters of a value that is read: 700 of the longest IPv6 ranges.  The API takes 256 KiB for all annotations of an
object together (apimachinery, TotalAnnotationSizeLimitB)."""
MOST_UNKNOWN = 5
"""Unknown annotations of one object that are reported by name."""

MOST_ZONES = 64
"""Zones that weights may name: a region of a cloud has three to six, and a cluster seldom more than one region."""
MAX_WEIGHT = 100
"""The greatest weight."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)

_NAME = re.compile(r"[A-Za-z0-9./_-]{0,75}", re.ASCII)
"""A name of at most 63 characters after the prefix; others are shown quoted."""

E = TypeVar("E", bound=Enum)
Options = TypeVar("Options", ServiceOptions, SliceOptions)


class BadValue(ValueError):
    """The value of an annotation can't be used; the text says why, beginning with a verb."""


Parser = Callable[[str], object]
"""The value that a text stands for; raises BadValue."""


class Known(NamedTuple):
    """An annotation that is known: which field of the options it sets, and what parses it."""

    field: str
    parse: Parser


def parse_word(value: str, words: type[E]) -> E:
    """The member of an Enum whose value this is.

    Raises:
        BadValue: there is none.
    """
    for member in words:
        if member.value == value:
            return member
    raise BadValue(f"is {show(value)}, not one of {', '.join(member.value for member in words)}")


def parse_number(value: str, least: int, most: int) -> int:
    """A number in plain decimal digits.

    Raises:
        BadValue: it is none, or out of bounds.
    """
    if _NUMBER.fullmatch(value) and least <= int(value) <= most:
        return int(value)
    raise BadValue(f"is {show(value)}, not a number from {least} to {most}")


def parse_weight(value: str) -> int:
    """The weight of each endpoint of an EndpointSlice.

    Raises:
        BadValue: it is none.
    """
    return parse_number(value, 0, MAX_WEIGHT)


def parse_weights(value: str) -> tuple[ZoneWeight, ...]:
    """Weights by zone, as in "zone:a=3,zone:b=1", in the order of the zones' names.

    Raises:
        BadValue: one of them can't be read, or a zone has two, or there are too many.
    """
    parts = value.split(",", MOST_ZONES)
    if len(parts) > MOST_ZONES:
        raise BadValue(f"names more than {MOST_ZONES} zones")
    weights = [_zone_weight(part.strip()) for part in parts]
    if len(dict(weights)) < len(weights):
        raise BadValue("names a zone twice")
    return tuple(sorted(weights))


def _zone_weight(part: str) -> ZoneWeight:
    what, _, weight = part.rpartition("=")
    zone = what.removeprefix("zone:")
    if zone == what or not is_label_value(zone):
        raise BadValue(f"has {show(part)}, which is not written as zone:NAME=WEIGHT")
    return zone, parse_weight(weight)


SERVICE: Mapping[str, Known] = {
    "silent-endpoints": Known("silent_endpoints", lambda value: parse_word(value, SilentEndpoints)),
}
"""What is known on Services, by name without the prefix."""

ENDPOINT_SLICE: Mapping[str, Known] = {}
"""What is known on EndpointSlices."""


def service_options(given: schema.Service, report: Report, known: Mapping[str, Known] = SERVICE) -> ServiceOptions:
    """What a Service's annotations ask for; `PLAIN` if nothing."""
    return _options(given, PLAIN, known, report)


def slice_options(
    given: schema.EndpointSlice, report: Report, known: Mapping[str, Known] = ENDPOINT_SLICE
) -> SliceOptions:
    """What an EndpointSlice's annotations ask for; `PLAIN_SLICE` if nothing."""
    return _options(given, PLAIN_SLICE, known, report)


def _options(given: schema.ApiObject, plain: Options, known: Mapping[str, Known], report: Report) -> Options:
    annotations = given.metadata.annotations if given.metadata is not None else None
    if not annotations:
        return plain
    own = sorted(name for name in annotations if name.startswith(PREFIX))
    if not own:
        return plain
    asked = {}
    unknown = []
    for name in own:
        if found := known.get(name.removeprefix(PREFIX)):
            try:
                asked[found.field] = found.parse(_text(annotations[name]))
            except BadValue as error:
                report(path_of(name), f"{error}: the annotation has no effect", Code.ANNOTATION_UNUSED)
        else:
            unknown.append(name)
    _report_unknown(unknown, report)
    return type(plain)(**asked) if asked else plain  # type: ignore[arg-type]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(f"is {show(value)}, not a string")
    if len(value) > LONGEST_VALUE:
        raise BadValue(f"has {len(value)} characters, and {LONGEST_VALUE} are read")
    return value.strip()


def _report_unknown(names: list[str], report: Report) -> None:
    for name in names[:MOST_UNKNOWN]:
        report(path_of(name), "is not known: it has no effect", Code.ANNOTATION_UNUSED)
    if len(names) > MOST_UNKNOWN:
        more = f"{len(names) - MOST_UNKNOWN} more of {PREFIX} are not known"
        report("metadata.annotations", more, Code.ANNOTATION_UNUSED)


def path_of(name: str) -> str:
    """How problems call an annotation, printable and short whatever its name is."""
    return f"metadata.annotations[{name if _NAME.fullmatch(name) else show(name)}]"
