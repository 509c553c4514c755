"""kube-apiserver's validation of single values: names, addresses, networks, ports, words.

Each check yields the causes of a denial, with the reasons and the paths that kube-apiserver gives (apimachinery,
util/validation, as of 1.36, where addresses and networks are checked strictly).  Messages are shorter.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LEADING_ZERO = re.compile(r"(?:^|\.)0[0-9]")
_LEADING_ZEROS = re.compile(r"(?<![0-9a-fA-F:])0+(?=[0-9])")
LINK_LOCAL_MULTICAST = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))


class Cause(NamedTuple):
    """A fault of an object, as in a Status's details.causes."""

    reason: str
    field: str
    message: str


def required(field: str) -> Cause:
    """Return the cause for a required field that isn't there."""
    return Cause("FieldValueRequired", field, "Required value")


def invalid(field: str, value: Any, why: str) -> Cause:
    """Return the cause for an invalid value."""
    return Cause("FieldValueInvalid", field, f"Invalid value: {value!r}: {why}")


def duplicate(field: str, value: Any) -> Cause:
    """Return the cause for a value that is in a list twice."""
    return Cause("FieldValueDuplicate", field, f"Duplicate value: {value!r}")


def forbidden(field: str, why: str) -> Cause:
    """Return the cause for a field that may not be set."""
    return Cause("FieldValueForbidden", field, f"Forbidden: {why}")


def too_many(field: str, most: int) -> Cause:
    """Return the cause for a list of more than `most` items."""
    return Cause("FieldValueTooMany", field, f"Too many: must have at most {most} items")


def word(field: str, value: Any, known: Iterable[str]) -> Iterator[Cause]:
    """Check that a value is a known word."""
    if value not in known:
        supported = ", ".join(sorted(known))
        yield Cause("FieldValueNotSupported", field, f"Unsupported value: {value!r}: supported values: {supported}")


def _text(field: str, value: Any, pattern: re.Pattern[str], longest: int, what: str) -> Iterator[Cause]:
    if not isinstance(value, str) or len(value) > longest:
        yield invalid(field, value, f"must be {what} of no more than {longest} bytes")
    elif not pattern.fullmatch(value):
        yield invalid(field, value, f"must be {what}")


def label(field: str, value: Any) -> Iterator[Cause]:
    """Check a DNS label (RFC 1123)."""
    return _text(field, value, _LABEL, 63, "a DNS label")


def service_name(field: str, value: Any) -> Iterator[Cause]:
    """Check a DNS label that begins with a letter (RFC 1035), as names of Services do."""
    return _text(field, value, _LABEL_1035, 63, "a DNS label that begins with a letter")


def subdomain(field: str, value: Any) -> Iterator[Cause]:
    """Check a DNS subdomain (RFC 1123)."""
    return _text(field, value, _SUBDOMAIN, 253, "a DNS subdomain")


def label_value(field: str, value: Any) -> Iterator[Cause]:
    """Check the value of a label."""
    return _text(field, value, _LABEL_VALUE, 63, "the value of a label")


def qualified_name(field: str, value: str) -> Iterator[Cause]:
    """Check a name with an optional domain before a slash."""
    prefix, slash, name = value.rpartition("/")
    if value.count("/") > 1:
        yield invalid(field, value, "must be a name with an optional domain and a slash before it")
        return
    if slash:
        yield from subdomain(field, prefix)
    if not name:
        yield invalid(field, value, "name part must be non-empty")
    elif len(name) > 63:
        yield invalid(field, value, "name part must be no more than 63 bytes")
    if not _QUALIFIED.fullmatch(name):
        yield invalid(field, value, "name part must consist of letters, digits, '-', '_' or '.'")


def port(field: str, value: Any) -> Iterator[Cause]:
    """Check the number of a port."""
    if not isinstance(value, int) or not 1 <= value <= 65535:
        yield invalid(field, value, "must be between 1 and 65535, inclusive")


def address(field: str, value: Any, version: int | None = None) -> Iterator[Cause]:
    """Check an IP address, of either family or of `version`."""
    if isinstance(value, str) and _LEADING_ZERO.search(value):
        yield invalid(field, value, "must not have leading 0s")
        return
    try:
        parsed = ipaddress.ip_address(value if isinstance(value, str) and "%" not in value else "")
    except ValueError:
        yield invalid(field, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
        return
    if parsed.version == 6 and parsed.ipv4_mapped:
        yield invalid(field, value, "must not be an IPv4-mapped IPv6 address")
    elif version not in {None, parsed.version}:
        yield invalid(field, value, f"must be an IPv{version} address")


def ordinary_address(field: str, value: Any, version: int | None = None) -> Iterator[Cause]:
    """Check an IP address without a special meaning (ValidateNonSpecialIP).  Other multicast addresses pass."""
    faults = list(address(field, value, version))
    yield from faults
    if faults:
        return
    parsed = ipaddress.ip_address(value)
    if parsed.is_unspecified:
        yield invalid(field, value, "may not be unspecified")
    if parsed.is_loopback:
        yield invalid(field, value, "may not be in the loopback range")
    if parsed.is_link_local:
        yield invalid(field, value, "may not be in the link-local range")
    if any(parsed in network for network in LINK_LOCAL_MULTICAST):
        yield invalid(field, value, "may not be in the link-local multicast range")


def network(field: str, value: Any) -> Iterator[Cause]:
    """Check a CIDR, in which bits beyond the prefix must be 0."""
    text = value if isinstance(value, str) else ""
    host, slash, length = text.rpartition("/")
    try:
        interface = ipaddress.ip_interface(_LEADING_ZEROS.sub("", text))
        if not slash or not length.isdigit():
            raise ValueError("no prefix length")
    except ValueError:
        yield invalid(field, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
        return
    if (interface.version == 4 and _LEADING_ZERO.search(host)) or _LEADING_ZERO.search(length):
        yield invalid(field, value, "must not have leading 0s in IP or prefix length")
    elif interface.version == 6 and interface.ip.ipv4_mapped:
        yield invalid(field, value, "must not have an IPv4-mapped IPv6 address")
    elif interface.ip != interface.network.network_address:
        yield invalid(field, value, "must not have bits set beyond the prefix length")
