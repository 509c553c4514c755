"""Large transactions: libnftables compiles the declarations, the elements are bytes of our own, in a single batch.

libnftables takes some 45 bytes of memory for each byte of text: 1.2 GB for a table at the budget of elements.  A batch
takes two.  So long commands of elements are cut out of the text, and libnftables compiles the rest.

* Long deletions come before the compiled messages, and long additions after them.  Every transaction of
  rules/transaction.py has this order: an element is deleted before its chain goes, and added after its set is declared.
* The types of a set are known from its declaration among the compiled messages, or from the kernel.
* The messages of elements are numbered, so an error of the kernel names the message, and its offset the element.
* The batch names no generation, as with libnftables: encoding takes a second for 600,000 elements, and another program
  may commit meanwhile.  If it has declared a set anew, keys of another length are refused.
* In a user namespace net.core.wmem_max limits a socket's messages, to 416 KiB by default before Linux 6.18.  There a
  longer batch goes as several, in the order above: a table that is replaced has a gap, but the rules come.  What is
  compiled is in a single batch, so libnftables.py first divides declarations that don't fit.
"""

from __future__ import annotations

import errno
import re
import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nftproxy.kernel.nfnetlink.element_codec import ElementLayout
from nftproxy.kernel.nfnetlink.sockets import BUFFER_SIZE, make_room
from nftproxy.kernel.nfnetlink.table_view import messages_in
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    ACKNOWLEDGE,
    CODE,
    CREATE,
    ERROR,
    FAMILY_NUMBER,
    FAMILY_OF_NUMBER,
    GENERAL,
    HEADER,
    NESTED,
    Attributes,
    attribute_map,
    nested,
    text_of,
)

LONG = 4096
"""Characters from which on a command of elements goes as bytes, some 90 elements."""
CUT_AFTER = 8192
"""Characters of elements in one message.  They become 7 times as many bytes at most (`::` in a set of IPv6 addresses),
and an attribute's length has 16 bits."""

_HEAD = re.compile(rf"(add|delete) element (ip6?) {TABLE} (\S+) {{ ")
_TAIL = " }\n"
_FAMILIES = {family.value: family for family in Family}
_SEQUENCE = struct.Struct("=I")
_SEQUENCE_OFFSET = 8  # in a message's header
_CAPPED = 0x100  # NLM_F_CAPPED: an error doesn't repeat the whole message
_ERROR_OFFSET = 2  # NLMSGERR_ATTR_OFFS
_OVERHEAD = 32  # bytes of a socket's buffer that no message gets (netlink_sendmsg in net/netlink/af_netlink.c)

Place = tuple[Family, str]
"""A set or map of ours."""


class Failure(NamedTuple):
    """The kernel's error to a batch: its number, and the statement at fault, "" if it isn't known."""

    code: int
    statement: str


class Sending(NamedTuple):
    """The number of commits that sending a batch made, and the error that ended it.  Both if a part was refused."""

    commits: int
    failure: Failure | None


class _Command(NamedTuple):
    """A long command: where in the text its elements begin and end."""

    verb: str
    place: Place
    start: int
    end: int


class _Sent(NamedTuple):
    """A message of elements: its command, where in the text its elements begin and end, and its bytes before these."""

    command: _Command
    start: int
    end: int
    head: int


class CutText(NamedTuple):
    """A transaction's text, the long commands of elements in it, and the rest of it."""

    text: str
    commands: list[_Command]
    rest: str


