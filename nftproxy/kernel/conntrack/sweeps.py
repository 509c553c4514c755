"""Delete stale entries from connection tracking, over ctnetlink and off the event loop.

Stale are flows of UDP and SCTP, and flows without an answer (flows.py says which), and TCP connections to addresses
that are gone (gone_addresses.py).  The kernel lists all its entries, and each stale entry is deleted by its tuple and
its id.  So no other entry is touched, and memory is bounded by the size of one answer.  With a million entries, nothing
may block:

* The kernel holds a CPU, interrupts included, until an answer is full. So answers are small and nothing is filtered in
  the kernel, which would walk the whole table of all network namespaces for one answer (0.2 s for a million entries).
  For the same reason one listing serves both families.
* The thread rests after each answer, in proportion to the time that the answer took.
* Sockets stay open. Closing a socket holds the lock of all nftables commits until the garbage of an earlier commit is
  freed, which waits for every CPU: 20 ms beside a sweep (tried with 6.18).
* Each answer is first searched for our addresses. Most answers have none, and aren't parsed.

Only zone 0 is ours: entries in other zones belong to other programs, and their packets pass other rules.

The kernel answers for the network namespace of the thread that makes the socket.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import tenacity

from nftproxy.kernel.nfnetlink.modules import reason
from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.kernel.threads import NotedThreads
from nftproxy.logs import warn
from nftproxy.model.addresses import Address, Family, Protocol, family_of
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_conntrack as ct
from nftproxy.netlink.codec import (
    ACKNOWLEDGE,
    ADDRESS_SIZE,
    DONE,
    DUMP,
    FAMILY_NUMBER,
    FAMILY_OF_NUMBER,
    GENERAL,
    Attributes,
    attribute,
    attribute_map,
    attribute_pattern,
    attributes_of,
    messages_of,
    nested,
    request,
)
from nftproxy.policy.flows import AddressPort, Flow, Sweeps, Unanswered, is_stale

TCP, UDP, SCTP = (bytes([number]) for number in (socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_SCTP))
NUMBERS = {Protocol.TCP: TCP, Protocol.UDP: UDP, Protocol.SCTP: SCTP}

ANSWER_SIZE = 1 << 13
"""Bytes of an answer, which the kernel fills before it does anything else: 35 entries, in 0.05 ms."""
REST = 3.0
"""The thread rests after each answer for this many times as long as the answer took.

However fast endpoints change, sweeps take a quarter of a CPU.  A sweep among a million entries takes 5 s then.
"""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds of backoff after a failure: the first pause and the longest (as for loads of rules)."""


class SweepQueue:
    """Sweeps stale entries, one sweep at a time, in a thread of its own, in the namespace of the first caller's thread.

    Args:
        observe: called after each sweep for each family that had fronts, with the seconds and the numbers of deleted
            UDP and TCP entries.
    """

    def __init__(self, observe: Callable[[Family, float, int, int], object] = lambda *_: None) -> None:
        self._observe = observe
        self._pending: Sweeps = {}
        self._is_sweeping = False
        self._is_closing = threading.Event()
        self._sweeper = Sweeper(self._is_closing.wait)
        self._tasks: set[asyncio.Task[int]] = set()
        self._thread = NotedThreads("conntrack", 1)

    def schedule(self, sweeps: Sweeps) -> None:
        """Start a sweep in the background."""
        task = asyncio.create_task(self.sweep(sweeps))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def sweep(self, sweeps: Sweeps) -> int:
        """Delete the stale entries of these fronts, with retries, and return the number of deleted entries.

        During another sweep this returns 0 at once, and that sweep goes on with these fronts when it is done.  If a
        front is asked for again before its turn, or after a failure, the latest endpoints count.
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
        """Cancel the scheduled sweeps, and end the thread after its present sweep, which no longer rests."""
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
            before_sleep=lambda state: warn(
                Code.SWEEP_FAILED, "%(error)s; retrying", error=state.outcome and state.outcome.exception()
            ),
        )(self._try, sweeps)

    async def _try(self, sweeps: Sweeps) -> int:
        """Sweep once.  `sweeps` has the fronts of failed attempts, and this adds the fronts that are due since then."""
        sweeps |= self._pending
        self._pending = {}
        loop = asyncio.get_running_loop()
        began = loop.time()
        deleted = await loop.run_in_executor(self._thread, self._sweeper.sweep, dict(sweeps))
        for family in sorted({family_of(front.address) for front in sweeps}, key=list(Family).index):
            self._observe(family, loop.time() - began, deleted[family, False], deleted[family, True])
        return deleted.total()


class Sweeper:
    """The kernel's side of a sweep, in the network namespace of the thread that first sweeps.

    Args:
        rest: called after each answer of the kernel with the seconds to rest.
    """

    def __init__(self, rest: Callable[[float], object]) -> None:
        self._rest = rest
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def sweep(self, sweeps: Sweeps) -> Counter[tuple[Family, bool]]:
        """Delete the stale entries of these fronts.

        Return their numbers by family, and whether they were TCP connections to addresses that are gone.

        Raises:
            Unavailable: the kernel denies it or fails. Some entries may have been deleted.
        """
        deleted = Counter[tuple[Family, bool]]()
        fronts = {_packed(*front): front for front in sweeps if isinstance(front, AddressPort)}
        unanswered = {_packed(*each.front) for each in sweeps if isinstance(each, Unanswered)}
        try:
            listing, deleting = self._sockets = self._sockets or (open_socket(), open_socket())
            for entry in self._entries(listing, fronts.keys() | unanswered):
                front = fronts.get(entry.destination)
                is_lost = front is not None and is_stale(front, _flow(entry, front.protocol), sweeps[front])
                if is_lost or (entry.destination in unanswered and not entry.is_answered):
                    was_there = delete_entry(deleting, entry.family, entry.tuple, entry.id)
                    deleted[entry.family, is_lost and front is not None and front.protocol is Protocol.TCP] += was_there
        except OSError as error:
            self.close()  # as answers may be waiting
            why = reason(error, "nf_conntrack_netlink")
            raise Unavailable(f"stale entries can't be deleted from conntrack: {why}") from error
        return deleted

    def close(self) -> None:
        """Close the sockets, if there are any."""
        for each in self._sockets or ():
            each.close()
        self._sockets = None

    def _entries(self, kernel: socket.socket, fronts: Collection[bytes]) -> Iterator[_TrackedFlow]:
        """The entries of flows to these fronts, as the kernel lists them."""
        finders = _finders(fronts)
        kernel.sendto(request(ct.SUBSYSTEM, ct.GET, DUMP, socket.AF_UNSPEC), (0, 0))
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


def _packed(address: Address, port: int, protocol: Protocol) -> bytes:
    """Return a front as `_end` finds it in an entry: the bytes of the address, of the port, and of the protocol."""
    packed = socket.inet_pton(FAMILY_NUMBER[family_of(address)], address)
    return packed + port.to_bytes(2, "big") + NUMBERS[protocol]


def _flow(entry: _TrackedFlow, protocol: Protocol) -> Flow:
    source, endpoint, seen_source = (
        Address(socket.inet_ntop(FAMILY_NUMBER[entry.family], end[:-3]))
        for end in (entry.source, entry.reply_source, entry.reply_destination)
    )
    return Flow(AddressPort(endpoint, int.from_bytes(entry.reply_source[-3:-1], "big"), protocol), source, seen_source)


def _finders(fronts: Iterable[bytes]) -> list[tuple[Callable[[bytes], list[bytes]], set[bytes]]]:
    """Return for each address size a function that finds the destinations in an answer, and the fronts' addresses."""
    addresses: dict[int, set[bytes]] = {}
    for front in fronts:
        addresses.setdefault(len(front) - 3, set()).add(front[:-3])
    return [(_DESTINATIONS[size].findall, held) for size, held in addresses.items()]


