"""Work in steps: a generator that stops now and then, so that others may have their turn, and returns its result."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Steps(Generic[Result]):
    """The steps of some work, to iterate over once; `result` is what it returns, there after the last step."""

    result: Result

    def __init__(self, work: Generator[None, None, Result]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[None]:
        """Go on to the next stop, each time."""
        self.result = yield from self._work


def finish(work: Generator[None, None, Result]) -> Result:
    """The result of some work, without a stop."""
    steps = Steps(work)
    for _ in steps:
        pass
    return steps.result
