"""`python -m tools.attacks`: attacks on a real agent, one after the other, beside a quiet tenant.

An agent follows an API server on a lab's node.  After each attack the quiet tenant's endpoint is replaced, and the
kernel must hold exactly the rules of all objects.  Each row has the figure before the attack was cured (two cores, an
otherwise idle machine), and the figures of now: the lines of the log and the peak of memory during the attack, and the
seconds until the rules were right.  What other tenants wait for, while some change much, is measured by
`python -m tools.bench.fairness`.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab, obstacle

from nftproxy.model.annotations import PREFIX
from tests.support import objects
from tests.system.faults.bench import PERMISSIONS, Bench, endpoints, furnish

PATIENCE = 600.0
LARGE = 250 * 1024
"""Characters of an annotation, of the 256 KiB that the API allows."""
METRICS = 10249


class Attack(NamedTuple):
    """An attack, what it led to before it was cured, and the way to make it, with sizes in proportion to `scale`."""

    what: str
    before: str
    make: Callable[[Bench, float], None]


class Outcome(NamedTuple):
    """The lines of the log in an attack, the agent's peak of memory in bytes, and the seconds to the right rules."""

    lines: int
    peak: int
    seconds: float


def annotated(text: str) -> dict[str, dict[str, str]]:
    """Metadata with a large annotation."""
    return {"annotations": {"note": text * LARGE}}


def compressible(bench: Bench, scale: float) -> None:
    """Slices that gzip compresses well, in a namespace that sorts first, and a listing of them."""
    for number in range(int(12 * scale) or 1):
        bench.server.put(objects.endpoint_slice(f"a{number}", namespace="aaa", metadata=annotated("a")))
    restart(bench)


def filled(bench: Bench, scale: float) -> None:
    """Services that fill etcd, and a cold start."""
    for number in range(int(2128 * scale) or 1):
        bench.server.put(objects.service(f"f{number}", namespace="fill", metadata=annotated("f")))
    restart(bench)


def orphans(bench: Bench, scale: float) -> None:
    """Slices of no Service, beside a Service with failover whose endpoint flaps."""
    for number in range(int(3500 * scale) or 1):
        addresses = [f"20.{number >> 8}.{number & 255}.{each}" for each in range(250)]
        bench.server.put(objects.endpoint_slice(f"o{number}", *addresses, service="none", namespace="orphans"))
    annotations = {f"{PREFIX}failover": "gone"}
    bench.server.put(
        objects.service("gone", namespace="orphans", vips=["10.96.9.9"], metadata={"annotations": annotations})
    )
    for turn in range(20):
        place = f"10.1.9.{turn % 2 + 1}"
        bench.server.put(objects.endpoint_slice("gone", place, service="gone", namespace="orphans"))
        time.sleep(0.25)


def new_names(bench: Bench, scale: float) -> None:
    """Services with faults, and Services that claim another's address, under ever new names."""
    ports = [f"p{number}:80" for number in range(20)]
    for number in range(int(1000 * scale) or 1):
        name, spec = f"n{number}", {"externalIPs": ["192.0.2.7"]}
        bench.server.put(objects.service(name, spec, namespace="names", vips=["10.96.8.8"], ports=ports))
        bench.server.put(objects.service(f"c{number}", spec, namespace="names", vips=[f"10.96.7.{number % 200}"]))
        bench.server.delete("Service", "names", name)
        bench.server.delete("Service", "names", f"c{number}")


def scrapes(bench: Bench, scale: float) -> None:
    """Requests for metrics that a user of the node sends over 16 connections without reading the answers."""
    asked = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n" * 50
    made = [bench.lab.node.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(16)]
    for each in made:
        each.connect(("127.0.0.1", METRICS))
        each.sendall(asked)
    time.sleep(10 * scale)
    for each in made:
        each.close()


def foreign_ports(bench: Bench, scale: float) -> None:
    """Slices with ports that their Service, which has one, doesn't have."""
    ports = [f"q{number}:{number + 1}" for number in range(99)]
    bench.server.put(objects.service("one", namespace="ports", vips=["10.96.6.6"], ports=["p:80"]))
    for number in range(int(8 * scale) or 1):
        addresses = [f"30.0.{number}.{each}" for each in range(250)]
        given = ["p:8080", *ports]
        bench.server.put(
            objects.endpoint_slice(f"q{number}", *addresses, service="one", namespace="ports", ports=given)
        )


ATTACKS = (
    Attack("12 slices that gzip compresses 636:1, and a start", "never loads", compressible),
    Attack("3,500 slices x 250 endpoints of no Service, and failover `gone`", "with 1,000: killed at 1 GiB", orphans),
    Attack("2,128 Services of 250 KiB, and a start", "never loads", filled),
    Attack("metrics over 16 connections, unread", "others wait 1.0 s, 141 MB", scrapes),
    Attack("2,000 Services made and deleted, with faults and conflicts", "8,300 lines in 10 s", new_names),
    Attack("99 ports of slices that the Service doesn't have", "quarantined", foreign_ports),
)


def restart(bench: Bench) -> None:
    """Start the agent anew."""
    bench.stop()
    bench.start()


def attacked(bench: Bench, attack: Attack, number: int, scale: float) -> Outcome:
    """Attack, replace the quiet tenant's endpoint (by `number`), and wait until the rules are right."""
    lines, began = bench.log().count("\n"), time.monotonic()
    attack.make(bench, scale)
    bench.server.put(endpoints(1, f"10.1.1.{number + 100}"))
    bench.wait_until_right(PATIENCE)
    seconds, written = time.monotonic() - began, bench.log().count("\n") - lines
    return Outcome(written, bench.peak, seconds)


@click.command()
@click.option("--scale", default=1.0, show_default=True, help="The size of each attack, as a share of the full size.")
def main(scale: float) -> None:
    """Make each attack, and print a row for it."""
    if why := obstacle():
        raise click.ClickException(why)
    directory = Path(tempfile.mkdtemp(prefix="nftproxy-attacks-"))
    with Lab() as lab, ApiServer(tls=True, authenticate=True, make_socket=lab.node.socket) as server:
        server.rbac = PERMISSIONS
        furnish(server)
        with Bench(lab, server, directory) as bench:
            bench.start()
            bench.wait_until_right(PATIENCE)
            click.echo(f"| attack, of which a share of {scale:g} was made | before | now |")
            click.echo("| --- | --- | --- |")
            for number, attack in enumerate(ATTACKS):
                found = attacked(bench, attack, number, scale)
                now = f"{found.lines} lines, {found.peak / 1e6:.0f} MB, right after {found.seconds:.0f} s"
                click.echo(f"| {attack.what} | {attack.before} | {now} |")


if __name__ == "__main__":
    main()