_DESTINATIONS = {
    size: re.compile(attribute_pattern(size, ct.DESTINATION[family]) + b"(.{%d})" % size, re.DOTALL)
    for family, size in ADDRESS_SIZE.items()
}


class _TrackedFlow(NamedTuple):
    """An entry of conntrack.  The attributes `tuple` and `id`, as the kernel wrote them, identify it."""

    family: Family
    source: bytes
    destination: bytes
    reply_source: bytes
    reply_destination: bytes
    is_answered: bool
    tuple: bytes
    id: bytes


def _entry(body: bytes, fronts: Collection[bytes]) -> _TrackedFlow | None:
    """Return the entry if it is a flow to one of these fronts in zone 0.  Most aren't, and parsing stops early."""
    family = FAMILY_OF_NUMBER[body[0]]
    held: Attributes = {}
    for kind, value in attributes_of(body, GENERAL.size):
        held[kind] = value
        if kind == ct.TUPLE_ORIGINAL and _end(value, ct.DESTINATION[family], ct.DESTINATION_PORT) not in fronts:
            return None
    source, destination, reply_source, reply_destination = (
        _end(held[kind], attributes[family], port)
        for kind in (ct.TUPLE_ORIGINAL, ct.TUPLE_REPLY)
        for attributes, port in ((ct.SOURCE, ct.SOURCE_PORT), (ct.DESTINATION, ct.DESTINATION_PORT))
    )
    if ct.ZONE in held or not reply_source:
        return None
    is_answered = bool(int.from_bytes(held[ct.STATUS], "big") & ct.SEEN_REPLY)
    ends = source, destination, reply_source, reply_destination
    return _TrackedFlow(family, *ends, is_answered, held[ct.TUPLE_ORIGINAL], held[ct.ID])


def _end(flow: bytes, address: int, port: int) -> bytes:
    """Return the address, port and protocol of one end of a tuple, nothing if it has another protocol or a zone."""
    parts = attribute_map(flow)
    protocol = attribute_map(parts[ct.TUPLE_PROTOCOL])
    if protocol[ct.PROTOCOL] not in (TCP, UDP, SCTP) or ct.TUPLE_ZONE in parts:
        return b""
    return attribute_map(parts[ct.TUPLE_ADDRESSES])[address] + protocol[port] + protocol[ct.PROTOCOL]


def delete_entry(kernel: socket.socket, family: Family, original: bytes, identifier: bytes) -> bool:
    """Delete an entry.  Return False if it is gone, even if another flow has its tuple now.

    Args:
        kernel: a netlink socket.
        family: the entry's family.
        original: the tuple of its original direction, as the kernel wrote it.
        identifier: its id, as the kernel wrote it.

    Raises:
        OSError: the kernel refuses for another reason.
    """
    attributes = nested(ct.TUPLE_ORIGINAL, original) + attribute(ct.ID, identifier)
    kernel.sendto(request(ct.SUBSYSTEM, ct.DELETE, ACKNOWLEDGE, FAMILY_NUMBER[family], attributes), (0, 0))
    try:
        next(messages_of(kernel.recv(ANSWER_SIZE)))
    except FileNotFoundError:
        return False
    return True
