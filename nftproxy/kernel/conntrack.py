"""Making conntrack forget stale UDP flows (flows.py says which), over ctnetlink and off the event loop.

The kernel is asked for all its entries, and each stale one is deleted by its tuple and its id.  So nobody else's entry
is touched, and memory is bounded by what one answer holds.  With a million entries, what matters is that nothing waits:

* The kernel holds a CPU, interrupts' work included, until an answer is full.  So answers are small and nothing is
  filtered in the kernel, which would go through the whole table of all network namespaces for one answer (0.2 s for a
  million entries).  For the same reason both families are asked for at once.
* The thread rests after each answer, in proportion to what that took.
* Sockets stay open.  Closing one holds the lock of all nftables commits until what an earlier commit left is freed,
  which waits for every CPU: 20 ms beside a sweep (tried with 6.18).
* In an answer, addresses are looked for first; most answers have none of ours, and are read no further.

Only zone 0 is ours: what others track apart, in zones of their own, passes other rules too.

Attributes and flags are those of linux/netfilter/nfnetlink_conntrack.h.  The kernel answers for the network namespace
of the thread that makes the socket.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import tenacity

from nftproxy.kernel.netlink import (
    ACKNOWLEDGE,
    ATTRIBUTE,
    DONE,
    DUMP,
    FAMILY_NUMBER,
    FAMILY_OF_NUMBER,
    GENERAL,
    attribute,
    attributes_of,
    messages_of,
    nested,
    open_socket,
    request,
)
from nftproxy.model.addresses import Address, Family, family_of
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable
from nftproxy.policy.flows import Sweeps, is_stale

log = logging.getLogger(__name__)

SUBSYSTEM, GET, DELETE = 1, 1, 2  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_DELETE
TUPLE_ORIGINAL, TUPLE_REPLY, ID, ZONE = 1, 2, 12, 18  # CTA_*
TUPLE_ADDRESSES, TUPLE_PROTOCOL, TUPLE_ZONE = 1, 2, 3  # CTA_TUPLE_*
PROTOCOL, SOURCE_PORT, DESTINATION_PORT = 1, 2, 3  # CTA_PROTO_*
SOURCE = {Family.IPV4: 1, Family.IPV6: 3}  # CTA_IP_V4_SRC, CTA_IP_V6_SRC
DESTINATION = {Family.IPV4: 2, Family.IPV6: 4}  # CTA_IP_V4_DST, CTA_IP_V6_DST
UDP = bytes([socket.IPPROTO_UDP])

ANSWER_SIZE = 1 << 13
"""Bytes of an answer, which the kernel fills before it does anything else: 35 entries, in 0.05 ms."""
REST = 3.0
"""How long the thread rests after each answer: so many times as long as that took.  However fast endpoints change,
sweeps take a quarter of a CPU; one among a million entries takes 5 s then."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds before what failed is tried again: at first, and at the most (as the agent does with rules)."""


class Conntrack:
    """Sweeps stale flows, one sweep at a time, in a thread of its own that works in the namespace of who first asks.

    Args:
        observe: called after each sweep for each family that had fronts, with the seconds it took and the number of
            entries deleted.
    """

    def __init__(self, observe: Callable[[Family, float, int], object] = lambda *_: None) -> None:
        self._observe = observe
        self._pending: Sweeps = {}
        self._is_sweeping = False
        self._is_closing = threading.Event()
        self._sweeper = Sweeper(self._is_closing.wait)
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
        """Give up what `begin` began, and end the thread after the sweep that it is in, which rests no more."""
        for task in self._tasks:
            task.cancel()
        self._is_closing.set()
        self._thread.shutdown()
        self._sweeper.close()

    async def _sweep_pending(self) -> int:
        sweeps: Sweeps = {}
        return await tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Unavailable),
            wait=tenacity.wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE),
            before_sleep=lambda state: log.warning(
                "%(error)s; retrying",
                {"error": state.outcome and state.outcome.exception()},
                extra={"code": Code.SWEEP_FAILED},
            ),
        )(self._try, sweeps)

    async def _try(self, sweeps: Sweeps) -> int:
        """One try; `sweeps` has what earlier ones failed at, and takes in what was asked for since."""
        sweeps |= self._pending
        self._pending = {}
        loop = asyncio.get_running_loop()
        began = loop.time()
        deleted = await loop.run_in_executor(self._thread, self._sweeper.sweep, dict(sweeps))
        for family in sorted({family_of(front.address) for front in sweeps}, key=list(Family).index):
            self._observe(family, loop.time() - began, deleted[family])
        return deleted.total()


