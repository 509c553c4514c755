"""Watches a directory of manifests while people and tools edit it.

The danger is to read too early.  An editor saves by writing beside the file and renaming, so that for a moment there is
no file.  A tool writes in pieces, so that for a moment there is half a file, which may well be valid YAML with half the
Services.  Hence:

* A file is read when its writer has closed it or renamed it into place, never while it is being written.  A new and
  empty file is about to be written.  If a file changed while it was read, the result is discarded.
* Changes take effect after a short silence (debounce), and if they don't stop, after a longer wait.
* A file that can't be read or parsed keeps its last objects, and the fault is reported.

The directory may be a mounted ConfigMap or Secret, whose files change by the renaming of a link (`..data`).
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import NamedTuple

from asyncinotify import Event, Inotify, Mask

from nftproxy.api.kinds import KINDS, ObjectKind
from nftproxy.logs import warn, warn_of
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event as ClusterEvent
from nftproxy.sources.files import FileContents, manifest_files, merge, read_file
from nftproxy.sources.inotify import InotifyEvents

DEBOUNCE = 0.03
"""Seconds without an event before changes take effect: longer than an editor's renames take."""
LONGEST_WAIT = 0.12
"""Seconds until changes take effect even without silence, so that rules follow within 200 ms."""

RETRY = 1.0
"""Seconds until a directory that can't be watched is tried again."""
_UNWATCHED = (
    "%(path)s can't be watched, trying again: %(error)s; fs.inotify.max_user_instances and max_user_watches limit what "
    "a user may watch"
)

_WATCHED = (
    Mask.MODIFY
    | Mask.CLOSE_WRITE
    | Mask.MOVED_TO
    | Mask.MOVED_FROM
    | Mask.DELETE
    | Mask.CREATE
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
)
_SELF_GONE = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED
_ENDS_WRITING = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE


class _Signature(NamedTuple):
    """Identifies a version of a file: it differs after the file was replaced or rewritten."""

    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, path: Path) -> _Signature:
        status = path.stat()
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Directory:
    """The manifests of a directory, read again file by file as they change."""

    def __init__(self, path: Path, kinds: Mapping[str, ObjectKind] = KINDS) -> None:
        """Read nothing yet.  `kinds` are the kinds that matter (kinds.py)."""
        self._path = path
        self._kinds = kinds
        self._files: dict[Path, tuple[_Signature, FileContents]] = {}
        self._being_written: set[str] = set()
        self._has_listed = False
        self._doubles: set[Problem] = set()  # problems of objects that are given twice

    async def listings(self) -> AsyncGenerator[list[ClusterEvent]]:
        """Yield a complete listing at once, and after each change.  It ends only with the task."""
        failure = ""
        while True:
            try:
                with Inotify() as inotify:
                    inotify.add_watch(self._path, _WATCHED)
                    async with contextlib.aclosing(self._listings_until_gone(InotifyEvents(inotify))) as listings:
                        async for listing in listings:
                            yield listing
            except FileNotFoundError:
                await asyncio.sleep(LONGEST_WAIT)  # the directory is gone: the rules stay until it is back
            except OSError as error:
                if str(error) != failure:
                    failure = str(error)
                    warn(Code.FILE_UNREADABLE, _UNWATCHED, path=self._path, error=failure)
                await asyncio.sleep(RETRY)

    async def _listings_until_gone(self, events: InotifyEvents) -> AsyncGenerator[list[ClusterEvent]]:
        """Yield listings as `listings` does, until the directory itself is gone."""
        try:
            # A directory that is made anew gets time to be filled: at first it would look like an empty cluster.
            is_there = not self._has_listed or await self._settled(events, LONGEST_WAIT)
            while is_there:
                if self._reread():
                    yield self._merged()
                is_there = self._track_writers(await events.next()) and await self._settled(events, DEBOUNCE)
        finally:
            await events.close()

    async def _settled(self, events: InotifyEvents, silence: float) -> bool:
        """Wait for some quiet seconds, or for `LONGEST_WAIT`.  Return False if the directory itself is gone."""
        now = asyncio.get_running_loop().time
        end = now() + LONGEST_WAIT
        while (remaining := end - now()) > 0 and (event := await events.within(min(silence, remaining))):
            if not self._track_writers(event):
                return False
        return True

    def _track_writers(self, event: Event) -> bool:
        """Track the files that are being written.  Return False if the directory itself is gone."""
        if event.mask & (_SELF_GONE | Mask.Q_OVERFLOW):  # an overflow may have swallowed that a writer closed its file
            self._being_written.clear()
        elif event.mask & Mask.MODIFY or (event.mask & Mask.CREATE and self._is_empty(str(event.name))):
            self._being_written.add(str(event.name))
        elif event.mask & _ENDS_WRITING:
            self._being_written.discard(str(event.name))
        return not event.mask & _SELF_GONE

    def _is_empty(self, name: str) -> bool:
        """Whether this is a regular file without contents."""
        with contextlib.suppress(OSError):
            status = (self._path / name).lstat()
            return stat.S_ISREG(status.st_mode) and not status.st_size
        return False

    def _reread(self) -> bool:
        """Read the files that have changed, and return whether there is anything to report."""
        before = dict(self._files)
        present = {path: signature for path in manifest_files(self._path) if (signature := _signature(path))}
        for path in self._files.keys() - present.keys():
            del self._files[path]
        for path, signature in present.items():
            if path.name not in self._being_written and self._files.get(path, (None,))[0] != signature:
                self._read(path, signature)
        if self._has_listed:
            return self._files != before
        return self._files.keys() == present.keys()

    def _read(self, path: Path, signature: _Signature) -> None:
        contents = read_file(path, self._kinds)
        if _signature(path) != signature:
            return  # it is being written or replaced: events will follow
        for problem in contents.problems:
            warn_of(problem, of="")
        if contents.is_broken and path in self._files:
            contents = self._files[path][1]
        self._files[path] = signature, contents

    def _merged(self) -> list[ClusterEvent]:
        self._has_listed = True
        manifests = merge(self._files[path][1] for path in sorted(self._files))
        doubles = set(manifests.problems).difference(*(contents.problems for _, contents in self._files.values()))
        for problem in sorted(doubles - self._doubles):
            warn_of(problem, of="")
        self._doubles = doubles
        return manifests.listing()


def _signature(path: Path) -> _Signature | None:
    try:
        return _Signature.of(path)
    except OSError:
        return None  # renamed or deleted since the directory was read
