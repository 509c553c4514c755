"""Looks periodically how full connection tracking is: beyond its limit the kernel drops new connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nftproxy.kernel.sysctl import CONNTRACK_ENTRIES, CONNTRACK_LIMIT, read_all
from nftproxy.model.conntrack_fill import nearly_full

PERIOD = 30.0
"""Seconds between two looks: the default period of the checks of our own tables."""


async def watch_conntrack_fill(report: Callable[[str], None]) -> None:
    """Call `report` after each look with the fill if it is high, else with "", until cancelled."""
    while True:
        await asyncio.sleep(PERIOD)
        found = read_all([CONNTRACK_ENTRIES, CONNTRACK_LIMIT])
        report(nearly_full(*found.values()) if len(found) == 2 else "")
