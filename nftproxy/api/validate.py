"""Parsers of single values: names, addresses, networks, ports, words, times.

Each takes a value, its path and a Report.  It returns the value as the model has it.  For a bad value it reports a
fault, and returns None or a default.  None of them raises.

Addresses and networks may have a spelling that newer API servers deny, since clusters have stored them and `clusterIPs`
can't be changed (KEP-4858).  They are read as kube-proxy reads them, and reported.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from nftproxy.api.decode import Report, show
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
