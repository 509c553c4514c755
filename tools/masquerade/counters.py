"""The kernel's counters of a network namespace: its TCP's events, and connection tracking's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nftproxy_conformance.lab import Namespace


def tcp(namespace: Namespace) -> Counter[str]:
    """Return the counters of TcpExt (as `nstat` shows them), by name."""
    lines = namespace.call(Path("/proc/thread-self/net/netstat").read_text).splitlines()
    names, values = (line.split()[1:] for line in lines if line.startswith("TcpExt:"))
    return Counter(dict(zip(names, map(int, values), strict=True)))


def conntrack(namespace: Namespace) -> Counter[str]:
    """Return the counters of `conntrack -S`, of all CPUs together, and the number of `entries`."""
    names, *rows = (
        line.split() for line in namespace.call(Path("/proc/thread-self/net/stat/nf_conntrack").read_text).splitlines()
    )
    total: Counter[str] = Counter()
    for row in rows:
        total.update({name: int(value, 16) for name, value in zip(names, row, strict=True)})
    total["entries"] = int(rows[0][0], 16)  # each CPU's row has the number of all
    return total
