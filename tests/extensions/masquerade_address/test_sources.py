"""The source of masqueraded connections: from the configuration, and only if the node has it."""

from __future__ import annotations

import pytest

from nftproxy.config.parse_config import EMPTY_CONFIG, parse_config
from nftproxy.extensions.masquerade_address.fields import MASQUERADE_ADDRESS
from nftproxy.extensions.masquerade_address.sources import InterfaceAddresses, NodeSource, node_source
from nftproxy.installed_fields import FIELDS
from nftproxy.model.addresses import Address, AddressRange
from nftproxy.model.errors import BadInput
from nftproxy.model.events import Put, Seen
from tests.support.factories import IPV4, IPV6, host_addresses, node, pipeline

FOUR = AddressRange(Address("192.0.2.1"), Address("192.0.2.4"))
SIX = AddressRange(Address("2001:db8::1"), Address("2001:db8::1"))
OWN = ("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "2001:db8::1")


def parsed(*given: object) -> tuple[AddressRange | str, ...]:
    """The value of the field in a configuration file."""
    config, _ = parse_config({**EMPTY_CONFIG, "nftproxy": {"masqueradeAddress": list(given)}}, "a test", FIELDS)
    return config[MASQUERADE_ADDRESS]


def source(given: tuple[AddressRange | str, ...], *found: Seen) -> tuple[NodeSource, NodeSource]:
    """The source of each family, once the node has seen this."""
    made = pipeline(node(), *found, masquerade_address=given)
    four, six = (node_source(made.state, made.settings.config, family) for family in (IPV4, IPV6))
    return four, six


def seen(*addresses: str) -> InterfaceAddresses:
    """The addresses of the interface eth1."""
    return InterfaceAddresses((("eth1", tuple(map(Address, addresses))),))


def test_forms() -> None:
    """An address, a range and interfaces' names are read, and stored spellings as elsewhere."""
    assert parsed("192.0.2.1-192.0.2.4", "2001:db8::1", "eth1") == (FOUR, SIX, "eth1")
    assert parsed("::ffff:192.0.2.1-192.0.2.004") == (FOUR,)
    assert parsed() == ()


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("192.0.2.300", "'192.0.2.300' does not appear to be an IPv4 or IPv6 address"),
        ("127.0.0.1", "'127.0.0.1' is a loopback, link-local, multicast, broadcast or unspecified address"),
        ("192.0.2.4-192.0.2.1", "'192.0.2.4-192.0.2.1' is not a range of 1 to 256 addresses of a family"),
        ("192.0.2.1-2001:db8::1", "'192.0.2.1-2001:db8::1' is not a range of 1 to 256 addresses of a family"),
        ("10.0.0.0-10.0.1.0", "'10.0.0.0-10.0.1.0' is not a range of 1 to 256 addresses of a family"),
        (7, "7 is not a string"),
        ("an interface", "'an interface' does not appear to be an IPv4 or IPv6 address"),
    ],
)
def test_faults(value: object, fault: str) -> None:
    """A value of no form is a fault of the configuration."""
    with pytest.raises(BadInput) as raised:
        parsed(value)
    assert [(each.field, each.message) for each in raised.value.problems] == [("nftproxy.masqueradeAddress[0]", fault)]


def test_one_of_each_family() -> None:
    """A second address or range of a family is a fault."""
    with pytest.raises(BadInput, match=r"192\.0\.2\.9 is a second IPv4 address or range: at most one is allowed"):
        parsed("192.0.2.1-192.0.2.4", "192.0.2.9")


def test_the_node_has_them() -> None:
    """A range is used if the node has each of its addresses."""
    assert source((FOUR, SIX), host_addresses(*OWN)) == (NodeSource(FOUR), NodeSource(SIX))


def test_the_node_lacks_one() -> None:
    """If the node lacks an address the kernel chooses as before, in that family alone, and the fault names it."""
    lacking = NodeSource(None, "the node lacks 192.0.2.4")
    assert source((FOUR, SIX), host_addresses(*OWN[:3], OWN[4])) == (lacking, NodeSource(SIX))


def test_the_node_object_stands_in() -> None:
    """While the addresses of interfaces aren't known, as in `render`, those of the Node count."""
    own = AddressRange(Address("192.168.0.2"), Address("192.168.0.2"))
    assert source((own,)) == (NodeSource(own), NodeSource(None))


def test_an_interface() -> None:
    """Of an interface the first address of each family counts.  An address of the field goes before it."""
    known = seen("192.0.2.1", "192.0.2.2", "2001:db8::1")
    first = AddressRange(Address("192.0.2.1"), Address("192.0.2.1"))
    assert source(("eth1",), known) == (NodeSource(first), NodeSource(SIX))
    assert source((FOUR, "eth1"), host_addresses(*OWN), known) == (NodeSource(FOUR), NodeSource(SIX))


def test_an_interface_without_addresses() -> None:
    """An interface that isn't known yet, or has no address of a family, is a fault."""
    unknown = NodeSource(None, "the addresses of eth1 aren't known")
    assert source(("eth1",)) == (unknown, unknown)
    four, six = (NodeSource(None, f"eth1 has no {name} address") for name in ("IPv4", "IPv6"))
    assert source(("eth1",), seen()) == (four, six)


def test_rules_follow_the_interface() -> None:
    """The chain that masquerades follows the interface's address."""
    made = pipeline(node(), masquerade_address=("eth1",))
    assert "snat" not in made.full_transaction({}).text
    assert "snat to 192.0.2.1 fully-random" in made.ingest([Put(seen("192.0.2.1"))]).text
    assert "snat to 192.0.2.2 fully-random" in made.ingest([Put(seen("192.0.2.2"))]).text
