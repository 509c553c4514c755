"""Many Services of a namespace, each within the limits, that together ask for more than the budget, in each shape."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nftproxy.kernel.nfnetlink.element_batch import MOST_CHARACTERS
from nftproxy.library import parsed
from nftproxy.model.events import Event
from nftproxy.pipeline import Pipeline
from nftproxy.rules.pieces import pieces_of
from tests.support import objects as api
from tests.support.factories import INSTALLED_KINDS, renderer, settings

NODE = "node-a"
BUDGET = 6_000
SKELETON = 50
"""Elements that belong to no Service, and elements that lead to chains."""
PARTS = 6
"""Services that would come to the budget together.  Two more are made."""
RANGES = 1_000
TABLE = 4093
"""Rows of Maglev's table for two endpoints."""

Objects = list[dict[str, Any]]


def hosts(first: str, count: int) -> list[str]:
    """Addresses below a prefix of 8 bits."""
    return [f"{first}.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(1, count + 1)]


def demand(
    number: int, ports: int, pods: int, external: int = 0, annotations: dict[str, str] | None = None, **spec: Any
) -> Objects:
    """A Service with these numbers of ports, endpoints and external IPs, and its slices.  No two share an endpoint."""
    spec["externalIPs"] = [f"198.{18 + number % 100}.{each >> 8}.{each & 255}" for each in range(external)]
    vips = spec.pop("vips", [f"10.100.{number >> 8}.{number & 255}"])
    pods_of = {"IPv4": hosts(str(20 + number % 100), pods)}
    if any(":" in vip for vip in vips):
        pods_of["IPv6"] = [f"fd00:{number}::{each:x}" for each in range(1, pods + 1)]
    names = [f"p{each}" for each in range(ports)]
    made = api.service(
        f"s{number}",
        spec,
        namespace="evil",
        vips=vips,
        ports=[f"{port}:{place}" for place, port in enumerate(names, 1)],
        metadata={"annotations": annotations or {}},
    )
    return [
        made,
        *(
            api.endpoint_slice(
                f"s{number}-{family}".lower(),
                *[f"{address}@{NODE}" for address in addresses],
                service=f"s{number}",
                namespace="evil",
                family=family,
                ports=[f"{port}:{place}" for place, port in enumerate(names, 8000)],
            )
            for family, addresses in pods_of.items()
        ),
    ]


def many(make: Callable[[int], Objects], count: int = PARTS + 2) -> Iterator[Objects]:
    """The objects of a number of hostile Services."""
    return map(make, range(count))


DENIED = ",".join(f"{address}/32" for address in hosts("9", 2 * RANGES)[::2])
"""Ranges that can't be merged."""

SHAPES: dict[str, Callable[[int], Iterator[Objects]]] = {
    "ports": lambda size: many(lambda each: demand(each, 100, size // 200)),
    "addresses": lambda size: many(lambda each: demand(each, 1, size // 100, 98)),
    "endpoints": lambda size: many(lambda each: demand(each, 1, size // 2), 2 * PARTS + 2),
    "ranges": lambda size: many(
        lambda each: demand(each, 1, 1, annotations={"nftproxy.dev/denied-source-ranges": DENIED}),
        (PARTS + 2) * size // RANGES,
    ),
    "algorithms": lambda size: many(
        lambda each: demand(
            each, 1, 2, max(size // TABLE - 1, 0), annotations={"nftproxy.dev/algorithm": "consistent-hash"}
        )
    ),
    "families": lambda size: many(
        lambda each: demand(
            each, 10, size // 50, vips=[f"10.100.0.{each + 1}", f"fd00:96::{each + 1:x}"], sessionAffinity="ClientIP"
        )
    ),
}


def hostile(shape: str) -> Sequence[Event]:
    """The hostile Services of a shape: 4/3 of `BUDGET`."""
    return parsed([each for made in SHAPES[shape](BUDGET // PARTS) for each in made], INSTALLED_KINDS).listing()


def agent_with(budget: int) -> Pipeline:
    """An agent without Services."""
    return Pipeline(NODE, settings(element_budget=budget), renderer())


@pytest.mark.parametrize("shape", SHAPES)
def test_many_services_within_the_limits_are_bounded_together(shape: str) -> None:
    """Some Services are quarantined, the rest is within the budget and uses much of it, in transactions of one size."""
    agent = agent_with(BUDGET)
    declared, *pieces = pieces_of(agent.ingest(hostile(shape)))
    assert 0 < len(agent.quarantined) < len(agent.state.given)
    elements = sum(each.element_count() for each in agent.generations.values())
    assert BUDGET / 3 < elements < BUDGET + SKELETON
    assert max(len(each.text) for each in (declared, *pieces)) <= MOST_CHARACTERS


def test_quarantined_services_cost_no_memory() -> None:
    """The memory grows with the elements that are served, and not with those that are asked for."""
    events = hostile("endpoints")
    peaks = []
    for agent in (agent_with(BUDGET // 4), agent_with(BUDGET)):
        tracemalloc.start()
        agent.ingest(events)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] < peaks[1] / 2
