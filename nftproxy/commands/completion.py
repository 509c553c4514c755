"""`nftproxy completion`: print the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "fish", "zsh")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print the script that completes commands in a shell.

    bash: source <(nftproxy completion bash).  fish: nftproxy completion fish | source.  zsh: source <(nftproxy
    completion zsh), after compinit.
    """
    click.echo(completion_script(shell))


def completion_script(shell: str) -> str:
    """Return the script of a shell.  It asks the program for all completions, so it doesn't depend on the commands."""
    made = get_completion_class(shell)
    assert made is not None, "click has these shells"
    return made(click.Command("nftproxy"), {}, "nftproxy", "_NFTPROXY_COMPLETE").source()
