"""The command line: `nftproxy` and its commands, each of which has a module of its own.

Standard output carries the result, standard error the messages.  Exit status: 0 done; 1 where `diff` finds a
difference, `check` or `conformance` a fault, or `doctor` more than notes; 2 bad input or usage, with the file, object
and field at fault.
"""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

import click

from nftproxy import __version__
from nftproxy.model.errors import BadInput, NftproxyError


def main() -> NoReturn:
    """Run the command line; maps our errors to messages and exit statuses."""
    try:
        sys.exit(_commands(prog_name="nftproxy", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except BadInput as error:
        for problem in error.problems:
            click.echo(f"error: {problem.coded}", err=True)
        sys.exit(2)
    except NftproxyError as error:
        click.echo(f"error: {error.code}: {error}", err=True)
        sys.exit(1)


COMMANDS = "check cleanup conformance diff doctor explain list manifests render run status top".split()
"""The commands: `name_command` in a module that is called as they are."""


class Commands(click.Group):
    """The commands, each of which is imported when it is asked for.

    An agent runs for months with what `run` imports, and starts with it after each change of its configuration.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"nftproxy.commands.{cmd_name}")
            self.add_command(getattr(module, f"{cmd_name}_command"))
        return super().get_command(ctx, cmd_name)


def commands() -> dict[str, click.Command]:
    """Every command, by name."""
    context = click.Context(_commands)
    found = {name: _commands.get_command(context, name) for name in _commands.list_commands(context)}
    return {name: command for name, command in found.items() if command}


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def _commands() -> None:
    """A Kubernetes service proxy for Linux nodes: Services and EndpointSlices in, one nftables table a family out."""
