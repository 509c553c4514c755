"""Making conntrack forget stale UDP flows (flows.py says which), over ctnetlink and off the event loop.

The kernel is asked for as little as it can tell, entry by entry as it walks its table, and each stale entry is deleted
by its tuple and its id.  So memory is bounded by what is stale in one answer, and nobody else's entry is touched:

* CTA_FILTER (Linux 5.8) lets the kernel compare the protocol, the port and the IPv4 address of the original
  destination.  Every entry is compared again here: older kernels ignore the filter and tell all.
* IPv6 addresses are compared here only: the kernel's comparison is inverted (5.8 to at least 6.18).
* Each walk goes through the whole table, of all network namespaces, and the kernel does nothing else on that CPU until
  it has filled a buffer: so many fronts share a walk, and sweeps rest in between.
* Only zone 0 is ours: what others track apart, in zones of their own, passes other rules too.

Attributes and flags are those of linux/netfilter/nfnetlink_conntrack.h, and for CTA_FILTER of the kernel's
net/netfilter/nf_internals.h.  The kernel answers for the network namespace of the thread that makes the socket.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import tenacity

from nftproxy.addresses import Address, Family, family_of
from nftproxy.errors import Unavailable
from nftproxy.flows import Sweeps, is_stale
from nftproxy.nfnetlink import (
    ACKNOWLEDGE,
    ANSWER_SECONDS,
    ATTRIBUTE,
    BUFFER_SIZE,
    DONE,
    DUMP,
    DUMP_INTERRUPTED,
    ERROR,
    FAMILY_NUMBER,
    GENERAL,
    HEADER,
    NETLINK_NETFILTER,
    REQUEST,
)

log = logging.getLogger(__name__)

SUBSYSTEM, GET, DELETE = 1, 1, 2  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_DELETE
NESTED = 0x8000  # NLA_F_NESTED
TUPLE_ORIGINAL, TUPLE_REPLY, ID, ZONE, FILTER = 1, 2, 12, 18, 25  # CTA_*
TUPLE_ADDRESSES, TUPLE_PROTOCOL, TUPLE_ZONE = 1, 2, 3  # CTA_TUPLE_*
PROTOCOL, SOURCE_PORT, DESTINATION_PORT = 1, 2, 3  # CTA_PROTO_*
SOURCE = {Family.IPV4: 1, Family.IPV6: 3}  # CTA_IP_V4_SRC, CTA_IP_V6_SRC
DESTINATION = {Family.IPV4: 2, Family.IPV6: 4}  # CTA_IP_V4_DST, CTA_IP_V6_DST
FILTER_ORIGINAL = 1  # CTA_FILTER_ORIG_FLAGS
BY_ADDRESS, BY_PROTOCOL, BY_PORT = 1 << 1, 1 << 3, 1 << 5  # CTA_FILTER_FLAG of CTA_IP_DST, CTA_PROTO_NUM, _DST_PORT
UDP = bytes([socket.IPPROTO_UDP])

MOST_WALKS = 4
"""For how many ports the table is walked port by port; for more, all of UDP is read in one walk.  A walk takes some
20 ms, and 0.3 s with a million entries; reading takes 6 us for each entry that the kernel tells."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds before what failed is tried again: at first, and at the most (as the agent does with rules)."""
REST, LONGEST_REST = 4.0, 2.0
"""How long the thread rests after a sweep: so many times as long as that took, and the most in seconds.  However fast
endpoints change, walks of up to 0.5 s take a fifth of a CPU."""


class Conntrack:
    """Sweeps stale flows, one sweep at a time, in a thread of its own that works in the namespace of who first asks.

    Args:
        observe: called after each sweep of a family, with the seconds it took and the number of entries deleted.
    """

    def __init__(self, observe: Callable[[Family, float, int], object] = lambda *_: None) -> None:
        self._observe = observe
        self._pending: Sweeps = {}
        self._is_sweeping = False
        self._rested_at = 0.0
        self._tasks: set[asyncio.Task[int]] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="conntrack")

    def begin(self, sweeps: Sweeps) -> None:
        """Start a sweep that nobody waits for."""
        task = asyncio.create_task(self.sweep(sweeps))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def sweep(self, sweeps: Sweeps) -> int:
        """Delete the flows of these fronts that go elsewhere, trying until it works; the number of entries deleted.

        While a sweep is under way this returns 0 at once: that sweep goes on with these when it is done.  Of a front
        that is asked for again before its turn, or after a failure, the latest endpoints count.
        """
        self._pending |= sweeps
        if self._is_sweeping:
            return 0
        self._is_sweeping = True
        try:
            deleted = 0
            while self._pending:
                deleted += await self._sweep_pending()
            return deleted
        finally:
            self._is_sweeping = False

    def close(self) -> None:
        """Give up what `begin` began, and end the thread after the walk that it is in."""
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown()

    async def _sweep_pending(self) -> int:
        await asyncio.sleep(self._rested_at - asyncio.get_running_loop().time())
        sweeps: Sweeps = {}
        return await tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Unavailable),
            wait=tenacity.wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE),
            before_sleep=lambda state: log.warning("%s; trying again", state.outcome and state.outcome.exception()),
        )(self._try, sweeps)

    async def _try(self, sweeps: Sweeps) -> int:
        """One try; `sweeps` has what earlier ones failed at, and takes in what was asked for since."""
        loop = asyncio.get_running_loop()
        deleted, started = 0, loop.time()
        sweeps |= self._pending
        self._pending = {}
        for family in Family:
            own = {front: usable for front, usable in sweeps.items() if family_of(front.address) is family}
            if own:
                began, count = loop.time(), await loop.run_in_executor(self._thread, sweep_family, family, own)
                self._observe(family, loop.time() - began, count)
                deleted += count
        self._rested_at = loop.time() + min(REST * (loop.time() - started), LONGEST_REST)
        return deleted


def sweep_family(family: Family, sweeps: Sweeps) -> int:
    """Delete the stale flows of fronts of one family, in this thread's network namespace; the number of entries.

    Raises:
        Unavailable: the kernel does not let us, or not now.  Some entries may have been deleted.
    """
    fronts = {_packed(*front): frozenset(_packed(*each) for each in usable) for front, usable in sweeps.items()}
    try:
        with _socket() as listing, _socket() as deleting:
            return sum(
                _delete(deleting, family, entry)
                for question in questions(family, fronts)
                for entry in _entries(listing, family, question, fronts)
                if is_stale(entry.destination, entry.reply_source, fronts[entry.destination])
            )
    except OSError as error:
        raise Unavailable(f"stale UDP flows can't be deleted from conntrack: {error.strerror or error}") from error


def _packed(address: Address, port: int) -> bytes:
    """An address and port as in an entry: what the address takes, then two bytes."""
    return socket.inet_pton(FAMILY_NUMBER[family_of(address)], address) + port.to_bytes(2, "big")


class Question(NamedTuple):
    """Which UDP flows the kernel is asked for: those to a port, to a port of an address, or, where it is empty, all."""

    port: bytes = b""
    address: bytes = b""


def questions(family: Family, fronts: Iterable[bytes]) -> list[Question]:
    """The few walks through conntrack's table in which all flows to these fronts are told."""
    addresses: dict[bytes, set[bytes]] = {}
    for front in fronts:
        addresses.setdefault(front[-2:], set()).add(front[:-2])
    if len(addresses) > MOST_WALKS:
        return [Question()]
    by_address = family is Family.IPV4  # the kernel tells every IPv6 address but the one that it is asked for
    alone = {port: min(held) for port, held in addresses.items() if by_address and len(held) == 1}
    return [Question(port, alone.get(port, b"")) for port in sorted(addresses)]


class _Entry(NamedTuple):
    """An entry of conntrack; the attributes `tuple` and `id`, as the kernel wrote them, tell it from all others."""

    destination: bytes
    reply_source: bytes
    tuple: bytes
    id: bytes


def _socket() -> socket.socket:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
    kernel.settimeout(ANSWER_SECONDS)
    return kernel


def _entries(kernel: socket.socket, family: Family, question: Question, fronts: Collection[bytes]) -> Iterator[_Entry]:
    """The entries of UDP flows to these fronts, as the kernel tells them."""
    try:
        yield from _answers(kernel, family, _filter(family, question), fronts)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        yield from _answers(kernel, family, b"", fronts)  # a kernel that doesn't know these flags


