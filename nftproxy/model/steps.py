"""Work in steps: a generator that pauses now and then, so that other work can run, and returns its result.

At each pause it may yield a part of the result, for work that needn't wait for its end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


class Steps(Generic[Part, Result]):
    """The steps of some work, to iterate over once.  After the last step, `result` is the return value."""

    result: Result

    def __init__(self, work: Generator[Part, None, Result]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[Part]:
        """Run to the next pause, each time."""
        self.result = yield from self._work


def finish(work: Generator[Part, None, Result]) -> Result:
    """Run some work to its end, and return its result."""
    steps = Steps(work)
    for _ in steps:
        pass
    return steps.result
