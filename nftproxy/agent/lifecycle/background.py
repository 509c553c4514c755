"""Background tasks that begin again after a defect, so that a single error doesn't end their work for good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nftproxy.logs import warn
from nftproxy.model.codes import Code

PAUSE = 30.0
"""Seconds before a task that failed begins again: the default period of the checks of our own tables."""


async def keep_running(begin: Callable[[], Awaitable[None]]) -> None:
    """Run a task until it returns.  If it raises, log the traceback, and begin it again after a pause."""
    while True:
        try:
            await begin()
        except Exception as error:  # noqa: BLE001  # the log has its traceback
            text = "an unexpected error ended work in the background, beginning it again in %(pause).0f s"
            warn(Code.DEFECT, text, level=logging.ERROR, exc_info=error, pause=PAUSE)
        else:
            return
        await asyncio.sleep(PAUSE)