def _answers(kernel: socket.socket, family: Family, attributes: bytes, fronts: Collection[bytes]) -> Iterator[_Entry]:
    kernel.sendto(_message(GET, DUMP, family, attributes), (0, 0))
    for kind, flags, body in _messages(kernel):
        if flags & DUMP_INTERRUPTED:
            raise InterruptedError(errno.EINTR, "the table changed while it was told")
        if kind == DONE:
            return
        if (entry := _entry(family, body, fronts)) is not None:
            yield entry


def _entry(family: Family, body: bytes, fronts: Collection[bytes]) -> _Entry | None:
    """An entry, if it is of a UDP flow to one of these fronts, in zone 0; most aren't, and are read no further."""
    held: dict[int, bytes] = {}
    for kind, value in _attributes(body, GENERAL.size):
        held[kind] = value
        if kind == TUPLE_ORIGINAL and _end(value, DESTINATION[family], DESTINATION_PORT) not in fronts:
            return None
    destination = _end(held[TUPLE_ORIGINAL], DESTINATION[family], DESTINATION_PORT)
    reply_source = _end(held[TUPLE_REPLY], SOURCE[family], SOURCE_PORT)
    if ZONE in held or not reply_source:
        return None
    return _Entry(destination, reply_source, held[TUPLE_ORIGINAL], held[ID])


def _end(flow: bytes, address: int, port: int) -> bytes:
    """One end of a tuple, address and port by the kinds of these attributes; nothing if it isn't UDP or has a zone."""
    parts = dict(_attributes(flow))
    protocol = dict(_attributes(parts[TUPLE_PROTOCOL]))
    if protocol[PROTOCOL] != UDP or TUPLE_ZONE in parts:
        return b""
    return dict(_attributes(parts[TUPLE_ADDRESSES]))[address] + protocol[port]


def _delete(kernel: socket.socket, family: Family, entry: _Entry) -> bool:
    """Delete an entry; False if it has gone meanwhile, even if another flow has its tuple now."""
    attributes = _attribute(TUPLE_ORIGINAL | NESTED, entry.tuple) + _attribute(ID, entry.id)
    kernel.sendto(_message(DELETE, ACKNOWLEDGE, family, attributes), (0, 0))
    try:
        next(_messages(kernel))
    except FileNotFoundError:
        return False
    return True


def _filter(family: Family, question: Question) -> bytes:
    """The attributes that make the kernel tell only the entries asked for."""
    flags, addresses, protocol = BY_PROTOCOL, b"", _attribute(PROTOCOL, UDP)
    if question.port:
        flags |= BY_PORT
        protocol += _attribute(DESTINATION_PORT, question.port)
    if question.address:
        flags |= BY_ADDRESS
        addresses = _attribute(TUPLE_ADDRESSES | NESTED, _attribute(DESTINATION[family], question.address))
    flow = addresses + _attribute(TUPLE_PROTOCOL | NESTED, protocol)
    compared = _attribute(FILTER_ORIGINAL, struct.pack("=I", flags))
    return _attribute(TUPLE_ORIGINAL | NESTED, flow) + _attribute(FILTER | NESTED, compared)


def _message(request: int, flags: int, family: Family, attributes: bytes) -> bytes:
    body = GENERAL.pack(FAMILY_NUMBER[family], 0, 0) + attributes
    return HEADER.pack(HEADER.size + len(body), SUBSYSTEM << 8 | request, REQUEST | flags, 0, 0) + body


def _messages(kernel: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Each message's type, flags and body, without end; raises OSError for one that says so."""
    while True:
        data = kernel.recv(BUFFER_SIZE)
        start = 0
        while start < len(data):
            length, kind, flags, _, _ = HEADER.unpack_from(data, start)
            body = data[start + HEADER.size : start + length]
            if kind in (ERROR, DONE) and (code := int.from_bytes(body[:4], sys.byteorder, signed=True)):
                raise OSError(-code, os.strerror(-code))
            yield kind, flags, body
            start += length + 3 & ~3


def _attributes(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    while start < len(data):
        length, kind = ATTRIBUTE.unpack_from(data, start)
        yield kind & 0x3FFF, data[start + ATTRIBUTE.size : start + length]
        start += length + 3 & ~3


def _attribute(kind: int, value: bytes) -> bytes:
    data = ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value
    return data + b"\0" * (-len(data) % 4)
