"""`python -m tools.support.kernels`: run each subject in a virtual machine for each kernel, and record the results."""

from __future__ import annotations

import shlex
import sys

import click

from tools.image.build import build
from tools.support.subjects import IMAGE, SUBJECTS
from tools.vm.machine import Machine

MACHINES = (
    Machine("bookworm", "bullseye"),
    Machine("bookworm", "bookworm"),
    Machine("trixie", "trixie"),
    Machine("sid", "sid"),
    Machine("trixie", "trixie", architecture="arm64"),
)
OLDEST = MACHINES[0]
"""The oldest kernel and the oldest nft."""
QUICK = f"{SUBJECTS['packets, in short'].command} -k 'not Interface'"
"""A minute of packets."""
MINUTES = 60.0
"""Minutes for a subject: ten times the longest subject's time on a processor that is not emulated."""


@click.command()
@click.option("--quick", is_flag=True, help="Only a minute of packets, on the oldest kernel.  Nothing is recorded.")
@click.option("--subject", "names", multiple=True, type=click.Choice(list(SUBJECTS)), default=SUBJECTS)
def main(quick: bool, names: tuple[str, ...]) -> None:
    """Try nftproxy on other kernels and architectures.  Ends with 1 if something failed."""
    if quick:
        sys.exit(OLDEST.run(shlex.split(QUICK), MINUTES * 60))
    if IMAGE in names:
        for architecture in {machine.architecture for machine in MACHINES}:
            build(architecture)
    tried = [
        machine.run(["python", "-m", "tools.support", name], MINUTES * 60) for machine in MACHINES for name in names
    ]
    sys.exit(any(tried))


main()
