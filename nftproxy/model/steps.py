"""Work in steps: a generator that pauses now and then, so that other work can run, and returns its result."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Steps(Generic[Result]):
    """The steps of some work, to iterate over once.  After the last step, `result` is the return value."""

    result: Result

    def __init__(self, work: Generator[None, None, Result]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[None]:
        """Run to the next pause, each time."""
        self.result = yield from self._work


def finish(work: Generator[None, None, Result]) -> Result:
    """Run some work to its end, and return its result."""
    steps = Steps(work)
    for _ in steps:
        pass
    return steps.result
