"""`python -m tools.support SUBJECT...`: run subjects on this kernel, and record their results."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
import subprocess
import sys

import click

from nftproxy.kernel.ruleset_check import libnftables_version
from tools.support.results import CHECKOUT, SupportResult, record
from tools.support.subjects import SUBJECTS, Subject
from tools.vm.machine import OPTIONS

TREE = "NFTPROXY_TREE"
"""The environment variable by which a command knows that debian.sh has started it, and the tree's name."""


@click.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice(list(SUBJECTS)))
def main(names: tuple[str, ...]) -> None:
    """Run subjects here, show their output, and record their results.  Ends with 1 if one failed."""
    sys.exit(max([run(name, SUBJECTS[name]) for name in names]))


def run(name: str, subject: Subject) -> int:
    """Run a subject and record its result.  Returns 1 if it failed."""
    click.echo(f"support: {name}: {subject.command}")
    process = subprocess.Popen(
        ["bash", "-c", subject.command], cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    result = "no result"
    for line in process.stdout or ():
        sys.stdout.write(line)
        sys.stdout.flush()
        if found := re.match(subject.result, line.strip()):
            result = found[1]
    status = process.wait()
    if status and "failed" not in result:
        result = f"failed, with exit status {status}: {result}"
    machine, tree = os.environ.get(OPTIONS), os.environ.get(TREE)
    command = f"python -m tools.support {shlex.quote(name)}"
    if tree:
        command = f"tools/debian/debian.sh {tree} {command}"
    release = re.match(r"\d+\.\d+", platform.release())
    nft = libnftables_version()
    record(
        SupportResult(
            topic="kernels",
            row=f"Linux {release[0] if release else platform.release()}, nft {nft}, {platform.machine()}",
            column=name,
            command=command if machine is None else f"python -m tools.vm {machine} -- {command}",
            date=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
            result=result,
            details=f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Linux {platform.release()}",
        )
    )
    return int(status != 0)


main()
