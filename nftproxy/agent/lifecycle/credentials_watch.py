"""Reads the credentials for the API again and again, as the agent would at its next connection or start.

A connection keeps its credentials.  So without these looks a damaged kubeconfig shows only when a connection breaks,
and a restart then fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD = 30.0
"""Seconds between two looks: the default period of the checks of our own tables."""


async def watch_credentials(look: Callable[[], str], report: Callable[[str], None]) -> None:
    """Report the fault of the credentials ("" for none) after each look, until cancelled.  `look` may block."""
    while True:
        await asyncio.sleep(PERIOD)
        report(await asyncio.to_thread(look))
