"""A copy of the rules on a throw-away node, and packets that are traced through it.

The node has our tables, and copies of other programs' tables if they are given: no routes of the real node, and no
connections.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from nftproxy.explanation.packets import NodeFacts
from nftproxy.kernel.child_process import ChildDied, in_child
from nftproxy.kernel.libnftables import EMPTY_RULESET, Kernel
from nftproxy.kernel.nfnetlink.nftrace import TraceListener, TraceMessage, TraceVerdict
from nftproxy.kernel.nfnetlink.table_copy import TableCopy, hooks, write_table
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import Transaction, join
from nftproxy.trace.node import MARKER, MARKERS, NewConnection, ThrowAwayNode, obstacle
from nftproxy.trace.outcome import DELIVERED, LEFT, Outcome, outcome
from nftproxy.trace.sentences import RuleBook, Step, matched, rules_by_handle, steps

TAKES = (
    "it takes CAP_SYS_ADMIN and CAP_NET_ADMIN, a seccomp profile that allows unshare, and a writable /proc/sys/net: "
    "in a container, a privileged one"
)
"""The needs of a throw-away node in addition to root."""
PATIENCE = 5.0  # seconds to wait for the markers, which take microseconds unless the machine stalls
TRACING, MARKED = "nftproxy-trace", "marker"
"""The table beside ours, and the chain in which markers end."""

UNTRACKED = "ct state untracked meta l4proto {{ tcp, udp, sctp }} meta nftrace set 1"
"""Traces packets that another program has exempted from connection tracking, and so from Services."""

# Opening packets are traced after connection tracking, at -200, and before our tables.  Rejections that the node sends
# are traced only where they leave, after our tables.
_TRACING = f"""\
table {{family}} {TRACING} {{{{
  chain {MARKED} {{{{
    type filter hook prerouting priority -400
    meta l4proto {MARKER} meta nftrace set 1 drop
  }}}}
  chain prerouting {{{{
    type filter hook prerouting priority -150
    ct state new meta nftrace set 1
    {UNTRACKED}
  }}}}
  chain output {{{{
    type filter hook output priority -150
    meta l4proto != {MARKER} ct state new meta nftrace set 1
    {UNTRACKED}
  }}}}
  chain {DELIVERED} {{{{
    type filter hook input priority 300
    ct state new,related meta nftrace set 1
    {UNTRACKED}
  }}}}
  chain {LEFT} {{{{
    type filter hook postrouting priority 300
    oif != lo meta l4proto != {MARKER} ct state new,related meta nftrace set 1
    oif != lo {UNTRACKED}
  }}}}
}}}}
"""


class Passage(NamedTuple):
    """The way of a packet: its steps, and its outcome.

    `others` has the chains of other programs in which a rule matched, in words and in their order.
    """

    steps: list[Step]
    outcome: Outcome
    others: tuple[str, ...] = ()


class Scene:
    """A throw-away node, ready for rules and packets.  Use it as a context manager, from a single thread.

    Args:
        facts: addresses and networks of the real node.

    Raises:
        Unavailable: this machine doesn't allow a node.  The message names the obstacle.
    """

    def __init__(self, facts: NodeFacts) -> None:
        if why := obstacle():
            raise Unavailable(f"a trace takes a throw-away node: {why}")
        with _as_unavailable():
            self._node = ThrowAwayNode(facts)
        self._kernel = Kernel()
        self._book = RuleBook({}, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._node.close()

    def load(self, transaction: Transaction) -> None:
        """Load the rules that a transaction makes in an empty kernel.

        Raises:
            Refused: the kernel refuses them.
        """
        self._clear()
        self._node.call(self._kernel.apply, transaction)
        self._read_rules(self._node.call(printed_rules))

    def copy(self, tables: Iterable[TableCopy], others: Iterable[TableCopy] = ()) -> list[str]:
        """Load a copy of the tables of a kernel.

        Args:
            tables: ours.
            others: other programs', which the kernel may refuse, as they depend on more than a table.

        Returns:
            The titles of the other programs' tables that the kernel refuses.

        Raises:
            Unavailable: the kernel refuses the copy of our tables.
        """
        self._clear()
        for table in tables:
            self._node.call(write_table, table)
        refused = []
        for table in others:
            try:
                self._node.call(write_table, table)
            except Unavailable:
                refused.append(table.title)
        try:
            self._read_rules(self._node.call(in_child, printed_rules))
        except ChildDied:  # of rules that a newer nft has made: steps then lack the text of rules
            self._read_rules({family: {} for family in Family})
        return refused

    def send(self, connection: NewConnection) -> Passage:
        """Send the opening packet of a connection, and trace it.

        Raises:
            Unavailable: part of the trace was lost, or the machine lost the packet.
        """
        with _as_unavailable(), self._node.call(TraceListener) as listener:
            opening = self._node.send(connection)
            messages = _until_markers(listener)
        if _is_marker(messages[0]):
            raise Unavailable("the machine was too busy and lost a packet")
        ours = [each for each in messages if each.table == TRACING]
        return Passage(steps(messages, self._book, {TRACING}), outcome(opening, ours), matched(messages, {TRACING}))

    def _clear(self) -> None:
        """Remove all rules and start tracing.  Do so first: beside tables that crash libnftables no command works."""
        self._node.call(self._kernel.apply, Transaction(EMPTY_RULESET))
        tracing = join(Transaction(_TRACING.format(family=family.value)) for family in Family)
        self._node.call(self._kernel.apply, tracing)

    def _read_rules(self, rules: Mapping[Family, Mapping[int, str]]) -> None:
        self._book = RuleBook({family: self._node.call(hooks, family) for family in Family}, rules)


def _until_markers(listener: TraceListener) -> list[TraceMessage]:
    """All messages until the last marker's."""
    deadline = time.monotonic() + PATIENCE
    messages: list[TraceMessage] = []
    while sum(map(_is_marker, messages)) < MARKERS:
        if time.monotonic() > deadline:
            raise Unavailable(f"waited {PATIENCE} s for a packet to pass")
        messages += listener.read()
    return messages


def _is_marker(message: TraceMessage) -> bool:
    return message.table == TRACING and message.chain == MARKED and message.verdict is TraceVerdict.DROP


def printed_rules() -> dict[Family, dict[int, str]]:
    """Each rule of our tables as nft prints it, by its handle, in the network namespace of this thread."""
    kernel = Kernel()
    return {
        family: rules_by_handle(kernel.listing_of_rules(family)) if kernel.read_back(family) else {}
        for family in Family
    }


@contextlib.contextmanager
def _as_unavailable() -> Iterator[None]:
    """Turn errors of this machine into Unavailable, with the needs of a trace."""
    try:
        yield
    except (Unavailable, OSError) as error:
        raise Unavailable(
            f"a trace takes a throw-away node, and this machine doesn't allow one: {error} ({TAKES})"
        ) from error