class LargeBatch:
    """A batch that makes a transaction.

    Args:
        transaction: the transaction, which has long commands.
        compile_text: returns a text's messages as libnftables would send them.
        declaration_of: returns the kernel's declaration of a set or map of ours, or None.

    Attributes:
        rest: the text that libnftables has compiled.

    Raises:
        Unavailable: an element can't be expressed as bytes here, or the text is too long to be compiled so.
        Refused: as `compile_text` does.
    """

    def __init__(
        self,
        transaction: CutText,
        compile_text: Callable[[str], bytes],
        declaration_of: Callable[[Family, str], Attributes | None],
    ) -> None:
        self._text, commands, self.rest = transaction
        self._sent: list[_Sent] = []
        compiled = _compiled(self.rest, compile_text)
        layouts = dict[Place, ElementLayout | None]()
        declared = dict(_declared(compiled))
        for place in dict.fromkeys(each.place for each in commands):
            layouts[place] = _layout(declared.get(place) or declaration_of(*place))
        if left := [each for each in commands if layouts[each.place] is None]:
            self.rest += "".join(map(self._whole, left))
            compiled = _compiled(self.rest, compile_text)
        self._layouts = {place: layout for place, layout in layouts.items() if layout}
        self._data = bytearray()
        self._ends: list[int] = []
        """Where in the data a batch may end: after each message of elements, and after all that is compiled."""
        self._add_elements(commands, "delete")
        for each in compiled:
            self._data += each
        self._ends.append(len(self._data))
        self._add_elements(commands, "add")

    def _whole(self, command: _Command) -> str:
        verb, (family, name) = command.verb, command.place
        return f"{verb} element {family.table} {name} {{ {self._text[command.start : command.end]}{_TAIL}"

    def _add_elements(self, commands: list[_Command], verb: str) -> None:
        for command in commands:
            if command.verb == verb and command.place in self._layouts:
                for start, end in _pieces(self._text, command.start, command.end):
                    self._add_message(command, start, end)

    def _add_message(self, command: _Command, start: int, end: int) -> None:
        family, name = command.place
        kind, flags = (nft.NEW_ELEMENTS, CREATE) if command.verb == "add" else (nft.DELETE_ELEMENTS, 0)
        where, elements = nft.of_set(name), b"".join(self._elements(command, start, end))
        made = nft.request(kind, flags, FAMILY_NUMBER[family], where + nested(nft.LIST_ELEMENTS, elements))
        position = len(self._data)
        self._data += made
        self._sent.append(_Sent(command, start, end, len(made) - len(elements)))
        _SEQUENCE.pack_into(self._data, position + _SEQUENCE_OFFSET, len(self._sent))
        self._ends.append(len(self._data))

    def _elements(self, command: _Command, start: int, end: int) -> Iterator[bytes]:
        element = self._layouts[command.place].element
        for item in self._text[start:end].split(", "):
            key, _, value = item.partition(" : ")
            yield element(key, value if command.verb == "add" else "")

    def send(self, kernel: socket.socket, *, is_trial: bool) -> Sending:
        """Send the batch, and return how many commits that made, with the kernel's first error.

        Args:
            kernel: a socket of libnftables, which doesn't block and asks for extended errors.  If messages have too
                little room in it for what can't be divided, nothing is sent.
            is_trial: change nothing: leave out the end of the batch, without which the kernel prepares everything and
                drops it.
        """
        begin, end = nft.batch_limit(nft.BATCH_BEGIN), b"" if is_trial else nft.batch_limit(nft.BATCH_END)
        limits = len(begin) + len(end)
        make_room(kernel, socket.SO_SNDBUF, len(self._data) + limits)
        room = kernel.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - _OVERHEAD - limits
        parts = [slice(0, len(self._data))] if is_trial else list(self._parts(room))
        if any(each.stop - each.start > room for each in parts):
            return Sending(0, Failure(errno.EMSGSIZE, ""))
        commits = 0
        for each in parts:
            try:
                kernel.sendmsg([begin, memoryview(self._data)[each], end], (), 0, (0, 0))
            except OSError as error:
                return Sending(commits, Failure(error.errno or errno.EIO, ""))
            answer = _first_answer(kernel)
            if failure := self._failure(answer) if answer else None:
                return Sending(commits, failure)
            commits += not is_trial
        return Sending(commits, None)

    def _parts(self, room: int) -> Iterator[slice]:
        """Yield where the messages of each batch are, of up to `room` bytes if the messages permit that."""
        start = stop = 0
        for end in self._ends:
            if end - start > room and stop > start:
                yield slice(start, stop)
                start = stop
            stop = end
        yield slice(start, stop)

    def _failure(self, answer: bytes) -> Failure | None:
        _, kind, flags, _, _ = HEADER.unpack_from(answer)
        code = -CODE.unpack_from(answer, HEADER.size)[0] if kind == ERROR else 0
        if not code:
            return None
        start = HEADER.size + CODE.size
        length, _, _, number, _ = HEADER.unpack_from(answer, start)
        if not number:
            return Failure(code, "")
        more = attribute_map(answer, start + (HEADER.size if flags & _CAPPED else length))
        offset = int.from_bytes(more.get(_ERROR_OFFSET, b""), "little")
        return Failure(code, self._statement(self._sent[number - 1], offset))

    def _statement(self, sent: _Sent, offset: int) -> str:
        """The command with the element at an offset of a message alone."""
        command, position = sent.command, sent.head
        items = self._text[sent.start : sent.end].split(", ")
        found = items[0]
        for item, element in zip(items, self._elements(command, sent.start, sent.end), strict=True):
            if position > offset:
                break
            found, position = item, position + len(element)
        family, name = command.place
        return f"{command.verb} element {family.table} {name} {{ {found} }}"


def cut(text: str) -> CutText:
    """Cut the long commands of elements out of a transaction."""
    commands: list[_Command] = []
    rest: list[str] = []
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        head = _HEAD.match(text, start) if end - start >= LONG else None
        if head:
            verb, family, name = head.groups()
            commands.append(_Command(verb, (_FAMILIES[family], name), head.end(), end - len(_TAIL)))
        else:
            rest.append(text[start:end])
        start = end
    return CutText(text, commands, "".join(rest))


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the places in a text at which the elements of each message begin and end."""
    while start < end:
        comma = text.find(", ", start + CUT_AFTER, end)
        stop = end if comma < 0 else comma
        yield start, stop
        start = stop + len(", ")


def _compiled(text: str, compile_text: Callable[[str], bytes]) -> list[bytes]:
    """The messages of a text, without the limits of the batch, and all with the number 0."""
    found = []
    for each in messages_in(compile_text(text)) if text else ():
        length, kind, flags, _, port = HEADER.unpack_from(each)
        if kind not in (nft.BATCH_BEGIN, nft.BATCH_END):
            found.append(HEADER.pack(length, kind, flags & ~ACKNOWLEDGE, 0, port) + each[HEADER.size :])
    return found


def _declared(compiled: list[bytes]) -> Iterator[tuple[Place, Attributes]]:
    """The declarations of sets and maps among messages."""
    for each in compiled:
        _, kind, _, _, _ = HEADER.unpack_from(each)
        if kind == nft.SUBSYSTEM << 8 | nft.NEW_SET:
            held = attribute_map(each, HEADER.size + GENERAL.size)
            yield (FAMILY_OF_NUMBER[each[HEADER.size]], text_of(held[nft.SET_NAME])), held


def _layout(declared: Attributes | None) -> ElementLayout | None:
    """The layout of a set's elements, None if libnftables must compile them: the set has ranges, or isn't declared."""
    try:
        return ElementLayout(declared, NESTED) if declared else None
    except Unavailable:
        return None


def _first_answer(kernel: socket.socket) -> bytes:
    """The first answer to a batch, nothing if there is none.  No answer stays unread.  Some may not have found room."""
    first = b""
    while True:
        try:
            answer = kernel.recv(BUFFER_SIZE)
            first = first or answer
        except BlockingIOError:
            return first
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
