"""Whether the agent is on the machine, and in the network namespace, of its Node."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from nftproxy.model.addresses import Address, Family, of_family, parse_virtual_address
from nftproxy.model.objects import Node


def absent_addresses(node: Node, present: Collection[Address]) -> tuple[Address, ...]:
    """Return the Node's first InternalIP of each family, as far as no interface has it.

    Args:
        node: without InternalIPs there is nothing to compare.
        present: the addresses on this network namespace's interfaces, without loopback and link-local addresses.
    """
    return tuple(each for each in _first_of_each(node.internal_ips) if each not in present)


def _first_of_each(addresses: Collection[Address]) -> Iterator[Address]:
    for family in Family:
        for address in of_family(addresses, family)[:1]:
            with contextlib.suppress(ValueError):  # a link-local address, which `present` lacks
                yield parse_virtual_address(address)


def elsewhere(node: str, absent: Collection[Address]) -> str:
    """Say what the absence of addresses means."""
    what = f"no interface here has InternalIP {', '.join(absent)} of the Node {node}"
    return (
        f"{what}: a wrong node name (hostnameOverride), a wrong network namespace (hostNetwork: true is missing), or "
        "the node's address has changed; until then local endpoints, node ports and forwarding are judged wrongly"
    )
