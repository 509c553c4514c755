"""Credential plugins, which are foreign programs: bounded in time and output, killed as a whole, run seldom."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from nftproxy.sources.plugins import (
    LARGEST_OUTPUT,
    Plugin,
    PluginCredentials,
    PluginRunner,
    Variable,
    kill_all,
    read_credential,
    run,
)
from tests.support.waiting import until, wait_until

V1: Final = "client.authentication.k8s.io/v1"
PATIENCE = 60.0
"""Seconds to wait for an event that takes less than a second on an idle machine."""


def credential(**status: object) -> str:
    """A program's output."""
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})


def shell(script: str, *args: str) -> Plugin:
    """A program that is a shell script."""
    return Plugin("sh", V1, ("-c", script, "sh", *args))


def asked(plugin: Plugin, longest: float = PATIENCE) -> PluginCredentials:
    """A program's credentials, from a single run."""
    return asyncio.run(PluginRunner(longest, 0.0).credentials(plugin))


def counting(directory: Path, **status: object) -> tuple[Plugin, Callable[[], int]]:
    """A program that gives this, and how often it has been run."""
    runs = directory / "runs"
    plugin = shell('echo >> "$1"; printf %s "$2"', str(runs), credential(**status))
    return plugin, lambda: runs.read_text().count("\n") if runs.exists() else 0


def is_gone(pid: int) -> bool:
    """Whether a process doesn't run any more.  Its parent may not have reaped it yet."""
    with contextlib.suppress(OSError):
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    return True


def count_open_files() -> int:
    """How many file descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


# What it gives


def test_gives_a_token() -> None:
    """The token counts without the newline that ends it, and never expires by default."""
    assert asked(shell('printf %s "$1"', credential(token="abc\n"))) == PluginCredentials("abc", b"", b"", float("inf"))


def test_gives_a_certificate_until_it_expires() -> None:
    """A certificate comes with its key, and with its time of expiration, in any time zone."""
    status = {"clientCertificateData": "C", "clientKeyData": "K", "expirationTimestamp": "2030-01-01T01:00:00+01:00"}
    assert asked(shell('printf %s "$1"', credential(**status))) == PluginCredentials("", b"C", b"K", 1893456000.0)


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ("", "not an ExecCredential"),
        ("[" * 5000, "not an ExecCredential"),
        ('{"status": {"token": "a"}}', "not an ExecCredential"),
        (credential(), "neither a token nor"),
        (credential(clientCertificateData="C"), "neither a token nor"),
        (credential(token=7), "not an ExecCredential"),
        (credential(token="a").replace("/v1", "/v1beta1"), "returned 'client.authentication.k8s.io/v1beta1'"),
    ],
)
def test_output_that_is_no_credential_is_an_error(output: str, complaint: str) -> None:
    """Output that isn't an ExecCredential of the configured version is an error with its fault."""
    with pytest.raises(ConnectionError, match=complaint):
        read_credential(output.encode(), shell(""))


@pytest.mark.parametrize("cluster", [{"cluster": {"server": "https://192.0.2.1", "config": {"audience": "x"}}}, {}])
async def test_says_what_is_asked_for(cluster: dict[str, dict[str, object]]) -> None:
    """The program's environment has its own variables and the request, with the cluster if it asks for that."""
    script = 'printf "%s %s" "$A" "$KUBERNETES_EXEC_INFO"'
    plugin = Plugin("sh", V1, ("-c", script), (Variable("A", "b"),), cluster=cluster.get("cluster", {}))
    said = await run(plugin, PATIENCE)
    own, _, info = said.decode().partition(" ")
    assert own == "b"
    spec = {"interactive": False} | cluster
    assert json.loads(info) == {"kind": "ExecCredential", "apiVersion": V1, "spec": spec}


# How often it is run


async def test_is_run_once_for_all(tmp_path: Path) -> None:
    """All requests, concurrent or later, get the credentials of a single run."""
    plugin, count = counting(tmp_path, token="a")
    plugins = PluginRunner(PATIENCE, 0.0)
    await asyncio.gather(*(plugins.credentials(plugin) for _ in range(9)))
    await plugins.credentials(plugin)
    assert count() == 1


async def test_is_run_again_when_denied_or_expired(tmp_path: Path) -> None:
    """Denied credentials are renewed at once, and expired credentials when they are needed."""
    plugin, count = counting(tmp_path, token="a", expirationTimestamp="2020-01-01T00:00:00Z")
    plugins = PluginRunner(PATIENCE, 3600.0)
    given = await plugins.credentials(plugin)
    await plugins.credentials(plugin)
    assert count() == 1, "not again so soon, though it has expired"
    assert not plugins.has_printed("b", b"")
    assert plugins.has_printed(given.token, given.certificate)
    plugins.invalidate()
    await plugins.credentials(plugin)
    assert count() == 2
    eager = PluginRunner(PATIENCE, 0.0)
    for _ in range(2):
        await eager.credentials(plugin)
    assert count() == 4


async def test_another_configuration_stops_a_run(tmp_path: Path) -> None:
    """A run whose configuration changes is a lost connection for its requests, and the next request gets a new run."""
    started = tmp_path / "started"
    plugins = PluginRunner(PATIENCE, 0.0)
    hanging = shell('echo > "$1"; exec sleep 3600', str(started))
    asking = [asyncio.create_task(plugins.credentials(hanging)) for _ in range(2)]
    await until(started.exists)
    given = await plugins.credentials(shell('printf %s "$1"', credential(token="a")))
    assert given.token == "a"
    for error in await asyncio.gather(*asking, return_exceptions=True):
        assert isinstance(error, ConnectionError)
        assert str(error) == "the credential plugin 'sh' was stopped: its configuration changed"


