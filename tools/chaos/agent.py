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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab

from nftproxy.config.configz import configz
from nftproxy.installed_fields import FIELDS
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.sources.config_documents import load_config
from tests.support.processes import CHECKOUT
from tests.system.faults.bench import SYNC_PERIOD, Bench

DISK = 1024 * 1024
"""Bytes of the agent's disk, for its temporary files."""
PATIENCE = 180.0
"""Seconds for something that takes a second or two on a quiet machine.  A busy machine takes ten times as long, a slow
machine longer."""
_EMPTY = re.compile(r"^\tchain (\S+) \{.*\n(?:\t\ttype .*\n)?\t\}$", re.MULTILINE)
"""A chain without rules, as nft lists it."""
_MOUNT = 'mount -t tmpfs -o size="$1" chaos "$2" && shift 2 && exec "$@"'


class ChaosAgent(Bench):
    """An agent whose temporary files are on a small disk in a mount namespace of its own."""

    def __init__(self, lab: Lab, server: ApiServer, directory: Path) -> None:
        super().__init__(lab, server, directory, "tests.system.faults.hasty")
        self._disk = directory / "disk"
        self._disk.mkdir(exist_ok=True)
        self._renewals = 0

    def start_another(self, *arguments: str) -> subprocess.Popen[Any]:
        """Start another agent, with a disk of its own, which writes to the same log."""
        agent = [sys.executable, "-m", self._program, "run", *arguments]
        command = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(DISK), str(self._disk), *agent]
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "TMPDIR": str(self._disk)}
        with self.log_path.open("a") as log:
            return self.lab.node.popen(command, cwd=CHECKOUT, env=environment, stderr=log)

    def replace_by(self, other: subprocess.Popen[Any]) -> None:
        """Kill the agent, and treat another process as the agent from now on."""
        self.kill()
        self._process = other

    def is_right(self) -> bool:
        """Whether the kernel holds exactly the wanted rules, and the agent says that it does.

        False while sets come and go that are being read.  An agent that has just started over right rules isn't ready
        before it has compared them.
        """
        try:
            return super().is_right() and not self._empty_chains() and self._body("/healthz", 10256) is not None
        except (Refused, Unavailable):
            return False

    def _body(self, path: str, port: int) -> bytes | None:
        """The body of an answer, None without an answer of status 200: the agent may be starting."""
        try:
            reply = self.ask(path, port)
        except (OSError, http.client.HTTPException):
            return None
        return reply.body if reply.status == 200 else None

    def _empty_chains(self) -> list[str]:
        """Chains of our tables that somebody has emptied, which no element shows: none of ours is without rules."""
        listings = self.lab.node.call(lambda: [Kernel().listing_of_rules(family) for family in Family])
        return [name for listing in listings for name in _EMPTY.findall(listing)]

    def renew_configuration(self) -> None:
        """Give the agent a good configuration that it has never had, and wait until that is in force.

        By then the agent has finished everything that an earlier configuration made it do, such as to begin anew.
        """
        self._renewals += 1
        period = f"{1000 * SYNC_PERIOD + self._renewals}ms"
        nftables = self.configuration["nftables"] | {"syncPeriod": period}
        self.config_map.update(yaml.safe_dump(self.configuration | {"nftables": nftables}))
        wanted = configz(load_config(self.config_map.path, FIELDS)[0])
        self.wait_until(lambda: self._body("/configz", 10249) == wanted, PATIENCE)

    def forget_wanted(self) -> None:
        """Compute the wanted rules anew: the server's versions have gone back, and mean other objects now."""
        self._wanted = (-1, {})

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the process for the block of a `with` statement."""
        os.kill(self.process_id, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process_id, signal.SIGCONT)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Leave no room on the agent's disk, which only its own namespace has, for the block of a `with` statement."""
        filling = Path(f"/proc/{self.process_id}/root{self._disk}/filling")
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filling.unlink(missing_ok=True)

    @contextlib.contextmanager
    def few_files(self, more: int) -> Iterator[None]:
        """Let the agent open at most `more` files beside those that it has, for the block of a `with` statement."""
        count = len(list(Path(f"/proc/{self.process_id}/fd").iterdir()))
        limits = resource.prlimit(self.process_id, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process_id, resource.RLIMIT_NOFILE, (count + more, limits[1]))
        try:
            yield
        finally:
            resource.prlimit(self.process_id, resource.RLIMIT_NOFILE, limits)
