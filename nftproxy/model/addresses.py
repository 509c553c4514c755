"""IP addresses, networks and protocols as typed values.

An `Address` is text in the canonical form that nft prints too, made only by `parse_address`.  So any code may write it
into an nft statement.  Text is kept instead of `ipaddress` objects because a node holds a hundred thousand addresses,
compares them and writes them, and does nothing else with them.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple, NewType

from nftproxy.model.keys import KeyEnum

Address = NewType("Address", str)
TABLE = "nftproxy"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Family(KeyEnum):
    """An IP family.  The value is nft's name for it (and the family of our table)."""

    IPV4 = "ip"
    IPV6 = "ip6"

    @property
    def table(self) -> str:
        """The name of our table of this family in nft."""
        return f"{self.value} {TABLE}"


FAMILIES = {"IPv4": Family.IPV4, "IPv6": Family.IPV6}
"""IP families by the API's names for them (IPFamily, AddressType)."""
FAMILY_NAMES = {family: name for name, family in FAMILIES.items()}
ANY = {Family.IPV4: Address("0.0.0.0"), Family.IPV6: Address("::")}
"""The address to listen on for a whole family."""

LOCALHOST = {Family.IPV4: Address("127.0.0.1"), Family.IPV6: Address("::1")}
"""The address of localhost in each family (RFC 6761)."""


class Protocol(KeyEnum):
    """A transport protocol of a Service port.  The value is nft's name for it."""

    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"


# Almost every address in a cluster is canonical IPv4 and nothing special, which a single match finds: 0.4 us.  Parsing
# takes 2 to 4 us.  For the hundred thousand endpoints of a large cluster that was most of the time to read them.  An
# address in the look-ahead may be special, and other text may be anything: both take the slow way.
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
is_ordinary_ipv4 = re.compile(rf"(?!0\.|127\.|169\.254\.|2(?:2[4-9]|[3-5][0-9])\.)(?:{_BYTE}\.){{3}}{_BYTE}").fullmatch

# Of canonical text: unspecified and broadcast, loopback, link-local, multicast.
_SPECIAL = re.compile(
    r"(0\.0\.0\.0|255\.255\.255\.255|::)\Z"
    r"|127\.|::1\Z"
    r"|169\.254\.|fe[89ab][0-9a-f]:"
    r"|2(2[4-9]|3[0-9])\.|ff[0-9a-f][0-9a-f]:"
)


@functools.lru_cache(maxsize=65536)
def parse_address(text: str) -> Address:
    """Return the canonical form of an IPv4 or IPv6 address.

    As strict as Kubernetes' own strict parser: leading zeros, IPv4-mapped IPv6 and zones are rejected (KEP-4858).
    `modern_spelling` turns the first two into what this accepts.

    Raises:
        ValueError: the text is no such address.
    """
    parsed = ipaddress.ip_address(text)
    if isinstance(parsed, ipaddress.IPv6Address) and (parsed.scope_id or parsed.ipv4_mapped):
        raise ValueError(f"{text!r} has a zone or is an IPv4-mapped IPv6 address")
    return Address(str(parsed))


def parse_virtual_address(text: str) -> Address:
    """Return the canonical form of an address that a Service or an endpoint may have.

    Loopback, link-local, multicast and unspecified addresses are rejected, as in the API's validation of external IPs
    and endpoints.  Through them an object could reach services that only the node itself should reach.

    Raises:
        ValueError: the text is no address, or a special address.
    """
    if is_ordinary_ipv4(text):
        return Address(text)
    address = parse_address(text)
    if _SPECIAL.match(address):
        raise ValueError(f"{text!r} is a loopback, link-local, multicast, broadcast or unspecified address")
    return address


def parse_network(text: str) -> Network:
    """Parse a CIDR.  Host bits may be set and are dropped, as Kubernetes does for source ranges.

    Raises:
        ValueError: the text is no CIDR, an IPv4-mapped CIDR, or has leading zeros in its length.
    """
    address, _, length = text.rpartition("/")
    if not _LENGTH.fullmatch(length):
        raise ValueError(f"{text!r} is not a CIDR")
    parse_address(address)
    return ipaddress.ip_network(text, strict=False)


_LENGTH = re.compile("0|[1-9][0-9]{0,2}")
_LEADING_ZEROS = re.compile("(?<![0-9a-fA-F])0+(?=[0-9a-fA-F])")
_MAPPED_BITS = 96
"""The bits of an IPv4-mapped IPv6 address before its IPv4 address (RFC 4291)."""


def modern_spelling(text: str) -> str:
    """Return an address or CIDR as newer API servers spell it, and any other text without leading zeros of numbers.

    API servers have stored leading zeros, which are decimal, and IPv4-mapped IPv6, which means IPv4 (KEP-4858).
    kube-proxy reads both so (k8s.io/utils/net, ParseIPSloppy).  A CIDR wider than all of mapped IPv4 stays as it is.
    """
    plain = _LEADING_ZEROS.sub("", text)
    address, slash, length = plain.partition("/")
    try:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
    except ValueError:
        return plain
    if mapped is None or "%" in address or not slash:
        return plain if mapped is None or "%" in address else str(mapped)
    bits = int(length) - _MAPPED_BITS if _LENGTH.fullmatch(length) else -1
    return f"{mapped}/{bits}" if bits >= 0 else plain


class AddressRange(NamedTuple):
    """The addresses from the first to the last of a family, both included."""

    first: Address
    last: Address

    @property
    def family(self) -> Family:
        """The family of its addresses."""
        return family_of(self.first)

    @property
    def size(self) -> int:
        """How many addresses it has."""
        return int(ipaddress.ip_address(self.last)) - int(ipaddress.ip_address(self.first)) + 1

    def addresses(self) -> Iterator[Address]:
        """Yield its addresses in their order."""
        first = ipaddress.ip_address(self.first)
        return (Address(str(first + number)) for number in range(self.size))

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def family_of(value: Address | Network) -> Family:
    """Return the family of a parsed address or network."""
    if isinstance(value, str):
        return Family.IPV6 if ":" in value else Family.IPV4
    return Family.IPV6 if value.version == 6 else Family.IPV4


def of_family(addresses: Collection[Address], family: Family) -> tuple[Address, ...]:
    """Return the addresses of a family, in their order."""
    if not addresses:
        return ()
    is_ipv6 = family is Family.IPV6
    return tuple([address for address in addresses if (":" in address) is is_ipv6])


def host_port(host: str, port: int | str) -> str:
    """Return a host and port as in a URL: an IPv6 address is in brackets (RFC 3986)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_text(port: int | str, protocol: str) -> str:
    """Return a port and its protocol as kubectl writes them, 80/TCP.  The port may follow an address or a name."""
    return f"{port}/{protocol.upper()}"


def contains(network: Network, address: Address) -> bool:
    """Whether the address lies in the network (never across families)."""
    return ipaddress.ip_address(address) in network


def is_within(address: Address, networks: Collection[Network]) -> bool:
    """Whether the address lies in any of the networks.  It is parsed at most once."""
    if not networks:
        return False
    parsed = ipaddress.ip_address(address)
    return any(parsed in network for network in networks)


def is_loopback(address: Address) -> bool:
    """Whether the address is a loopback address, which every machine has."""
    return address.startswith("127.") or address == LOCALHOST[Family.IPV6]
