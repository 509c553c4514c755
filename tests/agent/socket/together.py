"""Two queries at the same time, for answers that a single reading serves."""

from __future__ import annotations

import asyncio
import threading

from nftproxy.agent.socket.agent_socket import QueryHandler


def ask_together(handler: QueryHandler, ready: threading.Event) -> list[list[bytes]]:
    """The pieces of two answers.  `ready`, for which the reading waits, is set once both have had a piece."""
    served = set[str]()

    async def ask(name: str) -> list[bytes]:
        pieces = []
        async for piece in handler({}):
            pieces.append(piece)
            served.add(name)
            if len(served) == 2:
                ready.set()
        return pieces

    async def both() -> list[list[bytes]]:
        return list(await asyncio.gather(ask("one"), ask("other")))

    return asyncio.run(both())
