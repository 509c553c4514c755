"""Parse annotations of nftproxy's own, as in `nftproxy.dev/algorithm: round-robin`.

An `Option` (model/annotations.py) declares an annotation.  Here is a parser for each form of value.  An annotation that
isn't declared (misspelt, or of a later version) is reported, as is a value that can't be parsed: the object is served
as if that annotation weren't there.  Annotations without our prefix are ignored.

A Service's author decides how much there is to read, so the length of a value is bounded (`LONGEST_VALUE`), and so is
the number of unknown annotations that are reported (`MOST_UNKNOWN`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from nftproxy.api import schema
from nftproxy.api.decode import Report, is_label_value, show
from nftproxy.model.addresses import Network, modern_spelling, parse_network
from nftproxy.model.annotations import NONE, PLAIN, PREFIX, Form, Option, Options, Rate, Word, ZoneWeight
from nftproxy.model.codes import Code

LONGEST_VALUE = 65_536
"""Characters of a value that is read: 1,400 of the longest IPv6 ranges.  The API takes 256 KiB for all annotations of
an object together (apimachinery, TotalAnnotationSizeLimitB)."""
MOST_UNKNOWN = 5
"""Unknown annotations of an object that are reported by name."""

MOST_ZONES = 64
"""Zones that weights may name: a region of a cloud has three to six, and a cluster seldom more than a single region."""
MAX_WEIGHT = 100
"""The greatest weight."""

LADDER: tuple[int, ...] = (*(step * 10**power for power in range(4) for step in (1, 2, 3, 5, 7)), 10_000)
"""The limits that exist: any other number is rounded up to the next.  Each limit has a set and a chain of its own on
every node, so the authors of Services must not make as many as there are numbers."""
BURSTS = (1, 2, 5, 10)
"""How many seconds' worth of connections a burst is, for the same reason."""
MAX_RANGES = 1_000
"""Ranges of an annotation: as many as a Service may have source ranges (policy/limits.py)."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)

_NAME = re.compile(r"[A-Za-z0-9./_-]{0,75}", re.ASCII)
"""A name of at most 63 characters after the prefix.  Any other is shown quoted."""

E = TypeVar("E", bound=Enum)
T = TypeVar("T")
Known = Mapping[str, Option[Any]]
"""The options that a kind of objects has, by the names of their annotations."""
NONE_KNOWN: Known = MappingProxyType({})


class BadValue(ValueError):
    """The value of an annotation can't be used.  The text says why, beginning with a verb.

    `rest` is the usable part of the value, None if there is none.
    """

    def __init__(self, reason: str, rest: object = None) -> None:
        super().__init__(reason)
        self.rest = rest


def parse(value: str, form: Form | Word) -> object:
    """Return the value that a text of this form stands for.

    Raises:
        BadValue: the text can't be parsed.
    """
    if isinstance(form, Word):
        return _words(value, form.words) if form.is_list else _word(value, form.words)
    return _PARSERS[form](value)


def _word(value: str, words: Iterable[E]) -> E:
    for member in words:
        if member.value == value:
            return member
    raise BadValue(f"is {show(value)}, not one of {', '.join(member.value for member in words)}")


def _words(value: str, words: type[E] | Sequence[E]) -> frozenset[E]:
    return frozenset(() if value == NONE else _several(value, partial(_word, words=words), len(words), frozenset))


def _number(value: str, least: int, most: int) -> int:
    if _NUMBER.fullmatch(value) and least <= int(value) <= most:
        return int(value)
    raise BadValue(f"is {show(value)}, not a number from {least} to {most}")


def _weight(value: str) -> int:
    return _number(value, 0, MAX_WEIGHT)


def _weights(value: str) -> tuple[ZoneWeight, ...]:
    """Parse weights, sorted by zone.  A bad weight spoils all: half of the weights would be another distribution."""
    parts = value.split(",", MOST_ZONES)
    if len(parts) > MOST_ZONES:
        raise BadValue(f"names more than {MOST_ZONES} zones")
    weights = [_zone_weight(part.strip()) for part in parts]
    if len(dict(weights)) < len(weights):
        raise BadValue("names a zone twice")
    return tuple(sorted(weights))


def _zone_weight(part: str) -> ZoneWeight:
    name, _, weight = part.rpartition("=")
    zone = name.removeprefix("zone:")
    if zone == name or not is_label_value(zone):
        raise BadValue(f"has {show(part)}, which is not written as zone:NAME=WEIGHT")
    return zone, _weight(weight)


def _rate(value: str) -> Rate:
    rate, has_burst, burst = value.partition(",")
    per_second = _limit(rate.strip())
    if not has_burst:
        return Rate(per_second, per_second)
    word, _, number = burst.strip().partition("=")
    if word != "burst":
        raise BadValue(f"has {show(burst.strip())}, which is not written as burst=NUMBER")
    wanted = _number(number, 1, per_second * BURSTS[-1])
    return Rate(per_second, next(each * per_second for each in BURSTS if each * per_second >= wanted))


def _limit(value: str) -> int:
    wanted = _number(value, 1, LADDER[-1])
    return next(limit for limit in LADDER if limit >= wanted)


def _ranges(value: str) -> tuple[Network, ...]:
    return tuple(dict.fromkeys(_several(value, _range, MAX_RANGES, tuple)))


def _range(text: str) -> Network:
    try:
        return parse_network(modern_spelling(text))
    except ValueError as error:
        raise BadValue(f"has {show(text)}, which is not a CIDR") from error


def _several(value: str, parse_one: Callable[[str], T], most: int, rest: Callable[[list[T]], object]) -> list[T]:
    """Parse a list separated by commas.  If elements are bad, raise BadValue with the good elements, made by `rest`."""
    parts = value.split(",", most)
    found: list[T] = []
    faults = [f"has more than {most} elements"] if len(parts) > most else []
    for part in parts[:most]:
        try:
            found.append(parse_one(part.strip()))
        except BadValue as error:
            faults.append(str(error))
    if faults:
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        raise BadValue(f"{faults[0]}{more}", rest(found) if found else None)
    return found


_PARSERS: Mapping[Form, Callable[[str], object]] = {
    Form.WEIGHT: _weight,
    Form.ZONE_WEIGHTS: _weights,
    Form.RATE: _rate,
    Form.LIMIT: _limit,
    Form.RANGES: _ranges,
}


def options_of(given: schema.ApiObject, known: Known, report: Report) -> Options:
    """Parse the annotations of an object, `PLAIN` if it has none of ours."""
    annotations = given.metadata.annotations if given.metadata is not None else None
    if not annotations:
        return PLAIN
    values: dict[Option[Any], object] = {}
    unknown = []
    for name in sorted(name for name in annotations if name.startswith(PREFIX)):
        if name not in known:
            unknown.append(name)
            continue
        try:
            values[known[name]] = parse(_text(annotations[name]), known[name].form)
        except BadValue as error:
            effect = "the annotation has no effect" if error.rest is None else "the rest is in force"
            report(_path(name), f"{error}: {effect}", Code.ANNOTATION_UNUSED)
            if error.rest is not None:
                values[known[name]] = error.rest
    _report_unknown(unknown, report)
    return Options.of(values)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(f"is {show(value)}, not a string")
    if len(value) > LONGEST_VALUE:
        raise BadValue(f"has {len(value)} characters, and {LONGEST_VALUE} are read")
    return value.strip()


def _report_unknown(names: list[str], report: Report) -> None:
    for name in names[:MOST_UNKNOWN]:
        report(_path(name), "is not known: it has no effect", Code.ANNOTATION_UNUSED)
    if len(names) > MOST_UNKNOWN:
        more = f"{len(names) - MOST_UNKNOWN} more annotations of {PREFIX} are not known"
        report("metadata.annotations", more, Code.ANNOTATION_UNUSED)


def _path(name: str) -> str:
    """Return an annotation's path as problems show it, always printable and short."""
    return f"metadata.annotations[{name if _NAME.fullmatch(name) else show(name)}]"
