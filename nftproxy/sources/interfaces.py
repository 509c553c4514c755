"""The addresses on this machine's interfaces, followed as they come and go (rtnetlink).

Node ports are served on those that nodePortAddresses selects; the Node object knows only the main ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.rtnl import RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR

from nftproxy.model.addresses import Address, parse_virtual_address
from nftproxy.model.events import Event, HostAddresses, Put

SILENCE = 0.02
"""Seconds in which further changes are gathered: an interface gets its addresses one by one."""


async def follow_addresses() -> AsyncIterator[list[Event]]:
    """All interface addresses: at once, and again whenever one has come or gone; ends only with the task.

    Loopback and link-local addresses are left out, as no node port is served there.
    """
    async with AsyncIPRoute() as notifications, AsyncIPRoute() as requests:
        await notifications.bind(groups=RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR)
        known = None
        while True:
            current = await _addresses(requests)
            if current != known:
                known = current
                yield [Put(current)]
            await anext(notifications.get())
            await asyncio.sleep(SILENCE)


async def host_addresses() -> HostAddresses:
    """The same addresses, as they are now."""
    async with AsyncIPRoute() as requests:
        return await _addresses(requests)


async def _addresses(requests: AsyncIPRoute) -> HostAddresses:
    found = set()
    async for message in await requests.get_addr():
        text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
        if (address := _usable(text)) is not None:
            found.add(address)
    return HostAddresses(frozenset(found))


def _usable(text: str) -> Address | None:
    try:
        return parse_virtual_address(text)
    except ValueError:
        return None
