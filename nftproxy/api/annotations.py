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
from nftproxy.model.addresses import Network, parse_network
from nftproxy.model.annotations import (
    PLAIN,
    PLAIN_SLICE,
    PREFIX,
    Algorithm,
    GuardedFronts,
    Rate,
    ServiceOptions,
    SilentEndpoints,
    SliceOptions,
    ZoneWeight,
)
from nftproxy.model.codes import Code

LONGEST_VALUE = 65_536
"""Characters of a value that is read: 1,400 of the longest IPv6 ranges.  The API takes 256 KiB for all annotations of
an object together (apimachinery, TotalAnnotationSizeLimitB)."""
MOST_UNKNOWN = 5
"""Unknown annotations of one object that are reported by name."""

MOST_ZONES = 64
"""Zones that weights may name: a region of a cloud has three to six, and a cluster seldom more than one region."""
MAX_WEIGHT = 100
"""The greatest weight."""

LADDER: tuple[int, ...] = (*(step * 10**power for power in range(4) for step in (1, 2, 3, 5, 7)), 10_000)
"""The limits that there are: one that is asked for is rounded up to the next.  Each has a set and a chain of its own on
every node, so whoever may write Services must not make as many as there are numbers."""
BURSTS = (1, 2, 5, 10)
"""How many seconds' worth of connections a burst is, for the same reason."""
MAX_DENIED_RANGES = 1_000
"""Ranges that one Service may deny: as many as it may have source ranges (policy/limits.py)."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)

_NAME = re.compile(r"[A-Za-z0-9./_-]{0,75}", re.ASCII)
"""A name of at most 63 characters after the prefix; others are shown quoted."""

E = TypeVar("E", bound=Enum)
T = TypeVar("T")
Options = TypeVar("Options", ServiceOptions, SliceOptions)


class BadValue(ValueError):
    """The value of an annotation can't be used; the text says why, beginning with a verb.

    `rest` is what of it can be used none the less, None if nothing.
    """

    def __init__(self, reason: str, rest: object = None) -> None:
        super().__init__(reason)
        self.rest = rest


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


def parse_algorithm(value: str) -> Algorithm:
    """How a new connection gets an endpoint.

    Raises:
        BadValue: it is none of the algorithms.
    """
    return parse_word(value, Algorithm)


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


def parse_rate(value: str) -> Rate:
    """Connections per second and a burst, as in "20" or "20,burst=40", both rounded up to those that there are.

    Raises:
        BadValue: one of them can't be read.
    """
    rate, has_burst, burst = value.partition(",")
    per_second = parse_limit(rate.strip())
    if not has_burst:
        return Rate(per_second, per_second)
    word, _, number = burst.strip().partition("=")
    if word != "burst":
        raise BadValue(f"has {show(burst.strip())}, which is not written as burst=NUMBER")
    wanted = parse_number(number, 1, per_second * BURSTS[-1])
    return Rate(per_second, next(each * per_second for each in BURSTS if each * per_second >= wanted))


def parse_limit(value: str) -> int:
    """A limit, rounded up to the next one that there is.

    Raises:
        BadValue: it is no number, or more than the greatest.
    """
    wanted = parse_number(value, 1, LADDER[-1])
    return next(limit for limit in LADDER if limit >= wanted)


def parse_guarded(value: str) -> frozenset[GuardedFronts]:
    """What else source ranges hold for, as in "node-ports,external-ips".

    Raises:
        BadValue: a word is none of them; the others hold.
    """
    return frozenset(_several(value, lambda word: parse_word(word, GuardedFronts), len(GuardedFronts), frozenset))


def parse_ranges(value: str) -> tuple[Network, ...]:
    """Ranges of addresses, separated by commas, each once.

    Raises:
        BadValue: one can't be read, or there are too many; the others hold.
    """
    return tuple(dict.fromkeys(_several(value, _range, MAX_DENIED_RANGES, tuple)))


def _range(text: str) -> Network:
    try:
        return parse_network(text)
    except ValueError as error:
        raise BadValue(f"has {show(text)}, which is not a CIDR") from error


def _several(value: str, parse: Callable[[str], T], most: int, rest: Callable[[list[T]], object]) -> list[T]:
    """Each element of a list that is separated by commas; a BadValue has the good ones as its rest, made by `rest`."""
    parts = value.split(",", most)
    found: list[T] = []
    faults = [f"has more than {most} elements"] if len(parts) > most else []
    for part in parts[:most]:
        try:
            found.append(parse(part.strip()))
        except BadValue as error:
            faults.append(str(error))
    if faults:
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        raise BadValue(f"{faults[0]}{more}", rest(found) if found else None)
    return found


SERVICE: Mapping[str, Known] = {
    "algorithm": Known("algorithm", parse_algorithm),
    "weights": Known("weights", parse_weights),
    "client-connection-rate": Known("client_rate", parse_rate),
    "client-connections": Known("client_connections", parse_limit),
    "denied-source-ranges": Known("denied_ranges", parse_ranges),
    "source-ranges-for": Known("source_ranges_for", parse_guarded),
    "silent-endpoints": Known("silent_endpoints", lambda value: parse_word(value, SilentEndpoints)),
}
"""What is known on Services, by name without the prefix."""

ENDPOINT_SLICE: Mapping[str, Known] = {"weight": Known("weight", parse_weight)}
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
    asked = {}
    unknown = []
    for name in sorted(name for name in annotations if name.startswith(PREFIX)):
        if found := known.get(name.removeprefix(PREFIX)):
            try:
                asked[found.field] = found.parse(_text(annotations[name]))
            except BadValue as error:
                effect = "the annotation has no effect" if error.rest is None else "the rest is in force"
                report(path_of(name), f"{error}: {effect}", Code.ANNOTATION_UNUSED)
                if error.rest is not None:
                    asked[found.field] = error.rest
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
