"""The kernel's tables as libnftables sees them: ours alone.

Before each transaction libnftables reads the tables, chains and sets of all programs, and it crashes on some sets of a
newer nft (1.0.6 and 1.1.3: SIGSEGV).  No option prevents that.  So another socket takes the place of its netlink socket
meanwhile.  A thread of this process receives the requests, sends them to the kernel, and removes other programs'
objects from the answers.

* libnftables asks for the ruleset's generation before and after its other requests.  At the second question its netlink
  socket is put back.  So the kernel itself receives the transaction, of any size, and libnftables explains errors.
* The generations are made up, also in the messages of an answer.  Each run has another generation.  So libnftables
  never reuses what it has read before, and every run has both questions.
* If libnftables sends a transaction earlier, the transaction is dropped, and `run` raises an error.
* `compile` doesn't put the netlink socket back, so the thread receives the transaction, and the kernel doesn't.

The socket in that place belongs to a pair of the kind SOCK_SEQPACKET, which ignores the address that libmnl sends to.
libmnl checks that the sender's address is as long as a netlink address, so the other socket of the pair is bound to an
address of that length.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from nftproxy.kernel.nfnetlink.sockets import (
    ANSWER_SECONDS,
    BUFFER_SIZE,
    NETLINK_NETFILTER,
    SOL_NETLINK,
    answers,
    make_room,
)
from nftproxy.model.addresses import TABLE
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    CODE,
    DONE,
    DUMP_INTERRUPTED,
    ERROR,
    FAMILY_OF_NUMBER,
    GENERAL,
    HEADER,
    aligned,
    attribute,
    attributes_of,
    text_of,
)

EXTENDED_ERRORS = 11  # NETLINK_EXT_ACK, which libnftables turns on
THREAD_NAME = "libnftables"
REQUEST_SIZE = 4096  # bytes; a request names a table and a set at most
COMPILED_SIZE = 8 << 20  # bytes; a socket pair takes messages of some 4 MiB at most
ADDRESS_SIZE = 12  # bytes of struct sockaddr_nl
FAMILY_SIZE = 2  # bytes of it that are the family of addresses
GENERATIONS = range(1, 1 << 16)  # libnftables compares 16 bits, and 0 is no generation
QUESTIONS = 2  # about the generation
BRIEFLY = 20e-6  # seconds
ATTEMPTS = 50  # at an answer that other programs' commits interrupt

Nftables = Any  # the binding has no annotations

_one_at_a_time = threading.Lock()


class TableView:
    """A context of libnftables that sees only our tables.

    Args:
        binding: makes the context.

    Attributes:
        context: the context.
        kernel: its netlink socket, which doesn't block.
        is_limited: whether the kernel takes shorter messages only than `COMPILED_SIZE`, as in a user namespace.

    Raises:
        OSError: there is no such library, or the process has no file descriptors left.
    """

    def __init__(self, binding: Callable[[], Nftables]) -> None:
        with contextlib.ExitStack() as stack, _one_at_a_time:
            before = _sockets_of_libnftables()
            self.context = binding()
            made = _sockets_of_libnftables() - before
            if len(made) != 1:
                raise OSError(errno.EBADF, "the netlink socket of libnftables can't be found")
            ((self._number, _),) = made
            self.kernel = stack.enter_context(socket.socket(fileno=os.dup(self._number)))
            # libnftables itself can't in a user namespace, and two tables may exceed net.core.wmem_default.
            make_room(self.kernel, socket.SO_SNDBUF, COMPILED_SIZE)
            self.is_limited = self.kernel.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < COMPILED_SIZE
            self._library, self._near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(self._library)
            stack.enter_context(self._near)
            make_room(self._library, socket.SO_SNDBUF, COMPILED_SIZE // 2)
            self._near.bind(b"\0" + secrets.token_bytes(ADDRESS_SIZE - FAMILY_SIZE - 1))
            self._generations = itertools.cycle(GENERATIONS)
            self._generation = 0
            self._questions = 0
            self._is_compiling = False
            self._compiled = queue.SimpleQueue[bytes]()
            self._failure: Exception | None = None
            self._thread = threading.Thread(target=self._serve, name=THREAD_NAME, daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, "no thread can be started") from error
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, call: Callable[[Nftables], tuple[int, str, str]], *, reads_tables: bool = True
    ) -> tuple[int, str, str]:
        """Call a function of the context, and return its result.

        Args:
            call: makes libnftables execute commands.
            reads_tables: False if libnftables needs no table for these commands.

        Raises:
            Unavailable: libnftables could not read the tables, and nothing has happened.
        """
        if not reads_tables:
            return call(self.context)
        self._generation = next(self._generations)
        self._questions = 0
        self._drop_unread()
        os.dup2(self._library.fileno(), self._number, inheritable=False)
        try:
            result = call(self.context)
        finally:
            os.dup2(self.kernel.fileno(), self._number, inheritable=False)
        if self._failure is not None:
            raise Unavailable(f"the kernel's tables can't be read: {self._failure}") from self._failure
        code, _, _ = result
        if not code and self._questions < QUESTIONS:
            raise Unavailable("libnftables has made a transaction before it has read the tables, and nothing happened")
        return result

    def compile(self, call: Callable[[Nftables], tuple[int, str, str]]) -> tuple[tuple[int, str, str], bytes]:
        """As `run`, but the kernel doesn't receive the transaction.  It is returned beside the result.

        There is none if the result is a failure.  A transaction of more than some 4 MiB fails.

        Raises:
            Unavailable: as `run` does, or libnftables has sent no transaction.
        """
        self._compiled = queue.SimpleQueue()
        self._is_compiling = True
        try:
            result = self.run(call)
            return result, b"" if result[0] else self._compiled.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise Unavailable("libnftables has sent no transaction") from None
        finally:
            self._is_compiling = False

    def close(self) -> None:
        """End the thread, and close all descriptors except the context's own."""
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:  # garbage is collected in any thread
            self._thread.join()
        self._stack.close()

    def _serve(self) -> None:
        """Answer requests until `close`."""
        with contextlib.suppress(OSError):  # closed
            while request := self._near.recv(COMPILED_SIZE if self._is_compiling else REQUEST_SIZE):
                try:
                    self._answer(request)
                except Exception as error:  # noqa: BLE001  # libnftables would wait for an answer forever
                    self._failure = error
                    self._near.shutdown(socket.SHUT_RDWR)

    def _answer(self, request: bytes) -> None:
        _, kind, _, sequence, _ = HEADER.unpack_from(request)
        if kind == nft.SUBSYSTEM << 8 | nft.GET_GENERATION:
            self._questions += 1
            self._near.send(_generation_message(self._generation, sequence))
            if self._questions == QUESTIONS and not self._is_compiling:
                self._put_back()
            self._near.send(_end(sequence))
        elif self._is_compiling and kind == nft.BATCH_BEGIN:
            self._compiled.put(request)
        elif kind >> 8 == nft.SUBSYSTEM:  # else a transaction
            for part in self._asked(request):
                if kept := ours_of(part, self._generation):
                    self._near.send(kept)

    def _put_back(self) -> None:
        """Put the netlink socket back after libnftables has received the generation, and before it gets the end.

        If libnftables already waits at our socket, it reads the end of the answer there.  If not, it finds nothing more
        at the netlink socket, which doesn't block, and takes that for the end as usual.
        """
        while self._has_unread():
            time.sleep(BRIEFLY)
        os.dup2(self.kernel.fileno(), self._number, inheritable=False)

    def _has_unread(self) -> bool:
        """True if libnftables hasn't taken all parts of its answer."""
        try:
            return bool(self._library.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False

    def _drop_unread(self) -> None:
        while self._has_unread():
            self._library.recv(1)

    def _asked(self, request: bytes) -> list[bytes]:
        """Return the kernel's answer, which may be an error.

        Raises:
            InterruptedError: commits of other programs have interrupted each answer.
        """
        try:
            return self._consistent(request)
        except InterruptedError:
            raise  # libnftables would begin anew, and so ask a second time
        except OSError as error:
            return [_error(request, error.errno or errno.EIO)]

    def _consistent(self, request: bytes) -> list[bytes]:
        for _ in range(ATTEMPTS):
            parts = list(answers(self.kernel, request, BUFFER_SIZE))
            if not any(map(_is_interrupted, parts)):
                return parts
        raise InterruptedError(errno.EINTR, f"the ruleset has changed during each of {ATTEMPTS} attempts")


def ours_of(data: bytes, generation: int) -> bytes:
    """Return the messages of an answer that describe our tables, as of a generation, and those that end an answer."""
    return b"".join(_as_of(generation, message) for message in messages_in(data))


def _as_of(generation: int, message: bytes) -> bytes:
    """Return a message of an answer with another generation, nothing if it describes another program's table."""
    _, kind, _, _, _ = HEADER.unpack_from(message)
    if kind >> 8 != nft.SUBSYSTEM:
        return message  # an error, or the end of an answer
    family, version, _ = GENERAL.unpack_from(message, HEADER.size)
    start = HEADER.size + GENERAL.size
    tables = (text_of(value) for number, value in attributes_of(message, start) if number == nft.OF_TABLE)
    if family not in FAMILY_OF_NUMBER or next(tables, "") != TABLE:
        return b""
    return message[: HEADER.size] + GENERAL.pack(family, version, _resource(generation)) + message[start:]


def _resource(generation: int) -> int:
    """Return the field in which each message of an answer has the generation."""
    return socket.htons(generation)


def messages_in(data: bytes) -> Iterator[bytes]:
    """Yield each message with its header."""
    start = 0
    while start < len(data):
        length = aligned(HEADER.unpack_from(data, start)[0])
        yield data[start : start + length]
        start += length


def _is_interrupted(data: bytes) -> bool:
    return any(HEADER.unpack_from(message)[2] & DUMP_INTERRUPTED for message in messages_in(data))


def _generation_message(generation: int, sequence: int) -> bytes:
    body = GENERAL.pack(0, 0, _resource(generation)) + attribute(nft.GENERATION_ID, generation.to_bytes(4, "big"))
    return HEADER.pack(HEADER.size + len(body), nft.SUBSYSTEM << 8 | nft.NEW_GENERATION, 0, sequence, 0) + body


def _error(request: bytes, code: int) -> bytes:
    _, _, _, sequence, _ = HEADER.unpack_from(request)
    body = CODE.pack(-code) + request[: HEADER.size]
    return HEADER.pack(HEADER.size + len(body), ERROR, 0, sequence, 0) + body


def _end(sequence: int) -> bytes:
    return HEADER.pack(HEADER.size + CODE.size, DONE, 0, sequence, 0) + CODE.pack(0)


def _sockets_of_libnftables() -> set[tuple[int, str]]:
    """Return the netlink sockets of this process that ask for extended errors, by descriptor and inode."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            target, number = str(entry.readlink()), int(entry.name)
            if target.startswith("socket:") and _asks_for_extended_errors(number):
                found.add((number, target))
    return found


def _asks_for_extended_errors(number: int) -> bool:
    with socket.socket(fileno=os.dup(number)) as each:
        is_netfilter = (each.family, each.proto) == (socket.AF_NETLINK, NETLINK_NETFILTER)
        return is_netfilter and bool(each.getsockopt(SOL_NETLINK, EXTENDED_ERRORS))
