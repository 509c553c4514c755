"""The configuration from a file and flags, and a watch for changes of the file.

kubelet changes the file of a ConfigMap by renaming a link (`..data`) in its directory.  Editors rename the file itself,
and other programs write into it.  So both the directory of the path and the directory of the real file are watched, for
files that are closed, renamed or linked.  After any such event only the file's content counts: it is read until two
reads are the same, and compared with the previous content.  A content is read once: the bytes that were checked are
handed to the next program image of this process, so that a later change of the file can't end the agent.

Where inotify reports nothing (a network file system) or is not available (a user may have 128), the file is read every
minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import MappingProxyType

from asyncinotify import Inotify, Mask

from nftproxy.config.declared_fields import Fields
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.settings import Config
from nftproxy.sources.config_documents import load_config, unusable
from nftproxy.sources.inotify import InotifyEvents
from nftproxy.sources.reading import LARGEST_CONFIG, read_bounded, read_stream

DEBOUNCE = 0.1
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


STANDARD_INPUT = Path("/dev/stdin")
"""The path of a configuration that a program writes to a pipe."""
HANDED_OVER = "NFTPROXY_CONFIGURATION"
"""The environment variable with the file descriptor of the content that the previous program image has checked."""


class ConfigFile:
    """A configuration, from a file or from flags alone."""

    def __init__(self, path: Path | None, declared: Fields, flags: Mapping[str, str] = MappingProxyType({})) -> None:
        """Take the content that the previous program image has handed over, or else read the file.

        `declared` are the fields that extensions declare.  `changes` reports later changes of the file.
        """
        self._path = path
        self._declared = declared
        self._flags = flags
        self._is_standard_input = path == STANDARD_INPUT
        handed_over = _handed_over()
        self._content = self._read() if handed_over is None else handed_over

    def load(self) -> tuple[Config, list[Problem]]:
        """Load the configuration of the last content, and the warnings about it.

        Raises:
            BadInput: the file couldn't be read, is no regular file, or is wrong with these flags.
        """
        if isinstance(self._content, str):
            raise BadInput(unusable(self._path, self._content))
        return load_config(self._path, self._declared, self._flags, content=self._content)

    def hand_over(self) -> None:
        """Keep the content for the next program image of this process, in a file descriptor that must stay open.

        Without memory for it, the next image reads the file.
        """
        if isinstance(self._content, bytes):
            with contextlib.suppress(OSError):
                number = os.memfd_create("nftproxy-configuration", 0)
                with os.fdopen(number, "wb", closefd=False) as file:
                    file.write(self._content)
                os.environ[HANDED_OVER] = str(number)

    async def changes(self) -> AsyncGenerator[None]:
        """Yield whenever the content of the file has changed.  It ends only with the task.

        Standard input is read once, and never changes.
        """
        if self._path is None or self._is_standard_input:
            await asyncio.Event().wait()
        while True:
            directories = self._directories()
            async with _watching(directories) as events:
                if await self._has_changed():
                    yield
                if self._directories() == directories:  # kubelet may have replaced one before it was watched
                    await events.within(PERIOD)

    def _directories(self) -> set[Path]:
        assert self._path is not None
        return {self._path.absolute().parent, self._path.resolve().parent}

    async def _has_changed(self) -> bool:
        """Wait until the file is stable, and return whether it differs from the last content."""
        content = self._read()
        while content != self._content:
            before = content
            await asyncio.sleep(DEBOUNCE)
            content = self._read()
            if content == before:
                self._content = content
                return True
        return False

    def _read(self) -> bytes | str:
        """Return the content of the file, or the reason why it can't be read.

        Only standard input may be a pipe.  Any other pipe could have no writer, and reading it would wait for ever.
        """
        try:
            return read_bounded(self._path, LARGEST_CONFIG, may_wait=self._is_standard_input) if self._path else b""
        except (OSError, ValueError) as error:  # ValueError: NUL in a name
            return getattr(error, "strerror", None) or str(error)


def _handed_over() -> bytes | None:
    """Return the content that the previous program image has handed over, if there was one, and close its file."""
    number = os.environ.pop(HANDED_OVER, "")
    try:
        with os.fdopen(int(number), "rb") as file:
            file.seek(0)
            return read_stream(file, LARGEST_CONFIG)
    except (OSError, ValueError):
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
                with contextlib.suppress(FileNotFoundError):
                    inotify.add_watch(directory, _WATCHED)
        except OSError:
            yield _Clock()
            return
        events = InotifyEvents(inotify)
        try:
            yield events
        finally:
            await events.close()
