"""The addresses of a machine's interfaces, asked of a real kernel."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from unittest.mock import Mock

import pytest

from nftproxy.kernel.child_process import in_scratch_namespace
from nftproxy.model.backoff import Backoff
from nftproxy.model.events import Event, HostAddresses, Put
from nftproxy.sources import interfaces
from nftproxy.sources.interfaces import ATTEMPTS, host_addresses, interface_names, watch_addresses, watch_interfaces
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


NO_FILES = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr(interfaces, "BACKOFF", Backoff(0.0, 0.0))
    monkeypatch.setattr(interfaces, "DEBOUNCE", 0.0)


@pytest.mark.usefixtures("quick")
async def test_the_first_listing_is_retried(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """If no socket for notifications, or none for the listing, can be opened, a warning says so.  A retry follows."""
    opened = interfaces._open
    faults: Iterator[OSError | None] = iter([NO_FILES, None, TimeoutError("timed out"), None, None])

    def _open() -> socket.socket:
        if fault := next(faults):
            raise fault
        return opened()

    wanted = host_addresses()
    monkeypatch.setattr(interfaces, "_open", _open)
    assert await anext(watch_addresses()) == [Put(wanted)]
    reasons = ["[Errno 24] Too many open files", "timed out"]
    text = "this machine's interfaces can't be read, retrying in 0 s: "
    assert [record.getMessage() for record in caplog.records] == [f"{text}{reason}" for reason in reasons]


@pytest.mark.usefixtures("quick")
async def test_a_failure_between_two_listings_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a listing that fails the next listing is yielded."""
    found = [frozenset({"lo"}), NO_FILES, frozenset({"lo", "eth0"})]
    monkeypatch.setattr(interfaces, "interface_names", Mock(side_effect=found))
    following = watch_interfaces(0.001)
    assert [await anext(following), await anext(following)] == [found[0], found[2]]


async def test_the_loop_goes_on_while_the_kernel_holds_its_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks of the loop run while the kernel doesn't answer."""
    released = threading.Event()
    monkeypatch.setattr(interfaces, "host_addresses", lambda: released.wait(30) and these("192.0.2.1"))
    asyncio.get_running_loop().call_soon(released.set)  # would never be reached if the listing held the loop
    assert await anext(watch_addresses()) == [Put(these("192.0.2.1"))]


@pytest.mark.usefixtures("quick")
def test_dumps_that_changes_interrupt_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted dump is retried.  If changes interrupt each dump, the error is raised in the end."""
    asked = Mock(side_effect=[InterruptedError, iter([])])
    monkeypatch.setattr(interfaces, "_dump", asked)
    assert interface_names() == frozenset()
    asked.side_effect = InterruptedError
    asked.reset_mock()
    with pytest.raises(InterruptedError):
        interface_names()
    assert asked.call_count == ATTEMPTS
