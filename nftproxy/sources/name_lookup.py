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
"""Seconds in which a lookup serves further connections.  A later one asks anew, as resolv.conf may have changed."""


class _Lookup(NamedTuple):
    """A lookup, which may have ended, and the steady time at which it began."""

    found: Future[list[Any]]
    began: float


_lookups: dict[tuple[str, int], _Lookup] = {}
"""The last lookup of each name and port, of which a process has few."""


async def look_up(name: str, port: int) -> list[Any]:
    """Return the addresses of a name for TCP, as `socket.getaddrinfo` does.  An address is its own.

    Raises:
        OSError: the name has no address, no DNS server answers, or no thread can be started.
    """
    with contextlib.suppress(socket.gaierror):  # it is a name
        return socket.getaddrinfo(name, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    return await asyncio.wrap_future(_lookup(name, port))


def _lookup(name: str, port: int) -> Future[list[Any]]:
    """Begin a lookup, or join the present one."""
    now = time.monotonic()
    last = _lookups.get((name, port))
    if last and not last.found.done() and now - last.began < SHARED:
        return last.found
    found = Future[list[Any]]()
    found.set_running_or_notify_cancel()  # from now on it can't be cancelled, as others may wait too
    thread = threading.Thread(target=_resolve, args=(found, name, port), name="lookup", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(f"no thread to look up the name {name} can be started: {error}") from error
    _lookups[name, port] = _Lookup(found, now)
    return found


def _resolve(found: Future[list[Any]], name: str, port: int) -> None:
    try:
        found.set_result(socket.getaddrinfo(name, port, 0, socket.SOCK_STREAM))
    except Exception as error:  # noqa: BLE001  # it is raised where the result is awaited
        found.set_exception(error)
