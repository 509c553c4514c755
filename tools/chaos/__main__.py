"""`python -m tools.chaos`: faults at random for minutes, and a report."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import click
from nftproxy_conformance.lab import obstacle

from tools.chaos.faults import FAULTS
from tools.chaos.session import Session


@click.command()
@click.option("--minutes", default=30.0, show_default=True, help="How long faults happen.")
@click.option("--seed", default="", help="Of a run that is to be repeated; by default another one each time.")
@click.option("--only", multiple=True, type=click.Choice(sorted(FAULTS)), help="Only this fault; repeatable.")
def main(minutes: float, seed: str, only: tuple[str, ...]) -> None:
    """Let faults happen to an agent, and say whether its rules, and connections, stayed right."""
    if why := obstacle():
        raise click.ClickException(why)
    seed = seed or secrets.token_hex(4)
    click.echo(f"seed {seed}: repeat with --seed {seed}")
    directory = Path(tempfile.mkdtemp(prefix="nftproxy-chaos-"))
    click.echo(f"the agent's log is {directory / 'log'}")
    with Session(seed, directory, click.echo) as session:
        session.run(minutes * 60, only)
        report(session)
    raise SystemExit(bool(session.violations))


def report(session: Session) -> None:
    """Print the faults, the connections and the violations."""
    for name, count in sorted(session.faults.items()):
        click.echo(f"{name:30} {count:4} times, right after {session.slowest[name]:5.1f} s at the most")
    traffic = session.traffic
    click.echo(f"{session.faults.total()} faults, {session.changes} changes of objects")
    click.echo(f"{traffic.judged:,} connections, {len(traffic.wrong)} wrong")
    click.echo(
        f"{traffic.excused:,} more while rules were harmed, {traffic.unknown:,} that the machine was too busy for"
    )
    watcher = session.watcher
    click.echo(f"{watcher.asked:,} samples of the verdicts, {watcher.well:,} well, {len(watcher.blind)} while blind")
    click.echo(f"{len(session.violations)} violations")
    for each in session.violations[:20]:
        click.echo(f"VIOLATION: {each}")


if __name__ == "__main__":
    main()
