"""Sockets to the kernel's netfilter, for nftables and connection tracking, and how requests are sent.

The kernel answers for the network namespace of the thread that opens the socket.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from nftproxy.netlink.codec import DONE, ERROR, messages_of

NETLINK_NETFILTER = 12  # linux/netlink.h
SOL_NETLINK, ADD_MEMBERSHIP, DROP_MEMBERSHIP = 270, 1, 2  # NETLINK_*
_FORCE = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}  # SO_SNDBUFFORCE, SO_RCVBUFFORCE
BUFFER_SIZE = 1 << 18  # bytes: the kernel fills at most 32 KiB of it per answer
ANSWER_SECONDS = 10.0  # the kernel answers at once, unless a commit holds its lock


def open_socket() -> socket.socket:
    """Return a socket for requests, in the network namespace of this thread.

    Closing a socket after a commit takes 10 ms: the kernel first frees the garbage of the commit.

    Raises:
        OSError: the socket can't be opened, as when the process has no file descriptors left.
    """
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
    made.settimeout(ANSWER_SECONDS)
    return made


def open_listener(queue: int) -> socket.socket:
    """Return a non-blocking socket for notifications, in the network namespace of this thread.

    It receives the groups that it joins (`ADD_MEMBERSHIP`).  `queue` is the limit of unread bytes.  Beyond it
    notifications are lost, and the next read fails with ENOBUFS.

    Raises:
        OSError: the socket can't be opened, as without CAP_NET_ADMIN.
    """
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
    made.setblocking(False)
    make_room(made, socket.SO_RCVBUF, queue)
    made.bind((0, 0))  # a socket without a port receives nothing
    return made


def make_room(made: socket.socket, buffer: int, size: int) -> None:
    """Let a socket hold as many bytes that are sent (SO_SNDBUF) or wait to be read (SO_RCVBUF).

    In a user namespace the kernel permits no more than net.core.wmem_max or rmem_max, and takes that instead.
    """
    try:
        made.setsockopt(socket.SOL_SOCKET, _FORCE[buffer], size)
    except PermissionError:
        made.setsockopt(socket.SOL_SOCKET, buffer, size)


def answers(kernel: socket.socket, asked: bytes, size: int) -> Iterator[bytes]:
    """Send a request, and yield the parts of the kernel's answer as they arrive.  Each part is some whole messages.

    The listed objects may change meanwhile.

    Args:
        kernel: a socket without unread answers.
        asked: the request.
        size: bytes per read, and the most that the kernel puts into a part (never above 32 KiB).

    Raises:
        OSError: the kernel's error.
    """
    kernel.sendto(asked, (0, 0))
    is_done = False
    while not is_done:
        data = kernel.recv(size)
        is_done = any(kind in (ERROR, DONE) for kind, _ in messages_of(data, may_change=True))
        yield data


def bodies(kernel: socket.socket, asked: bytes, *, may_change: bool = False) -> Iterator[bytes]:
    """Send a request, and yield the body of each message of the answer.  Raises the exceptions of `messages_of`."""
    kernel.sendto(asked, (0, 0))
    while True:
        for kind, body in messages_of(kernel.recv(BUFFER_SIZE), may_change=may_change):
            if kind in (ERROR, DONE):
                return
            yield body
