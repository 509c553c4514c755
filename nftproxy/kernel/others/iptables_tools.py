"""The tools of iptables, in each variant that this machine has: iptables-save and iptables-restore."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.others import xtables
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable

COMMANDS = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
LOCK_SECONDS = 10  # that legacy iptables waits for its lock
LONGEST = 120.0
"""Seconds that a tool may take. iptables-save needs 30 for the rules of 5,000 Services."""


class IptablesTool(NamedTuple):
    """One variant of iptables for a family, by the common prefix of its commands' paths."""

    family: Family
    path: str

    @property
    def name(self) -> str:
        """The name, as in iptables-legacy."""
        return Path(self.path).name

    @property
    def is_legacy(self) -> bool:
        """True for the variant without nftables."""
        return "legacy" in Path(f"{self.path}-save").resolve().name


def tools() -> Iterator[IptablesTool]:
    """Yield each iptables of this machine, once if it has two names."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    for family, command in COMMANDS.items():
        programs = set()
        for name in (f"{command}-nft", f"{command}-legacy", command):
            save = shutil.which(f"{name}-save", path=path)
            if save and shutil.which(f"{name}-restore", path=path) and (real := Path(save).resolve()) not in programs:
                programs.add(real)
                yield IptablesTool(family, save.removesuffix("-save"))


def save(tool: IptablesTool) -> str:
    """Return all tables of a tool.

    Raises:
        Unavailable: the tool fails.
    """
    return run([f"{tool.path}-save"])


def save_table(tool: IptablesTool, table: str) -> str:
    """Return one table with its counters, "" if the table doesn't exist: legacy iptables would make it.

    Raises:
        Unavailable: the tool fails.
    """
    present = (
        table in xtables.legacy_tables(tool.family)
        if tool.is_legacy
        else nft_queries.table_comment(tool.family, table) is not None
    )
    return run([f"{tool.path}-save", "--counters", "--table", table]) if present else ""


def restore(tool: IptablesTool, text: str) -> None:
    """Apply text for iptables-restore to the tables, as a whole or not at all.

    Raises:
        Unavailable: the tool fails.
    """
    run([f"{tool.path}-restore", "--noflush", f"--wait={LOCK_SECONDS}"], text)


def run(command: list[str], text: str = "") -> str:
    """Return the output of a command.

    Raises:
        Unavailable: the command fails, or takes longer than `LONGEST`.
    """
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="surrogateescape",  # comments may have any bytes, and `restore` must write the same
            check=False,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{name}: no answer in {LONGEST:.0f} s") from error
    if done.returncode:
        raise Unavailable(f"{name}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout
