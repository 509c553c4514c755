"""How many file descriptors this process may have (RLIMIT_NOFILE, getrlimit(2))."""

from __future__ import annotations

import resource

UNLIMITED = 2**20
"""What counts as no limit: the kernel's own default for a process (fs.nr_open)."""


def allowed_files() -> int:
    """How many this process may have now."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> None:
    """Allow this process as many as it may allow itself."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
