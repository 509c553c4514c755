"""`nftproxy check`: try whether this machine's kernel takes the rules for manifests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from nftproxy.commands.offline import OFFLINE, PATHS, offline_cluster
from nftproxy.kernel.ruleset_check import check_ruleset


@click.command("check")
@PATHS
@OFFLINE
def check_command(paths: tuple[Path, ...], **options: Any) -> None:
    """Try whether this machine's kernel takes the rules.

    The rules are loaded twice into a throw-away network namespace, and the machine's own rules stay as they are.  Needs
    no root where users may create namespaces.  Exit status 1 if the kernel refuses the rules.
    """
    result = check_ruleset(offline_cluster(paths, **options).render().text)
    click.echo(result)
    sys.exit(0 if result.ok else 1)
