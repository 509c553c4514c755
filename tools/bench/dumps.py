"""The lists that a process asks the kernel for: its netlink requests as strace sees them."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Of a socket that it hasn't seen opened, strace prints numbers: NFNL_SUBSYS_NFTABLES << 8 | message, and NLM_F_DUMP.
DUMP = re.compile(
    r"nlmsg_type=(?:NFNL_SUBSYS_NFTABLES<<8\|NFT_MSG_\w+|0xa[0-9a-f]{2}[^,]*), nlmsg_flags=[^,]*(?:NLM_F_DUMP|0x300)"
)
WAIT = re.compile(r"\bepoll_p?wait\(")
CALLS = "trace=sendto,sendmsg,/^epoll_p?wait$"
ATTACHING = 60.0  # seconds


@dataclass
class Traced:
    """How many lists a process asked the kernel for, its netlink requests, and the turns of its event loop."""

    dumps: int = 0
    requests: int = 0
    waits: int = 0


@contextmanager
def traced(process_id: int) -> Iterator[Traced]:
    """Trace a running process with all its threads.  The counts are there at the end."""
    found = Traced()
    with tempfile.TemporaryDirectory(prefix="nftproxy-bench-") as directory:
        output = Path(directory, "strace")
        command = ["strace", "-f", "-p", str(process_id), "-e", CALLS, "-s", "64", "-o", str(output)]
        strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert strace.stderr is not None
            assert "attached" in strace.stderr.readline()
            time.sleep(0.1)  # strace prints that when it has the first thread
            yield found
        finally:
            strace.terminate()
            strace.communicate(timeout=ATTACHING)
        seen = output.read_text()
    found.dumps = len(DUMP.findall(seen))
    found.requests = seen.count("AF_NETLINK")
    found.waits = len(WAIT.findall(seen))
