"""Addresses, networks and protocols: a single canonical text for each, and no other text."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies import quick

from nftproxy.model.addresses import (
    Address,
    Family,
    contains,
    family_of,
    is_within,
    modern_spelling,
    of_family,
    parse_address,
    parse_network,
    parse_virtual_address,
    port_text,
)
from tests.support.factories import addresses


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.96.0.10", "10.96.0.10"),
        ("0.0.0.0", "0.0.0.0"),
        ("FD00:96::A", "fd00:96::a"),
        ("fd00:0096:0:0:0:0:0:10", "fd00:96::10"),
        ("1:0:0:2:0:0:0:3", "1:0:0:2::3"),
        ("2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),
        ("::", "::"),
    ],
)
def test_an_address_is_kept_in_canonical_form(text: str, canonical: str) -> None:
    """However an address is written, its value is the text that nft prints for it."""
    assert parse_address(text) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *"10.96.0 10.96.0.010 10.96.0.256 10.96.0.1/32 ::ffff:10.96.0.1 ::ffff:a60:1 fe80::1%eth0 fd00::g".split(),
        *"fd00:::1 web".split(),
        "",
        " 10.96.0.1",
        "10.96.0.1\n",
        "10.96.0.\u0661",
    ],
)
def test_what_is_no_strict_address_is_refused(text: str) -> None:
    """Leading zeros, IPv4-mapped IPv6, zones, blanks, prefixes and other text are no addresses."""
    for parse in (parse_address, parse_virtual_address):
        with pytest.raises(ValueError, match=r"\S"):
            parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *"0.0.0.0 127.0.0.1 127.255.255.254 169.254.169.254 224.0.0.1 239.1.2.3 255.255.255.255 :: ::1".split(),
        *"fe80::1 febf::1 ff02::1 ff0e::1".split(),
    ],
)
def test_a_virtual_address_is_none_of_the_special_ones(text: str) -> None:
    """No Service or endpoint may have an unspecified, loopback, link-local, multicast or broadcast address."""
    with pytest.raises(ValueError, match=f"^'{text}' is a loopback, link-local, multicast, broadcast or unspecified"):
        parse_virtual_address(text)


@pytest.mark.parametrize(
    "text", ["0.0.0.1", "126.255.255.255", "169.253.0.1", "223.255.255.255", "240.0.0.1", "::2", "fec0::1", "fe00::1"]
)
def test_addresses_next_to_the_special_ones_are_ordinary(text: str) -> None:
    """An address that only looks special may be a virtual address."""
    assert parse_virtual_address(text) == text


@quick(200)
@given(st.ip_addresses() | st.ip_addresses(v=4).map(lambda ip: ipaddress.IPv4Address(int(ip) & 0x0FFFFFFF)))
def test_what_is_special_is_what_python_says(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """An address may be virtual exactly if `ipaddress` calls it none of the special things."""
    special = ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip == _BROADCAST
    mapped = isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None
    try:
        assert parse_virtual_address(str(ip)) == str(ip)
    except ValueError:
        assert special or mapped
    else:
        assert not special
        assert not mapped


_BROADCAST = ipaddress.ip_address("255.255.255.255")


@quick(200)
@given(st.ip_addresses(v=6).filter(lambda ip: int(ip) >> 32))
def test_the_canonical_form_is_the_c_librarys(ip: ipaddress.IPv6Address) -> None:
    """Addresses have the form of inet_ntop, and so of nft (except ::/96, which is unused)."""
    if ip.ipv4_mapped is None:
        assert parse_address(ip.exploded) == socket.inet_ntop(socket.AF_INET6, ip.packed)


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("198.51.100.0/24", "198.51.100.0/24"),
        ("198.51.100.77/24", "198.51.100.0/24"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("203.0.113.7/32", "203.0.113.7/32"),
        ("2001:DB8::1/32", "2001:db8::/32"),
    ],
)
def test_a_network_loses_its_host_bits(text: str, network: str) -> None:
    """A CIDR with host bits set means the network around them."""
    assert str(parse_network(text)) == network


@pytest.mark.parametrize(
    "text",
    [
        *"198.51.100.0 198.51.100.0/ 198.51.100.0/33 198.51.100.0/-1 198.51.100.0/+8".split(),
        *"198.51.100.0/255.255.255.0 198.51.100/24 198.51.100.00/24 ::ffff:198.51.100.0/120 fe80::%eth0/64".split(),
        *"/24 198.51.100.0/024".split(),
        "",
        "198.51.100.0/2\u0664",
        "198.51.100.0/24 ",
    ],
)
def test_what_is_no_cidr_is_refused(text: str) -> None:
    """A network needs a strict address and a decimal length that fits it."""
    with pytest.raises(ValueError, match=r"\S"):
        parse_network(text)


@pytest.mark.parametrize(
    ("text", "modern"),
    [
        ("10.96.011.012", "10.96.11.12"),
        ("0010.000.00.0", "10.0.0.0"),
        ("010.1.0.0/016", "10.1.0.0/16"),
        ("::ffff:10.1.1.4", "10.1.1.4"),
        ("::ffff:010.001.001.004", "10.1.1.4"),
        ("::FFFF:0a01:0104", "10.1.1.4"),
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:192.0.2.7/128", "192.0.2.7/32"),
        ("::ffff:192.0.2.0/95", "::ffff:192.0.2.0/95"),
        ("::ffff:192.0.2.0/", "::ffff:192.0.2.0/"),
        ("::ffff:192.0.2.0%eth0", "::ffff:192.0.2.0%eth0"),
        ("0fd00:00096::00010", "fd00:96::10"),
        ("::10.1.1.4", "::10.1.1.4"),
        ("10.96.0.256", "10.96.0.256"),
        ("web", "web"),
        ("", ""),
    ],
)
def test_old_spellings_have_modern_ones(text: str, modern: str) -> None:
    """Leading zeros go, and IPv4-mapped IPv6 becomes IPv4 (KEP-4858).  Other text stays as it is."""
    assert modern_spelling(text) == modern
    assert modern_spelling(modern) == modern


@pytest.mark.parametrize(
    ("value", "family"),
    [
        (parse_address("10.96.0.10"), Family.IPV4),
        (parse_address("fd00::1"), Family.IPV6),
        (parse_network("10.0.0.0/8"), Family.IPV4),
        (parse_network("fd00::/8"), Family.IPV6),
    ],
)
def test_addresses_and_networks_have_a_family(value: Address, family: Family) -> None:
    """A value's family follows from the value."""
    assert family_of(value) is family


