"""A client that asks at a steady rate: `python -m tools.masquerade.client`, with its orders on standard input.

It asks when the next question is due, whether or not earlier questions have been answered, as many clients together do.
It prints the outcomes of its questions.
"""

from __future__ import annotations

import itertools
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

PATIENCE = 3.0  # seconds for an answer: a SYN is sent again after 1 and 3
AT_ONCE = 1_000  # questions that may wait for an answer
BURST = 100  # questions between two looks at the answers

# linux/in.h, linux/tcp.h: only Python 3.14 has the first
IP_BIND_ADDRESS_NO_PORT = 24
TOTAL_RETRANS = 100  # where struct tcp_info has tcpi_total_retrans


class Orders(msgspec.Struct, frozen=True):
    """The questions: from each of `sources` in turn (the kernel's choice if there is none) to each of `servers`.

    `rate` is questions a second, for `seconds`.
    """

    protocol: str
    sources: tuple[str, ...]
    servers: tuple[tuple[str, int], ...]
    rate: float
    seconds: float


class Result(msgspec.Struct):
    """The outcomes of the questions.

    `late` counts answers after a retransmitted SYN, `lost` questions without an answer, and `failed` refused questions.
    `seconds` is the time in which all were asked.
    """

    asked: int = 0
    answered: int = 0
    late: int = 0
    lost: int = 0
    failed: int = 0
    seconds: float = 0.0


def total(results: Sequence[Result]) -> Result:
    """Add up the outcomes of clients that asked at the same time."""
    sums = {name: sum(getattr(each, name) for each in results) for name in Result.__struct_fields__}
    return Result(**sums | {"seconds": max(each.seconds for each in results)})


class Client:
    """Asks, and waits for answers."""

    def __init__(self, orders: Orders) -> None:
        self.result = Result()
        self._orders = orders
        self._poll = select.epoll()
        self._waiting: dict[int, tuple[socket.socket, float]] = {}  # in the order in which they were asked
        self._sources: Iterator[str] = itertools.cycle(orders.sources or ("",))
        self._servers = itertools.cycle(orders.servers)

    def run(self) -> Result:
        """Ask everything, and wait for the last answer."""
        orders, result = self._orders, self.result
        began = time.monotonic()
        while (passed := time.monotonic() - began) < orders.seconds:
            due = int(passed * orders.rate) - result.asked
            for _ in range(min(due, AT_ONCE - len(self._waiting), BURST)):
                self._ask()
            self._collect(0.001)
        result.seconds = time.monotonic() - began
        while self._waiting:
            self._collect(0.1)
        return result

    def _ask(self) -> None:
        is_tcp = self._orders.protocol == "tcp"
        server, source = next(self._servers), next(self._sources)
        family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
        end = socket.socket(family, socket.SOCK_STREAM if is_tcp else socket.SOCK_DGRAM)
        end.setblocking(False)
        if source:
            end.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            end.bind((source, 0))
        self.result.asked += 1
        began = time.monotonic()
        try:
            end.connect_ex(server)
            if not is_tcp:
                end.send(b"?")
        except OSError:
            self.result.failed += 1
            end.close()
            return
        self._waiting[end.fileno()] = end, began
        self._poll.register(end, select.EPOLLIN)

    def _collect(self, timeout: float) -> None:
        now = time.monotonic()
        for number, _ in self._poll.poll(timeout):
            end, began = self._waiting.pop(number)
            self._judge(end, now - began)
            end.close()
        while self._waiting:
            number = next(iter(self._waiting))
            end, began = self._waiting[number]
            if now - began < PATIENCE:
                break
            del self._waiting[number]
            end.close()
            self.result.lost += 1

    def _judge(self, end: socket.socket, seconds: float) -> None:
        try:
            end.recv(64)  # nothing: the server has closed
        except OSError:
            self.result.failed += 1
            return
        self.result.answered += 1
        if self._orders.protocol == "tcp" and seconds > 0.5 and resent(end):
            self.result.late += 1


def resent(end: socket.socket) -> int:
    """Return the number of segments that the kernel has sent again."""
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    (count,) = struct.unpack_from("=I", info, TOTAL_RETRANS)
    return int(count)


if __name__ == "__main__":
    made = Client(msgspec.json.decode(sys.stdin.buffer.read(), type=Orders)).run()
    sys.stdout.buffer.write(msgspec.json.encode(made))
