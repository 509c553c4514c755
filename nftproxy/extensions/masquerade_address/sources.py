"""The addresses that replace the source of masqueraded connections, checked against the node's own (pure)."""

from __future__ import annotations

from typing import NamedTuple

from nftproxy.extensions.masquerade_address.fields import MASQUERADE_ADDRESS
from nftproxy.model.addresses import FAMILY_NAMES, Address, AddressRange, Family, of_family
from nftproxy.model.events import Observation
from nftproxy.model.settings import Config
from nftproxy.model.texts import first_of
from nftproxy.policy.state import ClusterState


class InterfaceAddresses(Observation, frozen=True):
    """The addresses of the configured interfaces: rows of (interface, its addresses in the kernel's order)."""

    rows: tuple[tuple[str, tuple[Address, ...]], ...]


class NodeSource(NamedTuple):
    """The source of masqueraded connections of a family.

    `addresses` is None where the kernel chooses, by the route as ever.  `fault` says why that isn't as configured.
    """

    addresses: AddressRange | None
    fault: str = ""


def words(family: Family, fault: str) -> str:
    """Return a sentence with a fault and its effect on a family's masqueraded connections."""
    return f"{fault}: the kernel chooses the source of masqueraded {FAMILY_NAMES[family]} connections"


def interfaces(config: Config) -> tuple[str, ...]:
    """The names of the configured interfaces."""
    return tuple(each for each in config[MASQUERADE_ADDRESS] if isinstance(each, str))


def node_source(state: ClusterState, config: Config, family: Family) -> NodeSource:
    """The source of a family's masqueraded connections.  Only addresses that the node has can take answers."""
    asked = config[MASQUERADE_ADDRESS]
    for given in (each for each in asked if isinstance(each, AddressRange) and each.family is family):
        own = state.own_addresses
        absent = [each for each in given.addresses() if each not in own]
        return NodeSource(None, f"the node lacks {first_of(absent)}") if absent else NodeSource(given)
    names = interfaces(config)
    if not names:
        return NodeSource(None)
    seen = state.observed.get(InterfaceAddresses)
    if not isinstance(seen, InterfaceAddresses):
        return NodeSource(None, f"the addresses of {first_of(names)} aren't known")
    found = of_family([address for _, addresses in seen.rows for address in addresses], family)
    if not found:
        return NodeSource(None, f"{first_of(names)} has no {FAMILY_NAMES[family]} address")
    return NodeSource(AddressRange(found[0], found[0]))
