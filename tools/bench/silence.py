"""The cost of a node's death for clients, and of watching for it: `python -m tools.bench.silence`, as root.

Every 20 ms a client begins a connection to a Service with two pods.  The node of a pod has just died silently.
One Service leaves silent endpoints out, the other doesn't.  The same happens while another pod never answers a flood of
connections to a Service of its own.  Then the agent's processor time is taken while a
Service with 5,000 endpoints and no traffic asks for it and doesn't, by turns.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
from nftproxy_conformance.lab import obstacle

from tests.support import objects
from tests.support.background import repeating
from tests.support.cluster import IP, IP6, Ip
from tests.support.processes import cpu_seconds
from tests.system.e2e.agent import eventually
from tests.system.e2e.objects import slice_of
from tests.system.e2e.silent_town import ANNOTATION, PLAIN, Connections, Town, put_service, town

BEGUN, EVERY = 400, 0.02
PATIENCE = 10.0
ENDPOINTS, IDLE, TURNS = 5000, 10.0, 3
EVIL, EVIL_POD = "10.96.0.66", "10.1.2.66"


class Outage(NamedTuple):
    """Connections begun after a node's death, in seconds after it: without an answer, late, and the longest wait."""

    unanswered: int
    late: int
    last_late: float
    longest: float


def outage(world: Town, ip: Ip, address: str) -> Outage:
    """Let a node die, connect for a while, and let it come back."""
    world.network.lose(world.ranges(ip))
    died = time.monotonic()
    with contextlib.closing(Connections(world.client, address)) as made:
        for number in range(BEGUN):
            made.wait_until(died + number * EVERY)
            made.begin(1)
        unanswered = made.wait(PATIENCE)
        late = [began - died for began, took in zip(made.began, made.took, strict=True) if took > 0.5]
        found = Outage(unanswered, len(late), max(late, default=0.0), max(made.took))
    world.network.route(world.ranges(ip), world.nodes[1])
    eventually(world.status, [], timeout=120)
    return found


@contextlib.contextmanager
def hostile(world: Town) -> Iterator[None]:
    """Begin 3,000 connections a second to a Service whose pod answers the node, and drops what the client sends."""
    evil = world.nodes[2].pod("evil", EVIL_POD, "fd00:1:0:2::66")
    evil.serve(8080)
    rule = f"add rule inet evil drops ip saddr {world.client.address} tcp dport 8080 drop"
    chain = "add chain inet evil drops { type filter hook input priority 0; }"
    evil.namespace.run(["nft", f"add table inet evil; {chain}; {rule}"])
    put_service(world.server, "evil", (EVIL,), [f"{EVIL_POD}@node-c"])
    made = list[Connections]()

    def flood() -> None:
        made.append(Connections(world.client, EVIL))
        made[-1].begin(300)
        if len(made) > 20:
            made.pop(0).close()

    try:
        with repeating(flood, 0.1):
            time.sleep(4)  # clients send again after a second, so notes are as many as they get
            yield
    finally:
        for each in made:
            each.close()


def idle(world: Town, *, leaves_out: bool) -> float:
    """Seconds of the agent's processor time while nothing happens, with so many endpoints."""
    metadata = ANNOTATION if leaves_out else {}
    vips = (IP.vip, IP6.vip)
    world.server.put(objects.service("web", {"type": "ClusterIP"}, vips=vips, ports=["80"], metadata=metadata))
    time.sleep(3)
    process = world.agent.process_id
    before = cpu_seconds(process)
    time.sleep(IDLE)
    return cpu_seconds(process) - before


@click.command()
def main() -> None:
    """Print the figures of docs/reliability.md."""
    if why := obstacle():
        raise click.ClickException(why)
    with tempfile.TemporaryDirectory() as directory, town(Path(directory)) as world:
        for ip in (IP, IP6):
            for name, address in (("none", PLAIN[ip]), ("silent", ip.vip)):
                click.echo(f"{name} {address}: {outage(world, ip, address)}")
        with hostile(world):
            click.echo(f"silent, with a hostile pod: {outage(world, IP, IP.vip)}")
        for number in range(ENDPOINTS // 100):
            ends = [f"10.1.{3 + number}.{host + 1}@node-x" for host in range(100)]
            world.server.put(slice_of(*ends, name="web", suffix=f"x{number}"))
        for _ in range(TURNS):
            for leaves_out in (False, True):
                click.echo(f"leaves out: {leaves_out}: {idle(world, leaves_out=leaves_out):.2f} s in {IDLE} s")


if __name__ == "__main__":
    main()
