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
from nftproxy.kernel.netlink import (
    ACKNOWLEDGE,
    ATTRIBUTE,
    FAMILY_NUMBER,
    attribute,
    messages_of,
    named,
    nested,
    number_of,
    request,
)
from nftproxy.kernel.nftables_netlink import (
    BUFFER_SIZE,
    CREATE,
    DATA_VALUE,
    DATA_VERDICT,
    DELETE_ELEMENTS,
    ELEMENT_DATA,
    ELEMENT_KEY,
    GET_SET,
    INTERVAL,
    LIST_ELEMENT,
    LIST_ELEMENTS,
    LIST_SET,
    LIST_TABLE,
    NEW_ELEMENTS,
    SET_DATA_LENGTH,
    SET_DATA_TYPE,
    SET_FLAGS,
    SET_KEY_LENGTH,
    SET_KEY_TYPE,
    SET_NAME,
    SET_TABLE,
    SUBSYSTEM,
    VERDICT_CHAIN,
    VERDICT_CODE,
    VERDICTS,
    Attributes,
    batch,
    exchange,
)
from nftproxy.kernel.set_keys import point, types_of
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import Commit

MOST_CHARACTERS = 64 * 1024
"""A longer text is left to libnftables: some 1,500 elements.  Python would hold its own lock for longer than 10 ms, in
which nothing else could be rendered."""

LONGEST_LIST = 48 * 1024
"""Bytes of elements in one message, which an attribute's length of 16 bits must hold."""

KEY_START = 3 * ATTRIBUTE.size
"""Where the key stands in an element: in its value, in the key, in the element."""

ATTEMPTS = 2  # the second one with what the kernel holds after another program's commit
WRONG_GENERATION = errno.ERESTART  # nfnetlink_rcv_batch in net/netfilter/nfnetlink.c
VERDICT_TYPE = 0xFFFFFF00  # NFT_DATA_VERDICT
CODES = {word: code.to_bytes(4, "big", signed=True) for code, word in VERDICTS.items()}

_COMMAND = re.compile(rf"(add|delete) element (ip6?) {TABLE} (\S+) {{ (.+) }}")
_FAMILIES = {family.table: family for family in Family}


class Command(NamedTuple):
    """Elements that come into a set or map, or go."""

    is_new: bool
    family: Family
    container: str
    elements: list[str]


class _Layout:
    """Which bytes the elements of a set or map are; raises Unavailable if that isn't known here."""

    def __init__(self, declared: Attributes) -> None:
        if number_of(declared.get(SET_FLAGS, b"")) & INTERVAL:
            raise Unavailable("ranges are left to libnftables")
        self._key_types = types_of(number_of(declared[SET_KEY_TYPE]))
        self._key_length = number_of(declared[SET_KEY_LENGTH])
        data_type = number_of(declared.get(SET_DATA_TYPE, b""))
        self._data_types = [] if data_type == VERDICT_TYPE else types_of(data_type)
        self._data_length = number_of(declared.get(SET_DATA_LENGTH, b""))
        self._deleted = self._frame(b"")
        data = _value(ELEMENT_DATA, bytes(self._data_length))
        self._added = self._frame(data)
        self._data_start = len(self._added[1]) - len(data) + 2 * ATTRIBUTE.size

    def _frame(self, data: bytes) -> tuple[bytes, bytes]:
        """What is before and after the key of each element; all have the same length."""
        whole = nested(LIST_ELEMENT, _value(ELEMENT_KEY, bytes(self._key_length)) + data)
        return whole[:KEY_START], whole[KEY_START + self._key_length :]

    def element(self, text: str, *, has_data: bool) -> bytes:
        """An element as an attribute; to delete one its key is enough."""
        text, _, value = text.partition(" : ")
        key = point(text, self._key_types, self._key_length)
        if not has_data or not value:
            before, after = self._deleted
            return before + key + after
        if not self._data_types:
            return nested(LIST_ELEMENT, _value(ELEMENT_KEY, key) + _verdict(value))
        before, after = self._added
        data = point(value, self._data_types, self._data_length)
        return b"".join([before, key, after[: self._data_start], data, after[self._data_start + len(data) :]])


class ElementWriter:
    """Makes transactions of elements alone happen, by a socket that stays open (`netlink.open_socket`).

    That doesn't wait any more: the kernel has answered whenever sending returns.
    """

    def __init__(self, kernel: socket.socket) -> None:
        kernel.setblocking(False)
        self._kernel = kernel
        self._generation: int | None = None
        self._layouts: dict[tuple[Family, str], _Layout] = {}

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
        elements = (layout.element(each, has_data=command.is_new) for each in command.elements)
        for piece in _pieces(elements):
            yield request(SUBSYSTEM, kind, flags, FAMILY_NUMBER[command.family], where + nested(LIST_ELEMENTS, piece))

    def _layout(self, family: Family, container: str) -> _Layout:
        layout = self._layouts.get((family, container))
        if layout is None:
            wanted = named(SET_TABLE, TABLE) + named(SET_NAME, container)
            try:
                declared = exchange(self._kernel, GET_SET, FAMILY_NUMBER[family], wanted, ACKNOWLEDGE)
            except FileNotFoundError as error:
                raise Unavailable(f"there is no {container}") from error
            layout = self._layouts[family, container] = _Layout(declared[0])
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


def _verdict(value: str) -> bytes:
    word, _, chain = value.partition(" ")
    if word not in CODES or not chain:
        raise Unavailable(f"the verdict {value} is not known here")
    verdict = attribute(VERDICT_CODE, CODES[word]) + named(VERDICT_CHAIN, chain)
    return nested(ELEMENT_DATA, nested(DATA_VERDICT, verdict))


def _value(kind: int, data: bytes) -> bytes:
    return nested(kind, attribute(DATA_VALUE, data))


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
