"""The interfaces of the fast path's flowtable, which change in place.

An interface is a name, or the beginning of names and a star.  Linux 6.17 and later follow the interfaces with a
beginning (NFTA_DEVICE_PREFIX), and older kernels refuse it.

libnftables isn't used here: it reads whole tables before each command, and can't name every interface.  The kernel
removes an interface that vanishes, and its connections go on without the fast path.

The kernel answers for the network namespace of the thread that asks, and only to CAP_NET_ADMIN.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Collection, Sequence

from nftproxy.extensions.fast_path.rules import FAST_PATH_TABLE
from nftproxy.kernel.nfnetlink.nft_queries import FAMILIES, query, why
from nftproxy.kernel.nfnetlink.sockets import BUFFER_SIZE, open_socket
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    CREATE,
    DUMP,
    attribute,
    attribute_map,
    attributes_of,
    messages_of,
    named,
    nested,
    text_of,
)

NEW_FLOWTABLE, DELETE_FLOWTABLE = 22, 24  # NFT_MSG_*
FLOWTABLE_HOOK = 3  # NFTA_FLOWTABLE_*
FLOWTABLE_HOOK_NUMBER, FLOWTABLE_PRIORITY, FLOWTABLE_DEVICES = 1, 2, 3  # NFTA_FLOWTABLE_HOOK_*
DEVICE_NAME, DEVICE_PREFIX = 1, 2  # NFTA_DEVICE_*

STEP = 64
"""Interfaces of a transaction.  The kernel takes 256."""

_FLOWTABLE = "established"
_INET = FAMILIES["inet"]
_ZERO = bytes(4)  # NF_NETDEV_INGRESS, and the priority in the template


def fast_path_interfaces() -> frozenset[str] | None:
    """Return the interfaces of our flowtable, None if there is no such flowtable.

    Raises:
        Unavailable: the kernel does not answer.
    """
    for found in query(nft.GET_FLOWTABLE, _INET, flags=DUMP):
        if (text_of(found[nft.OF_TABLE]), text_of(found[nft.FLOWTABLE_NAME])) == (FAST_PATH_TABLE, _FLOWTABLE):
            devices = attribute_map(found[FLOWTABLE_HOOK]).get(FLOWTABLE_DEVICES, b"")
            return frozenset(text_of(name) + "*" * (kind == DEVICE_PREFIX) for kind, name in attributes_of(devices))
    return None


def takes_beginnings(wanted: Sequence[str]) -> bool:
    """Add prefixes of names ("eth*") to our flowtable.  Return False if the kernel doesn't support prefixes.

    Raises:
        Unavailable: the kernel does not answer, or the flowtable has gone.
    """
    try:
        with open_socket() as kernel:
            kernel.sendto(nft.batch([_adding(wanted)]), (0, 0))
            list(messages_of(kernel.recv(BUFFER_SIZE)))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise Unavailable(why(error)) from error
    return True


def follow_interfaces(wanted: Collection[str]) -> list[str]:
    """Make our flowtable have exactly these interfaces, in steps.  Return the interfaces that the kernel refuses.

    Raises:
        Unavailable: the kernel does not answer.
    """
    present = fast_path_interfaces() or frozenset()
    refused: list[str] = []
    try:
        with open_socket() as kernel:
            for change, names in (
                (_removing, sorted(present.difference(wanted))),
                (_adding, sorted(set(wanted) - present)),
            ):
                for start in range(0, len(names), STEP):
                    refused += _change(kernel, change, names[start : start + STEP])
    except OSError as error:
        raise Unavailable(why(error)) from error
    return refused


def _change(kernel: socket.socket, change: Callable[[Sequence[str]], bytes], names: Sequence[str]) -> list[str]:
    """Add or remove interfaces in one batch, or each by itself if that is refused.  Return the refused names."""
    kernel.sendto(nft.batch([change(names)]), (0, 0))
    try:
        list(messages_of(kernel.recv(BUFFER_SIZE)))
    except FileNotFoundError:  # one has vanished meanwhile, or the table has
        return [] if len(names) == 1 else [name for each in names for name in _change(kernel, change, [each])]
    except PermissionError:
        raise
    except OSError:
        return list(names) if len(names) == 1 else [name for each in names for name in _change(kernel, change, [each])]
    return []


def _adding(names: Sequence[str]) -> bytes:
    hook = attribute(FLOWTABLE_HOOK_NUMBER, _ZERO) + attribute(FLOWTABLE_PRIORITY, _ZERO)
    return nft.request(NEW_FLOWTABLE, CREATE, _INET, _of_flowtable(hook + _devices(names)))


def _removing(names: Sequence[str]) -> bytes:
    return nft.request(DELETE_FLOWTABLE, 0, _INET, _of_flowtable(_devices(names)))


def _devices(names: Sequence[str]) -> bytes:
    return nested(
        FLOWTABLE_DEVICES,
        b"".join(named(DEVICE_PREFIX, name[:-1]) if name.endswith("*") else named(DEVICE_NAME, name) for name in names),
    )


def _of_flowtable(hook: bytes) -> bytes:
    return named(nft.OF_TABLE, FAST_PATH_TABLE) + named(nft.FLOWTABLE_NAME, _FLOWTABLE) + nested(FLOWTABLE_HOOK, hook)
