"""Rivals on the node: an agent waits for another agent, and names the traces of other proxies."""

from __future__ import annotations

import asyncio
import logging
import os
from unittest import mock

import pytest

from nftproxy.agent.lifecycle import rivals
from nftproxy.agent.lifecycle.rivals import until_alone, watch_other_proxies
from nftproxy.kernel.agent_lock import AgentLock
from nftproxy.kernel.others.other_proxies import Traces
from nftproxy.model.errors import Unavailable


@pytest.mark.usefixtures("namespace")
def test_the_second_waits_and_says_so_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another agent has the lock this agent waits, logs it once, and then takes the lock."""
    monkeypatch.setattr(rivals, "PAUSE", 0.01)
    first = AgentLock()
    assert first.acquire()

    async def wait() -> None:
        is_reported = asyncio.Event()

        def report(text: str) -> None:
            reported.append(text)
            is_reported.set()

        waiting = asyncio.ensure_future(until_alone(report))
        await is_reported.wait()
        assert not waiting.done()
        first.close()
        second = await waiting
        assert second is not None
        second.close()

    reported: list[str] = []
    asyncio.run(wait())
    (record,) = caplog.records
    other = f"another nftproxy (process {os.getpid()})"
    assert record.getMessage() == f"{other} serves this node already: waiting until it has ended"
    assert reported == [other, ""]


@pytest.mark.usefixtures("namespace")
def test_waiting_can_be_ended() -> None:
    """An agent that waits can be stopped, and then doesn't take the lock."""
    first = AgentLock()
    assert first.acquire()

    async def wait() -> None:
        found = asyncio.Event()
        waiting = asyncio.ensure_future(until_alone(lambda _: found.set()))
        await found.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    asyncio.run(wait())
    first.close()
    again = AgentLock()
    assert again.acquire()
    again.close()


@pytest.mark.usefixtures("namespace")
def test_without_a_lock_the_agent_continues(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a kernel without the lock the agent continues, and logs it."""
    reported: list[str] = []
    monkeypatch.setattr(AgentLock, "acquire", mock.Mock(side_effect=Unavailable("no log")))
    assert asyncio.run(until_alone(reported.append)) is None
    (record,) = caplog.records
    assert record.getMessage() == "going on without a lock: no log"
    assert reported == [""]


def test_traces_are_reported_as_they_come_and_go(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces are logged when they appear, change or return, but not while they stay."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(rivals, "PERIOD", 0.0)
    looks: list[Traces | None] = [
        {},
        {"Cilium": ["a"]},
        {"Cilium": ["a"]},
        None,
        {"Cilium": ["a", "b"]},
        {},
        {"Cilium": ["a"]},
    ]
    reported: list[Traces] = []

    def look() -> Traces:
        if not looks:
            raise asyncio.CancelledError
        found = looks.pop(0)
        if found is None:
            raise Unavailable("not now")
        return found

    monkeypatch.setattr(rivals, "other_proxies", look)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch_other_proxies(reported.append))
    assert reported == [{"Cilium": ["a"]}, {"Cilium": ["a", "b"]}, {}, {"Cilium": ["a"]}]
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "Cilium serves Services on this node, or has left rules: found a",
        "looking for other proxies failed: not now",
        "Cilium serves Services on this node, or has left rules: found a, b",
        "there is no trace of Cilium any more",
        "Cilium serves Services on this node, or has left rules: found a",
    ]
