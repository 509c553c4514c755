"""Map in two processes: for commands, which have no threads and end soon."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_two(function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
    """As `map`, with every second item in a forked process: a `Mapper`.

    If that process fails, this process repeats its part, and so raises the same exception.
    """
    ours, theirs = items[::2], items[1::2]
    if not theirs or len(os.sched_getaffinity(0)) == 1:
        return map(function, items)
    results: list[Any] = [None] * len(items)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _write(function, theirs, writer)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as answer:
            results[::2] = map(function, ours)
            with suppress(EOFError, pickle.UnpicklingError):
                results[1::2] = pickle.load(answer)
                return results
    finally:
        os.waitpid(child, 0)
    results[1::2] = map(function, theirs)
    return results


def _write(function: Callable[[Item], object], items: Iterable[Item], writer: int) -> NoReturn:
    """Write the results, and end this process without the exit handlers and buffers that it shares with its parent."""
    with suppress(BaseException), os.fdopen(writer, "wb") as file:
        pickle.dump(list(map(function, items)), file, pickle.HIGHEST_PROTOCOL)
    os._exit(0)
