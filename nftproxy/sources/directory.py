"""Following a directory of manifests as people and tools edit it.

The danger is to read too early.  An editor saves by writing beside the file and renaming, so that for a moment
there is no file; a tool writes in pieces, so that for a moment there is half a file; and half a file may well be valid
YAML with half the Services.  Hence:

* A file is read when its writer has closed it or renamed it into place, never while it is being written; one that is
  new and empty is about to be.  If it has changed while it was read, what was read doesn't count.
* Changes are acted upon after a short silence, and while they do not stop, after a longer while all the same.
* A file that can't be read or doesn't parse keeps what it last said, and the fault is reported.

The directory may be a mounted ConfigMap or Secret, whose files change by the renaming of a link (`..data`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import stat
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import NamedTuple

from asyncinotify import Event, Inotify, Mask

from nftproxy.api.kinds import KINDS, Kind
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event as ClusterEvent
from nftproxy.sources.files import FileContents, manifest_files, merge, read_file
from nftproxy.sources.inotify import InotifyEvents

log = logging.getLogger(__name__)

SILENCE = 0.03
"""Seconds without an event before changes are acted upon: longer than an editor's renames take."""
LONGEST_WAIT = 0.12
"""Seconds after which they are acted upon even without silence, so that rules follow within 200 ms."""

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
    """What shows that a file has been replaced or rewritten."""

    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, path: Path) -> _Signature:
        status = path.stat()
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Directory:
    """The manifests of one directory, read again file by file as they change."""

    def __init__(self, path: Path, kinds: Mapping[str, Kind] = KINDS) -> None:
        """Nothing is read yet; `kinds` are those that matter (kinds.py)."""
        self._path = path
        self._kinds = kinds
        self._files: dict[Path, tuple[_Signature, FileContents]] = {}
        self._being_written: set[str] = set()
        self._has_told = False
        self._doubles: set[Problem] = set()  # what is said of objects that are given twice

    async def follow(self) -> AsyncGenerator[list[ClusterEvent]]:
        """Whole listings: one at once, and one whenever something has changed; ends only with the task."""
        while True:
            try:
                with Inotify() as inotify:
                    inotify.add_watch(self._path, _WATCHED)
                    async with contextlib.aclosing(self._follow(InotifyEvents(inotify))) as listings:
                        async for listing in listings:
                            yield listing
            except FileNotFoundError:
                await asyncio.sleep(LONGEST_WAIT)  # gone as a whole: the rules stay until it is back

    async def _follow(self, events: InotifyEvents) -> AsyncGenerator[list[ClusterEvent]]:
        """The same until the directory itself has gone."""
        try:
            # Whoever makes it anew gets the time to fill it: the first moment would look like an empty cluster.
            is_there = not self._has_told or await self._settled(events, LONGEST_WAIT)
            while is_there:
                if self._reread():
                    yield self._listing()
                is_there = self._note(await events.next()) and await self._settled(events, SILENCE)
        finally:
            await events.close()

    async def _settled(self, events: InotifyEvents, silence: float) -> bool:
        """Wait for some seconds without changes, or for `LONGEST_WAIT`; False if the directory itself has gone."""
        now = asyncio.get_running_loop().time
        end = now() + LONGEST_WAIT
        while (remaining := end - now()) > 0 and (event := await events.within(min(silence, remaining))):
            if not self._note(event):
                return False
        return True

    def _note(self, event: Event) -> bool:
        """Keep count of the files that are being written; False if the directory itself has gone."""
        if event.mask & (_SELF_GONE | Mask.Q_OVERFLOW):  # an overflow may have swallowed that a writer closed its file
            self._being_written.clear()
        elif event.mask & Mask.MODIFY or (event.mask & Mask.CREATE and self._is_empty(str(event.name))):
            self._being_written.add(str(event.name))
        elif event.mask & _ENDS_WRITING:
            self._being_written.discard(str(event.name))
        return not event.mask & _SELF_GONE

    def _is_empty(self, name: str) -> bool:
        """Whether this is a file without contents: a link or a directory is none."""
        with contextlib.suppress(OSError):
            status = (self._path / name).lstat()
            return stat.S_ISREG(status.st_mode) and not status.st_size
        return False

    def _reread(self) -> bool:
        """Read what has changed; returns whether there is anything to report."""
        before = dict(self._files)
        present = {path: signature for path in manifest_files(self._path) if (signature := _signature(path))}
        for path in self._files.keys() - present.keys():
            del self._files[path]
        for path, signature in present.items():
            if path.name not in self._being_written and self._files.get(path, (None,))[0] != signature:
                self._read(path, signature)
        if self._has_told:
            return self._files != before
        return self._files.keys() == present.keys()

    def _read(self, path: Path, signature: _Signature) -> None:
        contents = read_file(path, self._kinds)
        if _signature(path) != signature:
            return  # someone has begun to write, or to replace it: events are on their way
        for problem in contents.problems:
            log.warning("%s", problem, extra={"code": problem.code})
        if contents.is_broken and path in self._files:
            contents = self._files[path][1]
        self._files[path] = signature, contents

    def _listing(self) -> list[ClusterEvent]:
        self._has_told = True
        manifests = merge(self._files[path][1] for path in sorted(self._files))
        doubles = set(manifests.problems).difference(*(contents.problems for _, contents in self._files.values()))
        for problem in sorted(doubles - self._doubles):
            log.warning("%s", problem, extra={"code": problem.code})
        self._doubles = doubles
        return manifests.listing()


def _signature(path: Path) -> _Signature | None:
    try:
        return _Signature.of(path)
    except OSError:
        return None  # renamed or deleted since the directory was read
