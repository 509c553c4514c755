"""Transactions of elements alone, as netlink messages of our own.

Nearly every change in a cluster is such a transaction.  Before libnftables sends one, it asks the kernel for all
tables, chains, sets and more, whatever the transaction is about: thirteen requests with their answers, which take
longer than the kernel's own work.  Here

* a transaction is one message to the kernel and one answer.  The text says what happens, as everywhere: it is read line
  by line, in the one form that rules/transaction.py writes.
* The kernel is asked once for each set or map which bytes its keys and values are.  What it answered holds as long as
  nobody else commits anything: each batch names the generation that it is for, and the kernel takes it in no other.
* Whatever isn't known here (a declaration, a chain, a range of addresses, another type) is left to libnftables, and so
  is what the kernel refuses, as libnftables says which statement is at fault.  In both cases nothing has happened.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nftproxy.kernel import nftables_netlink
from nftproxy.kernel.element_layout import Layout, declaration_of
from nftproxy.kernel.netlink import FAMILY_NUMBER, NESTED, messages_of, named, nested, request
from nftproxy.kernel.nftables_netlink import (
    BUFFER_SIZE,
    CREATE,
    DELETE_ELEMENTS,
    LIST_ELEMENTS,
    LIST_SET,
    LIST_TABLE,
    NEW_ELEMENTS,
    SUBSYSTEM,
    batch,
)
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import Commit

MOST_CHARACTERS = 64 * 1024
"""A longer text is left to libnftables: some 1,500 elements.  Python would hold its own lock for longer than 10 ms, in
which nothing else could be rendered."""

LONGEST_LIST = 48 * 1024
"""Bytes of elements in one message, which an attribute's length of 16 bits must hold."""

ATTEMPTS = 2  # the second one with what the kernel holds after another program's commit
WRONG_GENERATION = errno.ERESTART  # nfnetlink_rcv_batch in net/netfilter/nfnetlink.c

_COMMAND = re.compile(rf"(add|delete) element (ip6?) {TABLE} (\S+) {{ (.+) }}")
_FAMILIES = {family.table: family for family in Family}


class Command(NamedTuple):
    """Elements that come into a set or map, or go."""

    is_new: bool
    family: Family
    container: str
    elements: list[str]


class ElementWriter:
    """Makes transactions of elements alone happen, by a socket that stays open (`netlink.open_socket`).

    That doesn't wait any more: the kernel has answered whenever sending returns.
    """

    def __init__(self, kernel: socket.socket) -> None:
        kernel.setblocking(False)
        self._kernel = kernel
        self._generation: int | None = None
        self._layouts: dict[tuple[Family, str], Layout] = {}

    def forget(self) -> None:
        """Ask the kernel again: something else has been committed."""
        self._generation = None
        self._layouts.clear()

    def apply(self, text: str) -> Commit | None:
        """Make a transaction happen as a whole, and return the generations around it; None if nothing has happened.

        Raises:
            OSError: the kernel's answer was lost, and so whether it happened; the socket is of no use any more.
            Unavailable: the same.
        """
        commands = commands_of(text)
        if not commands:
            return None
        for _ in range(ATTEMPTS):
            if self._generation is None:
                self._generation = nftables_netlink.generation_by(self._kernel)
            before = self._generation
            try:
                messages = [message for command in commands for message in self._messages(command)]
            except Unavailable:
                return None
            code = self._send(batch(messages, before))
            if not code:
                self._generation = before + 1
                return Commit(before, self._generation)
            self.forget()
            if code != WRONG_GENERATION:
                return None
        return None

    def _send(self, data: bytes) -> int:
        """Send a batch; the first error that the kernel answers with, 0 if it has happened.

        The kernel does all of it, and queues all answers, before sending returns.
        """
        self._kernel.sendto(data, (0, 0))
        answers = [self._kernel.recv(BUFFER_SIZE)]
        while True:
            try:
                answers.append(self._kernel.recv(BUFFER_SIZE))
            except BlockingIOError:
                break
        return next(filter(None, map(_error, answers)), 0)

    def _messages(self, command: Command) -> Iterator[bytes]:
        """The messages of one command, each of which has as many elements as it may."""
        layout = self._layout(command.family, command.container)
        kind, flags = (NEW_ELEMENTS, CREATE) if command.is_new else (DELETE_ELEMENTS, 0)
        where = named(LIST_TABLE, TABLE) + named(LIST_SET, command.container)
        items = (text.partition(" : ") for text in command.elements)
        elements = (layout.element(key, value if command.is_new else "") for key, _, value in items)
        for piece in _pieces(elements):
            yield request(SUBSYSTEM, kind, flags, FAMILY_NUMBER[command.family], where + nested(LIST_ELEMENTS, piece))

    def _layout(self, family: Family, container: str) -> Layout:
        layout = self._layouts.get((family, container))
        if layout is None:
            declared = declaration_of(self._kernel, family, container)
            if declared is None:
                raise Unavailable(f"there is no {container}")
            layout = self._layouts[family, container] = Layout(declared, NESTED)
        return layout


def commands_of(text: str) -> list[Command]:
    """The commands of a transaction; none if one of them is about anything but elements, or they are too many."""
    if len(text) > MOST_CHARACTERS:
        return []
    found = []
    for line in text.splitlines():
        match = _COMMAND.fullmatch(line)
        if match is None:
            return []
        verb, family, container, elements = match.groups()
        found.append(Command(verb == "add", _FAMILIES[f"{family} {TABLE}"], container, elements.split(", ")))
    return found


def _pieces(elements: Iterable[bytes]) -> Iterator[bytes]:
    """All elements, as many together as fit into one message."""
    piece, size = list[bytes](), 0
    for element in elements:
        if size + len(element) > LONGEST_LIST:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(element)
        size += len(element)
    yield b"".join(piece)


def _error(answer: bytes) -> int:
    """The number of the error that an answer says, 0 for success."""
    try:
        list(messages_of(answer))
    except OSError as error:
        return error.errno or 0
    return 0