@pytest.mark.parametrize(("again", "runs"), [(3600.0, 1), (0.0, 3)])
async def test_a_failure_lasts_for_a_while(tmp_path: Path, again: float, runs: int) -> None:
    """A program that has failed isn't run again at once.  All requests get its error, with its last output."""
    runs_file = tmp_path / "runs"
    plugin = shell('echo >> "$1"; echo "no network" >&2; exit 3', str(runs_file))
    plugins = PluginRunner(PATIENCE, again)
    for _ in range(3):
        with pytest.raises(ConnectionError, match="plugin 'sh' failed: it ended with status 3: 'no network'"):
            await plugins.credentials(plugin)
    assert runs_file.read_text().count("\n") == runs


@pytest.mark.parametrize(
    ("plugin", "complaint"),
    [
        (Plugin("/nowhere/to/be/found", V1), "No such file"),
        (
            Plugin(
                "sh",
                V1,
                (
                    "-c",
                    "exit\0",
                ),
            ),
            "null byte",
        ),
        (shell("kill -9 $$"), "status -9"),
    ],
)
def test_a_program_that_does_not_run(plugin: Plugin, complaint: str) -> None:
    """A program that can't be started, or dies, is a lost connection like any other."""
    with pytest.raises(ConnectionError, match=complaint):
        asked(plugin)


# Bounds


def test_a_hanging_plugin_is_killed_with_its_children(tmp_path: Path) -> None:
    """After its time the program goes with all that it has started, though they ignore SIGTERM and hold its output."""
    pids = tmp_path / "pids"
    script = "trap '' TERM; (trap '' TERM; echo $$ >> \"$1\"; exec sleep 3600) & echo $! >> \"$1\"; exec sleep 3600"
    for seconds in (1, 8, 64):  # a busy machine may take longer for two lines
        pids.write_text("")
        with pytest.raises(ConnectionError, match=rf"took longer than {seconds} s, and was killed with its children"):
            asked(shell(script, str(pids)), longest=seconds)
        found = [int(pid) for pid in pids.read_text().split()]
        wait_until(lambda found=found: all(map(is_gone, found)))  # type: ignore[misc]
        if len(found) == 2:
            break
    assert len(found) == 2


def test_a_child_that_is_left_holds_nobody_up(tmp_path: Path) -> None:
    """A child that a program leaves behind in its group, with its output open, is killed when the program ends."""
    pid = tmp_path / "pid"
    given = asked(shell('sleep 3600 & echo $! > "$1"; printf %s "$2"', str(pid), credential(token="a")))
    assert given.token == "a"
    wait_until(lambda: is_gone(int(pid.read_text())))


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_a_plugin_that_writes_without_end_is_killed(stream: str) -> None:
    """A program that writes on and on, to either stream, is killed at a bound."""
    with pytest.raises(ConnectionError, match=f"more than {LARGEST_OUTPUT} bytes, and was killed"):
        asked(shell(f"exec yes {stream}"))


def test_a_hanging_plugin_ends_with_the_event_loop(tmp_path: Path) -> None:
    """When the event loop ends, the program is killed with its children, without waiting."""
    pid = tmp_path / "pid"

    async def ask() -> None:
        asking = asyncio.create_task(
            PluginRunner(3600.0, 0.0).credentials(shell('echo $$ > "$1"; exec sleep 3600', str(pid)))
        )
        await asyncio.to_thread(wait_until, lambda: pid.exists() and pid.read_text().endswith("\n"))
        asking.cancel()

    asyncio.run(ask())
    wait_until(lambda: is_gone(int(pid.read_text())))


async def test_leaves_no_file_open() -> None:
    """Runs that succeed, fail and hang leave no file descriptor behind."""
    counts = []
    for _ in range(4):
        for script in ('printf %s "$1"', "exit 1", "exec sleep 3600", "exec yes"):
            with contextlib.suppress(ConnectionError):
                await PluginRunner(0.3, 0.0).credentials(shell(script, credential(token="a")))
        counts.append(await asyncio.to_thread(count_open_files))
    assert counts[-1] <= counts[0]


def test_says_when_it_was_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each successful run is a single line in the log, without the credentials."""
    caplog.set_level(logging.INFO)
    plugin, _ = counting(tmp_path, token="secret")
    asked(plugin)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("nftproxy")] == [
        "the credential plugin 'sh' returned credentials, valid until the API denies them"
    ]


async def test_all_that_run_are_killed_at_once(tmp_path: Path) -> None:
    """A process that has no time left ends its programs with their children, from any thread."""
    pids = tmp_path / "pids"
    plugin = shell("trap '' TERM; sleep 3600 & echo $$ $! > \"$1\"; wait", str(pids))
    running = asyncio.create_task(run(plugin, 3600.0))
    await asyncio.to_thread(wait_until, lambda: pids.exists() and pids.read_text().endswith("\n"))
    await asyncio.to_thread(kill_all)
    with pytest.raises(ConnectionError, match="it ended with status -9"):
        await running
    wait_until(lambda: all(is_gone(int(pid)) for pid in pids.read_text().split()))
