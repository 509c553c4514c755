"""`python -m tools.vm --suite SUITE -- COMMAND...`: run a command in a virtual machine."""

from __future__ import annotations

import sys

import click

from tools.vm.machine import Machine


@click.command()
@click.option("--suite", default="trixie", show_default=True, help="Debian's release: its programs, and its kernel.")
@click.option("--kernel", help="The release that the kernel is from, if it is another one.")
@click.option("--architecture", type=click.Choice(["amd64", "arm64"]), default="amd64", show_default=True)
@click.option("--minutes", type=float, default=120.0, show_default=True, help="After these the machine is ended.")
@click.option("--systemd", is_flag=True, help="Start systemd, and the command as a unit of it.")
@click.argument("command", nargs=-1, required=True)
def main(
    command: tuple[str, ...], suite: str, kernel: str | None, architecture: str, minutes: float, systemd: bool
) -> None:
    """Run a command in a virtual machine, as root, in this checkout.  Ends with the command's exit status."""
    sys.exit(Machine(suite, kernel or suite, architecture, systemd).run(command, minutes * 60))


main()
