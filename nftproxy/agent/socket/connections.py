"""The answer to `nftproxy top`: active connections by Service port and endpoint, from conntrack.

The agent reads conntrack, since it has the permission and a command in its container hasn't.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping

import msgspec

from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.agent.socket.agent_socket import QueryHandler
from nftproxy.agent.socket.answers import ConnectionRow, Connections
from nftproxy.agent.socket.connection_rows import largest, row_of
from nftproxy.agent.socket.shared_reading import SharedReading, signs_of_life
from nftproxy.kernel.conntrack.connection_counts import (
    ConnectionCounts,
    Translation,
    active_connections,
)
from nftproxy.model.addresses import host_port
from nftproxy.model.objects import ObjectKey, Place
from nftproxy.model.steps import Steps
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.state import ClusterState

STEP = 100
"""Translations that are named before other tasks get their turn."""

_encode = msgspec.json.Encoder().encode


def connections(state: ClusterState, reporter: SyncReporter) -> QueryHandler:
    """Return the handler of queries about connections."""
    reading = SharedReading(active_connections)

    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        task = reading.join()
        async for sign in signs_of_life(task):
            yield sign
        steps = Steps(naming(state, task.result()))
        for _ in steps:
            await asyncio.sleep(0)
        named = Connections(0, task.result().others, steps.result, caveat=reporter.caveat())
        yield await asyncio.to_thread(lambda: _encode(largest(named, query.get("namespace", ""))))

    return answer


def naming(state: ClusterState, found: ConnectionCounts) -> Generator[None, None, tuple[ConnectionRow, ...]]:
    """Name the Service ports of translations, in any order.  Yields after each `STEP` translations."""
    names = _Names(state)
    rows = []
    for number, (way, count) in enumerate(found.by_translation.items(), 1):
        rows.append(names.row(way, count, found.unanswered[way]))
        if number % STEP == 0:
            yield
    return tuple(rows)


class _Names:
    """The Services and pods of translations, looked up once for each Service."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._places: dict[ObjectKey, frozenset[Place]] = {}
        self._pods: dict[ObjectKey, dict[str, str]] = {}

    def row(self, way: Translation, count: int, unanswered: int) -> ConnectionRow:
        """Return the row of a translation.  An address precedes a node port, as in the rules."""
        claims = self._state.claims
        at_address, at_node = (Claim(address, way.protocol, way.port) for address in (way.address, NODE))
        key = claims.winner(at_address) or claims.winner(at_node)
        service = self._state.services.get(key) if key else None
        if key is None or service is None:
            return row_of(way, count, unanswered, port=host_port(way.address, way.port))
        by_node_port = claims.winner(at_address) is None
        ports = [each for each in service.ports if each.protocol is way.protocol]
        port = next((each.port for each in ports if by_node_port and each.node_port == way.port), way.port)
        if key not in self._places:
            self._places[key] = frozenset(self._state.places_of(key))
            self._pods[key] = {str(address): name for address, name in self._state.pod_names(key).items()}
        return msgspec.structs.replace(
            row_of(way, count, unanswered, port=str(port), service=str(key)),
            is_gone=Place(way.endpoint, way.endpoint_port) not in self._places[key],
            pod=self._pods[key].get(way.endpoint, ""),
        )
