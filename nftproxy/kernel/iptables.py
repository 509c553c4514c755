"""The tools of iptables, in each variant that this machine has: what they save, and what they are given to restore."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nftproxy.kernel import nftables_netlink, xtables
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable

COMMANDS = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
LOCK_SECONDS = 10  # that legacy iptables waits for others who hold its lock
LONGEST = 120.0
"""Seconds that a tool may take: iptables-save needs 30 for the rules of 5,000 Services."""


class Tool(NamedTuple):
    """One variant of iptables for a family, by the part of its path that its commands share."""

    family: Family
    path: str

    @property
    def name(self) -> str:
        """What it is called, as in iptables-legacy."""
        return Path(self.path).name

    @property
    def is_legacy(self) -> bool:
        """Whether it is the variant that knows no nftables."""
        return "legacy" in Path(f"{self.path}-save").resolve().name


def tools() -> Iterator[Tool]:
    """Every iptables here; one that has two names only once."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    for family, command in COMMANDS.items():
        programs = set()
        for name in (f"{command}-nft", f"{command}-legacy", command):
            save = shutil.which(f"{name}-save", path=path)
            if save and shutil.which(f"{name}-restore", path=path) and (real := Path(save).resolve()) not in programs:
                programs.add(real)
                yield Tool(family, save.removesuffix("-save"))


def save(tool: Tool) -> str:
    """Everything that a tool sees.

    Raises:
        Unavailable: it fails.
    """
    return run([f"{tool.path}-save"])


def save_table(tool: Tool, table: str) -> str:
    """One table with its counters; "" if it isn't there, as asking legacy iptables for it would make it.

    Raises:
        Unavailable: the tool fails.
    """
    present = (
        table in xtables.legacy_tables(tool.family)
        if tool.is_legacy
        else nftables_netlink.table_comment(tool.family, table) is not None
    )
    return run([f"{tool.path}-save", "--counters", "--table", table]) if present else ""


def restore(tool: Tool, text: str) -> None:
    """Apply text for iptables-restore to what is there, as a whole or not at all.

    Raises:
        Unavailable: the tool fails.
    """
    run([f"{tool.path}-restore", "--noflush", f"--wait={LOCK_SECONDS}"], text)


def run(command: list[str], text: str = "") -> str:
    """What a command prints.

    Raises:
        Unavailable: it fails, or takes longer than `LONGEST`.
    """
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{name}: no answer in {LONGEST:.0f} s") from error
    if done.returncode:
        raise Unavailable(f"{name}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout
