"""The chains of legacy iptables, read without its tools, by name only.

The kernel returns a whole table, as its rules lie in memory (IPT_SO_GET_ENTRIES, linux/netfilter_ipv4/ip_tables.h).
Each chain begins with a target ERROR that has its name.  Asking takes CAP_NET_ADMIN.  Asking for a missing table would
make it, so only the tables in the kernel's list are read, which the kernel shows to root alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
from pathlib import Path

from nftproxy.model.addresses import Family

SO_GET_INFO, SO_GET_ENTRIES = 64, 65  # IPT_BASE_CTL and the next, the same for IPv6
INFO = struct.Struct("=32sI5I5III")  # struct ipt_getinfo: name, hooks, where each begins and ends, rules, bytes
HEAD = (
    rb"ERROR\0{25}"  # a target's name in 29 bytes, and its revision. The chain's name follows (struct xt_error_target)
)
ENTRIES = struct.Struct("=32sII")  # struct ipt_get_entries: name, bytes, padding
_LEVELS = {Family.IPV4: (socket.AF_INET, socket.SOL_IP), Family.IPV6: (socket.AF_INET6, 41)}  # SOL_IPV6
_NAMES = {
    Family.IPV4: Path("/proc/thread-self/net/ip_tables_names"),
    Family.IPV6: Path("/proc/thread-self/net/ip6_tables_names"),
}


def legacy_chains(family: Family, pattern: re.Pattern[bytes]) -> list[tuple[str, str]]:
    """Return the (table, chain) of each chain with a matching name, none if the list of tables can't be read.

    The pattern sees a 0 byte after the name.

    Raises:
        OSError: the kernel doesn't return a table, as without CAP_NET_ADMIN.
    """
    tables = legacy_tables(family)
    head = re.compile(HEAD + b"(" + pattern.pattern + b")")
    found = ((table, chain) for table in tables for chain in head.findall(_table(family, table)))
    return sorted((table, chain.rstrip(b"\0").decode()) for table, chain in found)


def legacy_tables(family: Family) -> list[str]:
    """Return the existing tables, none without permission."""
    try:
        return _NAMES[family].read_text().split()
    except OSError:
        return []


def _table(family: Family, table: str) -> bytes:
    info = _get(family, SO_GET_INFO, INFO.pack(table.encode(), *[0] * 13))
    size = INFO.unpack(info)[-1]
    return _get(family, SO_GET_ENTRIES, ENTRIES.pack(table.encode(), size, 0) + bytes(size))


def _get(family: Family, option: int, question: bytes) -> bytes:
    """Return the kernel's answer to a getsockopt with a request in its buffer.  Python's own can't pass a request."""
    kind, level = _LEVELS[family]
    buffer, length = ctypes.create_string_buffer(question, len(question)), ctypes.c_uint32(len(question))
    with socket.socket(kind, socket.SOCK_DGRAM) as made:
        if ctypes.CDLL(None, use_errno=True).getsockopt(made.fileno(), level, option, buffer, ctypes.byref(length)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    return buffer.raw
