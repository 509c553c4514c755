"""`python -m tools.attacks`: attacks on a real agent, one after the other, or all at once for some minutes.

One after the other each has a row: the figure before the attack was cured (two cores, an otherwise idle machine), and
the figures of now: the lines of the log and the peak of memory during the attack, and the seconds until the rules were
right.  Then noisy tenants have a row each, with the waits of a quiet tenant.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

import click
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab, obstacle

from tests.system.faults.bench import PERMISSIONS, Bench, furnish
from tools.attacks.at_once import Together, all_at_once
from tools.attacks.attacks import ATTACKS, PATIENCE, attacked
from tools.attacks.noise import MIX, NOISES, beside

KEPT = 1_000
"""Changes that the API server remembers, of up to 256 KiB each."""


@contextmanager
def attacked_bench(directory: Path) -> Iterator[Bench]:
    """A running agent with a quiet tenant's Services."""
    with Lab() as lab, ApiServer(history=KEPT, tls=True, authenticate=True, make_socket=lab.node.socket) as server:
        server.rbac = PERMISSIONS
        furnish(server)
        with Bench(lab, server, directory) as bench:
            bench.start()
            bench.wait_until_right(PATIENCE)
            yield bench


@click.command()
@click.option("--minutes", type=float, help="Make all attacks at once for so long.")
@click.option("--seconds", default=20.0, show_default=True, help="The seconds of each kind of noise.")
def main(minutes: float | None, seconds: float) -> None:
    """Make each attack and each noise and print a row for it, or make all at once."""
    if why := obstacle():
        raise click.ClickException(why)
    with attacked_bench(Path(tempfile.mkdtemp(prefix="nftproxy-attacks-"))) as bench:
        if minutes is None:
            one_by_one(bench)
            noise_by_noise(bench, seconds)
        else:
            found = all_at_once(bench, MIX, 1.0, 60 * minutes)
            report(found)
            raise SystemExit(bool(found.wrong))


def one_by_one(bench: Bench) -> None:
    """Print a row for each attack."""
    click.echo("| attack | before | now |")
    click.echo("| --- | --- | --- |")
    for number, attack in enumerate(ATTACKS):
        found = attacked(bench, attack, number, 1.0)
        now = f"{found.lines} lines, {found.peak / 1e6:.0f} MB, right after {found.seconds:.0f} s"
        click.echo(f"| {attack.what} | {attack.before} | {now} |")


def noise_by_noise(bench: Bench, seconds: float) -> None:
    """Print a row for each kind of noise."""
    click.echo("| noise | a quiet tenant's waits before | now | the agent's processor time in these |")
    click.echo("| --- | --- | --- | --- |")
    for noise in NOISES:
        found = beside(bench, noise.case, seconds)
        now, work = _cuts([each.seconds for each in found]), _cuts([each.work for each in found])
        click.echo(f"| {noise.what} | {noise.before} | {now} | {work} |")
        bench.wait_until_right(PATIENCE)


def _cuts(seconds: Sequence[float]) -> str:
    """The median and the longest waits."""
    cuts = quantiles([*seconds, max(seconds)], n=100, method="inclusive")
    return f"p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, most {max(seconds):.2f} s"


def report(found: Together) -> None:
    """Print how often each attack was made, and what became of the connections, the quiet tenant and the memory."""
    for name, count in sorted(found.attacks.items()):
        click.echo(f"{name:20} {count:4} times")
    click.echo(f"{found.judged:,} connections, {len(found.wrong)} wrong")
    click.echo(f"{len(found.waits)} changes of a quiet tenant: {_cuts([each.seconds for each in found.waits])}")
    click.echo(f"processor time of the agent in these: {_cuts([each.work for each in found.waits])}")
    click.echo(f"peak {found.peak / 1e6:.0f} MB")
    for each in found.wrong[:20]:
        click.echo(f"WRONG: {each}")


if __name__ == "__main__":
    main()
