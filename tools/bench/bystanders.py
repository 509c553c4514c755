"""What loading everything does to traffic that has nothing to do with Services: pings from one pod to another.

The kernel answers them, and the thread that sends them goes before all others, so that what is measured is how long the
kernel keeps a packet waiting, and not how busy the machine's programs are.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time

from nftproxy.lab import RealHost, RealNetwork
from nftproxy.lab.frames import echo_request
from tools.bench.cluster import Size
from tools.bench.figures import Figures, note
from tools.bench.world import World

QUIET, COLD, RELOAD = "nothing else", "cold", "reload"
EVERY = 0.001  # seconds between pings
PATIENCE = 10.0  # seconds for an answer
QUIET_SECONDS = 5.0
ECHO_REPLY = 0
IP_HEADER = 20


def measure_bystanders(size: Size, figures: Figures) -> None:
    """Ping while nothing else goes on, while everything is loaded cold, and while it is loaded over what is there."""
    with RealNetwork() as network:
        node = network.node()
        client = node.pod("client", "10.1.0.10", "fd00:1::10")
        other = node.pod("other", "10.1.0.20", "fd00:1::20")
        with World(size, node.node) as world, Pinging(client, other.address) as pinging:
            time.sleep(QUIET_SECONDS)
            _note(figures, size, QUIET, pinging)
            world.start_agent()
            _note(figures, size, COLD, pinging)
            world.settle()
            world.stop_agent()
            pinging.take()
            world.start_agent()
            _note(figures, size, RELOAD, pinging)


def name(services: int, when: str) -> str:
    """What the figures of pings are called."""
    return f"ping/{services}/{when}"


def _note(figures: Figures, size: Size, when: str, pinging: Pinging) -> None:
    lost, seconds = pinging.take()
    note(figures, name(size.services, when), seconds)
    figures[f"{name(size.services, when)}/lost"] = lost


class Pinging:
    """Pings an IPv4 address from a host, all the while, one after the other."""

    def __init__(self, host: RealHost, address: str) -> None:
        self._socket = host.namespace.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.settimeout(PATIENCE)
        self._address = address
        self._lost = 0
        self._seconds: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pinging", daemon=True)

    def __enter__(self) -> Pinging:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._socket.close()

    def take(self) -> tuple[int, list[float]]:
        """How many were lost since this was last asked, and the seconds that each of the others took."""
        taken = self._lost, self._seconds
        self._lost, self._seconds = 0, []
        return taken

    def _run(self) -> None:
        with contextlib.suppress(PermissionError):  # a container may not; then other programs' work shows as well
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        number = 0
        while not self._is_over.wait(EVERY):
            number = (number + 1) % 65536
            began = time.perf_counter()
            try:
                self._ping(number)
            except TimeoutError:
                self._lost += 1
            else:
                self._seconds.append(time.perf_counter() - began)

    def _ping(self, number: int) -> None:
        self._socket.sendto(echo_request(is_ipv6=False, number=number), (self._address, 0))
        while True:
            kind, _, _, _, answered = struct.unpack_from("!BBHHH", self._socket.recv(128), IP_HEADER)
            if (kind, answered) == (ECHO_REPLY, number):
                return
