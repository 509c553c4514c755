"""A budget of elements for all Services together, shared fairly between namespaces.

limits.py bounds a single Service.  This module bounds the sum: many Services within their limits could otherwise use up
the agent's memory.

* The budget is divided by max-min fairness.  A namespace that asks for less than an equal share gets all of its demand,
  and the rest is divided equally between the larger namespaces.  So a namespace loses nothing by the greed of another
  namespace as long as it asks for at most `budget / namespaces`.
* Within a namespace the oldest Services are served first, by creationTimestamp and then by name.  A Service that
  doesn't fit into the rest of the share is quarantined, and a younger, smaller Service may still fit.
* The outcome depends on the objects alone, so all nodes agree.  API servers write creationTimestamps, not tenants.

As long as everything fits, a Service costs an addition to the sum of its namespace.  Beyond that, a change costs a walk
through the Services of the namespaces that exceed their share.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from nftproxy.model.codes import Code
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
        """The code of this fault."""
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
        self.created: dict[ObjectKey, int] = {}
        self.total = 0
        self._order: list[ObjectKey] = []

    def put(self, key: ObjectKey, created: int, size: int) -> None:
        """Add a Service, or replace it."""
        if self.created.get(key) != created:
            self._order = []
        self.created[key] = created
        self.total += size - self.sizes.get(key, 0)
        self.sizes[key] = size

    def remove(self, key: ObjectKey) -> None:
        """Remove a Service that is there."""
        self.total -= self.sizes.pop(key)
        del self.created[key]
        self._order = []

    def shortages(self, share: int) -> dict[ObjectKey, Shortage]:
        """The Services that don't fit into a share, oldest first."""
        found: dict[ObjectKey, Shortage] = {}
        left = share
        for key in self._oldest_first():
            size = self.sizes[key]
            if size <= left:
                left -= size
            else:
                found[key] = Shortage(key.namespace, size, left, share)
        return found

    def _oldest_first(self) -> list[ObjectKey]:
        self._order = self._order or sorted(self.sizes, key=lambda key: (self.created[key], key))
        return self._order


class Budget:
    """Divides a number of elements between the Services of all namespaces."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._sum = 0
        self._demands: dict[str, _Demand] = {}
        self._changed: set[str] = set()
        self._short: dict[str, tuple[int, dict[ObjectKey, Shortage]]] = {}

    def put(self, service: Service, size: int) -> None:
        """Count a Service as so many elements."""
        namespace = service.key.namespace
        demand = self._demands.setdefault(namespace, _Demand())
        before = demand.total
        demand.put(service.key, service.created, size)
        self._sum += demand.total - before
        self._changed.add(namespace)

    def remove(self, key: ObjectKey) -> None:
        """Forget a Service, if it is counted."""
        demand = self._demands.get(key.namespace)
        if demand is None or key not in demand.sizes:
            return
        self._sum -= demand.sizes[key]
        demand.remove(key)
        if not demand.sizes:
            del self._demands[key.namespace]
        self._changed.add(key.namespace)

    def shortage(self, key: ObjectKey) -> Shortage | None:
        """The shortage of a Service since the last `settle`.  None if it fits."""
        short = self._short.get(key.namespace)
        return short[1].get(key) if short else None

    def settle(self) -> Collection[ObjectKey]:
        """Divide the budget anew.  Return the Services whose shortage has changed, begun or ended."""
        changed, self._changed = self._changed, set()
        share = self._share()
        if share is None and not self._short:
            return ()
        affected: set[ObjectKey] = set()
        for namespace in self._beyond(share) | self._short.keys():
            before, old = self._short.pop(namespace, (None, {}))
            demand = self._demands.get(namespace)
            new: dict[ObjectKey, Shortage] = {}
            if share is not None and demand is not None and demand.total > share:
                new = old if before == share and namespace not in changed else demand.shortages(share)
                self._short[namespace] = share, new
            if new is not old:
                affected |= {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        return affected

    def _share(self) -> int | None:
        """The most that a namespace may have.  None if everything fits."""
        if self._sum <= self._elements:
            return None
        left, count = self._elements, len(self._demands)
        for demand in sorted(each.total for each in self._demands.values()):
            if demand > left // count:
                break
            left -= demand
            count -= 1
        return left // count

    def _beyond(self, share: int | None) -> set[str]:
        if share is None:
            return set()
        return {namespace for namespace, demand in self._demands.items() if demand.total > share}
