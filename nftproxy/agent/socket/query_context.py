"""The sources of an agent's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nftproxy.agent.reporting.sync_reporter import SyncReporter
    from nftproxy.build import Build
    from nftproxy.kernel.others.other_proxies import Traces
    from nftproxy.pipeline import Pipeline

Status = Callable[[], Mapping[str, Sequence[str]]]
"""Returns lines about a feature, by their titles, and may read the kernel."""


class QueryContext(NamedTuple):
    """The sources of answers.

    `source` names the source of objects, `libnftables` is the library's version, `build` is the commit that this
    process runs, and `statuses` are the lines that extensions add (`AgentPart.status`).
    """

    pipeline: Pipeline
    reporter: SyncReporter
    started: float
    libnftables: str
    build: Build
    source: Callable[[], str]
    other_proxies: Callable[[], Traces]
    statuses: Sequence[Status] = ()
