"""Attacks on a real agent, each beside a quiet tenant.

An agent follows an API server on a lab's node.  After each attack the quiet tenant's endpoint is replaced, and the
kernel must hold exactly the rules of all objects.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

from nftproxy.model.annotations import PREFIX
from tests.support import objects
from tests.system.faults.bench import Bench, endpoints

PATIENCE = 600.0
LARGE = 250 * 1024
"""Characters of an annotation, of the 256 KiB that the API allows."""
METRICS = 10249


class Attack(NamedTuple):
    """An attack, what it led to before it was cured, and the way to make it, with sizes in proportion to `scale`.

    Its objects are in a namespace of their own.  Some attacks are on an agent that starts.
    """

    what: str
    before: str
    namespace: str
    make: Callable[[Bench, float], None]
    is_on_start: bool = False


class Outcome(NamedTuple):
    """The lines of the log in an attack, the agent's peak of memory in bytes, and the seconds to the right rules."""

    lines: int
    peak: int
    seconds: float


def annotated(text: str) -> dict[str, dict[str, str]]:
    """Metadata with a large annotation."""
    return {"annotations": {"note": text * LARGE}}


def compressible(bench: Bench, scale: float) -> None:
    """Slices that gzip compresses well, in a namespace that sorts first."""
    for number in range(int(12 * scale) or 1):
        bench.server.put(objects.endpoint_slice(f"a{number}", namespace="aaa", metadata=annotated("a")))


def filled(bench: Bench, scale: float) -> None:
    """Services that fill etcd."""
    for number in range(int(2128 * scale) or 1):
        bench.server.put(objects.service(f"f{number}", namespace="fill", metadata=annotated("f")))


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
    bench.server.put(objects.service("one", namespace="foreign", vips=["10.96.6.6"], ports=["p:80"]))
    for number in range(int(8 * scale) or 1):
        addresses = [f"30.0.{number}.{each}" for each in range(250)]
        given = ["p:8080", *ports]
        bench.server.put(
            objects.endpoint_slice(f"q{number}", *addresses, service="one", namespace="foreign", ports=given)
        )


def single_bytes(bench: Bench, scale: float) -> None:
    """A start of which all answers come byte by byte."""
    note = {"annotations": {"note": "b" * int(LARGE * scale)}}
    bench.server.put(objects.service("one", namespace="bytes", metadata=note))
    with mock.patch.multiple(bench.server.settings, gzip_threshold=None, piece=1):
        restart(bench)
        bench.wait_until_right(PATIENCE)


ATTACKS = (
    Attack("A server that sends single bytes, and a start", "0.87 processors, probes take 7 s", "bytes", single_bytes),
    Attack("12 slices that gzip compresses 636:1, and a start", "never loads", "aaa", compressible, True),
    Attack(
        "3,500 slices x 250 endpoints of no Service, and failover `gone`",
        "with 1,000: killed at 1 GiB",
        "orphans",
        orphans,
    ),
    Attack("2,128 Services of 250 KiB, and a start", "never loads", "fill", filled, True),
    Attack("metrics over 16 connections, unread", "others wait 1.0 s, 141 MB", "", scrapes),
    Attack("2,000 Services made and deleted, with faults and conflicts", "8,300 lines in 10 s", "names", new_names),
    Attack("99 ports of slices that the Service doesn't have", "quarantined", "foreign", foreign_ports),
)


def restart(bench: Bench) -> None:
    """Start the agent anew."""
    bench.stop()
    bench.start()


def attacked(bench: Bench, attack: Attack, number: int, scale: float) -> Outcome:
    """Attack, replace the quiet tenant's endpoint (by `number`), and wait until the rules are right."""
    lines, began = bench.log().count("\n"), time.monotonic()
    attack.make(bench, scale)
    if attack.is_on_start:
        restart(bench)
    bench.server.put(endpoints(1, f"10.1.1.{number + 100}"))
    bench.wait_until_right(PATIENCE)
    seconds, written = time.monotonic() - began, bench.log().count("\n") - lines
    return Outcome(written, bench.peak, seconds)
