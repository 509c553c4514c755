"""`nftproxy cleanup`: remove the rules of a proxy that no longer runs here."""

from __future__ import annotations

from pathlib import Path

import click

from nftproxy.commands.kube_proxy_cleanup import MODES, remove_leftovers
from nftproxy.commands.options import CONFIG, configuration
from nftproxy.commands.table_removal import remove_tables


@click.command("cleanup")
@CONFIG
@click.option("--kube-proxy", "mode", type=click.Choice(MODES), help="Remove kube-proxy's rules of this mode instead.")
def cleanup_command(config_file: Path | None, mode: str | None) -> None:
    """Remove nftproxy's tables, or kube-proxy's leftovers.

    Nothing else is touched.  It is no error if there is nothing to remove.
    """
    configuration(config_file)
    if mode:
        for line in remove_leftovers(mode):
            click.echo(line, err=True)
        return
    remove_tables()
