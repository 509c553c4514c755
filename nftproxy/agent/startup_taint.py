"""The startup taint, which keeps pods from a new node until its rules are loaded; the agent takes it off, once.

The kubelet sets it when it registers the Node (--register-with-taints).  Nothing else is written to a Node, nothing at
all without the option, and this taint not again: who sets it later means something else by it.

A node that keeps it is a node without pods.  So this never gives up: the pauses grow to a minute and stay there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import tenacity

from nftproxy.api.responses import Unreadable
from nftproxy.api.taints import without_taint
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two tries, about."""


class Nodes(Protocol):
    """The API's Nodes.  Both raise Unavailable if the API can't be reached or denies it."""

    async def read_node(self, name: str) -> bytes:
        """The JSON of a Node."""

    async def patch_node(self, name: str, patch: bytes) -> None:
        """Change a Node by a JSON merge patch."""


class StartupTaint:
    """The taint of a key on a node; `report` is called with the reason whenever it can't be removed a second time."""

    def __init__(self, key: str, node: str, report: Callable[[str], None]) -> None:
        self._key = key
        self._node = node
        self._report = report
        self._loaded = asyncio.Event()

    def loaded(self) -> None:
        """The kernel holds the rules of all families, for the first time or again."""
        self._loaded.set()

    async def remove(self, nodes: Nodes) -> None:
        """Wait for the first load, then remove the taint if it is there."""
        await self._loaded.wait()
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((Unavailable, Unreadable)),
            wait=tenacity.wait_exponential(FIRST_PAUSE, LONGEST_PAUSE) + tenacity.wait_random(0, FIRST_PAUSE),
            before_sleep=self._tell,
        ):
            with attempt:
                await self._try(nodes)

    async def _try(self, nodes: Nodes) -> None:
        patch = without_taint(await nodes.read_node(self._node), self._key)
        if patch is not None:
            await nodes.patch_node(self._node, patch)
            text = "removed the taint %(key)s from Node %(node)s: its rules are loaded, and pods may come"
            log.info(text, {"key": self._key, "node": self._node})

    def _tell(self, attempt: tenacity.RetryCallState) -> None:
        """Log each failure; it is an Event if it isn't the first, as the Node may change at any moment."""
        error = attempt.outcome.exception() if attempt.outcome else None
        text = "the taint %(key)s stays on Node %(node)s: %(error)s; trying again in %(seconds).0f s"
        what = {"key": self._key, "node": self._node, "error": error, "seconds": attempt.upcoming_sleep}
        log.warning(text, what, extra={"code": Code.STARTUP_TAINT_STAYS})
        if attempt.attempt_number > 1:
            self._report(f"the taint {self._key} stays, and with it pods stay away: {error}")
