"""`nftproxy completion`: print the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "fish", "zsh")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands and options.

    bash: source <(nftproxy completion bash).  fish: nftproxy completion fish | source.  zsh: source <(nftproxy
    completion zsh), after compinit.
    """
    made = get_completion_class(shell)
    assert made is not None, "click has these shells"
    root = ctx.find_root()
    click.echo(made(root.command, {}, "nftproxy", "_NFTPROXY_COMPLETE").source())
