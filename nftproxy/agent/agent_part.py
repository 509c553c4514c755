"""The seam between the agent and its extensions: what a feature of ours may add to the running agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from nftproxy.agent.reporting.fault_reporter import FaultReporter
from nftproxy.agent.reporting.metrics import MetricRows, Metrics
from nftproxy.agent.reporting.occurrences import Fault
from nftproxy.kernel.threads import AsyncKernel
from nftproxy.model.events import Event
from nftproxy.pipeline import Pipeline
from nftproxy.policy.flows import Sweeps

NEVER = float("inf")


class AgentContext(NamedTuple):
    """The parts of the agent that extensions use.  `report` sends an Event about a fault."""

    pipeline: Pipeline
    kernel: AsyncKernel
    metrics: Metrics
    faults: FaultReporter
    report: Callable[[Fault], None]


class AgentPart:
    """The part of an extension in the agent.  Each method does nothing unless a subclass overrides it.

    Attributes:
        follows: the extension whose Services the part follows, by name.  While no Service and no configuration asks
            for it, changes of rules cost the part no call.  "" if all changes concern the part.
    """

    follows: ClassVar[str] = ""

    async def start(self) -> None:
        """Prepare, before the first load, as the only agent of this network namespace."""

    def sources(self) -> Mapping[str, AsyncGenerator[Sequence[Event]]]:
        """The sources of events that it adds, by name."""
        return {}

    def background(self) -> Iterable[Callable[[], Awaitable[None]]]:
        """The background tasks that it adds."""
        return ()

    def rules_loaded(self) -> None:
        """Note that the kernel holds the rules for the present state, after each change that concerns the part."""

    def sweeps(self) -> Sweeps:
        """The fronts to sweep in connection tracking, asked for after each such change and at `next_look`."""
        return {}

    def next_look(self) -> float:
        """The time (`now` in sync/loading.py) at which to ask for sweeps again, even if nothing changes."""
        return NEVER

    async def exposition(self) -> bytes:
        """The metrics that it adds to a scrape, in Prometheus' text format."""
        return b""

    def status(self) -> Mapping[str, Sequence[str]]:
        """The lines that it adds to `nftproxy status`, by their titles.  It is called in a thread: it may block."""
        return {}

    async def end(self) -> None:
        """Stop, at the end of the agent's work."""

    def close(self) -> None:
        """Close everything that was opened when the part was made."""


MakePart = Callable[[AgentContext], AgentPart | None]
"""Makes the part of an extension, None if the configuration doesn't ask for it."""


class AgentExtensions(NamedTuple):
    """What all extensions add to the agent: `parts` makes their parts, and `metrics` are the rows of their metrics."""

    parts: Sequence[MakePart] = ()
    metrics: Sequence[MetricRows] = ()


NO_EXTENSIONS = AgentExtensions()
