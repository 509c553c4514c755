"""From JSON-like values to typed values.  A bad part costs itself and nothing else.

A `Shape` is a Struct that names the fields that matter, with their types.  msgspec converts a whole value, in C, and
rejects it as a whole at the first fault.  So msgspec comes first, and good input needs nothing else.  `salvage` takes a
value that msgspec has rejected, and walks it beside the types:

* A list loses the element that doesn't fit.  The rest stays, and keeps its indexes (`numbered`).
* An object loses the field that doesn't fit.  If the object would mean something else without the field, the fault
  costs the object itself (`Shape.essential`).
* Every loss is reported once, with its path.

Each part is visited once for each level above it, so hostile input costs time in proportion to its size.

The parsers of single values follow: names, addresses, networks, ports, words, times.  Each takes a value, its path and
a Report.  It returns the value as the model has it.  For a bad value it reports a fault, and returns None or a default.
None of them raises.  Addresses and networks may have a spelling that newer API servers deny, since clusters have stored
them and `clusterIPs` can't be changed (KEP-4858).  They are read as kube-proxy reads them, and reported.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, ClassVar, Final, TypeVar, cast, get_args, get_origin
from typing import Protocol as Interface

import msgspec

from nftproxy.model.addresses import (
    Address,
    Network,
    Protocol,
    modern_spelling,
    parse_address,
    parse_network,
    parse_virtual_address,
)
from nftproxy.model.codes import Code
from nftproxy.model.objects import EndpointPort
from nftproxy.model.texts import intern_text


class Report(Interface):
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


E = TypeVar("E", bound=Enum)
N = TypeVar("N", bound=str | Network | Enum)

_REASON = 160
"""Characters of an exception's text in a message: enough for every reason for input of ordinary length."""

# Kubernetes' forms of names (apimachinery, util/validation), each with its greatest length.
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_SUBDOMAINS = re.compile(rf"(?:{_SUBDOMAIN.pattern})?(?: (?:{_SUBDOMAIN.pattern})?)*")
_LONG = re.compile(r"[^ ]{254}")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def is_label(text: str) -> bool:
    """Whether a text is a DNS label (RFC 1123), at most 63 characters: a namespace, a Service, a port name."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether a text is a DNS subdomain (RFC 1123), at most 253 characters: a Node, an EndpointSlice, a ServiceCIDR."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def are_subdomains(text: str, count: int) -> bool:
    """Whether a text is `count` DNS subdomains or empty names, separated by spaces."""
    return text.count(" ") == count - 1 and not _LONG.search(text) and _SUBDOMAINS.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Whether a text can be the value of a label, at most 63 characters, and isn't empty: a zone."""
    return _LABEL_VALUE.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether a text can be the key of a label: a name like a value's, with or without a DNS subdomain and a slash."""
    prefix, slash, name = text.rpartition("/")
    return is_label_value(name) and (not slash or is_subdomain(prefix))


_PROTOCOLS = {protocol.name: protocol for protocol in Protocol} | {None: Protocol.TCP}


def named_port(
    name: str | None, protocol: str | None, number: int | None, path: str, report: Report
) -> EndpointPort | None:
    """Parse a port with its name (null is "", which is a name too) and protocol (null is TCP).

    Ports of Services and of EndpointSlices have these three in common, and are matched by name and protocol.
    """
    known = _PROTOCOLS.get(protocol)
    if known is None:
        report(f"{path}.protocol", f"{show(protocol)} is not TCP, UDP or SCTP")
    if name and not is_label(name):
        report(f"{path}.name", f"{show(name)} is not a port name (a DNS label of at most 63 characters)")
        return None
    right = port_number(number, f"{path}.port", report)
    return EndpointPort(intern_text(name or ""), known, right) if known and right else None


def port_number(value: int | None, path: str, report: Report) -> int | None:
    """Parse a port, 1 to 65535."""
    if value is not None and 1 <= value <= 65535:
        return value
    report(path, "is missing" if value is None else f"{show(value)} is not a port from 1 to 65535")
    return None


def word(value: str | None, default: E, path: str, report: Report) -> E:
    """Return the member of the default's Enum with this value.  Null and "" are the default, other values a fault."""
    if not value:
        return default
    members: dict[str, E] = _by_value(type(default))
    if value in members:
        return members[value]
    report(path, f"{show(value)} is not one of {', '.join(members)}: taken as {default.value}")
    return default


@functools.cache
def _by_value(words: type[Enum]) -> dict[str, Any]:
    return {member.value: member for member in words}


def virtual_address(value: object, path: str, report: Report) -> Address | None:
    """Parse an address that a Service or an endpoint may have."""
    return _parsed(value, parse_virtual_address, "an IP address", path, report)


def node_address(value: object, path: str, report: Report) -> Address | None:
    """Parse an address of a Node, which may be any IP address.  Report a faulty one."""
    return _parsed(value, parse_address, "an IP address", path, report)


def network(value: object, path: str, report: Report) -> Network | None:
    """Parse a CIDR, or report why it is none."""
    return _parsed(value, parse_network, "a CIDR", path, report)


def _parsed(value: object, parse: Callable[[str], N], what: str, path: str, report: Report) -> N | None:
    if not isinstance(value, str):
        report(path, f"{show(value)} is not a string")
        return None
    try:
        return parse(value)
    except ValueError as error:
        reason = str(error)
    if (modern := modern_spelling(value)) != value:
        try:
            found = parse(modern)
        except ValueError as error:
            reason = str(error)
        else:
            report(path, f"{show(value)} is read as {found}: newer API servers deny this spelling", Code.OLD_SPELLING)
            return found
    report(path, reason if len(reason) <= _REASON else f"{show(value)} is not {what}")
    return None


def several(
    values: Iterable[object] | None, judge: Callable[[object, str, Report], N | None], path: str, report: Report
) -> tuple[N, ...]:
    """Parse the elements of a list with `judge`.  Return the good values, each once, in order, none for null."""
    judged = [judge(value, f"{path}[{index}]", report) for index, value in enumerate(values or ())]
    return tuple(dict.fromkeys(value for value in judged if value is not None))


def timestamp(value: object, path: str, report: Report) -> float:
    """Parse a time, and return seconds since the epoch.  Null, times before the epoch and bad times are 0.

    The API writes RFC 3339.  YAML's loaders may have made a datetime of that, and without a zone it is UTC (YAML 1.1).
    """
    if value is None:
        return 0
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)  # type: ignore[arg-type]
        if moment.tzinfo is None:
            if isinstance(value, str):
                raise ValueError("RFC 3339 requires a time zone")
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp())
    except (ValueError, TypeError, OverflowError):
        report(path, f"{show(value)} is not a time as in 2024-05-01T10:20:30Z: taken as the oldest")
        return 0
