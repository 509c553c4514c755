"""The trial of established connections on the fast path.

`FastPathTrial` establishes each TCP or UDP connection, so that it enters the flowtable.  Then both ends send data.  The
data must reach the other end with the same translation, and no chain of the forward hook may see it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from nftproxy.extensions.fast_path.rules import FAST_PATH_TABLE, TEMPLATE, FastPathFacts
from nftproxy.policy.facts import Part
from nftproxy.rules.renderer import Renderer
from nftproxy_conformance.lab.established import Batch, Established, WentAstray, connection
from nftproxy_conformance.lab.frames import DATA, What
from nftproxy_conformance.lab.namespace import LabError
from nftproxy_conformance.lab.node import Node
from nftproxy_conformance.lab.outcome import Outcome
from nftproxy_conformance.lab.topology import PODS, UPLINK

_TABLE = f"inet {FAST_PATH_TABLE}-trial"
"""Beside the table of an agent, if one runs on the node."""
_RULES = f"""
add flowtable {_TABLE} established {{ hook ingress priority 0; devices = {{ {UPLINK}, {PODS} }}; }}
add rule {_TABLE} forward meta l4proto udp ct state established flow add @established
add chain {_TABLE} seen {{ type filter hook forward priority 2000; }}
add rule {_TABLE} seen meta l4proto {{ tcp, udp }} ct state established counter
"""
"""The lab's own interfaces, and a rule without the two seconds after which a UDP flow is assured.  The counter comes
after all other chains."""

MOST = 32
"""Connections of a batch that go on.  Further connections would say the same."""
_BEFORE = {"tcp": 2, "udp": 1}
"""Packets of an established connection that the forward hook sees until it is on the fast path: the answer, and of TCP
the acknowledgement of the answer."""


class FastPathTrial:
    """Establishes connections, and tries them on the fast path.

    Args:
        renderer: of the fast path's template.
        node: the lab's node.
        established: establishes connections.

    Attributes:
        connections: the number of connections that were seen on the fast path.
    """

    def __init__(self, renderer: Renderer, node: Node, established: Established) -> None:
        self.connections = 0
        facts = FastPathFacts(_TABLE, "ct status assured", packets=1)
        self._rules = renderer.whole_table(Part(TEMPLATE, facts)).text + _RULES
        self._node, self._established = node, established

    def load(self) -> None:
        """Load the table.

        Raises:
            LabError: the kernel has no flowtables.
        """
        self._node.load(self._rules)

    def go_on(self, outcomes: Iterable[Outcome]) -> None:
        """Establish the connections among these that the node forwards, and try each on the fast path.

        Raises:
            LabError: the machine lost packets.
            WentAstray: a connection took another way.
        """
        forwarded = ((each.token, found) for each in outcomes if (found := connection(each)))
        if chosen := dict(itertools.islice(forwarded, MOST)):
            self._try(chosen)

    def _try(self, batch: Batch) -> None:
        seen = self._seen()
        self._established.establish(batch)
        wanted = sum(_BEFORE[each.protocol] for each in batch.values())
        for by_client in (True, False):
            self._established.send(batch, What.DATA, DATA, by_client=by_client)
        if (found := self._seen() - seen) != wanted:
            raise WentAstray(f"the forward hook saw {found} packets, not {wanted}, of {list(batch.values())}")
        self.connections += len(batch)

    def _seen(self) -> int:
        """The packets of established connections that the forward hook has seen.  A test may have removed all rules."""
        try:
            text = self._node.load(f"list chain {_TABLE} seen")
        except LabError:
            self.load()
            text = self._node.load(f"list chain {_TABLE} seen")
        found = re.search(r"counter packets (\d+)", text)
        assert found
        return int(found[1])
