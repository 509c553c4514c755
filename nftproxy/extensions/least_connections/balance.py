"""From the connections of endpoints to the factors of their weights: an approximation of least connections.

No nftables expression compares counts.  So the agent counts the established connections of each endpoint now and then,
and this turns the counts into factors, a state machine without clock:

* **Integral control.**  After each look an endpoint's factor is divided by own ** `GAIN`, where `own` are its
  connections in proportion to its weight.  Each count has one more connection than there is, so that few connections
  mean little, and none is 0.  An endpoint that is four times slower ends with about a quarter of the connections of the
  others, however many there are.
* **Bounds.**  The mean of a list's factors is 1, and each is between 1/8 and 8.  With a row for each endpoint at least
  (balanced_rows.py), clients that flood an endpoint can't take it off the list.
* **Hysteresis.**  The factors of a list are published if the rows of some endpoint would change by more than one, and
  by more than a tenth.
* **Fairness.**  After a look, Services with `MOST_WRITTEN` elements together are published.  Namespaces take turns, so
  that a tenant whose connections come and go doesn't hold up the Services of others.

A list follows the connections of its own endpoints alone.  Without connections its factors stay.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping

from nftproxy.extensions.least_connections.balanced_lists import MOST_WRITTEN, BalancedLists, Base
from nftproxy.extensions.least_connections.balanced_rows import BALANCED_ROWS, NO_FACTORS, balanced_rows
from nftproxy.extensions.least_connections.factors import NEUTRAL, Factors, ListKey
from nftproxy.model.fairness import turn_numbers
from nftproxy.model.objects import ObjectKey, Place

GAIN = 0.25
"""Larger exponents follow sooner and write more: 0.5 writes twice as much for the same waits, in simulations."""
HYSTERESIS = 0.1
LEAST_FACTOR = 1 / BALANCED_ROWS
STEP = 250
"""Lists that are computed before other tasks get their turn: a few ms."""


class Balance:
    """The factors of all balanced lists."""

    def __init__(self) -> None:
        self.published: Mapping[ListKey, Factors] = {}
        self._followed: dict[ListKey, _Followed] = {}
        self._turns: dict[str | ObjectKey, int] = {}
        """The look after which each namespace, and each Service, was last published."""
        self._looks = 0

    def observe(self, lists: BalancedLists, counts: Mapping[Place, int]) -> Generator[None, None, list[ListKey]]:
        """Take in the number of connections of each endpoint.  Return the lists whose factors are published anew."""
        self._looks += 1
        self._retain(lists.by_key)
        due: dict[ObjectKey, list[ListKey]] = {}
        for number, key in enumerate(sorted(lists.having(counts), key=lambda each: each.rank), 1):
            if number % STEP == 0:
                yield
            base = lists.by_key.get(key)  # another task may have removed it
            if base is not None and self._follow(key, base).observe(counts):
                due.setdefault(key.service, []).append(key)
        chosen = [key for service in self._chosen(due, lists.sizes) for key in due[service]]
        if chosen:
            self.published = {**self.published, **{key: self._followed[key].publish() for key in chosen}}
        return chosen

    def _retain(self, lists: Mapping[ListKey, Base]) -> None:
        """Forget all lists, Services and namespaces but these."""
        known = {key.service for key in lists} | {key.service.namespace for key in lists}
        self._turns = {each: turn for each, turn in self._turns.items() if each in known}
        self._followed = {key: each for key, each in self._followed.items() if key in lists}
        if any(key not in lists for key in self.published):
            self.published = {key: factors for key, factors in self.published.items() if key in lists}

    def _follow(self, key: ListKey, base: Base) -> _Followed:
        known = self._followed.get(key)
        if known is None or known.base != base:
            before = known.factors if known else {}
            known = self._followed[key] = _Followed(base, before, self.published.get(key, NO_FACTORS))
        return known

    def _chosen(self, due: Iterable[ObjectKey], sizes: Mapping[ObjectKey, int]) -> Iterator[ObjectKey]:
        """The Services whose turn it is: of each namespace the Service that has waited longest, and so on."""
        longest_first = sorted(due, key=lambda each: self._turns.get(each, 0))
        numbered = turn_numbers(longest_first, lambda each: each.namespace)
        queue = [(number, self._turns.get(service.namespace, 0), service) for number, service in numbered]
        room = MOST_WRITTEN
        for _, _, service in sorted(queue):
            room -= sizes.get(service, 0)
            if room < 0:
                return
            yield service
            self._turns[service] = self._turns[service.namespace] = self._looks


class _Followed:
    """A balanced list: its factors, and its rows by the factors that were published last."""

    def __init__(self, base: Base, factors: Mapping[Place, float], published: Factors) -> None:
        self.base = base
        self.factors = {place: factors.get(place, 1.0) for place in base}
        self._held = balanced_rows(base, published)
        self._rows = sum(self._held.values())
        self._mean = sum(base.values()) / len(base)

    def observe(self, counts: Mapping[Place, int]) -> bool:
        """Shift the factors by the connections.  Return whether they should be published."""
        for place, rows in self.base.items():
            own = counts.get(place, 0) * self._mean / rows + 1
            self.factors[place] *= own**-GAIN
        whole = self._whole() / (self._mean * len(self.base))
        self.factors = {
            place: min(max(factor / whole, LEAST_FACTOR), 1 / LEAST_FACTOR) for place, factor in self.factors.items()
        }
        scale = self._rows / self._whole()
        return any(
            abs(rows * self.factors[place] * scale - held) > max(1, HYSTERESIS * held)
            for (place, rows), held in zip(self.base.items(), self._held.values(), strict=True)
        )

    def publish(self) -> Factors:
        """Return the factors in percent."""
        published = {place: round(NEUTRAL * factor) for place, factor in self.factors.items()}
        self._held = balanced_rows(self.base, published)
        return published

    def _whole(self) -> float:
        return sum(rows * self.factors[place] for place, rows in self.base.items())
