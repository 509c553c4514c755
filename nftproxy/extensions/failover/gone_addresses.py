"""The TCP connections that conntrack must forget, because their endpoint's address is gone (failover `gone`).

The rules translate the client's next packet anew.  It meets another endpoint, which resets the connection that it
doesn't know.

* An address is *gone* if it is in no EndpointSlice of any served Service at two looks in a row.  Slices of Services
  that don't exist, or exceed a limit or the budget, don't count: a tenant may write any number.  Terminating endpoints
  are in slices.  A pod that has taken an address over is, too, and resets foreign connections itself.
* A connection is ended if its front belongs to a Service that asks for it, and its endpoint's address isn't *kept*.
  The kept addresses are all in slices, and those that aren't gone yet.  They are a single set that stays up to date, so
  a sweep that takes long, or is retried, spares the addresses that have come back meanwhile.
* When a Service begins to ask, all its connections are judged, as addresses may have gone while the agent didn't run.
  Only then are all addresses put into a set.  Any other look searches the slices for the addresses that have left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nftproxy.extensions.failover.annotations import Failover
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.fairness import Holdings
from nftproxy.model.objects import ObjectKey
from nftproxy.policy.extension import Change, Settings
from nftproxy.policy.flows import AddressPort, Sweeps, fronts_served
from nftproxy.policy.state import ClusterState

_PROTOCOLS = frozenset({Protocol.TCP})
"""Of every Service, associations of SCTP end when the endpoint leaves its slices (flows.py)."""
PAUSE = 1.0
"""Seconds between two looks at all slices.  Several slices of an address change at nearly the same time."""
START_PAUSE = 10.0
"""Seconds from the start to the first look.  The first listing may be older than what the rules in force were made of,
if another API server gave it."""
MOST_SERVICES = 500
"""The most Services whose connections are judged after a look.  The rest follow after the next looks."""
MOST_LEFT = 65_536
"""The most addresses that have left the slices of Services, and aren't known to be gone.  Beyond it, the namespace with
the most of them forgets its own."""
FEW = 8
"""Addresses up to which a slice is searched for each, ten times as fast as its text is split."""


class GoneAddresses:
    """The addresses that leave the slices of Services with failover `gone`, and the fronts to sweep for them.

    `look` takes the time as seconds of a clock that never goes back.  Call it whenever the kernel has the rules for the
    state, and again at `next_look`.
    """

    def __init__(self, settings: Settings, families: Iterable[Family]) -> None:
        self._settings = settings
        self._families = tuple(families)
        self._present: dict[ObjectKey, frozenset[Address]] = {}
        """The addresses in the slices of each Service that asks."""
        self._left: dict[ObjectKey, set[Address]] = {}
        """The addresses that have left these, and aren't known to be gone."""
        self._held = Holdings()
        """The number of these addresses, by namespace."""
        self._absent = set[Address]()
        """Those of `_left` that were in no slice at the last look."""
        self._due: dict[ObjectKey, None] = {}
        self._kept = set[Address]()
        self._has_changed = False
        self._has_begun = False
        """Whether a Service has begun to ask since the last look."""
        self._earliest = float("-inf")
        self._has_looked = False

    def refresh(self, change: Change) -> None:
        """Update the addresses of some Services from the state."""
        state, services = change.state, change.services
        asking = state.users_of(Failover.GONE)
        if not asking and not self._present:
            return
        self._has_changed = True
        for key in services:
            before, left = self._present.pop(key, None), self._left.get(key, set())
            if key not in asking:
                self._set_left(key, set())
                self._due.pop(key, None)
                continue
            if before is None:
                self._due[key] = None
                self._has_begun = True
            present = self._present[key] = frozenset(
                address for each in state.slices_of(key) for address in each.endpoints.addresses
            )
            self._kept |= present
            self._absent -= present
            self._set_left(key, (left | (before or frozenset())) - present)
        self._make_room()

    @property
    def next_look(self) -> float:
        """The time at which to look again, infinity if only a change can make that necessary."""
        return self._earliest if self._due or self._absent or (self._left and self._has_changed) else float("inf")

    def look(self, state: ClusterState, now: float) -> Sweeps:
        """Look which addresses are gone.  Return the fronts to sweep for these, with the kept addresses."""
        if not self._has_looked:
            self._has_looked, self._earliest = True, now + START_PAUSE
        if now < self.next_look:
            return {}
        self._earliest, self._has_changed = now + PAUSE, False
        absent = _absent(state, set[Address]().union(*self._left.values()))
        gone = absent & self._absent
        self._absent = absent - gone
        if self._has_begun:
            self._has_begun = False
            present = {address for texts in _served(state) for address in texts.split()}
            self._kept &= present | self._absent
            self._kept |= present  # type: ignore[arg-type]
        self._kept -= gone
        for key, left in list(self._left.items()):
            if not left.isdisjoint(gone):
                self._due[key] = None
                self._set_left(key, left - gone)
        return dict.fromkeys(self._pop_fronts(state), self._kept)

    def _pop_fronts(self, state: ClusterState) -> Iterator[AddressPort]:
        """Yield the TCP fronts of the Services that are due, and remove these Services from the due ones."""
        for key in list(self._due)[:MOST_SERVICES]:
            del self._due[key]
            for family in self._families:
                for _, fronts in fronts_served(state, self._settings, family, state.services[key], _PROTOCOLS):
                    yield from (front for front, _ in fronts)

    def _set_left(self, key: ObjectKey, left: set[Address]) -> None:
        self._held.add(key.namespace, len(left) - len(self._left.pop(key, ())))
        if left:
            self._left[key] = left

    def _make_room(self) -> None:
        while self._held.total > MOST_LEFT:
            largest = self._held.largest()
            for key in [key for key in self._left if key.namespace == largest]:
                self._set_left(key, set())


def _served(state: ClusterState) -> Iterator[str]:
    """Yield the addresses in each slice of the served Services, as a text with blanks between them."""
    return (each.endpoints.text for key in state.services for each in state.slices_of(key))


def _absent(state: ClusterState, left: set[Address]) -> set[Address]:
    """Return the addresses of these that are in no slice of a served Service."""
    found = set(left)
    for text in _served(state) if left else ():
        if len(found) > FEW or any(address in text for address in found):
            found.difference_update(text.split())
    return found
