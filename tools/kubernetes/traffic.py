"""HTTP clients of the cluster's Services, for tools.migration.traffic to count."""

from __future__ import annotations

import http.client
import socket
from typing import NamedTuple

from nftproxy_conformance.lab import Namespace

from tools.migration.traffic import PATIENCE


class HttpConversation:
    """A connection to agnhost's netexec that is kept open for any number of questions.

    Args:
        namespace: where the client is.
        address: the server's address.
        port: the server's port.

    Raises:
        OSError: as for any client.
    """

    def __init__(self, namespace: Namespace, address: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(address, port, timeout=PATIENCE)
        self._connection.auto_open = 0  # it would open another connection on the machine's own network
        self._connection.sock = namespace.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._connection.sock.settimeout(PATIENCE)
        try:
            self._connection.sock.connect((address, port))
        except BaseException:
            self.close()
            raise

    def ask(self) -> str:
        """Ask the pod for its name.

        Raises:
            OSError: as for any client.  An answer that is no HTTP is a ConnectionError.
        """
        try:
            self._connection.request("GET", "/hostname")
            return self._connection.getresponse().read().decode()
        except http.client.HTTPException as error:
            raise ConnectionError(f"no answer: {error!r}") from error

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class HttpFront(NamedTuple):
    """A client, and the place that it connects to."""

    name: str
    client: Namespace
    address: str
    port: int

    def talk(self) -> HttpConversation:
        """Open a connection."""
        return HttpConversation(self.client, self.address, self.port)
