"""Real servers that answer with their name and the client's address, and clients for them.

An answer is one line: the server's name, and the address and port that the client has to the server.
"""

from __future__ import annotations

import selectors
import socket
import threading
from typing import NamedTuple, Self

from nftproxy_conformance.lab.namespace import Namespace
from nftproxy_conformance.lab.outcome import Address

KINDS = {
    "tcp": (socket.SOCK_STREAM, 0),
    "udp": (socket.SOCK_DGRAM, 0),
    "sctp": (socket.SOCK_STREAM, socket.IPPROTO_SCTP),  # few kernels have its sockets
}


class EchoAnswer(NamedTuple):
    """An answer: the server's name, and the client's address as the server sees it."""

    name: str
    client: Address


class EchoServer:
    """A server on one address, port and protocol, in a thread of its own until it is closed.

    Args:
        namespace: where it listens.
        name: the name in its answers, without blanks.
        address: the address it listens on.
        port: the port it listens on.
        protocol: "tcp", "udp" or "sctp".

    Raises:
        OSError: the address or the port is not available.
    """

    def __init__(self, namespace: Namespace, name: str, address: str, port: int, protocol: str = "tcp") -> None:
        self._name = name
        self._selector = selectors.DefaultSelector()
        self._stop, stopped = socket.socketpair()
        self._selector.register(stopped, selectors.EVENT_READ, self._end)
        self._running = True
        try:
            listener = _socket(namespace, address, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._selector.register(
                listener, selectors.EVENT_READ, self._answer_datagram if protocol == "udp" else self._accept
            )
            listener.bind((address, port))
            if protocol != "udp":
                listener.listen(128)
        except BaseException:
            self._close_all()
            raise
        self._thread = threading.Thread(target=self._run, name=f"echo {name} {protocol} {port}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._running:
            for key, _ in self._selector.select():
                key.data(key.fileobj)
        self._close_all()

    def _end(self, _stopped: socket.socket) -> None:
        self._running = False

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the client has left already
            return
        self._selector.register(connection, selectors.EVENT_READ, self._answer_line)

    def _answer_line(self, connection: socket.socket) -> None:
        try:
            if connection.recv(2048):
                connection.sendall(self._answer(connection.getpeername()))
                return
        except OSError:  # the client has left
            pass
        self._selector.unregister(connection)
        connection.close()

    def _answer_datagram(self, end: socket.socket) -> None:
        try:
            _, client = end.recvfrom(2048)
            end.sendto(self._answer(client), client)
        except OSError:  # an ICMP error for an answer that came too late
            pass

    def _answer(self, client: tuple[str, int]) -> bytes:
        return f"{self._name} {client[0]} {client[1]}\n".encode()

    def _close_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()
        self._stop.close()

    def close(self) -> None:
        """Stop listening, and hang up on every client."""
        if self._thread.is_alive():
            self._stop.send(b".")
            self._thread.join()


class Conversation:
    """A connection, or a datagram socket, for any number of questions.

    Args:
        namespace: where the client is.
        address: the server's address.
        port: the server's port.
        protocol: "tcp", "udp" or "sctp".
        sport: the client's own port, 0 for any.
        timeout: how long to wait for the connection and for each answer, in seconds.

    Raises:
        ConnectionRefusedError: the connection was refused.
        TimeoutError: there was no answer to it.
    """

    def __init__(
        self, namespace: Namespace, address: str, port: int, protocol: str, *, sport: int = 0, timeout: float = 60.0
    ) -> None:
        self._socket = _socket(namespace, address, protocol)
        try:
            self._socket.settimeout(timeout)
            if sport:  # for any port the option would let two datagram sockets share a port, and one loses its answers
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._socket.bind(("", sport))
            self._socket.connect((address, port))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self) -> EchoAnswer:
        """Send a question, and return the answer.

        Raises:
            OSError: ConnectionRefusedError, TimeoutError and the like, as for any socket.
        """
        self._socket.send(b"?\n")
        words = self._socket.recv(2048).decode().split()
        if not words:
            raise ConnectionResetError("the server hung up")
        return EchoAnswer(words[0], Address(words[1], int(words[2])))

    @property
    def port(self) -> int:
        """The client's own port.  NAT gives the server another port if that port is taken."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _socket(namespace: Namespace, address: str, protocol: str) -> socket.socket:
    return namespace.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, *KINDS[protocol])
