"""The rows of `nftproxy list` and `nftproxy top` on many nodes, merged.

Rows that differ only in facts about their own node are a single row, with the nodes that have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from nftproxy.agent.socket.answers import ConnectionRow, Connections, EndpointRow, Line, ListingRow
from nftproxy.fleet.node_answers import LONGEST_PROBLEM, Agreement, Agreements, NodeAnswer, unreadable

MOST_ROWS = 10_000
"""Rows of connections that are printed, the largest first, as of a node."""
MOST_KEYS = 200_000
"""Different rows of connections that are added up.  Connections of further rows are counted only: 100 MB."""


class _Listed(msgspec.Struct):
    items: list[dict[str, Any]]
    caveat: str = ""

    def rows(self) -> list[Line]:
        """Return the rows, with the times of Services as numbers again.

        Raises:
            ValueError: an item is no row, as of another version (msgspec.ValidationError is one).
        """
        for item in self.items:
            if isinstance(created := item.get("created"), str):
                item["created"] = int(datetime.fromisoformat(created).timestamp())
        return msgspec.convert(self.items, list[Line])


class NodeOutcome(msgspec.Struct, frozen=True):
    """What a command needs of a node beside its rows: the reason why there is no answer, or why it may be old."""

    node: str
    problem: str = ""
    caveat: str = ""


class MergedRow(msgspec.Struct, frozen=True, rename="camel"):
    """A row of a listing, and the nodes that have it."""

    row: ListingRow
    nodes: tuple[str, ...]


class MergedListing:
    """The rows of a listing on many nodes.  `names` are the Services to keep, () for all."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._rows = Agreements[bytes, ListingRow](msgspec.json.encode)

    def take(self, answer: NodeAnswer) -> NodeOutcome:
        """Add the rows of a node."""
        node = answer.node.name
        found, problem = answer.decoded(_Listed)
        if found is None:
            return NodeOutcome(node, problem)
        try:
            rows = found.rows()
        except ValueError as error:
            return NodeOutcome(node, unreadable(error))
        for row in rows:
            if isinstance(row, ListingRow) and (not self._names or row.service in self._names):
                self._rows.add(node, common(row))
        return NodeOutcome(node, caveat=found.caveat)

    def rows(self) -> list[MergedRow]:
        """Return the rows by Service, and within a Service those of the most nodes first."""
        merged = (MergedRow(row, nodes) for row, nodes in self._rows.groups())
        return sorted(merged, key=lambda each: (each.row.namespace, each.row.service))


def common(row: ListingRow) -> ListingRow:
    """Return the row without the facts in which nodes always differ: whether an endpoint is on the node."""
    return msgspec.structs.replace(row, is_local=False) if isinstance(row, EndpointRow) else row


class MergedConnections:
    """The sums of the connections of many nodes."""

    def __init__(self) -> None:
        self._counts: dict[ConnectionRow, tuple[int, int]] = {}
        self._others = 0

    def take(self, answer: NodeAnswer) -> NodeOutcome:
        """Add the connections of a node.  Without an agent they have no Services there, so they are no answer."""
        node = answer.node.name
        found, problem = answer.decoded(Connections)
        if found is None or found.problem:
            return NodeOutcome(node, (found.problem if found else problem)[:LONGEST_PROBLEM])
        self._others += found.others
        for row in found.rows:
            self._add(row)
        return NodeOutcome(node, caveat=found.caveat)

    def _add(self, row: ConnectionRow) -> None:
        key = msgspec.structs.replace(row, connections=0, unanswered=0)
        if key not in self._counts and len(self._counts) >= MOST_KEYS:
            self._others += row.connections
            return
        connections, unanswered = self._counts.get(key, (0, 0))
        self._counts[key] = (connections + row.connections, unanswered + row.unanswered)

    def sums(self) -> Connections:
        """Return the sums, the largest first."""
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1][0], item[0]))
        rows = tuple(
            msgspec.structs.replace(row, connections=connections, unanswered=unanswered)
            for row, (connections, unanswered) in ranked[:MOST_ROWS]
        )
        rest = self._others + sum(connections for _, (connections, _) in ranked[MOST_ROWS:])
        return Connections(sum(row.connections for row in rows) + rest, rest, rows)


def failures(outcomes: Sequence[NodeOutcome]) -> list[Agreement[str]]:
    """Return the reasons why nodes give no answer, each with its nodes."""
    found = Agreements[str, str](lambda problem: problem)
    for each in outcomes:
        if each.problem:
            found.add(each.node, each.problem)
    return found.groups()


def caveats(outcomes: Sequence[NodeOutcome]) -> Iterator[str]:
    """Yield a line for each node whose answer may be out of date."""
    for each in sorted(outcomes, key=lambda outcome: outcome.node):
        if each.caveat:
            yield f"{each.node}: {each.caveat}"
