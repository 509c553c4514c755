"""A thread that repeats a step while a test or a tool does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(work: Callable[[], object], pause: float = 0.0) -> Iterator[threading.Thread]:
    """Call `work` again and again, each time after a pause in seconds, in the thread that is given.

    If a call raises, the thread ends, and the error is raised when the context is left, also by another error.
    """
    is_over = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not is_over.wait(pause):
                work()
        except BaseException as error:  # noqa: BLE001 -- raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name=getattr(work, "__name__", "repeating"), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        is_over.set()
        thread.join()
        if errors:
            raise errors[0]
