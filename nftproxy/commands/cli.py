"""The command line: `nftproxy` and its commands, each in a module of its own.

Results go to standard output, messages to standard error.  Exit status 0 means done.  1 means that `diff` found a
difference, `check` or `conformance` a fault, or `doctor` more than notes.  2 means bad input or usage, and the message
names the file, object and field at fault, or that the output has no room.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from nftproxy.build import this_build
from nftproxy.commands.standard_streams import give_up_output, open_closed_streams
from nftproxy.model.errors import BadInput, NftproxyError, Unavailable


def plugin() -> NoReturn:
    """Run the command line as `kubectl nftproxy`, whose commands ask all nodes unless options say otherwise."""
    main("kubectl nftproxy")


def main(name: str = "nftproxy") -> NoReturn:
    """Run the command line, and turn our errors into messages and exit statuses."""
    open_closed_streams()
    try:
        sys.exit(_done(name))
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


def _done(name: str) -> int | None:
    """Run the command line, write the rest of its output, and return its exit status.

    Raises:
        click.ClickException: the usage is wrong, or the output has no room.
    """
    try:
        try:
            status: int | None = _commands(prog_name=name, standalone_mode=False)
        finally:
            sys.stdout.flush()
    except OSError as error:
        give_up_output(error)
    return status


BROUGHT = {"conformance": "pip install ./conformance"}
"""Commands that another package brings, by an entry point of the group `nftproxy.commands`, and how to install it."""
COMMANDS = "check cleanup completion diff doctor explain list manifests render run status top".split()
"""The commands: `NAME_command` in the module `NAME`."""


class Commands(click.Group):
    """The commands, each imported on demand.

    An agent keeps the imports of `run` for months, and repeats them after each change of its configuration.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names of all commands."""
        return sorted([*COMMANDS, *BROUGHT, "version"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument.  An unknown name's error has the nearest names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib  # only for this: `run` is a command, too

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=2)
            if not near or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message}  Did you mean {' or '.join(near)}?", ctx) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name."""
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"nftproxy.commands.{cmd_name}")
            self.add_command(getattr(module, f"{cmd_name}_command"))
        elif cmd_name in BROUGHT:
            from importlib.metadata import entry_points  # with zip files and e-mail, which no agent needs

            found = entry_points(group="nftproxy.commands", name=cmd_name)
            self.add_command(next((entry.load() for entry in found), None) or _not_installed(cmd_name))
        return super().get_command(ctx, cmd_name)


def _not_installed(name: str) -> click.Command:
    """A command that only says which package to install."""

    def say(**_: object) -> NoReturn:
        raise Unavailable(f"`nftproxy {name}` is in a package of its own: in a checkout, `{BROUGHT[name]}` installs it")

    anything = click.Argument(["anything"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name,
        callback=say,
        params=[anything],
        help=f"Not installed: {BROUGHT[name]} does so in a checkout.",
        context_settings={"ignore_unknown_options": True},
    )


def commands() -> dict[str, click.Command]:
    """Return every command, by name."""
    context = click.Context(_commands)
    found = {name: _commands.get_command(context, name) for name in _commands.list_commands(context)}
    return {name: command for name, command in found.items() if command}


def _print_version(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        click.echo(f"nftproxy, version {this_build().text}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version with its commit, and end.",
)
@click.pass_context
def _commands(ctx: click.Context) -> None:
    """A Kubernetes service proxy for Linux nodes.  It turns Services and EndpointSlices into nftables rules."""
    if os.environ.get("NO_COLOR"):  # no-color.org
        ctx.color = False


@_commands.command("version")
def version_command() -> None:
    """Print the version and its commit."""
    click.echo(f"nftproxy, version {this_build().text}")
