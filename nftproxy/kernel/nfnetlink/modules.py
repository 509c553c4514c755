"""Modules that the kernel must have, as advice for nodes that load none on demand.

A hardened node, or one whose SELinux policy denies it, doesn't load a module when a socket asks for it.  Then the
kernel answers as if it had been built without.
"""

from __future__ import annotations

import errno

_ABSENT = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT})
"""Of nfnetlink for a subsystem that isn't there, to a request and to a batch, and of a kernel without nfnetlink."""


def advice(error: OSError, module: str) -> str:
    """Return how to load a module, with a colon before it, "" if the error isn't about a missing module."""
    if error.errno not in _ABSENT:
        return ""
    return (
        f": unless the kernel has {module} built in, run `modprobe {module}` on the node, and write the line {module} "
        "into /etc/modules-load.d/nftproxy.conf for each boot"
    )
