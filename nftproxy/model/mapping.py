"""Functions that map a function over items, as `map` does, perhaps in other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Mapper(Protocol):
    """Return the result of the function for each item, in order.

    The function may run in another process, so only its results count, and they can be pickled.
    """

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
        """Map the function over the items."""


def one_by_one(function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
    """Map in this process, each item when its result is asked for."""
    return map(function, items)


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Cut a sequence into chunks of `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]
