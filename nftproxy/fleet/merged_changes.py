"""The output of `nftproxy diff --live` on many nodes, merged: nodes with the same difference are a group."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from nftproxy.fleet.merged_rows import NodeOutcome
from nftproxy.fleet.node_answers import LONGEST_PROBLEM, Agreements, NodeAnswer, count_of, named

MOST_LINES = 1_000
"""Lines of a difference that are kept and printed: every node may have another difference."""


class NodeChange(msgspec.Struct, frozen=True):
    """The transaction from a node's kernel to the manifests: a digest of its text, its first lines, and their number.

    `count` is the number of all lines, 0 for no difference.
    """

    digest: bytes
    lines: tuple[str, ...] = ()
    count: int = 0


class MergedChanges:
    """Takes the differences of nodes, and groups the nodes with the same difference."""

    def __init__(self) -> None:
        self._changes = Agreements[bytes, NodeChange](lambda change: change.digest)

    def take(self, answer: NodeAnswer) -> NodeOutcome:
        """Add the difference of a node."""
        if not answer.problem:
            self._changes.add(answer.node.name, _change(answer.output))
        return NodeOutcome(answer.node.name, answer.problem[:LONGEST_PROBLEM])

    @property
    def differs(self) -> bool:
        """True if a node's kernel differs from the manifests."""
        return any(change.count for change, _ in self._changes.groups())

    def text(self) -> Iterator[str]:
        """Yield the transactions, each after a comment with its nodes."""
        groups = self._changes.groups()
        total = sum(len(nodes) for _, nodes in groups)
        for change, nodes in groups:
            who = named(nodes, total) if len(nodes) in (1, total) else f"{count_of(len(nodes))} ({named(nodes, total)})"
            yield f"# {who}: {_counted(change.count)}"
            yield from change.lines
            if change.count > len(change.lines):
                yield f"# and {change.count - len(change.lines)} more lines"


def _change(output: bytes) -> NodeChange:
    lines = output.decode(errors="replace").splitlines()
    return NodeChange(hashlib.sha256(output).digest(), tuple(lines[:MOST_LINES]), len(lines))


def _counted(lines: int) -> str:
    return "no difference" if not lines else f"{lines} line{'s' * (lines > 1)}"
