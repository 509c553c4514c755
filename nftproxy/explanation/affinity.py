"""Session affinity of a front: how clients come back to the same pod, and where the kernel remembers one of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nftproxy.explanation.answer import Affinity
from nftproxy.explanation.clients import Client
from nftproxy.explanation.fronts import Served, Spot
from nftproxy.pipeline import Pipeline
from nftproxy.rules.ruleset import Declaration


def affinity_of(pipeline: Pipeline, spot: Spot, served: Served, asking: Sequence[Client]) -> Affinity | None:
    """The affinity of a front; None if its Service has none."""
    timeout = served.service.affinity_timeout
    if timeout is None:
        return None
    seconds = [seconds for front, seconds in served.facts.affinities if front == served.reach.front]
    if not seconds:
        return Affinity(timeout, "by a hash of the client's address, as this nft can't remember IPv6 clients")
    client = asking[0].address if len(asking) == 1 else None
    return Affinity(
        timeout,
        "the kernel remembers clients by address",
        _map(pipeline, spot, f"{spot.protocol.value} . {seconds[0]}"),
        f"{client} . {spot.address} . {spot.port}" if client else "",
    )


def _map(pipeline: Pipeline, spot: Spot, key: str) -> str:
    """The map into which clients are written, by the chain that a key leads to; "" if there is none."""
    declared = pipeline.generations[spot.family].declarations.values()
    leading = (each for each in declared if any(entry.key == key for entry in each.entries))
    found = [match[1] for each in leading if (match := _written(each))]
    return found[0] if found else ""


def _written(chain: Declaration) -> re.Match[str] | None:
    return next(filter(None, (re.search(r"update @([\w-]+)", line) for line in chain.body)), None)
