"""Refuses queries about the cluster until the agent knows it.

Before the first listing of every source is ingested, the pipeline is empty or half full.  An answer from it would deny
Services that an earlier agent's rules still serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.agent.socket.agent_socket import QueryHandler
from nftproxy.kernel.nfnetlink.elements import elements_in_force
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable
from nftproxy.pipeline import Pipeline

MOST_COUNTED = 10_000
"""Limit of elements of a set that are counted singly, if the kernel doesn't count."""


ATTEMPTS, PAUSE = 10, 0.1
"""How often a query looks for the reason why a listing is missing, and the seconds in between: an agent that has just
started doesn't know the reason before the API server's first answer."""


class ClusterUnknown(Unavailable):
    """The agent doesn't know the cluster yet.  The second line of the text is the remedy."""

    code = Code.WAITING_FOR_LISTING


def when_known(handler: QueryHandler, pipeline: Pipeline, reporter: SyncReporter) -> QueryHandler:
    """Return a handler that raises ClusterUnknown until the agent knows the cluster."""

    async def answer(query: Mapping[str, str]) -> AsyncIterator[bytes]:
        for _ in range(ATTEMPTS):
            if reporter.knows_cluster or any(each.problem for each in reporter.activities()):
                break
            await asyncio.sleep(PAUSE)
        if not reporter.knows_cluster:
            in_force = await asyncio.to_thread(elements_of_earlier_agent, pipeline.generations)
            why = f"it doesn't know the cluster yet: it waits for {awaited(reporter)}"
            raise ClusterUnknown(f"{why}; {_in_force(in_force)}\n{_advice(pipeline)}")
        async for piece in handler(query):
            yield piece

    return answer


def awaited(reporter: SyncReporter) -> str:
    """Return the steps that are missing, each with the present problem of its source."""
    problems = {f"the first listing of {each.resource}": each.problem for each in reporter.activities()}
    steps = [what for what in reporter.status().waiting if not what.startswith("the first load")]
    texts = [f"{step} ({problem})" if (problem := problems.get(step)) else step for step in steps]
    return ", and for ".join(texts) or "the rules to be made from the first listings"


def elements_of_earlier_agent(families: Iterable[Family]) -> dict[Family, int]:
    """Return the number of elements of each family's table that is in force.  This blocks."""
    return dict(_counted(families))


def _counted(families: Iterable[Family]) -> Iterator[tuple[Family, int]]:
    for family in families:
        try:
            count = elements_in_force(family, MOST_COUNTED)
        except Unavailable:
            continue  # the refusal matters more than this figure
        if count is not None:
            yield family, count


def _in_force(counts: Mapping[Family, int]) -> str:
    if not counts:
        return "no rules of nftproxy are in force"
    tables = " and ".join(f"{count} elements of {FAMILY_NAMES[family]}" for family, count in counts.items())
    return f"{tables}, which an earlier agent has loaded, are in force and follow no changes"


def _advice(pipeline: Pipeline) -> str:
    node = pipeline.state.node.name
    return (
        "ask with files meanwhile: kubectl get nodes,services,endpointslices -A -o yaml >cluster.yaml; "
        f"nftproxy explain TO cluster.yaml --node {node} [--config FILE]"
    )
