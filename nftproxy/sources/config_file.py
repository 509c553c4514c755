"""The configuration that a file and flags make, and whether the file still says the same.

kubelet changes the file of a ConfigMap by renaming a link (`..data`) in its directory; editors rename the file itself;
others write into it.  So the directory is watched in which the file is named, and the one in which it really is, for
files that are closed, renamed or linked.  Whatever happens there, only the file's content counts: it is read until it
is the same twice, and compared with what was there before.

Where inotify has nothing to say (a network file system) or is not available (each user may have 128), the file is read
every minute.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import MappingProxyType

from asyncinotify import Inotify, Mask

from nftproxy.model.errors import Problem
from nftproxy.model.settings import Config
from nftproxy.sources.files import load_config
from nftproxy.sources.inotify import InotifyEvents
from nftproxy.sources.reading import LARGEST_CONFIG, read_bounded

SILENCE = 0.1
"""Seconds in which the content must not change before it counts."""
PERIOD = 60.0
"""Seconds after which the file is read at the latest: as often as kubelet looks at a ConfigMap (its sync period)."""

_WATCHED = (
    Mask.CLOSE_WRITE
    | Mask.CREATE
    | Mask.MOVED_TO
    | Mask.MOVED_FROM
    | Mask.DELETE
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
    | Mask.ONLYDIR
)


class ConfigFile:
    """A configuration, from a file or from flags alone."""

    def __init__(self, path: Path | None, flags: Mapping[str, str] = MappingProxyType({})) -> None:
        """What `load` gives first is what the file holds now, or later: what comes in between is a change."""
        self._path = path
        self._flags = flags
        self._content = self._read()

    def load(self) -> tuple[Config, list[Problem]]:
        """The configuration as it is now, and the warnings about it.

        Raises:
            BadInput: the file can't be read, or what it says with these flags is wrong.
        """
        return load_config(self._path, self._flags)

    async def changes(self) -> AsyncGenerator[None]:
        """Something whenever the file has come to hold something else; ends only with the task."""
        if self._path is None:
            await asyncio.Event().wait()
        while True:
            async with _watching(self._directories()) as events:
                if await self._has_changed():
                    yield
                await events.within(PERIOD)

    def _directories(self) -> set[Path]:
        assert self._path is not None
        return {self._path.absolute().parent, self._path.resolve().parent}

    async def _has_changed(self) -> bool:
        """Whether the file holds something else than when this was last asked; waits until it holds still."""
        content = self._read()
        while content != self._content:
            before = content
            await asyncio.sleep(SILENCE)
            content = self._read()
            if content == before:
                self._content = content
                return True
        return False

    def _read(self) -> bytes | None:
        """What the file holds; None if it can't be read, for reasons that `load` gives, or only once, as a pipe can."""
        try:
            return read_bounded(self._path, LARGEST_CONFIG) if self._path and self._path.is_file() else None
        except OSError:
            return None


class _Clock:
    """What there is instead of events where inotify is not available."""

    async def within(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@contextlib.asynccontextmanager
async def _watching(directories: set[Path]) -> AsyncGenerator[InotifyEvents | _Clock]:
    with contextlib.ExitStack() as stack:
        try:
            inotify = stack.enter_context(Inotify())
            for directory in directories:
                inotify.add_watch(directory, _WATCHED)
        except OSError:
            yield _Clock()
            return
        events = InotifyEvents(inotify)
        try:
            yield events
        finally:
            await events.close()
