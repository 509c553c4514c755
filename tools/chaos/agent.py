"""The agent's process for chaos: it can be killed, suspended and starved, and has a small disk of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import yaml

from nftproxy.api.configz import configz
from nftproxy.kernel.libnftables import Kernel
from nftproxy.lab import Lab
from nftproxy.lab.apiserver import ApiServer
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.sources.files import load_config
from tests.system.faults.bench import ROOT, SYNC_PERIOD, Bench

DISK = 1024 * 1024
"""Bytes of the agent's disk, for its temporary files."""
PATIENCE = 180.0
"""Seconds for what takes one or two: a busy machine takes ten times as long as a quiet one, and a slow one longer."""
_EMPTY = re.compile(r"^\tchain (\S+) \{.*\n(?:\t\ttype .*\n)?\t\}$", re.MULTILINE)
"""A chain with no rule, as nft lists it."""
_MOUNT = 'mount -t tmpfs -o size="$1" chaos "$2" && shift 2 && exec "$@"'


class ChaosAgent(Bench):
    """An agent whose temporary files are on a small disk in a mount namespace of its own, and whose log is kept."""

    def __init__(self, lab: Lab, server: ApiServer, directory: Path) -> None:
        super().__init__(lab, server, directory, "tests.system.faults.hasty")
        self.directory = directory
        self._renewals = 0

    def start(self) -> None:
        """Start the agent; its rules come a little later."""
        self._process = self.start_another()

    def take_over(self, other: subprocess.Popen[Any]) -> None:
        """Kill it, and let another agent be the one that is meant from now on."""
        self.kill()
        self._process = other

    def start_another(self) -> subprocess.Popen[Any]:
        """Start a process of the agent, be there another one or not; all write one log."""
        disk = self.directory / "disk"
        disk.mkdir(exist_ok=True)
        agent = [sys.executable, "-m", self._module, "run", "--config", str(self.config_map.path)]
        command = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(DISK), str(disk), *agent]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(disk)}
        process = self.lab.node.popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        threading.Thread(target=_keep, args=(process.stderr, self.log_path), daemon=True).start()
        return process

    @property
    def has_died(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    @property
    def resident(self) -> int:
        """Its resident memory in bytes."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0)

    def is_right(self) -> bool:
        """Whether the kernel holds what it should, and nothing else, and the agent says that it does.

        Not while sets come and go that are looked at.  An agent that starts over rules that are right is not ready
        before it has compared them: it may be about to do anything.
        """
        try:
            return super().is_right() and not self._empty_chains() and self._body("/healthz", 10256, 200) is not None
        except (Refused, Unavailable):
            return False

    def _body(self, path: str, port: int, status: int) -> bytes | None:
        """What it serves, None if that isn't answered, or with another status: it may be starting."""
        try:
            reply = self.ask(path, port)
        except (OSError, http.client.HTTPException):
            return None
        return reply.body if reply.status == status else None

    def _empty_chains(self) -> list[str]:
        """Chains of the tables that somebody has emptied, which no element shows: none of ours is without rules."""
        listings = self.lab.node.call(lambda: [Kernel().listing_of_rules(family) for family in Family])
        return [name for listing in listings for name in _EMPTY.findall(listing)]

    def renew_configuration(self) -> None:
        """Give it a good configuration that it has never had, and wait until that one is in force.

        Whatever it was about to do because of an earlier one, such as to begin anew, is over by then.
        """
        self._renewals += 1
        period = f"{1000 * SYNC_PERIOD + self._renewals}ms"
        nftables = self.configuration["nftables"] | {"syncPeriod": period}
        self.config_map.update(yaml.safe_dump(self.configuration | {"nftables": nftables}))
        wanted = configz(load_config(self.config_map.path)[0])
        self.wait_until(lambda: self._body("/configz", 10249, 200) == wanted, PATIENCE)

    def forget_wanted(self) -> None:
        """Work out anew what is right: the server's versions have gone back, and mean other objects now."""
        self._wanted = (-1, {})

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def suspend(self) -> None:
        """Let it do nothing, until `resume`."""
        os.kill(self.process_id, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.process_id, signal.SIGCONT)

    def fill_disk(self) -> None:
        """Leave no room on its disk."""
        with contextlib.suppress(OSError), self._filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def empty_disk(self) -> None:
        """Make room again."""
        self._filling.unlink(missing_ok=True)

    @property
    def _filling(self) -> Path:
        """The file that takes all room: on a disk that only the agent's own namespace has."""
        return Path(f"/proc/{self.process_id}/root{self.directory}/disk/filling")

    def limit_files(self, more: int) -> tuple[int, int]:
        """Let it open only so many more files than it has; returns the limits that it had."""
        count = len(list(Path(f"/proc/{self.process_id}/fd").iterdir()))
        limits = resource.prlimit(self.process_id, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process_id, resource.RLIMIT_NOFILE, (count + more, limits[1]))
        return limits

    def allow_files(self, limits: tuple[int, int]) -> None:
        """Give it the limits back."""
        resource.prlimit(self.process_id, resource.RLIMIT_NOFILE, limits)


def _keep(pipe: IO[bytes], log: Path) -> None:
    """Append what comes to a log that is on another disk than the agent's."""
    with log.open("ab") as file, pipe:
        for line in pipe:
            file.write(line)
            file.flush()
