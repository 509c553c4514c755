"""The part of the fast path in the agent: it keeps its table, and follows this machine's interfaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from nftproxy.agent.agent_part import AgentContext, AgentPart
from nftproxy.agent.reporting.metrics import Metric, MetricRows
from nftproxy.extensions.fast_path.agent.fast_path import keep_fast_path
from nftproxy.extensions.fast_path.agent.flowtable import fast_path_interfaces
from nftproxy.extensions.fast_path.codes import FastPathCode
from nftproxy.kernel.conntrack.connection_counts import offloaded_connections
from nftproxy.model.errors import Unavailable

FAST_PATH_METRICS = MetricRows(
    gauges=(
        Metric("nftproxy_fast_path_interfaces", "Interfaces whose established connections take the fast path", ()),
    ),
)


class FastPathPart(AgentPart):
    """Keeps the table of the fast path in the kernel as the configuration says."""

    follows = "fast_path"

    def __init__(self, context: AgentContext) -> None:
        self._pipeline, self._metrics, self._faults = context.pipeline, context.metrics, context.faults
        self._keep = partial(keep_fast_path, context.pipeline, context.kernel, self._report)

    def background(self) -> Iterable[Callable[[], Awaitable[None]]]:
        """Keep the fast path, or remove it if it is off."""
        return (self._keep,)

    def status(self) -> Mapping[str, Sequence[str]]:
        """The interfaces of the fast path, and the connections on it or on another program's."""
        if "fast_path" not in self._pipeline.whole_tables:
            return {}
        try:
            interfaces, count = sorted(fast_path_interfaces() or ()), str(offloaded_connections())
        except Unavailable:
            interfaces, count = [], "an unknown number of"
        names = ", ".join(interfaces) or "none"
        return {"Fast path": [f"{count} connections, at {len(interfaces)} interfaces: {names}"]}

    def _report(self, interfaces: int, fault: str) -> None:
        """Report how many interfaces the fast path has, and its fault ("" for none)."""
        self._metrics.set("nftproxy_fast_path_interfaces", interfaces)
        has_none = bool(fault) and not interfaces
        (self._pipeline.unavailable.add if has_none else self._pipeline.unavailable.discard)("fast_path")
        warnings = {fault: fault} if fault else {}
        self._faults.report_ongoing(FastPathCode.FAST_PATH_INCOMPLETE, warnings, "the fast path is complete again")
