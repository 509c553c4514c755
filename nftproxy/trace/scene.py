"""A throw-away node with a copy of the rules, and packets that are sent through it.

The node is a network namespace with the addresses of the real one, an interface to its pods and one to everything else;
the lab plays whoever is at their other ends (nftproxy/lab).  It has our tables and nothing else: no other program's
rules, no routes of the real node, no connections that are under way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_interface
from types import TracebackType
from typing import NamedTuple, Self

from nftproxy.explanation.packets import NodeFacts
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.netns import ChildDied, in_child
from nftproxy.kernel.nftrace import TraceListener
from nftproxy.kernel.table_copy import TableCopy, hooks, write_table
from nftproxy.lab import Lab, LabError, Outcome, Probe, obstacle
from nftproxy.lab.topology import Site
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import Transaction, join
from nftproxy.trace.steps import RuleBook, Step, rules_by_handle, steps

TAKES = (
    "it takes CAP_SYS_ADMIN and CAP_NET_ADMIN, a seccomp profile that allows unshare, and a writable /proc/sys/net: "
    "in a container, a privileged one"
)
"""What must be there beside root for a throw-away node."""

# After connection tracking, at -200, and before everything of ours.  Only what opens a connection is traced, not the
# rejection that the node itself may send back.
_TRACING = """\
table {family} nftproxy-trace {{
  chain prerouting {{
    type filter hook prerouting priority -150
    ct state new meta nftrace set 1
  }}
  chain output {{
    type filter hook output priority -150
    ct state new meta nftrace set 1
  }}
}}
"""


class Traced(NamedTuple):
    """The way of one packet: its steps, and what became of it."""

    steps: list[Step]
    outcome: Outcome


class Scene:
    """A throw-away node, ready for rules and packets.  A context manager; packets and rules only by one thread.

    Args:
        facts: what the node is like.

    Raises:
        Unavailable: there can be none here; the message says what is missing.
    """

    def __init__(self, facts: NodeFacts) -> None:
        if why := obstacle():
            raise Unavailable(f"a trace takes a throw-away node: {why}")
        addresses = tuple(str(ip_interface(address)) for address in facts.addresses)
        site = Site(facts.uplink, addresses, pods=(), pod_networks=facts.pod_networks, gateways=())
        with _as_unavailable():
            self._lab = Lab(facts.pods_interface, site=site)
        self._kernel = Kernel()
        self._book = RuleBook({}, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lab.close()

    def load(self, transaction: Transaction) -> None:
        """Have the rules that a transaction makes where there were none.

        Raises:
            Refused: the kernel refuses them.
        """
        self._begin()
        self._lab.node.call(self._kernel.apply, transaction)
        self._read_rules(self._lab.node.call(printed_rules))

    def copy(self, tables: Iterable[TableCopy]) -> None:
        """Have the rules that a kernel holds.

        Raises:
            Unavailable: the kernel does not take what it has given.
        """
        self._begin()
        for table in tables:
            self._lab.node.call(write_table, table)
        try:
            self._read_rules(self._lab.node.call(in_child, printed_rules))
        except ChildDied:  # of what a newer nft has made; then steps have words, but not the rules themselves
            self._read_rules({family: {} for family in Family})

    def send(self, probe: Probe) -> Traced:
        """Send the packet that opens a connection, and follow it.

        Raises:
            Unavailable: part of the trace was lost, or the machine lost packets.
        """
        with _as_unavailable(), self._lab.node.call(TraceListener) as listener:
            outcome = self._lab.connect_many([probe])[0]
            return Traced(steps(listener.read(), self._book), outcome)

    def _begin(self) -> None:
        """Trace what comes; before our tables are there, as a library that can't read them dies of any command."""
        with _as_unavailable():
            self._lab.reset()
        tracing = join(Transaction(_TRACING.format(family=family.value)) for family in Family)
        self._lab.node.call(self._kernel.apply, tracing)

    def _read_rules(self, rules: Mapping[Family, Mapping[int, str]]) -> None:
        self._book = RuleBook({family: self._lab.node.call(hooks, family) for family in Family}, rules)


def printed_rules() -> dict[Family, dict[int, str]]:
    """Each rule of our tables as nft prints it, by its handle, in the network namespace of this thread."""
    kernel = Kernel()
    return {
        family: rules_by_handle(kernel.listing_of_rules(family)) if kernel.read_back(family) else {}
        for family in Family
    }


@contextlib.contextmanager
def _as_unavailable() -> Iterator[None]:
    """Raise Unavailable for what this machine doesn't let the lab do."""
    try:
        yield
    except (LabError, OSError) as error:
        raise Unavailable(
            f"a trace takes a throw-away node, and this machine doesn't allow one: {error} ({TAKES})"
        ) from error
