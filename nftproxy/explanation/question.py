"""Parse a question: the destination of a connection (TO) and its source (SOURCE).

TO       ADDRESS:PORT[/UDP|SCTP] (an IPv6 address in brackets), svc/NAMESPACE/NAME[:PORT], node:PORT[/UDP|SCTP]
SOURCE   an address, pod/NAMESPACE/NAME, node, outside
"""

from __future__ import annotations

from enum import Enum

import msgspec

from nftproxy.model.addresses import Address, Family, Protocol, family_of, parse_address, port_text
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.objects import ObjectKey
from nftproxy.policy.claims import NODE, Claim

LONGEST = 1024
"""The longest question, in characters: namespace, name and port name have less than 400 (RFC 1123, RFC 6335)."""


class SourceKind(Enum):
    """The kind of a source.  The values are words for people."""

    POD = "pods of this node"
    NODE = "the node itself"
    REMOTE_POD = "pods of other nodes"
    OUTSIDE = "outside the cluster"


class ToAddress(msgspec.Struct, frozen=True):
    """An address, protocol and port."""

    address: Address
    protocol: Protocol
    port: int

    @property
    def family(self) -> Family:
        """The family of the address."""
        return family_of(self.address)

    @property
    def claim(self) -> Claim:
        """The claim of a Service to this address and port."""
        return Claim(self.address, self.protocol, self.port)

    @property
    def node_claim(self) -> Claim:
        """The claim of a Service to this port of the node."""
        return Claim(NODE, self.protocol, self.port)

    def __str__(self) -> str:
        return str(self.claim)


class ToService(msgspec.Struct, frozen=True):
    """All addresses of a Service, or of a port of it.

    `port` is the name or number of a port, "" for all ports.  `protocol` is None for any protocol.
    """

    service: ObjectKey
    port: str = ""
    protocol: Protocol | None = None

    def __str__(self) -> str:
        port = port_text(self.port, self.protocol.value) if self.protocol else self.port
        return f"svc/{self.service}" + (f":{port}" if self.port else "")


class ToNode(msgspec.Struct, frozen=True):
    """A port of the node, at all of its addresses that serve node ports."""

    protocol: Protocol
    port: int

    def __str__(self) -> str:
        return port_text(f"node:{self.port}", self.protocol.value)


To = ToAddress | ToService | ToNode


class Source(msgspec.Struct, frozen=True):
    """The source of a connection.  Unknown facts are None.

    `address` is the client's, or `pod` is the client's name.  Without a `kind` the address decides the kind.
    `interface` is the interface that the connection comes in through, "" if the node itself sends it.
    """

    kind: SourceKind | None = None
    address: Address | None = None
    interface: str | None = None
    pod: ObjectKey | None = None

    def __str__(self) -> str:
        named = self.address or (f"pod/{self.pod}" if self.pod else "")
        kind = self.kind.value if self.kind else ""
        words = f"{named} ({kind})" if named and kind else named or kind
        return f"{words} via {self.interface}" if self.interface else words


class Question(msgspec.Struct, frozen=True):
    """A question about connections to `to`, from `source` or from each kind of source."""

    to: To
    source: Source | None = None


SERVICE_WORDS = ("svc", "service", "services")
"""kubectl's words for a Service in `svc/web`."""


def in_namespace(text: str, namespace: str) -> str:
    """Return a destination as it is, or with this namespace if it names a Service without one."""
    kind, slash, rest = text.partition("/")
    if kind not in SERVICE_WORDS or not slash:
        return text
    return f"svc/{rest}" if "/" in rest.partition(":")[0] else f"svc/{namespace}/{rest}"


def parse_to(text: str) -> To:
    """Parse the destination of a connection.

    Raises:
        BadInput: the text has none of the forms above.
    """
    text = text[:LONGEST]
    kind, _, rest = text.partition("/")
    if kind in SERVICE_WORDS:
        name, _, port = rest.partition(":")
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
    """Parse the source of a connection.

    Raises:
        BadInput: the text has none of the forms above.
    """
    if text.startswith("pod/"):
        return Source(pod=_key("--from", text, "pod", text.removeprefix("pod/")))
    if text in ("node", "outside"):
        return Source(SourceKind.NODE if text == "node" else SourceKind.OUTSIDE)
    try:
        return Source(address=parse_address(text))
    except ValueError:
        raise _bad("--from", text, "is not an address, pod/NAMESPACE/NAME, node or outside") from None


def _protocol(text: str) -> tuple[str, Protocol | None]:
    """The text without the protocol at its end, and the protocol."""
    rest, separator, name = text.rpartition("/")
    try:
        return (rest, Protocol(name.lower())) if separator else (text, None)
    except ValueError:
        return text, None


def _port(number: str, text: str) -> int:
    if number.isascii() and number.isdigit() and len(number) <= 5 and 1 <= int(number) <= 65535:
        return int(number)
    raise _bad("TO", text, f"{number!r} is not a port from 1 to 65535, with /UDP or /SCTP if it isn't TCP's")


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
    return BadInput(Problem("", repr(text[:100]), field, message, Code.QUESTION_UNREADABLE))
