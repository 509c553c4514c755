"""The agent's process goes on, or ends in good order, if a part of it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest

from nftproxy import build
from nftproxy.agent.daemon import Daemon
from nftproxy.agent.socket.answers import NodeInputs
from nftproxy.api.responses import ErrorStatus
from nftproxy.commands.agent_client import AgentClient, NoAnswer
from nftproxy.kernel.agent_lock import holder
from nftproxy.kernel.child_process import in_scratch_namespace
from nftproxy.kernel.threads import AsyncKernel
from nftproxy.logs import log
from tests.agent.world import EVERYTHING, source
from tests.support.factories import pipeline
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("namespace")


async def _post(_namespace: str, _body: object, _name: str) -> ErrorStatus | None:
    raise LookupError("nobody has thought of this")


def _daemon() -> Daemon:
    return Daemon(pipeline(agent_socket=""), lambda: "a test")


async def _run(daemon: Daemon, reason_to_restart: Awaitable[None]) -> bool:
    """Run an agent until it restarts.  Sending an Event fails by a defect."""
    return await daemon.run({"a test": source((0, EVERYTHING))}, _post, reason_to_restart)


def _records_of_a_defect() -> list[str]:
    handler = BufferingHandler(1000)
    log.addHandler(handler)

    def failures() -> list[str]:
        return [str(each.exc_info[1]) for each in handler.buffer if each.exc_info]

    async def main() -> None:
        await _run(_daemon(), until(failures))

    asyncio.run(main())
    return failures()


def test_a_defect_in_the_background_is_logged() -> None:
    """If a background task raises, the log has its traceback, and the agent goes on until it is stopped."""
    assert in_scratch_namespace(_records_of_a_defect) == ["nobody has thought of this"]


def _answers_after_an_upgrade(file: Path) -> tuple[str, str]:
    """Ask two agents that began before an upgrade.  Only the first was also asked before the upgrade."""
    answers = list[str]()

    async def asked_for_the_node(path: Path) -> str:
        client = AgentClient(str(path), 10)
        try:
            return (await asyncio.to_thread(client.get, NodeInputs, "/v1/node")).name
        except NoAnswer as error:
            return error.what

    async def main(path: Path, *, asks_before: bool) -> None:
        build.FILE.write_text("$Format")
        daemon = Daemon(pipeline(agent_socket=str(path)), lambda: "a test")

        async def upgraded() -> None:
            await until(path.exists)
            if asks_before:
                await asked_for_the_node(path)
            build.FILE.write_text("0123456789abcdef\nanother\n")
            answers.append(await asked_for_the_node(path))

        await _run(daemon, upgraded())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FILE", file)
        for asks_before in (True, False):
            asyncio.run(main(file.with_name(f"{asks_before}.sock"), asks_before=asks_before))
    before, after = answers
    return before, after


def test_a_first_question_after_an_upgrade_gets_no_answer_of_two_versions(tmp_path: Path) -> None:
    """The modules for questions are loaded by the first.  If other files lie there meanwhile, the agent says so."""
    before, after = in_scratch_namespace(partial(_answers_after_an_upgrade, tmp_path / "commit.txt"))
    assert before == "node-a"
    assert "another version was installed since this agent began: restart the agent" in after


def _holders_at_a_failing_end() -> tuple[bool, bool]:
    """Run an agent whose kernel can't be closed.  Return whether the lock has a holder during the run, and after it."""
    held: list[bool] = []
    close = AsyncKernel.close

    def fail(kernel: AsyncKernel) -> None:
        close(kernel)
        raise LookupError("can't be closed")

    async def reason_to_restart() -> None:
        await until(holder)
        held.append(holder() is not None)
        raise OSError("the configuration has gone")

    async def main() -> None:
        daemon = _daemon()
        with pytest.raises(LookupError, match="can't be closed"):
            await _run(daemon, reason_to_restart())
        held.append(holder() is not None)
        del daemon  # until then nothing else can have closed its lock

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncKernel, "close", fail)
        asyncio.run(main())
    during, after = held
    return during, after


@pytest.mark.slow
def test_the_lock_is_released_though_another_part_can_not_be_closed() -> None:
    """An error at the end of a part doesn't keep the lock from the next agent."""
    assert in_scratch_namespace(_holders_at_a_failing_end) == (True, False)
