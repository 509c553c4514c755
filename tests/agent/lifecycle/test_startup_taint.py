"""The startup taint is removed once, through all failures of the API, with a real client and the test API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.faults import Fault, Respond

from nftproxy.agent.lifecycle import startup_taint
from nftproxy.agent.lifecycle.startup_taint import StartupTaint
from nftproxy.sources.api_client import ApiClient
from tests.support import objects
from tests.support.waiting import PATIENCE

KEY = "nftproxy.dev/not-ready"
OURS = {"key": KEY, "effect": "NoSchedule"}
THEIRS = {"key": "example.org/maintenance", "effect": "NoExecute"}


def node(*taints: dict[str, Any]) -> dict[str, Any]:
    """The Node with these taints."""
    return objects.node("node-a", "192.168.0.2") | {"spec": {"taints": list(taints)}}


def taints(server: ApiServer) -> list[Any]:
    """The taints that the Node has now."""
    (found,) = server.objects("Node")
    result = found.get("spec", {}).get("taints", [])
    assert isinstance(result, list)
    return result


def writes(server: ApiServer) -> list[int]:
    """The statuses of all answers to patches."""
    return [each.status for each in server.requests(verb="patch")]


def run(tmp_path: Path, server: ApiServer, *steps: Callable[[StartupTaint], object]) -> list[str]:
    """Run the removal of the taint, with these steps once it waits for the first load, and return its reports."""
    reported: list[str] = []

    @asynccontextmanager
    async def removing() -> AsyncIterator[tuple[StartupTaint, asyncio.Task[None]]]:
        taint = StartupTaint(KEY, "node-a", reported.append)
        async with aclosing(ApiClient(str(server.write_kubeconfig(tmp_path / "kubeconfig")))) as cluster:
            task = asyncio.create_task(taint.remove(cluster))
            try:
                yield taint, task
            finally:
                task.cancel()

    async def main() -> None:
        async with removing() as (taint, task):
            for step in steps:
                step(taint)
            async with asyncio.timeout(PATIENCE):
                await task

    asyncio.run(main())
    return reported


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that a test can wait for."""
    monkeypatch.setattr(startup_taint, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(startup_taint, "LONGEST_PAUSE", 0.02)


def test_only_the_startup_taint_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the first load one patch removes the taint and leaves all other taints, and the log says so."""
    caplog.set_level(logging.INFO)
    with ApiServer() as server:
        server.put(node(THEIRS, OURS))
        assert run(tmp_path, server, StartupTaint.rules_loaded) == []
        assert taints(server) == [THEIRS]
        assert writes(server) == [200]
    assert (
        f"removed the taint {KEY} from Node node-a: all rules are loaded, and pods can be scheduled" in caplog.messages
    )


def test_without_a_startup_taint_nothing_is_written(tmp_path: Path) -> None:
    """A Node without the taint, as after every restart of the agent, is read and not written."""
    with ApiServer() as server:
        server.put(node(THEIRS))
        run(tmp_path, server, StartupTaint.rules_loaded)
        assert (taints(server), writes(server)) == ([THEIRS], [])


def test_nothing_is_asked_before_the_first_load(tmp_path: Path) -> None:
    """The agent sends no request to the API until rules are loaded, however long that takes."""
    with ApiServer() as server:
        server.put(node(OURS))
        with pytest.raises(TimeoutError):
            run_for_a_while(tmp_path, server)
        assert server.requests(resource="nodes") == []
        assert taints(server) == [OURS]


def run_for_a_while(tmp_path: Path, server: ApiServer) -> None:
    """Wait for the removal without a load."""

    async def main() -> None:
        async with aclosing(ApiClient(str(server.write_kubeconfig(tmp_path / "kubeconfig")))) as cluster:
            await asyncio.wait_for(StartupTaint(KEY, "node-a", print).remove(cluster), 0.2)

    asyncio.run(main())


class Meddler(ApiClient):
    """A client whose first patch comes after another client's change of the Node."""

    server: ApiServer
    has_meddled = False

    async def patch_node(self, name: str, patch: Mapping[str, Any]) -> None:
        """Make the other client's change first, once."""
        if not self.has_meddled:
            self.has_meddled = True
            self.server.put(node(OURS, THEIRS))
        await super().patch_node(name, patch)


def test_a_change_in_between_is_not_lost(tmp_path: Path) -> None:
    """A taint that another client sets between read and patch stays: the patch is a conflict, and is made anew."""

    async def main(server: ApiServer) -> None:
        async with aclosing(Meddler(str(server.write_kubeconfig(tmp_path / "kubeconfig")))) as cluster:
            cluster.server = server
            taint = StartupTaint(KEY, "node-a", print)
            taint.rules_loaded()
            await asyncio.wait_for(taint.remove(cluster), PATIENCE)

    with ApiServer() as server:
        server.put(node(OURS))
        asyncio.run(main(server))
        assert taints(server) == [THEIRS]
        assert writes(server) == [409, 200]


def test_a_denied_removal_is_retried_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A denied removal is retried until it succeeds: each failure is logged, and from the second on reported."""
    with ApiServer() as server:
        server.put(node(OURS))
        server.faults.add(Fault(Respond(403, "nodes is forbidden"), verb="patch", count=3))
        reported = run(tmp_path, server, StartupTaint.rules_loaded)
        assert writes(server) == [403, 403, 403, 200]
        assert taints(server) == []
    why = f"the taint {KEY} stays and keeps pods from the Node: the API denies it: 403 Forbidden: 'nodes is forbidden'"
    assert reported == [why] * 2
    assert sum(f"the taint {KEY} stays on Node node-a: the API denies it" in line for line in caplog.messages) == 3


def test_a_node_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """An agent that starts before its Node exists removes the taint when the kubelet has registered the Node."""
    with ApiServer() as server:
        server.faults.add(Fault(Respond(404, "not found"), verb="get", resource="nodes", count=2))
        server.put(node(OURS))
        run(tmp_path, server, StartupTaint.rules_loaded)
        assert taints(server) == []


def test_pauses_grow_to_a_minute() -> None:
    """The backoff starts at about a second and ends at a minute."""
    assert (FIRST, LONGEST) == (1.0, 60.0)


FIRST, LONGEST = startup_taint.FIRST_PAUSE, startup_taint.LONGEST_PAUSE
