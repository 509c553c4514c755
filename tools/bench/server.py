"""A server that can be killed: `python -m tools.bench.server PORT ADDRESS...` sends back whatever it gets."""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys


def main() -> None:
    """Serve until the process ends."""
    port, *addresses = sys.argv[1:]
    ready = selectors.DefaultSelector()
    listeners = []
    for address in addresses:
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, int(port)), family=kind, backlog=4096)
        listener.setblocking(False)
        listeners.append(listener)
        ready.register(listener, selectors.EVENT_READ)
    print("ready", flush=True)  # noqa: T201 -- the parent waits for it
    while True:
        for key, _ in ready.select():
            given = key.fileobj
            assert isinstance(given, socket.socket)
            if given in listeners:
                with contextlib.suppress(OSError):
                    ready.register(given.accept()[0], selectors.EVENT_READ)
            else:
                answer(ready, given)


def answer(ready: selectors.BaseSelector, connection: socket.socket) -> None:
    """Send back what has come, or hang up with the client."""
    with contextlib.suppress(OSError):
        if data := connection.recv(2048):
            connection.sendall(data)
            return
    ready.unregister(connection)
    connection.close()


if __name__ == "__main__":
    main()