class Sweeper:
    """The kernel's side of a sweep, in the network namespace of the thread that first sweeps.

    Args:
        rest: called after each answer of the kernel with how many seconds to rest.
    """

    def __init__(self, rest: Callable[[float], object]) -> None:
        self._rest = rest
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def sweep(self, sweeps: Sweeps) -> Counter[Family]:
        """Delete the stale flows of these fronts; the number of entries, by family.

        Raises:
            Unavailable: the kernel does not let us, or not now.  Some entries may have been deleted.
        """
        deleted = Counter[Family]()
        fronts = {_packed(*front): frozenset(_packed(*each) for each in usable) for front, usable in sweeps.items()}
        try:
            listing, deleting = self._sockets = self._sockets or (open_socket(), open_socket())
            for entry in self._entries(listing, fronts):
                if is_stale(entry.destination, entry.reply_source, fronts[entry.destination]):
                    deleted[entry.family] += delete_entry(deleting, entry.family, entry.tuple, entry.id)
        except OSError as error:
            self.close()  # as answers may be waiting
            raise Unavailable(f"stale UDP flows can't be deleted from conntrack: {error.strerror or error}") from error
        return deleted

    def close(self) -> None:
        """Close the sockets, if there are any."""
        for each in self._sockets or ():
            each.close()
        self._sockets = None

    def _entries(self, kernel: socket.socket, fronts: Collection[bytes]) -> Iterator[_Entry]:
        """The entries of UDP flows to these fronts, as the kernel lists them."""
        finders = _finders(fronts)
        kernel.sendto(request(SUBSYSTEM, GET, DUMP, socket.AF_UNSPEC), (0, 0))
        is_done = False
        while not is_done:
            began = time.monotonic()
            data = kernel.recv(ANSWER_SIZE)
            is_of_interest = any(not addresses.isdisjoint(find(data)) for find, addresses in finders)
            for kind, body in messages_of(data):
                is_done = kind == DONE
                if is_of_interest and not is_done and (entry := _entry(body, fronts)) is not None:
                    yield entry
            self._rest(REST * (time.monotonic() - began))


def _packed(address: Address, port: int) -> bytes:
    """An address and port as in an entry: what the address takes, then two bytes."""
    return socket.inet_pton(FAMILY_NUMBER[family_of(address)], address) + port.to_bytes(2, "big")


def _finders(fronts: Iterable[bytes]) -> list[tuple[Callable[[bytes], list[bytes]], set[bytes]]]:
    """For each size of address, what finds all destinations of that size in an answer, and those that are fronts'."""
    addresses: dict[int, set[bytes]] = {}
    for front in fronts:
        addresses.setdefault(len(front) - 2, set()).add(front[:-2])
    return [(_DESTINATIONS[size].findall, held) for size, held in addresses.items()]


_DESTINATIONS = {
    size: re.compile(
        re.escape(ATTRIBUTE.pack(ATTRIBUTE.size + size, DESTINATION[family])) + b"(.{%d})" % size, re.DOTALL
    )
    for size, family in ((4, Family.IPV4), (16, Family.IPV6))
}


class _Entry(NamedTuple):
    """An entry of conntrack; the attributes `tuple` and `id`, as the kernel wrote them, identify it."""

    family: Family
    destination: bytes
    reply_source: bytes
    tuple: bytes
    id: bytes


def _entry(body: bytes, fronts: Collection[bytes]) -> _Entry | None:
    """An entry, if it is of a UDP flow to one of these fronts, in zone 0; most aren't, and are read no further."""
    family = FAMILY_OF_NUMBER[body[0]]
    held: dict[int, bytes] = {}
    for kind, value in attributes_of(body, GENERAL.size):
        held[kind] = value
        if kind == TUPLE_ORIGINAL and _end(value, DESTINATION[family], DESTINATION_PORT) not in fronts:
            return None
    destination = _end(held[TUPLE_ORIGINAL], DESTINATION[family], DESTINATION_PORT)
    reply_source = _end(held[TUPLE_REPLY], SOURCE[family], SOURCE_PORT)
    if ZONE in held or not reply_source:
        return None
    return _Entry(family, destination, reply_source, held[TUPLE_ORIGINAL], held[ID])


def _end(flow: bytes, address: int, port: int) -> bytes:
    """One end of a tuple, address and port by the kinds of these attributes; nothing if it isn't UDP or has a zone."""
    parts = dict(attributes_of(flow))
    protocol = dict(attributes_of(parts[TUPLE_PROTOCOL]))
    if protocol[PROTOCOL] != UDP or TUPLE_ZONE in parts:
        return b""
    return dict(attributes_of(parts[TUPLE_ADDRESSES]))[address] + protocol[port]


def delete_entry(kernel: socket.socket, family: Family, original: bytes, identifier: bytes) -> bool:
    """Delete an entry; False if it has gone meanwhile, even if another flow has its tuple now.

    Args:
        kernel: a netlink socket.
        family: the entry's.
        original: the tuple of its original direction, as the kernel wrote it.
        identifier: its id, as the kernel wrote it.

    Raises:
        OSError: the kernel doesn't do it for another reason.
    """
    attributes = nested(TUPLE_ORIGINAL, original) + attribute(ID, identifier)
    kernel.sendto(request(SUBSYSTEM, DELETE, ACKNOWLEDGE, FAMILY_NUMBER[family], attributes), (0, 0))
    try:
        next(messages_of(kernel.recv(ANSWER_SIZE)))
    except FileNotFoundError:
        return False
    return True
