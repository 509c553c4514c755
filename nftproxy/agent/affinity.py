"""The clients that session affinity remembers, as the kernel has them: how many, and which.

Packets write these maps, so nobody but the kernel knows.  Newer kernels count a map's elements (6.18 does, 6.1
doesn't).  Of others the first `MOST_COUNTED` are counted one by one, which takes 20 ms however many there are, and
whether a map is full is found by trying.  Counting a million would take the kernel minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from nftproxy.agent.answers import AffinityMap, ClientRow
from nftproxy.agent.inventory import Scope
from nftproxy.kernel import nftables_netlink, set_elements
from nftproxy.kernel.nftables_netlink import NamedSet
from nftproxy.kernel.set_elements import Entry
from nftproxy.model.addresses import FAMILY_NAMES, TABLE, Address, Family, Protocol
from nftproxy.model.objects import ObjectKey
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.state import ClusterState

MOST_COUNTED = 10_000
"""Clients of a map that are counted one by one, where the kernel doesn't count."""
MOST_READ = 100_000
"""Clients that one listing looks at, whomever it is about: 2 s of processor time, in parts of 5 ms."""


def affinity_maps(families: Iterable[Family]) -> list[AffinityMap]:
    """How full each map is; blocks.

    Raises:
        Unavailable: the kernel does not answer.
    """
    return [_fill(family, each) for family in families for each in _maps(family)]


def _maps(family: Family) -> list[NamedSet]:
    return [each for each in nftables_netlink.sets(family, TABLE) if each.is_dynamic and each.is_map]


def _fill(family: Family, found: NamedSet) -> AffinityMap:
    is_at_least, count = False, found.count
    if count is None:
        count, is_at_least = set_elements.count(family, TABLE, found, MOST_COUNTED)
        is_full = is_at_least and set_elements.is_full(family, TABLE, found)
    else:
        is_full = count >= found.size
    return AffinityMap(FAMILY_NAMES[family], found.name, count, is_at_least, is_full, found.size)


async def clients(state: ClusterState, families: Iterable[Family], scope: Scope) -> AsyncIterator[list[ClientRow]]:
    """The clients that are remembered for Services in the scope, part by part, of the first `MOST_READ` of them.

    Raises:
        Unavailable: the kernel does not answer.
    """
    read = 0
    for family in families:
        for found in await asyncio.to_thread(_maps, family):
            # Nobody closes this: whoever lets go of it last ends it, which may be the thread if this here is cancelled.
            parts = set_elements.dump(family, TABLE, found)
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                yield [row for entry in part if (row := _row(state, scope, found, entry))]
                read += len(part)
                if read >= MOST_READ:
                    return


def _row(state: ClusterState, scope: Scope, found: NamedSet, entry: Entry) -> ClientRow | None:
    """The client of an entry, if it is asked for; one whose Service has gone is of no namespace, and has no labels."""
    protocol, _, timeout = found.name.partition("-affinity-")
    client, address, port = entry.key
    service = _owner(state, Address(address), Protocol(protocol), int(port))
    given = state.given.get(service) if service else None
    if not (scope.has(given) if given else scope == Scope()):
        return None
    return ClientRow(
        namespace=service.namespace if service else "",
        service=service.name if service else "",
        client=client,
        address=address,
        port=int(port),
        protocol=protocol.upper(),
        pod=entry.value[0],
        timeout=int(timeout),
        seconds_left=entry.seconds_left,
    )


def _owner(state: ClusterState, address: Address, protocol: Protocol, port: int) -> ObjectKey | None:
    """The Service that has an address and port, or this node port."""
    return state.claims.winner(Claim(address, protocol, port)) or state.claims.winner(Claim(NODE, protocol, port))
