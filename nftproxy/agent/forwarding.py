"""Looks periodically whether the node forwards packets of the families that have Services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from nftproxy.kernel.sysctl import FORWARDING, read_all
from nftproxy.model.addresses import Family
from nftproxy.pipeline import SKELETON, Pipeline

PERIOD = 30.0
"""Seconds between two looks: the default period of the checks of our own tables."""


async def watch_forwarding(pipeline: Pipeline, report: Callable[[Mapping[Family, str]], None]) -> None:
    """Call `report` after each look with the families that aren't forwarded and their sysctls, until cancelled."""
    while True:
        await asyncio.sleep(PERIOD)
        report(not_forwarded(pipeline))


def not_forwarded(
    pipeline: Pipeline, read_sysctls: Callable[[Iterable[str]], Mapping[str, int]] = read_all
) -> dict[Family, str]:
    """Return the families with Services whose packets the node doesn't forward, each with the sysctl that is 0."""
    served = [family for family, generation in pipeline.generations.items() if generation.blocks.keys() != {SKELETON}]
    sysctls = read_sysctls(FORWARDING[family] for family in served)
    return {family: FORWARDING[family] for family in served if sysctls.get(FORWARDING[family]) == 0}
