"""Keeps the fast path: its table, and the interfaces of its flowtable.

The table of the same configuration stays as it is over restarts, so that connections stay on the fast path.  A kernel
without flowtables refuses the table.  Then the agent says so, and everything else works as without a fast path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nftproxy.extensions.fast_path.agent.flowtable import follow_interfaces, takes_beginnings
from nftproxy.extensions.fast_path.fields import INTERFACES, FastPath
from nftproxy.extensions.fast_path.rules import FAST_PATH_TABLE
from nftproxy.kernel.nfnetlink.nft_queries import inet_table_comment
from nftproxy.kernel.threads import AsyncKernel
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.texts import first_of
from nftproxy.pipeline import Pipeline
from nftproxy.rules.renderer import WholeTable
from nftproxy.rules.transaction import Transaction, delete_own_table, join
from nftproxy.sources.interfaces import watch_interfaces

MOST_INTERFACES = 1_024
"""Limit of interfaces by name: the kernel lists them in a message of 32 KiB, 24 bytes each.  A node has 110 pods."""

PERIOD = 30.0
"""Seconds between two looks: the default period of the checks of our own tables."""

Report = Callable[[int, str], None]


async def keep_fast_path(pipeline: Pipeline, kernel: AsyncKernel, report: Report) -> None:
    """Keep the fast path until cancelled.  If it is off, remove it, and return.

    `report` is called with the number of interfaces and the fault, after each look.
    """
    table = pipeline.whole_tables.get("fast_path")
    if table is None:
        await _remove(kernel, report)
        return
    config = FastPath(pipeline.settings.config[INTERFACES])
    beginnings: tuple[str, ...] | None = None
    async for present in watch_interfaces(PERIOD):
        chosen = config.chosen(present)
        try:
            await _provide_table(table, kernel)
            if beginnings is None:
                beginnings = await _beginnings_for_the_kernel(config)
            by_name = [each for each in chosen if not each.startswith(beginnings)]
            wanted = [*(f"{each}*" for each in beginnings), *by_name[:MOST_INTERFACES]]
            refused = await asyncio.to_thread(follow_interfaces, wanted)
        except (Refused, Unavailable) as error:
            (why, *_) = str(error).splitlines()
            report(0, f"there is no fast path, and all connections take the usual way: {why}")
            continue
        surplus = by_name[MOST_INTERFACES:]
        report(len(chosen) - len(surplus) - len(refused), _fault(refused, surplus))


async def _beginnings_for_the_kernel(config: FastPath) -> tuple[str, ...]:
    """Return the beginnings of names that the kernel follows by itself, without those of loopback's name."""
    beginnings = tuple(each for each in config.beginnings if not "lo".startswith(each))
    if not beginnings:
        return ()
    are_known = await asyncio.to_thread(takes_beginnings, [f"{each}*" for each in beginnings])
    return beginnings if are_known else ()


def _fault(refused: Sequence[str], surplus: Sequence[str]) -> str:
    """Return in words which interfaces are left out of the fast path, "" if none is."""
    return "; ".join(
        f"the fast path is without {first_of(names)}: {why}"
        for names, why in ((refused, "the kernel refuses it"), (surplus, f"it has {MOST_INTERFACES} interfaces"))
        if names
    )


async def _provide_table(table: WholeTable, kernel: AsyncKernel) -> None:
    if await asyncio.to_thread(inet_table_comment, FAST_PATH_TABLE) != table.comment:
        await kernel.apply(join([delete_own_table(FAST_PATH_TABLE), Transaction(table.text)]))


async def _remove(kernel: AsyncKernel, report: Report) -> None:
    try:
        if await asyncio.to_thread(inet_table_comment, FAST_PATH_TABLE) is not None:
            await kernel.apply(delete_own_table(FAST_PATH_TABLE))
    except (Refused, Unavailable) as error:
        report(0, f"the fast path is off, but its table can't be removed: {error}")
