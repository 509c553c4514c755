"""The configuration from a file and flags, and a watch for changes of the file.

kubelet changes the file of a ConfigMap by renaming a link (`..data`) in its directory.  Editors rename the file itself,
and other programs write into it.  So both the directory of the path and the directory of the real file are watched, for
files that are closed, renamed or linked.  After any such event only the file's content counts: it is read until two
reads are the same, and compared with the previous content.

Where inotify reports nothing (a network file system) or is not available (a user may have 128), the file is read every
minute.
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
from nftproxy.sources.config_documents import load_config
from nftproxy.sources.inotify import InotifyEvents
from nftproxy.sources.reading import LARGEST_CONFIG, read_bounded

SILENCE = 0.1
"""Seconds without a change of the content before it counts."""
PERIOD = 60.0
"""Seconds until the file is read at the latest: the period in which kubelet looks at a ConfigMap (its sync period)."""

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
        """Read the file.  If it changes before the first `load`, that is a change too."""
        self._path = path
        self._flags = flags
        self._content = self._read()

    def load(self) -> tuple[Config, list[Problem]]:
        """Load the present configuration, and the warnings about it.

        Raises:
            BadInput: the file can't be read, or is wrong with these flags.
        """
        return load_config(self._path, self._flags)

    async def changes(self) -> AsyncGenerator[None]:
        """Yield whenever the content of the file has changed.  It ends only with the task."""
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
        """Wait until the file is stable, and return whether it differs from the last content."""
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
        """Return the content of the file.  For a file that can't be read, or only once, as a pipe, return None."""
        try:
            return read_bounded(self._path, LARGEST_CONFIG) if self._path and self._path.is_file() else None
        except OSError:
            return None


class _Clock:
    """Replaces inotify where it is not available."""

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
