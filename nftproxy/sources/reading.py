"""Reading files whose size is anybody's: up to a bound, and no further."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_MANIFEST = 256 * 2**20
"""Bytes: 50,000 Services with as many EndpointSlices have some 150 MB as JSON."""

LARGEST_CONFIG = 4 * 2**20
"""Bytes of a configuration, kubeconfig, certificate or token: a ConfigMap or Secret has 1 MiB at the most (core/v1)."""

_PIECE = 2**20


def read_bounded(path: Path, most: int, *, may_wait: bool = False) -> bytes:
    """The content of a file of at most so many bytes; nothing is read of one whose size is known to be larger.

    Args:
        path: the file.
        most: bytes.
        may_wait: whether it may be a pipe or device too, which is read when something comes.

    Raises:
        OSError: it can't be read; EFBIG if it is larger, EINVAL if it would have to be waited for.
        ValueError: the path has a NUL.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if may_wait else os.O_NONBLOCK))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not may_wait and not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        return read_stream(file, most, status.st_size)


def read_stream(file: BinaryIO, most: int, size: int = 0) -> bytes:
    """The same of a file that is open, and of which the size may be known.

    Raises:
        OSError: see `read_bounded`.
    """
    pieces: list[bytes] = []
    total = 0
    while total <= most and size <= most and (piece := file.read(max(size + 1 - total, _PIECE))):
        pieces.append(piece)
        total += len(piece)
    if max(size, total) > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes")
    return b"".join(pieces)
