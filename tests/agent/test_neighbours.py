"""Who else is on the node: an agent waits for another one, and says what there is of other proxies."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nftproxy.agent import neighbours
from nftproxy.agent.neighbours import until_alone, watch_other_proxies
from nftproxy.kernel.agent_lock import AgentLock, Holder
from nftproxy.kernel.other_proxies import Traces
from nftproxy.model.errors import Unavailable


@pytest.mark.usefixtures("namespace")
def test_the_second_waits_and_says_so_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another agent has the lock this one waits, says so once, and then has it."""
    monkeypatch.setattr(neighbours, "PAUSE", 0.01)
    first = AgentLock()
    assert first.acquire()

    async def wait() -> None:
        waiting = asyncio.ensure_future(until_alone())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        first.close()
        second = await waiting
        assert second is not None
        second.close()

    asyncio.run(wait())
    (record,) = caplog.records
    assert "looks after this node: waiting until it has ended" in record.getMessage()


@pytest.mark.usefixtures("namespace")
def test_waiting_can_be_ended() -> None:
    """An agent that waits can be stopped, and then doesn't take the lock."""
    first = AgentLock()
    assert first.acquire()

    async def wait() -> None:
        waiting = asyncio.ensure_future(until_alone())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    asyncio.run(wait())
    first.close()
    again = AgentLock()
    assert again.acquire()
    again.close()


@pytest.mark.usefixtures("namespace")
def test_an_untrusted_holder_is_named_and_passed_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who can't be an agent is named with the user, and the agent goes on without the lock."""
    first = AgentLock()
    assert first.acquire()
    monkeypatch.setattr(neighbours, "holder", lambda: Holder(7, 1000))
    monkeypatch.setattr("os.geteuid", lambda: 65532)
    assert asyncio.run(until_alone()) is None
    (record,) = caplog.records
    assert record.getMessage() == "user 1000 has taken the name by which agents find each other: going on"
    first.close()


def test_traces_are_reported_as_they_come_and_go(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces are logged when they come, when they are others and when they are back, but not while they stay."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(neighbours, "PERIOD", 0.0)
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

    monkeypatch.setattr(neighbours, "other_proxies", look)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch_other_proxies(reported.append))
    assert reported == [{"Cilium": ["a"]}, {"Cilium": ["a", "b"]}, {}, {"Cilium": ["a"]}]
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "Cilium serves Services on this node, or has: there is a",
        "looking for other proxies failed: not now",
        "Cilium serves Services on this node, or has: there is a, b",
        "there is no trace of Cilium any more",
        "Cilium serves Services on this node, or has: there is a",
    ]
