"""Looks up the addresses of names, in threads that hold up nothing else.

The system's resolver can't be interrupted.  It gives up after 20 s or more if no DNS server answers (resolv.conf(5)).
In asyncio's pool such calls held up all others, and the end of a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from concurrent.futures import Future
from typing import Any, NamedTuple

SHARED = 4.0
"""Seconds in which a lookup serves further connections.  A later connection begins another, as resolv.conf may have
changed."""
MOST_AT_ONCE = 8
"""Lookups of a name and port under way, each of which has a thread.  resolv.conf may let one take minutes."""


class _Lookup(NamedTuple):
    """A lookup, and the steady time at which it began."""

    found: Future[list[Any]]
    began: float


_lookups: dict[tuple[str, int], list[_Lookup]] = {}
"""The lookups of each name and port that were under way at the last one.  A process has few names."""


async def look_up(name: str, port: int) -> list[Any]:
    """Return the addresses of a name for TCP, as `socket.getaddrinfo` does.  An address needs no lookup.

    Raises:
        OSError: the name has no address, no DNS server answers, or no thread can be started.
    """
    with contextlib.suppress(socket.gaierror):  # it is a name
        return socket.getaddrinfo(name, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    return await asyncio.wrap_future(_lookup(name, port))


def _lookup(name: str, port: int) -> Future[list[Any]]:
    """Begin a lookup, or join the last one that is under way."""
    now = time.monotonic()
    present = [each for each in _lookups.get((name, port), ()) if not each.found.done()]
    if present and (now - present[-1].began < SHARED or len(present) == MOST_AT_ONCE):
        return present[-1].found
    found = Future[list[Any]]()
    found.set_running_or_notify_cancel()  # from now on it can't be cancelled, as others may wait too
    thread = threading.Thread(target=_resolve, args=(found, name, port), name="lookup", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(f"no thread to look up the name {name} can be started: {error}") from error
    _lookups[name, port] = [*present, _Lookup(found, now)]
    return found


def _resolve(found: Future[list[Any]], name: str, port: int) -> None:
    try:
        found.set_result(socket.getaddrinfo(name, port, 0, socket.SOCK_STREAM))
    except Exception as error:  # noqa: BLE001  # it is raised where the result is awaited
        found.set_exception(error)
