"""Counts and lists the clients that session affinity remembers, from the kernel's maps, and counts those with limits.

Packets write these maps, so only the kernel has their contents.  Newer kernels count a map's elements (6.18 does, 6.1
doesn't).  On older kernels the first `MOST_COUNTED` elements are counted singly, which takes 20 ms for any map, and
a trial insertion shows whether a map is full.  Counting a million elements would take the kernel minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from nftproxy.agent.socket.answers import LIMITS, AffinityMap, ClientRow
from nftproxy.agent.socket.listings import ListingScope
from nftproxy.kernel.nfnetlink import elements, nft_queries
from nftproxy.kernel.nfnetlink.elements import ListedElement
from nftproxy.kernel.nfnetlink.nft_queries import NamedSet
from nftproxy.model.addresses import FAMILY_NAMES, Address, Family, Protocol
from nftproxy.model.objects import ObjectKey
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.state import ClusterState

MOST_COUNTED = 10_000
"""Limit of clients that are counted singly, if the kernel doesn't count."""
MOST_READ = 100_000
"""Limit of clients that a listing reads, in or out of its scope: 2 s of processor time, in parts of 5 ms."""


def affinity_maps(families: Iterable[Family]) -> list[AffinityMap]:
    """Return the fill of each map, and of each set of clients that have a limit.  This blocks.

    Raises:
        Unavailable: the kernel does not answer.
    """
    return [_fill(family, each) for family in families for each in (*_maps(family), *_limit_sets(family))]


def _limit_sets(family: Family) -> list[NamedSet]:
    """Return the sets of clients by the limits of their Services (templates/extensions/client_limits)."""
    return [each for each in nft_queries.sets(family) if each.is_dynamic and each.name.startswith(LIMITS)]


def _maps(family: Family) -> list[NamedSet]:
    return [each for each in nft_queries.sets(family) if each.is_dynamic and each.is_map]


def _fill(family: Family, found: NamedSet) -> AffinityMap:
    is_at_least, count = False, found.count
    if count is None:
        count, is_at_least = elements.count_elements(family, found, MOST_COUNTED)
        is_full = is_at_least and elements.is_full(family, found)
    else:
        is_full = count >= found.size
    return AffinityMap(FAMILY_NAMES[family], found.name, count, is_at_least, is_full, found.size)


async def clients(
    state: ClusterState, families: Iterable[Family], scope: ListingScope
) -> AsyncIterator[list[ClientRow]]:
    """Yield the clients of Services in the scope, part by part, among the first `MOST_READ` clients.

    Raises:
        Unavailable: the kernel does not answer.
    """
    read = 0
    for family in families:
        for found in await asyncio.to_thread(_maps, family):
            # This isn't closed here: if this task is cancelled, the thread may still use it, and drops it last.
            parts = elements.listed_elements(family, found)
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                yield [row for entry in part if (row := _row(state, scope, found, entry))]
                read += len(part)
                if read >= MOST_READ:
                    return


def _row(state: ClusterState, scope: ListingScope, found: NamedSet, entry: ListedElement) -> ClientRow | None:
    """Return the client of an entry if it is in the scope.  Without a Service it has no namespace and no labels."""
    protocol, _, timeout = found.name.partition("-affinity-")
    client, address, port = entry.key
    service = _owner(state, Address(address), Protocol(protocol), int(port))
    given = state.given.get(service) if service else None
    if not (scope.has(given) if given else scope == ListingScope()):
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
    """Return the Service that has an address and port, or the node port."""
    return state.claims.winner(Claim(address, protocol, port)) or state.claims.winner(Claim(NODE, protocol, port))
