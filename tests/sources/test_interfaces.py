"""The addresses of a machine's interfaces, asked of a real kernel."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence

import pytest

from nftproxy.kernel.child_process import in_scratch_namespace
from nftproxy.model.events import Event, HostAddresses, Put
from nftproxy.sources.interfaces import host_addresses, watch_addresses
from tests.support.factories import host_addresses as these

MANY = [f"10.{number // 250}.{number % 250}.1" for number in range(2_500)]
"""More addresses than the kernel puts into a part of an answer."""


def _ip(*commands: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def _with_many() -> HostAddresses:
    _ip(
        "link add one type veth peer name two",
        "link set one up",
        "link set lo up",
        "address add 192.0.2.1 peer 192.0.2.2/32 dev one",
        "address add 2001:db8::1/64 dev one nodad",
        "address add 203.0.113.9/32 dev lo",
        *(f"address add {each}/32 dev one" for each in MANY),
    )
    return host_addresses()


@pytest.mark.usefixtures("namespace")
def test_addresses_are_those_that_a_node_port_can_be_at() -> None:
    """All addresses of both families are found, of a point-to-point link our end, except loopback and link-local."""
    wanted = these("192.0.2.1", "2001:db8::1", "203.0.113.9", *MANY)
    assert in_scratch_namespace(_with_many) == wanted


def _followed() -> list[Sequence[Event]]:
    async def follow() -> list[Sequence[Event]]:
        seen: list[Sequence[Event]] = []
        following = watch_addresses()
        async with asyncio.timeout(30):
            for change in (
                "link add one type veth peer name two",
                "address add 192.0.2.1/32 dev one",
                "address add 2001:db8::1/64 dev one nodad",
                "link delete one",
            ):
                _ip(change)
                seen.append(await anext(following))
        return seen

    return asyncio.run(follow())


@pytest.mark.usefixtures("namespace")
def test_addresses_are_followed() -> None:
    """All addresses are yielded at once, and again after each change."""
    both = these("192.0.2.1", "2001:db8::1")
    assert in_scratch_namespace(_followed) == [[Put(each)] for each in (these(), these("192.0.2.1"), both, these())]


def test_an_error_of_the_kernel_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the kernel denies the listing, its error is raised, and not taken for an empty answer."""
    monkeypatch.setattr("nftproxy.sources.interfaces._GET_ADDRESS", 250)  # no such message
    with pytest.raises(OSError, match="not supported"):
        host_addresses()
