"""Fetches the wheels of pinned packages for the Python of Debian 13, on any machine for each architecture."""

from __future__ import annotations

import subprocess
import sys

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The architectures, as Debian and as wheels name them."""
PYTHON = "3.13"
"""Of Debian 13, for which requirements.txt is."""
GLIBC = ("2_17", "2_28", "2_34")


def of_debian(architecture: str) -> list[str]:
    """Return the options of pip that choose wheels of an architecture."""
    platforms = [f"--platform=manylinux_{glibc}_{MACHINES[architecture]}" for glibc in GLIBC]
    return [f"--python-version={PYTHON}", "--implementation=cp", "--only-binary=:all:", *platforms]


def run_pip(command: str, *arguments: str) -> None:
    """Run a command of this machine's pip for these packages alone, without their dependencies.

    Raises:
        subprocess.CalledProcessError: pip finds no wheel for a package.
    """
    subprocess.run([sys.executable, "-m", "pip", command, "--quiet", "--no-deps", *arguments], check=True)
