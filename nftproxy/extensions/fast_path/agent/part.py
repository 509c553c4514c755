"""The part of the fast path in the agent: it keeps its table, and follows this machine's interfaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from nftproxy.agent.agent_part import AgentContext, AgentPart
from nftproxy.extensions.fast_path.agent.fast_path import keep_fast_path


class FastPathPart(AgentPart):
    """The fast path."""

    follows = "fast_path"

    def __init__(self, context: AgentContext) -> None:
        self._keep = partial(keep_fast_path, context.pipeline, context.kernel, context.faults.report_fast_path)

    def background(self) -> Iterable[Callable[[], Awaitable[None]]]:
        """Keep the fast path, or remove it if it is off."""
        return (self._keep,)
