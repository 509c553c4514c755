"""`python -m tools.kubernetes`: brings up a cluster, and takes steps."""

from __future__ import annotations

import shlex
import signal
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from pathlib import Path

import click
from nftproxy_conformance.lab import obstacle

from tools.bench.figures import markdown
from tools.kubernetes.binaries import CLUSTER, DEBIAN, END_TO_END, VARIABLE, WITHOUT_DNS, Binaries
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.deployment import use_nftproxy
from tools.kubernetes.end_to_end import run_tests
from tools.kubernetes.glance import AFTER, BEFORE, glances
from tools.kubernetes.judging import JUDGED, judge, verdict
from tools.kubernetes.recording import DEFAULT_SIZE, fate, note
from tools.kubernetes.restarts import restart_all
from tools.kubernetes.results import FAILED, summary
from tools.migration.switch import COUNTS, Account


class ClusterRun:
    """The cluster, brought up when a step first needs it, and whether all steps have been well.

    Args:
        binaries: Kubernetes' programs.
        nodes: how many.
        zones: how many.
    """

    def __init__(self, binaries: Binaries, nodes: int, zones: int) -> None:
        self.binaries = binaries
        self.is_well = True
        self.note = partial(note, binaries, (nodes, zones))
        self._size = nodes, zones
        self._stack = ExitStack()

    def need(self, *programs: str, packages: Mapping[str, str] | None = None) -> None:
        """End with a line that says so if a program or a package is missing, as a success if no step failed."""
        if why := self.binaries.lack(programs, packages):
            click.echo(f"kubernetes: skipped, nothing was tried: {why}")
            raise SystemExit(not self.is_well)

    @cached_property
    def directory(self) -> Path:
        """The folder of logs and kubeconfigs."""
        return Path(tempfile.mkdtemp(prefix="nftproxy-kubernetes-"))

    @cached_property
    def cluster(self) -> RealCluster:
        """The cluster with nftproxy on each node."""
        self.need(*WITHOUT_DNS, packages=DEBIAN)
        made = self._stack.enter_context(RealCluster(self.binaries, self.directory / "cluster", *self._size, say))
        use_nftproxy(made)
        return made

    def close(self) -> None:
        """End the cluster."""
        self._stack.close()


def say(text: str) -> None:
    """Report progress."""
    click.echo(f"kubernetes: {text}", err=True)


@click.group(chain=True, invoke_without_command=True)
@click.option(
    "--binaries",
    envvar=VARIABLE,
    show_envvar=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The folder of release binaries.",
)
@click.option("--nodes", default=DEFAULT_SIZE[0], show_default=True)
@click.option("--zones", default=DEFAULT_SIZE[1], show_default=True, help="Nodes take turns.")
@click.pass_context
def main(context: click.Context, binaries: Path | None, nodes: int, zones: int) -> None:
    """Bring up a Kubernetes cluster from release binaries, and take steps on it in the order given.

    By default these are conformance, tests and restarts.

    Needs root.  Exit status 1 if a step found a fault.  Where the binaries are missing it says so in a line, and ends
    with success.
    """
    if why := obstacle():
        raise click.ClickException(why)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a cluster ends as by Ctrl-C
    given = context.obj = ClusterRun(Binaries(binaries), nodes, zones)
    context.call_on_close(given.close)
    if context.invoked_subcommand is None:
        for step in (conformance, tests, restarts):
            context.invoke(step)


@main.result_callback()
@click.pass_obj
def finish(given: ClusterRun, /, *_: object, **__: object) -> None:
    """Exit with the status of all steps."""
    click.echo(f"logs are in {given.directory}")
    raise SystemExit(not given.is_well)


@main.command()
@click.pass_obj
def glance(given: ClusterRun) -> None:
    """Look at a cluster with a fault on each of its three nodes, by kubectl's plugin with the rights of a reader."""
    given.need(*WITHOUT_DNS)
    wrong = 0
    for command, difference in glances(given.cluster):
        say(f"{command}: {difference}")
        wrong += 1
    looks = len(BEFORE) + len(AFTER)
    result = f"{looks - wrong} of {looks} commands print the cluster's faults, and their exit status"
    given.note("kubectl nftproxy, with the rights of a reader", "glance", result)
    given.is_well &= not wrong


@main.command()
@click.pass_obj
def cluster(given: ClusterRun) -> None:
    """Hold the cluster, until Ctrl-C."""
    say(f"its network: nsenter --net={given.cluster.fabric.path}")
    click.echo(f"export KUBECONFIG={given.cluster.control.kubeconfig}")
    with suppress(KeyboardInterrupt):
        signal.pause()


@main.command()
@click.option("--examples", default=20, show_default=True, help="Clusters for each feature.")
@click.pass_obj
def conformance(given: ClusterRun, examples: int) -> None:
    """Compare the real kube-proxy with docs/semantics.md, on made-up clusters, and with nftproxy."""
    given.need("kube-proxy")
    for column, arguments in JUDGED.items():
        status, output = judge(given.binaries, given.directory, f"--examples={examples}", *arguments)
        click.echo(output)
        given.note(column, f"conformance --examples {examples}", verdict(output), ["kube-proxy"])
        given.is_well &= not status


@main.command()
@click.option(
    "--focus",
    multiple=True,
    default=["sig-network"],
    show_default=True,
    help="A regular expression for names.  Repeatable: tests of each run at the same time.",
)
@click.pass_obj
def tests(given: ClusterRun, focus: tuple[str, ...]) -> None:
    """Run Kubernetes' end-to-end tests of sig-network."""
    given.need(*CLUSTER, END_TO_END)
    for each, those in run_tests(given.cluster, focus).items():
        parts = "tests of sig-network", each.removeprefix("sig-network").removeprefix(".*")
        click.echo(f"{each}: {summary(those)}")
        given.note(", ".join(filter(None, parts)), f"tests --focus {shlex.quote(each)}", summary(those))
        given.is_well &= all(test.state != FAILED for test in those)


@main.command()
@click.pass_obj
def restarts(given: ClusterRun) -> None:
    """Restart the kubelet and the agent of each node, under traffic."""
    result = show(given, restart_all(given.cluster))
    given.note("restarts of each kubelet and agent", "restarts", result)


def show(given: ClusterRun, account: Account) -> str:
    """Print the fate of the connections of each step, and return all of it in words."""
    rows = list(account.rows())
    cells = [(row.step, f"{row.seconds:.1f}", *(f"{count:,}" for count in row[2:])) for row in rows]
    click.echo(markdown((account.shape, "s", *COUNTS), cells))
    given.is_well &= not any(row.new_lost or row.ended for row in rows)
    return fate(account)


if __name__ == "__main__":
    main()
