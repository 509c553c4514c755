"""Removes the startup taint, which keeps pods from a new node until its rules are loaded.

The kubelet sets the taint when it registers the Node (--register-with-taints).  The agent removes it once, and writes
nothing else to a Node.  A taint that is set again later has another meaning, and stays.

A node that keeps the taint gets no pods.  So the agent never gives up: it retries with backoff of up to a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import tenacity

from nftproxy.api.responses import Unreadable
from nftproxy.api.taints import without_taint
from nftproxy.logs import warn
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable
from nftproxy.sources.api_client import ApiClient

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two retries, before jitter."""


class StartupTaint:
    """The startup taint of a node.  `report` is called with the reason from the second failure on."""

    def __init__(self, key: str, node: str, report: Callable[[str], None]) -> None:
        self._key = key
        self._node = node
        self._report = report
        self._loaded = asyncio.Event()

    def rules_loaded(self) -> None:
        """Note that the kernel holds the rules of all families."""
        self._loaded.set()

    async def remove(self, nodes: ApiClient) -> None:
        """Wait for the first load, then remove the taint if the Node has it."""
        await self._loaded.wait()
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((Unavailable, Unreadable)),
            wait=tenacity.wait_exponential(FIRST_PAUSE, LONGEST_PAUSE) + tenacity.wait_random(0, FIRST_PAUSE),
            before_sleep=self._report_failure,
        ):
            with attempt:
                await self._remove_taint(nodes)

    async def _remove_taint(self, nodes: ApiClient) -> None:
        patch = without_taint(await nodes.read_node(self._node), self._key)
        if patch is not None:
            await nodes.patch_node(self._node, patch)
            text = "removed the taint %(key)s from Node %(node)s: all rules are loaded, and pods can be scheduled"
            log.info(text, {"key": self._key, "node": self._node})

    def _report_failure(self, attempt: tenacity.RetryCallState) -> None:
        """Log each failure.  The first isn't reported, as the Node may have changed at that moment."""
        error = attempt.outcome.exception() if attempt.outcome else None
        text = "the taint %(key)s stays on Node %(node)s: %(error)s; trying again in %(seconds).0f s"
        warn(
            Code.STARTUP_TAINT_STAYS, text, key=self._key, node=self._node, error=error, seconds=attempt.upcoming_sleep
        )
        if attempt.attempt_number > 1:
            self._report(f"the taint {self._key} stays and keeps pods from the Node: {error}")
