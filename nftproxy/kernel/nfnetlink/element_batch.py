"""Transactions of elements alone, as netlink messages of our own.

Nearly every change in a cluster is such a transaction.  Before each transaction libnftables requests all tables,
chains, sets and more: thirteen requests with their answers, which take longer than the kernel's own work.  Here

* a transaction is one message to the kernel and one answer. Its text is parsed line by line, in the single form that
  rules/transaction.py writes.
* The kernel is asked once for the types of each set or map. The answer is cached until another program commits: each
  batch names its generation, and the kernel refuses it in any other.
* Unknown statements (a declaration, a chain, a range of addresses, another type) are left to libnftables. So are
  refused transactions, as libnftables says which statement is at fault. In both cases nothing has happened.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nftproxy.kernel.nfnetlink.element_codec import ElementLayout
from nftproxy.kernel.nfnetlink.nft_queries import declaration_of, generation_by
from nftproxy.kernel.nfnetlink.sockets import BUFFER_SIZE
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import CREATE, FAMILY_NUMBER, NESTED, messages_of, nested
from nftproxy.rules.transaction import Commit

MOST_CHARACTERS = 64 * 1024
"""A longer text, some 1,500 elements, is left to libnftables.  Python would hold its own lock for more than 10 ms, in
which nothing else could be rendered.
"""

LONGEST_LIST = 48 * 1024
"""Bytes of elements in one message.  An attribute's length has 16 bits."""

ATTEMPTS = 2  # the second after another program's commit
WRONG_GENERATION = errno.ERESTART  # nfnetlink_rcv_batch in net/netfilter/nfnetlink.c

_COMMAND = re.compile(rf"(add|delete) element (ip6?) {TABLE} (\S+) {{ (.+) }}")
_FAMILIES = {family.table: family for family in Family}


class ElementCommand(NamedTuple):
    """Elements to add to a set or map, or to delete."""

    is_new: bool
    family: Family
    container: str
    elements: list[str]


class ElementWriter:
    """Executes transactions of elements alone, by a socket that stays open (`open_socket`).

    The socket becomes non-blocking: the kernel has answered when sending returns.
    """

    def __init__(self, kernel: socket.socket) -> None:
        kernel.setblocking(False)
        self._kernel = kernel
        self._generation: int | None = None
        self._layouts: dict[tuple[Family, str], ElementLayout] = {}

    def invalidate(self) -> None:
        """Forget the types and the generation, after another commit."""
        self._generation = None
        self._layouts.clear()

    def apply(self, text: str) -> Commit | None:
        """Execute a transaction as a whole.  Return the generations around it, or None if nothing has happened.

        Raises:
            OSError: the kernel's answer was lost, so the outcome is unknown. The socket can't be used again.
            Unavailable: the same.
        """
        commands = commands_of(text)
        if not commands:
            return None
        for _ in range(ATTEMPTS):
            if self._generation is None:
                self._generation = generation_by(self._kernel)
            before = self._generation
            try:
                messages = [message for command in commands for message in self._messages(command)]
            except Unavailable:
                return None
            code = self._send(nft.batch(messages, before))
            if not code:
                self._generation = before + 1
                return Commit(before, self._generation)
            self.invalidate()
            if code != WRONG_GENERATION:
                return None
        return None

    def _send(self, data: bytes) -> int:
        """Send a batch, and return the first error of the kernel, 0 for success.

        The kernel executes the batch and queues all answers before sending returns.  A batch beyond
        net.core.wmem_default isn't sent: very short IPv6 addresses become five times as many bytes.
        """
        try:
            self._kernel.sendto(data, (0, 0))
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            return error.errno
        code = _error(self._kernel.recv(BUFFER_SIZE))
        with contextlib.suppress(BlockingIOError):
            while code:  # after a success, which comes last, there is nothing to read
                self._kernel.recv(BUFFER_SIZE)
        return code

    def _messages(self, command: ElementCommand) -> Iterator[bytes]:
        """Yield the messages of one command, each with as many elements as fit."""
        layout = self._layout(command.family, command.container)
        kind, flags = (nft.NEW_ELEMENTS, CREATE) if command.is_new else (nft.DELETE_ELEMENTS, 0)
        where, family = nft.of_set(command.container), FAMILY_NUMBER[command.family]
        elements = []
        for text in command.elements:
            key, _, value = text.partition(" : ")
            elements.append(layout.element(key, value if command.is_new else ""))
        for piece in _pieces(elements):
            yield nft.request(kind, flags, family, where + nested(nft.LIST_ELEMENTS, piece))

    def _layout(self, family: Family, container: str) -> ElementLayout:
        layout = self._layouts.get((family, container))
        if layout is None:
            declared = declaration_of(self._kernel, family, container)
            if declared is None:
                raise Unavailable(f"there is no {container}")
            layout = self._layouts[family, container] = ElementLayout(declared, NESTED)
        return layout


def commands_of(text: str) -> list[ElementCommand]:
    """Return the commands of a transaction, none if it has any other statement or is too long."""
    if len(text) > MOST_CHARACTERS:
        return []
    found = []
    for line in text.splitlines():
        match = _COMMAND.fullmatch(line)
        if match is None:
            return []
        verb, family, container, elements = match.groups()
        found.append(ElementCommand(verb == "add", _FAMILIES[f"{family} {TABLE}"], container, elements.split(", ")))
    return found


def _pieces(elements: Iterable[bytes]) -> Iterator[bytes]:
    """Yield all elements, as many together as fit into one message."""
    piece, size = list[bytes](), 0
    for element in elements:
        if size + len(element) > LONGEST_LIST:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(element)
        size += len(element)
    yield b"".join(piece)


def _error(answer: bytes) -> int:
    """Return the error number of an answer, 0 for success."""
    try:
        list(messages_of(answer))
    except OSError as error:
        return error.errno or 0
    return 0
