"""`nftproxy render`: print the rules for manifests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from nftproxy.commands.offline import OFFLINE, PATHS, offline_cluster


@click.command("render")
@PATHS
@OFFLINE
def render_command(paths: tuple[Path, ...], **options: Any) -> None:
    """Print the rules for manifests, commented for review.

    The output is the whole ruleset, which `nft -f` loads into an empty namespace.  Nothing is loaded here.

    PATHS are files or directories (not recursive) of YAML or JSON, multi-document and List kinds included.
    """
    sys.stdout.write(offline_cluster(paths, **options).render().text)
