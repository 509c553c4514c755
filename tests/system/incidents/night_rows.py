"""More incidents of README.md: those in which the node or the agent seems well and isn't."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nftproxy.agent.reporting.health import DELETION_TAINT
from tests.system.faults.bench import Bench, node
from tests.system.incidents.rows import Incident

# Damage


@contextmanager
def leaving(bench: Bench) -> Iterator[None]:
    """The cluster autoscaler is about to remove the node."""
    marked = node()
    marked.setdefault("spec", {})["taints"] = [{"key": DELETION_TAINT, "effect": "NoSchedule"}]
    bench.server.put(marked)
    yield
    bench.server.put(node())


# Incidents

NIGHT = [
    Incident("autoscaler removes the node", "status", (DELETION_TAINT, "NO NEW CONNECTIONS"), (), leaving, (), 3),
]
"""Incidents with the node's state that no object of the Service shows."""
