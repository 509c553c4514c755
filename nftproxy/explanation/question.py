"""The question: where a connection is meant to go (TO), and where it comes from (SOURCE), parsed into values.

TO       ADDRESS:PORT[/udp|sctp], an IPv6 address in brackets; svc/NAMESPACE/NAME[:PORT]; node:PORT[/udp|sctp]
SOURCE   an address, pod/NAMESPACE/NAME, node, outside
"""

from __future__ import annotations

from enum import Enum

import msgspec

from nftproxy.model.addresses import Address, Protocol, host_port, parse_address
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.objects import ObjectKey

LONGEST = 1024
"""Characters that a question may have: namespace, name and port name come to less than 400 (RFC 1123, RFC 6335)."""


class Kind(Enum):
    """Where connections come from; the value is for people."""

    POD = "pods of this node"
    NODE = "the node itself"
    REMOTE_POD = "pods of other nodes"
    OUTSIDE = "outside the cluster"


class ToAddress(msgspec.Struct, frozen=True):
    """An address and port, whoever it belongs to."""

    address: Address
    protocol: Protocol
    port: int

    def __str__(self) -> str:
        return f"{host_port(self.address, self.port)}/{self.protocol.value}"


class ToService(msgspec.Struct, frozen=True):
    """All addresses of a Service; `port` is the name or number of one of its ports, "" for all.

    `protocol` is None for any.
    """

    service: ObjectKey
    port: str = ""
    protocol: Protocol | None = None

    def __str__(self) -> str:
        protocol = f"/{self.protocol.value}" if self.protocol else ""
        return f"svc/{self.service}" + (f":{self.port}{protocol}" if self.port else "")


class ToNode(msgspec.Struct, frozen=True):
    """A port of the node, at all of its addresses that serve node ports."""

    protocol: Protocol
    port: int

    def __str__(self) -> str:
        return f"node:{self.port}/{self.protocol.value}"


To = ToAddress | ToService | ToNode


class Source(msgspec.Struct, frozen=True):
    """Where a connection comes from; what isn't known is None.

    `address` is the client's, or `pod` has the name that it is known by.  Without a `kind` the address decides what it
    is.  `interface` is what the connection comes in through, "" if the node itself sends it.
    """

    kind: Kind | None = None
    address: Address | None = None
    interface: str | None = None
    pod: ObjectKey | None = None

    def __str__(self) -> str:
        named = self.address or (f"pod/{self.pod}" if self.pod else "")
        kind = self.kind.value if self.kind else ""
        words = f"{named} ({kind})" if named and kind else named or kind
        return f"{words} via {self.interface}" if self.interface else words


class Question(msgspec.Struct, frozen=True):
    """What becomes of a connection to `to`; without a source, of one from each kind of source."""

    to: To
    source: Source | None = None


def parse_to(text: str) -> To:
    """Where a connection is meant to go.

    Raises:
        BadInput: the text is of none of the forms above.
    """
    text = text[:LONGEST]
    if text.startswith("svc/"):
        name, _, port = text.removeprefix("svc/").partition(":")
        return ToService(_key("TO", text, "svc", name), *_protocol(port))
    rest, protocol = _protocol(text)
    host, separator, number = rest.rpartition(":")
    if not separator:
        raise _bad("TO", text, "is not ADDRESS:PORT, svc/NAMESPACE/NAME[:PORT] or node:PORT")
    port_number = _port(number, text)
    if host == "node":
        return ToNode(protocol or Protocol.TCP, port_number)
    return ToAddress(_host(host, text), protocol or Protocol.TCP, port_number)


def parse_source(text: str) -> Source:
    """Where a connection comes from.

    Raises:
        BadInput: the text is of none of the forms above.
    """
    if text.startswith("pod/"):
        return Source(pod=_key("--from", text, "pod", text.removeprefix("pod/")))
    if text in ("node", "outside"):
        return Source(Kind.NODE if text == "node" else Kind.OUTSIDE)
    try:
        return Source(address=parse_address(text))
    except ValueError:
        raise _bad("--from", text, "is not an address, pod/NAMESPACE/NAME, node or outside") from None


def _protocol(text: str) -> tuple[str, Protocol | None]:
    """The text without a protocol at its end, and that."""
    rest, separator, name = text.rpartition("/")
    try:
        return (rest, Protocol(name)) if separator else (text, None)
    except ValueError:
        return text, None


def _port(number: str, text: str) -> int:
    if number.isascii() and number.isdigit() and len(number) <= 5 and 1 <= int(number) <= 65535:
        return int(number)
    raise _bad("TO", text, f"{number!r} is not a port from 1 to 65535, with /udp or /sctp if it isn't TCP's")


def _host(host: str, text: str) -> Address:
    is_bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = parse_address(host[1:-1] if is_bracketed else host)
    except ValueError as error:
        raise _bad("TO", text, str(error)) from None
    if (":" in address) is not is_bracketed:
        raise _bad("TO", text, "an IPv6 address, and no other, is written in brackets")
    return address


def _key(field: str, text: str, kind: str, name: str) -> ObjectKey:
    namespace, separator, own = name.partition("/")
    if not namespace or not own or not separator or "/" in own:
        raise _bad(field, text, f"is not {kind}/NAMESPACE/NAME")
    return ObjectKey(namespace, own)


def _bad(field: str, text: str, message: str) -> BadInput:
    return BadInput([Problem("", repr(text[:100]), field, message, Code.QUESTION_UNREADABLE)])
