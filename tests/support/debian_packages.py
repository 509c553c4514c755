"""Programs of Debian that tests run without installing them: installing a firewall or a server would start it."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

TREES = Path(__file__).resolve().parents[2] / ".trees"


def unpacked(*packages: str) -> Path:
    """The tree of some packages, without their dependencies, named like the first.  The first call unpacks it."""
    tree = TREES / packages[0]
    TREES.mkdir(exist_ok=True)
    with (TREES / f"{packages[0]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            coming = tree.with_suffix(".coming")
            shutil.rmtree(coming, ignore_errors=True)
            coming.mkdir()
            subprocess.run(["apt-get", "download", "-qq", *packages], cwd=coming, check=True)
            for package in coming.glob("*.deb"):
                subprocess.run(["dpkg-deb", "--extract", package, coming], check=True)
            coming.rename(tree)
    return tree
