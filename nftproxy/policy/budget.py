"""A budget of elements for all Services together, shared fairly between namespaces.

limits.py bounds a single Service.  This module bounds the sum: many Services within their limits could otherwise use up
the agent's memory.

* The budget is divided by max-min fairness (model/fairness.py).  So a namespace loses nothing by the greed of another
  namespace as long as it asks for at most `budget / namespaces`.
* Within a namespace the oldest Services are served first, by creationTimestamp and then by name.  A Service that
  doesn't fit into the rest of the share is quarantined, and a younger, smaller Service may still fit.
* The outcome depends on the objects alone, so all nodes agree.  API servers write creationTimestamps, not tenants.

As long as everything fits, a Service costs an addition to the sum of its namespace.  Beyond that, a change costs a walk
through the namespaces that exceed their share, and through the Services of its own namespace if that is among them,
which are sorted anew if a Service came or went.
Shares are rounded, so that a small change elsewhere leaves them as they are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from typing import NamedTuple

from nftproxy.model.codes import Code
from nftproxy.model.fairness import divide
from nftproxy.model.objects import ObjectKey, Service


class Shortage(NamedTuple):
    """A Service that doesn't fit into the share of its namespace.  All numbers count elements."""

    namespace: str
    size: int
    """The elements that the Service may come to."""
    left: int
    """The elements that older Services leave of the share."""
    share: int
    """The share of the namespace."""

    @property
    def code(self) -> Code:
        """The code under which logs and Events report the shortage."""
        return Code.BUDGET_EXCEEDED

    @property
    def reason(self) -> str:
        """The shortage in words."""
        allowed = f"{self.left} are left of the {self.share} that namespace {self.namespace} may have"
        return f"its rules come to {self.size} elements, and {allowed}: older Services come first"


class _Demand:
    """The Services of a namespace that are within the limits of a single Service."""

    def __init__(self) -> None:
        self.sizes: dict[ObjectKey, int] = {}
        self.total = 0
        self._created: dict[ObjectKey, int] = {}
        self._oldest_first: list[ObjectKey] | None = None
        """Sorted only when there isn't enough for all."""

    def put(self, key: ObjectKey, created: int, size: int) -> None:
        """Add a Service, or replace it."""
        if self._created.get(key) != created:
            self._created[key] = created
            self._oldest_first = None
        self.total += size - self.sizes.get(key, 0)
        self.sizes[key] = size

    def remove(self, key: ObjectKey) -> None:
        """Remove a Service, if it is there."""
        if key in self.sizes:
            self.total -= self.sizes.pop(key)
            del self._created[key]
            self._oldest_first = None

    def shortages(self, share: int) -> dict[ObjectKey, Shortage]:
        """The Services that don't fit into a share, oldest first."""
        found: dict[ObjectKey, Shortage] = {}
        left = share
        if self._oldest_first is None:
            self._oldest_first = sorted(self.sizes, key=lambda key: (self._created[key], key))
        for key in self._oldest_first:
            size = self.sizes[key]
            if size <= left:
                left -= size
            else:
                found[key] = Shortage(key.namespace, size, left, share)
        return found


class Budget:
    """Divides a number of elements between the Services of all namespaces."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._sum = 0
        self._demands: dict[str, _Demand] = {}
        self._changed: dict[str, int] = {}
        """The namespaces that have changed since the last `settle`, each with its demand at that time."""
        self._smallest_first: list[tuple[int, str]] = []
        """All demands at the last `settle`.  Empty while everything fits."""
        self._short: dict[str, tuple[int, dict[ObjectKey, Shortage]]] = {}

    def put(self, service: Service, size: int) -> None:
        """Set the number of elements that a Service counts as."""
        namespace = service.key.namespace
        demand = self._demands.setdefault(namespace, _Demand())
        before = demand.total
        self._changed.setdefault(namespace, before)
        demand.put(service.key, service.created, size)
        self._sum += demand.total - before

    def remove(self, key: ObjectKey) -> None:
        """Forget a Service, if it is counted."""
        demand = self._demands.get(key.namespace)
        if demand is None or key not in demand.sizes:
            return
        self._changed.setdefault(key.namespace, demand.total)
        self._sum -= demand.sizes[key]
        demand.remove(key)
        if not demand.sizes:
            del self._demands[key.namespace]

    def size_of(self, key: ObjectKey) -> int:
        """The elements that a Service is counted as, 0 if it isn't."""
        demand = self._demands.get(key.namespace)
        return demand.sizes.get(key, 0) if demand else 0

    def shortage(self, key: ObjectKey) -> Shortage | None:
        """The shortage of a Service since the last `settle`.  None if it fits."""
        short = self._short.get(key.namespace)
        return short[1].get(key) if short else None

    def settle(self) -> Collection[ObjectKey]:
        """Divide the budget anew.  Return the Services whose shortage has begun, changed or ended."""
        changed, self._changed = self._changed, {}
        if not changed or (self._sum <= self._elements and not self._short):
            return ()
        share, beyond = self._divide(changed)
        affected: set[ObjectKey] = set()
        for namespace in beyond | self._short.keys():
            before, old = self._short.pop(namespace, (None, {}))
            new: dict[ObjectKey, Shortage] = {}
            if namespace in beyond:
                new = old if before == share and namespace not in changed else self._demands[namespace].shortages(share)
                self._short[namespace] = share, new
            if new is not old:
                affected |= {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        return affected

    def _divide(self, changed: Mapping[str, int]) -> tuple[int, set[str]]:
        """Return the most that a namespace may have, and the namespaces that ask for more: none if everything fits."""
        self._rank(changed)
        share, beyond = divide(reversed(self._smallest_first), self._sum, self._elements)
        return _rounded(share), beyond

    def _rank(self, changed: Mapping[str, int]) -> None:
        """Bring `_smallest_first` up to date."""
        if self._sum <= self._elements:
            self._smallest_first = []
        elif not self._smallest_first:
            self._smallest_first = sorted((each.total, name) for name, each in self._demands.items() if each.total)
        else:
            for namespace, before in changed.items():
                if before:
                    del self._smallest_first[bisect_left(self._smallest_first, (before, namespace))]
                if (demand := self._demands.get(namespace)) and demand.total:
                    insort(self._smallest_first, (demand.total, namespace))


def _rounded(share: int) -> int:
    """Round a share down to ten binary digits, by less than 0.2 %."""
    return share >> (bits := max(0, share.bit_length() - 10)) << bits
