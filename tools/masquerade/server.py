"""A server that closes first: `python -m tools.masquerade.server PROTOCOL ADDRESS PORT`, until it is killed."""

from __future__ import annotations

import socket
import sys

BACKLOG = 4096  # net.core.somaxconn


def serve_tcp(address: str, port: int) -> None:
    """Accept, and close at once: the server's end of each connection stays in TIME_WAIT for a minute."""
    with socket.create_server((address, port), family=_family(address), backlog=BACKLOG) as listener:
        _ready()
        while True:
            listener.accept()[0].close()


def serve_udp(address: str, port: int) -> None:
    """Send every datagram back."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        end.bind((address, port))
        _ready()
        while True:
            end.sendto(*end.recvfrom(64))


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


SERVE = {"tcp": serve_tcp, "udp": serve_udp}

if __name__ == "__main__":
    SERVE[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
