"""Reads files of unknown size up to a bound."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_MANIFEST = 256 * 2**20
"""Bytes: 50,000 Services with as many EndpointSlices have some 150 MB as JSON."""

LARGEST_CONFIG = 4 * 2**20
"""Bytes of a configuration, kubeconfig, certificate or token: a ConfigMap or Secret has at most 1 MiB (core/v1)."""

_READ_SIZE = 2**20


def read_bounded(path: Path, most: int, *, may_wait: bool = False) -> bytes:
    """Read a file of at most `most` bytes.  If its size is known to be larger, nothing is read.

    Args:
        path: the file.
        most: bytes.
        may_wait: whether to wait for data of a pipe or device too.

    Raises:
        OSError: it can't be read.  EFBIG if it is larger, EINVAL if it could block.
        ValueError: the path has a NUL.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if may_wait else os.O_NONBLOCK))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not may_wait and not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        return read_stream(file, most, status.st_size)


def read_stream(file: BinaryIO, most: int, size: int = 0) -> bytes:
    """Read an open file, whose size may be known.

    Raises:
        OSError: see `read_bounded`.
    """
    pieces: list[bytes] = []
    total = 0
    while total <= most and size <= most and (piece := file.read(max(size + 1 - total, _READ_SIZE))):
        pieces.append(piece)
        total += len(piece)
    if max(size, total) > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes")
    return b"".join(pieces)
