"""Installs what a tool needs from this machine's Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping


def install(packages: Mapping[str, str]) -> None:
    """Install packages, each given by a program that is in it, if that is missing.

    Raises:
        SystemExit: they can't be installed.  The message names them.
    """
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [package for program, package in packages.items() if shutil.which(program, path=path) is None]
    if missing:
        print(f"installing {', '.join(missing)} with apt", file=sys.stderr, flush=True)  # noqa: T201 -- it takes a while
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600"]
        try:
            subprocess.run([*apt, "update"], check=True, stdin=subprocess.DEVNULL)
            command = [*apt, "install", "-y", "--no-install-recommends", *missing]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=quiet)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"missing, and can't be installed: {', '.join(missing)} ({error})")
