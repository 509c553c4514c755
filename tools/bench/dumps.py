"""What a process asks the kernel to list: its netlink requests as strace sees them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

# Of a socket that it hasn't seen opened, strace prints numbers: NFNL_SUBSYS_NFTABLES << 8 | message, and NLM_F_DUMP.
DUMP = re.compile(
    r"nlmsg_type=(?:NFNL_SUBSYS_NFTABLES<<8\|NFT_MSG_(?P<name>\w+)|0xa(?P<number>[0-9a-f]{2})[^,]*), "
    r"nlmsg_flags=[^,]*(?:NLM_F_DUMP|0x300)"
)
WAIT = re.compile(r"\bepoll_p?wait\(")
NAMES = {
    0x01: "GETTABLE",
    0x04: "GETCHAIN",
    0x07: "GETRULE",
    0x0A: "GETSET",
    0x0D: "GETSETELEM",
    0x13: "GETOBJ",
    0x17: "GETFLOWTABLE",
}
"""By their numbers in linux/netfilter/nf_tables.h."""
ATTACHING = 60.0  # seconds


def is_possible() -> bool:
    """Whether there is strace."""
    return shutil.which("strace") is not None


class Dumps:
    """Counts what a running process has listed, by message, all its netlink requests, and how often it waits for news.

    Args:
        pid: the process; all its threads count.
    """

    def __init__(self, pid: int) -> None:
        self.counts = Counter[str]()
        self.requests = 0
        self.waits = 0
        self._directory = tempfile.TemporaryDirectory(prefix="nftproxy-bench-")
        self._output = Path(self._directory.name, "strace")
        calls = "trace=sendto,sendmsg,/^epoll_p?wait$"
        command = ["strace", "-f", "-p", str(pid), "-e", calls, "-s", "64", "-o", str(self._output)]
        self._strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        assert self._strace.stderr is not None
        assert "attached" in self._strace.stderr.readline()
        time.sleep(0.1)  # it says so of the first thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._strace.terminate()
        self._strace.communicate(timeout=ATTACHING)
        seen = self._output.read_text()
        self.requests = seen.count("AF_NETLINK")
        self.waits = len(WAIT.findall(seen))
        self.counts.update(dumped(seen))
        self._directory.cleanup()


def dumped(trace: str) -> Iterator[str]:
    """The message of each request for a dump in strace's output."""
    for match in DUMP.finditer(trace):
        yield match["name"] or NAMES.get(int(match["number"], 16), match["number"])
