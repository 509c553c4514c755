"""The rows of `nftproxy top`, from counts of connections: the agent makes them, and a command without an agent."""

from __future__ import annotations

from collections import Counter

import msgspec

from nftproxy.agent.socket.answers import ConnectionRow, Connections
from nftproxy.kernel.conntrack.connection_counts import ConnectionCounts, Translation
from nftproxy.model.addresses import host_port

MOST_ROWS = 10_000
"""Rows of an answer, the largest first: 2 MB."""


def largest(named: Connections, namespace: str = "") -> Connections:
    """Add up the rows that differ only in their counts.  Return the largest, only of `namespace` if it isn't ""."""
    counts, unanswered = Counter[ConnectionRow](), Counter[ConnectionRow]()
    for row in named.rows:
        if not namespace or row.service.startswith(f"{namespace}/"):
            key = msgspec.structs.replace(row, connections=0, unanswered=0)
            counts[key] += row.connections
            unanswered[key] += row.unanswered
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = tuple(
        msgspec.structs.replace(row, connections=count, unanswered=unanswered[row]) for row, count in ranked[:MOST_ROWS]
    )
    rest = sum(count for _, count in ranked[MOST_ROWS:])
    others = named.others + rest
    return msgspec.structs.replace(named, connections=counts.total() + named.others, others=others, rows=rows)


def unnamed(found: ConnectionCounts, problem: str) -> Connections:
    """Return the connections by address, for a command that has no agent."""
    rows = tuple(
        row_of(way, count, found.unanswered[way], port=host_port(way.address, way.port))
        for way, count in found.by_translation.items()
    )
    return Connections(0, found.others, rows, problem)


def row_of(way: Translation, count: int, unanswered: int, *, port: str, service: str = "") -> ConnectionRow:
    """Return the row of a translation.  `port` is the Service port, or without a Service the address and port."""
    endpoint = host_port(way.endpoint, way.endpoint_port)
    return ConnectionRow(service, port, way.protocol.value, endpoint, count, unanswered)