def test_the_addresses_of_a_family_keep_their_order() -> None:
    """Choosing by family changes nothing else."""
    mixed = addresses(["10.0.0.2", "fd00::2", "10.0.0.1", "fd00::1"])
    assert of_family(mixed, Family.IPV4) == ("10.0.0.2", "10.0.0.1")
    assert of_family(mixed, Family.IPV6) == ("fd00::2", "fd00::1")


@pytest.mark.parametrize(
    ("network", "address", "expected"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("::/0", "10.1.2.3", False),
        ("0.0.0.0/0", "fd00::1", False),
        ("fd00::/8", "fd00::1", True),
    ],
)
def test_a_network_contains_addresses_of_its_family_only(network: str, address: str, expected: bool) -> None:
    """Even a network of length 0 holds nothing of the other family."""
    assert contains(parse_network(network), parse_address(address)) is expected
    assert is_within(parse_address(address), [parse_network(network)]) is expected


def test_an_address_is_within_any_network() -> None:
    """One of several networks suffices, and without networks there is none."""
    networks = [parse_network("10.1.0.0/16"), parse_network("fd00::/64")]
    assert [is_within(Address(text), networks) for text in ("10.1.2.3", "fd00::7", "10.2.0.1")] == [True, True, False]
    assert not is_within(Address("10.1.2.3"), [])


@pytest.mark.parametrize(("family", "table"), [(Family.IPV4, "ip nftproxy"), (Family.IPV6, "ip6 nftproxy")])
def test_each_family_has_a_table(family: Family, table: str) -> None:
    """The tables are ip nftproxy and ip6 nftproxy."""
    assert family.table == table


@pytest.mark.parametrize(
    ("port", "protocol", "text"),
    [
        (80, "tcp", "80/TCP"),
        ("80:30080", "UDP", "80:30080/UDP"),
        ("[fd00:96::10]:5060", "sctp", "[fd00:96::10]:5060/SCTP"),
    ],
)
def test_a_port_is_written_as_by_kubectl(port: int | str, protocol: str, text: str) -> None:
    """The protocol follows the port in capitals."""
    assert port_text(port, protocol) == text
