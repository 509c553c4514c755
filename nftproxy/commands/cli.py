"""The command line: `nftproxy` and its commands, of which some are here and the others have modules of their own.

Standard output carries the result, standard error the messages.  Exit status: 0 done; 1 where `diff` finds a
difference, `check` or `conformance` a fault, or `doctor` more than notes; 2 bad input or usage, with the file, object
and field at fault.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from nftproxy import __version__
from nftproxy.commands.kube_proxy_cleanup import MODES, remove_leftovers
from nftproxy.commands.offline import OFFLINE, PATHS, offline_cluster
from nftproxy.commands.options import CONFIG, configuration
from nftproxy.kernel.check import check_ruleset
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.errors import BadInput, NftproxyError
from nftproxy.rules.transaction import delete_transaction, join


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


_MODULES = ("conformance", "diff", "doctor", "explain", "list", "manifests", "run", "status", "top")
ELSEWHERE = {name: f"nftproxy.commands.{name}:{name}_command" for name in _MODULES}
"""The commands that have a module of their own, and what they are called there."""


class Commands(click.Group):
    """The commands, of which those `ELSEWHERE` are imported when they are asked for.

    An agent runs for months with what `run` imports, and starts with it after each change of its configuration.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """The names of all commands."""
        return sorted({*self.commands, *ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name in ELSEWHERE:
            module, _, name = ELSEWHERE[cmd_name].partition(":")
            self.add_command(getattr(importlib.import_module(module), name))
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


@_commands.command("render")
@PATHS
@OFFLINE
def render_command(paths: tuple[Path, ...], **options: Any) -> None:
    """Print the rules for manifests, commented for review.

    It is the whole ruleset, which `nft -f` loads into an empty namespace.  Nothing is loaded here.

    PATHS are files or directories (not recursive) of YAML or JSON, multi-document and List kinds included.
    """
    sys.stdout.write(offline_cluster(paths, **options).render().text)


@_commands.command("check")
@PATHS
@OFFLINE
def check_command(paths: tuple[Path, ...], **options: Any) -> None:
    """Try on this machine's kernel whether it takes the rules.

    They go into a throw-away network namespace, twice, and the machine's own rules stay as they are.  Needs no root
    where users may make namespaces.  Exit status 1 if the kernel refuses the rules.
    """
    result = check_ruleset(offline_cluster(paths, **options).render().text)
    click.echo(result)
    sys.exit(0 if result.ok else 1)


@_commands.command("cleanup")
@CONFIG
@click.option(
    "--kube-proxy", "mode", type=click.Choice(MODES), help="Remove what kube-proxy left in this mode instead."
)
def cleanup_command(config_file: Path | None, mode: str | None) -> None:
    """Remove nftproxy's tables, or what kube-proxy has left.

    Nothing else is touched.  That nothing is there is no error.
    """
    configuration(config_file)
    if mode:
        for line in remove_leftovers(mode):
            click.echo(line, err=True)
        return
    Kernel().apply(join(map(delete_transaction, Family)))
