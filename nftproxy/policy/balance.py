"""From the connections of endpoints to the factors of their weights: an approximation of least connections.

No nftables expression compares counts.  So the agent counts the established connections of each endpoint now and then,
and this turns the counts into factors, a state machine without clock:

* **Integral control.**  After each look an endpoint's factor is multiplied by (mean / own) ** `GAIN`, where `own` are
  its connections in proportion to its weight, and `mean` is the mean of its list.  Each count has one more connection
  than there is, so that few connections mean little, and none is 0.  An endpoint that is four times slower ends with
  about a quarter of the connections of the others, however many there are.
* **Bounds.**  The mean of a list's factors is 1, and each is between 1/8 and 8.  With a row for each endpoint at least
  (choosing/placement.py), clients that flood an endpoint can't take it off the list.
* **Hysteresis.**  The factors of a list are published if the rows of some endpoint would change by more than one, and
  by more than a tenth.
* **Fairness.**  A look publishes lists of `MOST_WRITTEN` rows together.  Namespaces take turns, so that a tenant whose
  connections come and go doesn't hold up the lists of others.

A list follows the connections of its own endpoints alone.  Without connections its factors stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping

from nftproxy.model.events import NEUTRAL, Factors, ListKey
from nftproxy.model.objects import Place
from nftproxy.policy.balanced_lists import MOST_WRITTEN, BalancedList, BalancedLists
from nftproxy.policy.choosing.placement import BALANCED_ROWS, NO_FACTORS, balanced_rows

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
        self._turns: dict[str, int] = {}
        """The look at which each namespace last published a list."""
        self._looks = 0

    def observe(self, lists: BalancedLists, counts: Mapping[Place, int]) -> Generator[None, None, list[ListKey]]:
        """Take in the number of connections of each endpoint.  Return the lists whose factors are published anew."""
        self._looks += 1
        self._retain(lists.by_key)
        due = []
        for number, key in enumerate(sorted(lists.having(counts), key=lambda each: each.rank), 1):
            if number % STEP == 0:
                yield
            found = lists.by_key.get(key)  # another task may have removed it
            if found is not None and self._follow(key, found).observe(counts):
                due.append((key, found.size))
        return self._publish(due)

    def _retain(self, lists: Mapping[ListKey, BalancedList]) -> None:
        """Forget all lists but these, and all namespaces but theirs."""
        namespaces = {key.service.namespace for key in lists}
        self._turns = {name: turn for name, turn in self._turns.items() if name in namespaces}
        self._followed = {key: each for key, each in self._followed.items() if key in lists}
        if any(key not in lists for key in self.published):
            self.published = {key: factors for key, factors in self.published.items() if key in lists}

    def _follow(self, key: ListKey, found: BalancedList) -> _Followed:
        known = self._followed.get(key)
        if known is None or known.base is not found.base:
            before = known.factors if known else {}
            known = self._followed[key] = _Followed(found.base, before, self.published.get(key, NO_FACTORS))
        return known

    def _publish(self, due: Iterable[tuple[ListKey, int]]) -> list[ListKey]:
        """Publish lists of up to `MOST_WRITTEN` rows: of each namespace the list that has waited longest, and so on."""
        position = Counter[str]()
        queue = []
        for key, size in sorted(due, key=lambda each: self._followed[each[0]].published_at):
            namespace = key.service.namespace
            position[namespace] += 1
            queue.append((position[namespace], self._turns.get(namespace, 0), namespace, key, size))
        chosen, room = [], MOST_WRITTEN
        for _, _, namespace, key, size in sorted(queue, key=lambda each: each[:3]):
            room -= size
            if room < 0:
                break
            chosen.append(key)
            self._turns[namespace] = self._looks
        if chosen:
            self.published = {**self.published, **{key: self._followed[key].publish(self._looks) for key in chosen}}
        return chosen


class _Followed:
    """A balanced list: its factors, and its rows by the factors that were published last."""

    def __init__(self, base: Mapping[Place, int], factors: Mapping[Place, float], published: Factors) -> None:
        self.base = base
        self.factors = {place: factors.get(place, 1.0) for place in base}
        self.published_at = 0
        """The number of the look at which they were published."""
        self._held = balanced_rows(base, published)
        self._rows = sum(self._held.values())
        self._mean = sum(base.values()) / len(base)

    def observe(self, counts: Mapping[Place, int]) -> bool:
        """Shift the factors by the connections.  Return whether they should be published."""
        mean = sum(counts.get(place, 0) for place in self.base) / len(self.base) + 1
        for place, rows in self.base.items():
            own = counts.get(place, 0) * self._mean / rows + 1
            self.factors[place] *= (mean / own) ** GAIN
        whole = self._whole() / (self._mean * len(self.base))
        self.factors = {
            place: min(max(factor / whole, LEAST_FACTOR), 1 / LEAST_FACTOR) for place, factor in self.factors.items()
        }
        scale = self._rows / self._whole()
        return any(
            abs(rows * self.factors[place] * scale - held) > max(1, HYSTERESIS * held)
            for (place, rows), held in zip(self.base.items(), self._held.values(), strict=True)
        )

    def publish(self, look: int) -> Factors:
        """Return the factors in percent."""
        self.published_at = look
        published = {place: round(NEUTRAL * factor) for place, factor in self.factors.items()}
        self._held = balanced_rows(self.base, published)
        return published

    def _whole(self) -> float:
        return sum(rows * self.factors[place] for place, rows in self.base.items())
