"""The answer of a node, nodes in words, and nodes that agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from nftproxy.fleet.inventory import ClusterNode
from nftproxy.model.texts import first_of

K = TypeVar("K")
T = TypeVar("T")
LONGEST_PROBLEM = 300
"""Limit of characters of a problem: the node and the API server choose the words."""


class NodeAnswer(NamedTuple):
    """The answer of a node: the output of a command in its agent's pod.

    `problem` is the reason why there is none, "" if there is one.  `status` is the command's exit status.
    """

    node: ClusterNode
    output: bytes = b""
    problem: str = ""
    status: int = 0

    def decoded(self, kind: type[T]) -> tuple[T | None, str]:
        """Return the output as a value of this kind, or None and the reason why there is none."""
        if self.problem:
            return None, self.problem[:LONGEST_PROBLEM]
        try:
            return msgspec.json.decode(self.output, type=kind), ""
        except (msgspec.DecodeError, RecursionError) as error:
            return None, unreadable(error)


def unreadable(error: Exception) -> str:
    """Return the problem of an answer that isn't the expected value."""
    return f"its answer can't be read, as from another version of nftproxy: {error}"[:LONGEST_PROBLEM]


class Agreement(NamedTuple, Generic[T]):
    """Nodes that give the same answer, by name."""

    answer: T
    nodes: tuple[str, ...]


class Agreements(Generic[K, T]):
    """Groups nodes by a key of their answers.  Only the first answer with a key is kept."""

    def __init__(self, key_of: Callable[[T], K]) -> None:
        self._key_of = key_of
        self._answers: dict[K, T] = {}
        self._nodes: dict[K, list[str]] = {}

    def add(self, node: str, answer: T) -> None:
        """Add the answer of a node.  A node may have several answers, such as the rows of a list."""
        key = self._key_of(answer)
        self._answers.setdefault(key, answer)
        nodes = self._nodes.setdefault(key, [])
        if not nodes or nodes[-1] != node:
            nodes.append(node)

    def groups(self) -> list[Agreement[T]]:
        """Return the groups, the largest first, and among groups of a size by their first node."""
        found = [Agreement(self._answers[key], tuple(sorted(nodes))) for key, nodes in self._nodes.items()]
        return sorted(found, key=lambda each: (-len(each.nodes), each.nodes))


def count_of(number: int) -> str:
    """Return a number of nodes in words."""
    return "1 node" if number == 1 else f"{number} nodes"


def named(nodes: Sequence[str], total: int) -> str:
    """Return nodes in words, with `total` nodes in question: "all 300 nodes", "node-a, node-b and 4 more"."""
    if len(nodes) == total and total > 1:
        return "both nodes" if total == 2 else f"all {total} nodes"
    return first_of(nodes)


def one_of(counts: Iterable[tuple[int, str, str]]) -> str:
    """Return counts in words: "1 node, 3 pods".  Rows are (number, singular, plural), and a 0 is left out."""
    return ", ".join(f"{number} {one if number == 1 else more}" for number, one, more in counts if number)
