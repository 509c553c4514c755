"""The Services whose changes come next: small changes first, large changes by turns.

A change that comes during a transaction waits for its end.  So a tenant whose changes cost seconds could make all other
tenants wait, by a single word of an annotation, again and again.

* The cost of a transaction is the processor time of this process from its events to its commit, the kernel's included.
* A Service is *large* from a change that cost `LARGE` seconds until a change that cost less.  The size of a Service
  doesn't matter: in a Service with thousands of endpoints an additional endpoint is a small change.
* A change that adds `ROUND` elements or more counts as large before its cost is known.
* A large Service has transactions of its own.  After each, large Services of its namespace wait `OWN_REST` times as
  long as it took, and all others `REST` times as long.  So a namespace gets a fifth of the time for large changes, and
  all namespaces together get half.
* While the large Services of a namespace wait, its Services without rules wait with them: a new name is no way around.
* All other changes share transactions, each with Services of some `SHARED_ELEMENTS` elements.  If there are more, the
  namespaces that owe least come first.  Otherwise the namespaces take turns: the first Service of each comes before the
  second of any, however long that has waited, and small Services before large.
* Small changes are accounted for too (model/fairness.py): a namespace owes what its changes cost, and time pays it off,
  a fifth of a second in a second, or an equal share of half a second if more owe.  The more a namespace owes, the
  smaller is the transaction that it may make others wait for.  A namespace that owes more than `ALLOWANCE` is *busy*.
  The changes of busy namespaces come after all others, some `BUSY_ROUND` elements at a time, and get half of the time.
  The other half is for events to be read, and for changes that come meanwhile.
* A change is made in parts, and between two parts small changes of EndpointSlices go ahead, those of other namespaces
  that owe little (`choose_beside`).
* The latest events of a waiting Service replace the earlier (inbox.py), and all of them come together.

No Service waits for ever: a large Service whose turn has come goes first once it has been passed over for `PATIENCE`.

A Service that is deleted never waits.  Nor does a waiting Service keep an address that it has given up: if another
Service asks for it, the waiting Service is removed until its turn (`displaced`).  So no connection to an address that
was assigned anew goes to the endpoints of its last owner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from nftproxy.model.fairness import Debts, TokenBucket, turn_numbers
from nftproxy.model.objects import ObjectKey, Service

LARGE = 0.25
"""Seconds of processor time from which a change is large.  The change of a Service with ten endpoints costs 3 ms."""
OWN_REST, REST = 4.0, 1.0
"""Times the cost of a large change that large Services of its namespace, and of all namespaces, wait after it.
Repairs get a fifth of the time too (loading.py)."""
ROUND = 20_000
"""Elements that a change adds which counts as large before its cost is known, some 0.5 s."""
SHARED_ELEMENTS = 4_000
"""Elements of Services that share a transaction, some 0.1 s if all of them change."""
PATIENCE = 1.0
"""Seconds for which small changes go ahead of a large Service whose turn has come."""
LONGEST_DEBT = 15.0
"""Seconds of small changes that are counted against a namespace.  Alone it pays them off in 75 s."""
ALLOWANCE = 1.0
"""Seconds that a namespace may owe before it is busy."""
MODEST = LARGE
"""Seconds up to which a debt is modest.  A namespace with a larger debt shares no transaction with namespaces of modest
debt: these would wait for its changes, and be charged for a part of their cost."""
BUSY_ROUND = 2_000
"""Elements of Services of busy namespaces that share a transaction, some 0.05 s if all of them change."""
TRIFLE = 0.02
"""Seconds of processor time.  A shorter transaction makes no busy namespace wait, as nobody would notice it."""
MOST_LARGE = 1_000
"""Large Services that are remembered.  The earliest are evicted: their next change shows its cost again."""


_NONE: Mapping[ObjectKey, int] = MappingProxyType({})


class Expense(NamedTuple):
    """A large change: its Service, its cost in seconds, and how long the next change of that kind waits."""

    service: ObjectKey
    seconds: float
    rest: float


class Turns:
    """Chooses the Services of each transaction.  Times are the loop's, in seconds."""

    def __init__(self, size_of: Callable[[ObjectKey], int]) -> None:
        """`size_of` returns the number of elements that a Service contributes at present."""
        self._size_of = size_of
        self._large: dict[ObjectKey, None] = {}
        self._chosen: dict[ObjectKey, int] = {}
        self._beside: dict[ObjectKey, int] = {}
        self._rest = TokenBucket(1, REST)  # of all large Services, a token for each second that they take
        self._rest_of: dict[str, TokenBucket] = {}  # of the large Services of a namespace
        self._debts = Debts(1 / (1 + OWN_REST), 1 / (1 + REST), LONGEST_DEBT)  # for small changes
        self._busy_rest = TokenBucket(1, REST)  # of all busy namespaces

    def choose(
        self,
        waiting: Mapping[ObjectKey, float],
        now: float,
        gone: Collection[ObjectKey] = (),
        coming: Mapping[ObjectKey, int] = _NONE,
    ) -> Collection[ObjectKey]:
        """Return the Services whose changes come next.

        `waiting` has the time since each Service has waited, and `gone` are deleted Services, which don't wait.
        `coming` has the elements that waiting Services may come to, of Services that may add many.
        """
        small = self._small(waiting, now, coming)
        quiet = self._quiet(small, now)
        round_ = quiet
        if len(quiet) < len(small):
            busy = {key: since for key, since in small.items() if key not in quiet}
            if max(min(busy.values()), self._busy_rest.due) <= now - (PATIENCE if quiet else 0.0):
                round_ = busy
        late = list[ObjectKey]()
        if len(small) < len(waiting):
            due = {key: max(since, self.due(key)) for key, since in waiting.items() if key not in small}
            first = min(due, key=lambda key: (due[key], key))
            if due[first] <= now - (PATIENCE if round_ else 0.0):
                late = [first]
        chosen = late or self._round(round_, now, coming)
        self._chosen = self._sharing((*chosen, *gone))
        return chosen

    def choose_beside(
        self, waiting: Mapping[ObjectKey, float], now: float, coming: Mapping[ObjectKey, int] = _NONE
    ) -> Collection[ObjectKey]:
        """Return the Services whose small changes go between two parts of the chosen changes.

        They are of other namespaces than these, and of namespaces with modest debts.
        """
        busy = {key.namespace for key in self._chosen}
        small = {
            key: since
            for key, since in self._small(waiting, now, coming).items()
            if key.namespace not in busy
            and self._debts.of(key.namespace, now) <= MODEST
            and max(self._size_of(key), coming.get(key, 0)) < ROUND
        }
        chosen = self._round(small, now, coming)
        self._beside = self._sharing(chosen)
        return chosen

    def _sharing(self, chosen: Collection[ObjectKey]) -> dict[ObjectKey, int]:
        """Return the Services that share a cost, by their sizes.  A single Service bears all of it."""
        return {key: self._size_of(key) if len(chosen) > 1 else 0 for key in chosen}

    def next_due(
        self, waiting: Mapping[ObjectKey, float], now: float, coming: Mapping[ObjectKey, int] = _NONE
    ) -> float:
        """Return when `choose` has something to return, infinite if nothing waits."""
        small = self._small(waiting, now, coming)
        if self._quiet(small, now):
            return now
        dues = [self.due(key) for key in waiting if key not in small]
        return min([*dues, *([max(self._busy_rest.due, now)] if small else [])], default=float("inf"))

    def due(self, service: ObjectKey) -> float:
        """Return when it is a large Service's turn."""
        own = self._rest_of.get(service.namespace)
        return max(self._rest.due, own.due if own else 0.0)

    def charge(self, seconds: float, now: float) -> Expense | None:
        """Charge the cost of the chosen Services' changes.  Return the largest change, if it is large."""
        chosen, self._chosen = self._chosen, {}
        return self._charge(chosen, seconds, now)

    def charge_beside(self, seconds: float, now: float) -> None:
        """Charge the cost of the changes that went between two parts."""
        chosen, self._beside = self._beside, {}
        self._charge(chosen, seconds, now)

    def _charge(self, chosen: Mapping[ObjectKey, int], seconds: float, now: float) -> Expense | None:
        costs = self._costs(chosen, seconds)
        self._rest_of = {name: rest for name, rest in self._rest_of.items() if not rest.is_full(now)}
        for key, cost in costs.items():
            self._large.pop(key, None)
            if cost >= LARGE:
                self._large[key] = None
                self._rest.spend(now, cost)
                self._rest_of.setdefault(key.namespace, TokenBucket(1, OWN_REST)).spend(now, cost)
            else:
                self._debts.charge(key.namespace, cost, now)
        if seconds >= TRIFLE and any(self._debts.of(key.namespace, now) > ALLOWANCE for key in costs):
            self._busy_rest.spend(now, seconds)
        for key in list(self._large)[: max(0, len(self._large) - MOST_LARGE)]:
            del self._large[key]
        if seconds < LARGE or not costs:
            return None
        key = max(costs, key=costs.__getitem__)
        return Expense(key, costs[key], OWN_REST * costs[key]) if costs[key] >= LARGE else None

    def _costs(self, chosen: Mapping[ObjectKey, int], seconds: float) -> dict[ObjectKey, float]:
        """Divide a cost between Services, by their sizes."""
        if len(chosen) == 1:
            return dict.fromkeys(chosen, seconds)
        sizes = {key: max(1, size, self._size_of(key)) for key, size in chosen.items()}
        total = sum(sizes.values())
        return {key: seconds * size / total for key, size in sizes.items()}

    def _small(
        self, waiting: Mapping[ObjectKey, float], now: float, coming: Mapping[ObjectKey, int]
    ) -> Mapping[ObjectKey, float]:
        if not self._large and not self._rest_of and not coming:
            return waiting
        return {key: since for key, since in waiting.items() if not self._must_wait(key, now, coming.get(key, 0))}

    def _must_wait(self, key: ObjectKey, now: float, coming: int) -> bool:
        if key in self._large or coming - self._size_of(key) >= ROUND:
            return True
        rest = self._rest_of.get(key.namespace)
        return rest is not None and not rest.is_full(now) and not self._size_of(key)

    def _quiet(self, small: Mapping[ObjectKey, float], now: float) -> Mapping[ObjectKey, float]:
        """Return the Services whose namespaces aren't busy."""
        if not len(self._debts):
            return small
        owed = {name: self._debts.of(name, now) for name in {key.namespace for key in small}}
        if max(owed.values(), default=0.0) <= ALLOWANCE:
            return small
        return {key: since for key, since in small.items() if owed[key.namespace] <= ALLOWANCE}

    def _round(self, small: Mapping[ObjectKey, float], now: float, coming: Mapping[ObjectKey, int]) -> list[ObjectKey]:
        """Return as many Services as share a transaction."""
        if len(small) <= 1:
            return list(small)
        chosen, big, total, first = list[ObjectKey](), list[ObjectKey](), 0, float("inf")
        owed = {name: self._debts.of(name, now) for name in {key.namespace for key in small}}
        order = list[tuple[float, int, int, float, ObjectKey]]()
        longest_first = sorted(small, key=lambda key: (small[key], key))
        for turn, key in turn_numbers(longest_first, lambda key: key.namespace):
            size = max(self._size_of(key), coming.get(key, 0))
            debt = owed[key.namespace]
            order.append((debt if debt > MODEST else 0.0, turn, size, small[key], key))
        for debt, _, size, _, key in sorted(order):
            first = min(first, debt)
            if total >= _room(debt):
                return chosen or big[:1]
            if first <= MODEST < debt:
                break
            if size >= ROUND:
                big.append(key)
            else:
                chosen.append(key)
                total += size
        return chosen + big[:1]


def _room(debt: float) -> float:
    """Return the elements of a transaction beyond which a namespace with such a debt adds nothing to it."""
    return max(BUSY_ROUND, SHARED_ELEMENTS * (1 - debt / ALLOWANCE))


Front = tuple[str, object, int]


def displaced(
    coming: Iterable[Service], postponed: Iterable[Service], present: Mapping[ObjectKey, Service]
) -> list[ObjectKey]:
    """Return the waiting Services that have given up an address and port, or a node port, that another Service claims.

    Args:
        coming: the Services that are about to change.
        postponed: the latest versions of Services that wait.
        present: the Services in force.
    """
    given_up = {
        front: new.key
        for new in postponed
        if (old := present.get(new.key))
        for front in set(_fronts(old)).difference(_fronts(new))
    }
    return sorted({given_up[front] for each in coming for front in _fronts(each) if front in given_up})


def _fronts(service: Service) -> Iterator[Front]:
    for port in service.ports:
        for address in (*service.cluster_ips, *service.load_balancer_ips, *service.external_ips):
            yield address, port.protocol, port.port
        if port.node_port:
            yield "", port.protocol, port.node_port
