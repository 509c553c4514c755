"""Following a directory of manifests as people and tools edit it.

What can go wrong is being too quick.  An editor saves by writing beside the file and renaming, so that for a moment
there is no file; a tool writes in pieces, so that for a moment there is half a file; and half a file may well be valid
YAML with half the Services.  Hence:

* A file is read when its writer has closed it or renamed it into place, never while it is being written.
* Changes are acted upon after a short silence, and while they do not stop, after a longer while all the same.
* A file that can't be read or doesn't parse keeps what it last said, and the fault is reported.

The directory may be a mounted ConfigMap or Secret, whose files change by the renaming of a link (`..data`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from asyncinotify import Event, Inotify, Mask

from nftproxy.source import FileContents, manifest_files, merge, read_file
from nftproxy.state import Event as ClusterEvent

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
_ENDS_WRITING = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE


class _Signature(NamedTuple):
    """What tells that a file has been replaced or rewritten."""

    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, path: Path) -> _Signature:
        status = path.stat()
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Directory:
    """The manifests of one directory, read again file by file as they change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[Path, tuple[_Signature, FileContents]] = {}
        self._being_written: set[str] = set()

    async def follow(self) -> AsyncIterator[list[ClusterEvent]]:
        """Whole listings: one at once, and one whenever something has changed; ends only with the task."""
        while True:
            try:
                with Inotify() as inotify:
                    inotify.add_watch(self._path, _WATCHED)
                    if self._reread():
                        yield self._listing()
                    while await self._settled(inotify):
                        if self._reread():
                            yield self._listing()
            except FileNotFoundError:
                await asyncio.sleep(LONGEST_WAIT)  # gone as a whole: the rules stay until it is back

    async def _settled(self, inotify: Inotify) -> bool:
        """Wait for a change and the silence after it; False if the directory itself has gone."""
        is_there = self._note(await inotify.get())
        end = asyncio.get_running_loop().time() + LONGEST_WAIT
        while is_there:
            remaining = min(SILENCE, end - asyncio.get_running_loop().time())
            try:
                is_there = self._note(await asyncio.wait_for(inotify.get(), max(remaining, 0)))
            except TimeoutError:
                return True
        return False

    def _note(self, event: Event) -> bool:
        """Keep count of the files that are being written; False if the directory itself has gone."""
        if event.mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED):
            self._being_written.clear()
            return False
        if event.mask & Mask.MODIFY:
            self._being_written.add(str(event.name))
        elif event.mask & _ENDS_WRITING:
            self._being_written.discard(str(event.name))
        return True

    def _reread(self) -> bool:
        """Read what has changed; whether anything is different from before."""
        before = dict(self._files)
        present = {path: signature for path in manifest_files(self._path) if (signature := _signature(path))}
        for path in self._files.keys() - present.keys():
            del self._files[path]
        for path, signature in present.items():
            if path.name not in self._being_written and self._files.get(path, (None,))[0] != signature:
                self._read(path, signature)
        return self._files != before or not before

    def _read(self, path: Path, signature: _Signature) -> None:
        contents = read_file(path)
        for problem in contents.problems:
            log.warning("%s", problem)
        if contents.is_broken and path in self._files:
            contents = self._files[path][1]
        self._files[path] = signature, contents

    def _listing(self) -> list[ClusterEvent]:
        return merge(self._files[path][1] for path in sorted(self._files)).listing()


def _signature(path: Path) -> _Signature | None:
    try:
        return _Signature.of(path)
    except OSError:
        return None  # renamed or deleted since the directory was read
