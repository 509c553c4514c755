"""The wait of a quiet tenant beside noisy tenants: `python -m tools.bench.fairness`.

An agent follows an API server.  Noisy tenants change their Services, as a case says.  The quiet tenant's only endpoint
is replaced some five times a second.  A *wait* is the time from the API server's event until the kernel has the new
endpoint.  Beside it each row has the processor time that the agent took in these waits, which depends less on other
load of the machine, the processors that it took all the time, its peak of memory, and the load of the machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import click
import msgspec
import yaml
from nftproxy_conformance.apiserver import ApiServer, Settings
from nftproxy_conformance.lab.node import Node

from nftproxy.config.parse_config import EMPTY_CONFIG
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.nfnetlink.elements import ElementLookup
from nftproxy.library import parsed
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.annotations import PREFIX
from nftproxy.model.events import Event, Listed, Put
from nftproxy.pipeline import Pipeline
from tests.support import objects as api
from tests.support.background import repeating
from tests.support.factories import INSTALLED_KINDS
from tests.support.processes import CHECKOUT, AgentProcess
from tests.support.waiting import wait_until
from tools.bench.cluster import NODE, Object, new_pipeline

SECONDS, WARM_UP = 40.0, 5.0
"""The seconds that are measured in each case, and the seconds of noise before these."""
MOVES = 0.2
"""Seconds between a commit of the quiet tenant's endpoint and its next change."""
TWICE_A_SECOND = 0.5
PER_SLICE = 1_000
QUIET, ITS_IP = "quiet", "10.96.255.1"
ANSWER = 120.0
"""The longest wait that is measured, in seconds."""


class Case(NamedTuple):
    """The objects that noisy tenants have at first, and the objects of each change, by its number."""

    what: str
    start: Callable[[], Sequence[Object]]
    change: Callable[[int], Sequence[Object]]
    pause: float = TWICE_A_SECOND
    """Seconds between two changes."""


def hosts(first: str, count: int) -> list[str]:
    """Addresses below a prefix of 8 bits."""
    return [f"{first}.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(1, count + 1)]


@functools.cache
def slices_of(
    namespace: str, name: str, first: str, pods: int, offered: tuple[str, ...], zones: int = 0
) -> list[Object]:
    """The EndpointSlices of a Service, with addresses that begin with `first`, in `zones` zones by turns."""
    endpoints = [
        api.endpoint(address, NODE, "ready", **({"zone": "ab"[number % zones]} if zones else {}))
        for number, address in enumerate(hosts(first, pods))
    ]
    return [
        api.endpoint_slice(
            f"{name}-{start}", *endpoints[start : start + PER_SLICE], service=name, namespace=namespace, ports=offered
        )
        for start in range(0, pods, PER_SLICE)
    ]


def named(ports: int, shift: int = 0, protocol: str = "TCP") -> tuple[str, ...]:
    """Ports of a Service, or of its EndpointSlices, which have the same names."""
    return tuple(f"p{port}:{port + shift}/{protocol}" for port in range(1, ports + 1))


def service(namespace: str, name: str, address: str, ports: tuple[str, ...], **options: str) -> Object:
    """A Service with annotations of this project."""
    annotations = {f"{PREFIX}{option}": value for option, value in options.items()}
    return api.service(name, namespace=namespace, vips=[address], ports=ports, metadata={"annotations": annotations})


def shifted(number: int) -> list[Object]:
    """The slice of a Service with 100,000 rows, every second time with other ports."""
    return slices_of("ports", "one", "20", 1_000, named(100, number % 2))


def annotated(namespace: str, address: str, first: str, pods: int, ports: int = 100, **options: str) -> Case:
    """A Service that has an annotation every second time."""

    def change(number: int) -> list[Object]:
        return [service(namespace, "one", address, named(ports), **(options if number % 2 else {}))]

    text = ", ".join(f"`{name}: {value}`" for name, value in options.items())
    slices = slices_of(namespace, "one", first, pods, named(ports), 2)
    return Case(f"{ports} ports, {pods:,} endpoints: {text} and none", lambda: [*change(0), *slices], change)


def small(namespaces: int, each: int = 5) -> Case:
    """Services of 10 ports and 400 endpoints.  Each exchanges an endpoint once a second."""
    ports, count = named(10), namespaces * each

    def where(index: int) -> tuple[str, str]:
        return f"small-{index % namespaces}", f"s{index // namespaces}"

    def change(number: int) -> list[Object]:
        return slices_of(*where(number % count), "21", 399 + number // count % 2, ports)

    def start() -> list[Object]:
        services = [service(*where(index), f"10.96.1.{index + 1}", ports) for index in range(count)]
        return [*services, *(part for index in range(count) for part in change(index))]

    what = f"{count} Services of {namespaces} namespaces, 10 ports, 400 endpoints: each exchanges an endpoint a second"
    return Case(what, start, change, 1 / count)


def burst(number: int) -> list[Object]:
    """Thirty Services of 60,000 rows each, every second time with other ports.  The budget has room for nine."""
    made = list[Object]()
    for index in range(30):
        made.append(service("burst", f"s{index}", f"10.96.2.{index + 1}", named(60)))
        made += slices_of("burst", f"s{index}", "22", 1_000, named(60, number % 2))
    return made


def flapping(number: int) -> list[Object]:
    """The slice of a Service with 1,000 fronts of UDP and 3 endpoints, every second time without the last."""
    return slices_of("flaps", "one", "23", 3 - number % 2, named(100, protocol="UDP"))


def fronts() -> list[Object]:
    """The Service of `flapping`, with 100 ports of UDP at 10 addresses, and its slice."""
    spec = {"externalIPs": [f"198.51.100.{number}" for number in range(1, 10)]}
    ports = named(100, protocol="UDP")
    return [api.service("one", spec, namespace="flaps", vips=["10.96.3.1"], ports=ports), *flapping(0)]


PORTS = Case(
    "100 ports, 1,000 endpoints: other ports",
    lambda: [service("ports", "one", "10.96.4.1", named(100)), *shifted(0)],
    shifted,
)
UDP = Case("1,000 fronts of UDP, 3 endpoints: one comes and goes, four times a second", fronts, flapping, 0.25)
ROUND_ROBIN = annotated("algorithm", "10.96.4.2", "24", 1_000, algorithm="round-robin")
MAGLEV = annotated("maglev", "10.96.4.3", "25", 10, 20, algorithm="consistent-hash")
WEIGHTS = annotated("weights", "10.96.4.4", "26", 250, weights="zone:b=2")

CASES: dict[str, tuple[Case, ...]] = {
    "nothing": (),
    "small-1": (small(1),),
    "small-3": (small(3),),
    "small-10": (small(10),),
    "ports": (PORTS,),
    "algorithm": (ROUND_ROBIN,),
    "maglev": (MAGLEV,),
    "weights": (WEIGHTS,),
    "burst": (Case("30 Services of 60,000 rows at once, again each 10 s", lambda: (), burst, 10.0),),
    "udp": (UDP,),
    "mix": (PORTS, ROUND_ROBIN, MAGLEV, WEIGHTS, UDP, small(10, 2)),
}
"""Rows by name, each with the cases that happen at once."""


class Outcome(msgspec.Struct):
    """The result of a row: the waits and the agent's processor time during each, in seconds.

    `processors` is the agent's use of processors, `peak` its memory in bytes, `load` the machine's load average.
    """

    waits: list[float]
    work: list[float]
    processors: float
    peak: int
    load: float


def events(objects: Sequence[Object]) -> list[Event]:
    """The events of objects that change."""
    return [
        Put(each)
        for listed in parsed(objects, INSTALLED_KINDS).listing()
        if isinstance(listed, Listed)
        for each in listed.objects
    ]


def cluster(*objects: Object) -> Pipeline:
    """A pipeline that has these objects."""
    made = new_pipeline()
    made.ingest(events([api.node(NODE, "192.168.0.2", zone="a"), *objects]))
    return made


def quiet(number: int) -> tuple[str, Object]:
    """The quiet tenant's slice, and the address of its only endpoint."""
    address = f"10.50.{number >> 8 & 255}.{number & 255}"
    return address, api.endpoint_slice("web-1", address, namespace=QUIET)


def measure(name: str, seconds: float = SECONDS, profile: Path | None = None) -> Outcome:
    """Measure a row in this process."""
    cases = CASES[name]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nftproxy-bench-")))
        node = stack.enter_context(Node(NODE))
        server = stack.enter_context(ApiServer(history=1_000, settings=Settings(), make_socket=node.socket))
        server.put(api.node(NODE, "192.168.0.2", zone="a"), api.service_cidr("10.96.0.0/16"))
        server.put(api.service("web", namespace=QUIET, vips=[ITS_IP]), quiet(0)[1])
        for case in cases:
            server.put(*case.start())
        agent = _started(node, server, directory, profile)
        stack.callback(agent.kill)
        wait_until(lambda: any(node.call(nft_queries.chains, Family.IPV4, TABLE).values()), agent.log, patience=ANSWER)
        kernel = stack.enter_context(node.call(ElementLookup))
        for case in cases:
            stack.enter_context(repeating(changes(server, case), case.pause))
        time.sleep(WARM_UP)
        began, cpu = time.monotonic(), agent.cpu
        took, work = zip(*waits(server, kernel, agent, lambda: time.monotonic() >= began + seconds), strict=True)
        processors = (agent.cpu - cpu) / (time.monotonic() - began)
        outcome = Outcome(list(took), list(work), processors, agent.peak, os.getloadavg()[0])
        agent.terminate()
        agent.await_end()
        return outcome


def _started(node: Node, server: ApiServer, directory: Path, profile: Path | None) -> AgentProcess:
    config = dict(EMPTY_CONFIG) | {
        "mode": "nftables",
        "hostnameOverride": NODE,
        "clientConnection": {"kubeconfig": str(server.write_kubeconfig(directory / "kubeconfig"))},
        "clusterCIDR": "10.0.0.0/10",
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    agent = AgentProcess(node, directory / "agent.log", profile=profile)
    agent.launch("--config", str(directory / "config.yaml"))
    return agent


def changes(server: ApiServer, case: Case) -> Callable[[], object]:
    """Return a function that makes the next change of a case."""
    numbers = iter(range(1, 1 << 30))
    return lambda: server.put(*case.change(next(numbers)))


def waits(
    server: ApiServer, kernel: ElementLookup, agent: AgentProcess, is_over: Callable[[], bool]
) -> Iterator[tuple[float, float]]:
    """Replace the quiet tenant's endpoint again and again.  Yield the seconds of each wait, and its processor time."""
    number = 0
    while not is_over():
        number += 1
        address, changed = quiet(number)
        server.put(changed)
        began, cpu = time.monotonic(), agent.cpu
        _wait_for(kernel, address)
        yield time.monotonic() - began, agent.cpu - cpu
        time.sleep(MOVES)


def _wait_for(kernel: ElementLookup, address: str) -> None:
    """Wait until the quiet tenant's only slot has an address."""

    def is_there() -> bool:
        found = kernel.find(Family.IPV4, "tcp-endpoints", f"{ITS_IP} . 80 . 0.0.0.0")
        return found is not None and found.value.startswith(f"{address} ")

    wait_until(is_there, patience=ANSWER, pause=0.004)


def row(name: str, found: Outcome) -> str:
    """A row of the table."""
    what = "; ".join(case.what for case in CASES[name])
    took, work = (
        " | ".join(f"{each:.2f}" for each in (cuts[49], cuts[89], cuts[98], max(of_each)))
        for of_each in (found.waits, found.work)
        for cuts in (quantiles([*of_each, max(of_each)], n=100, method="inclusive"),)
    )
    return (
        f"| {name} | {what} | {len(found.waits)} | {took} | {work}"
        f" | {found.processors:.2f} | {found.peak / 1e6:.0f} MB | {found.load:.1f} |"
    )


def rows(names: Sequence[str] = tuple(CASES), seconds: float = SECONDS) -> Iterator[str]:
    """The rows of the table, each measured in a process of its own."""
    for name in names:
        command = [sys.executable, "-m", "tools.bench.fairness", "--case", name, "--seconds", str(seconds)]
        done = subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE)
        yield row(name, msgspec.json.decode(done.stdout, type=Outcome))


@click.command()
@click.option("--row", "names", multiple=True, type=click.Choice(list(CASES)), help="Measure this; repeatable.")
@click.option("--seconds", default=SECONDS, show_default=True, help="Seconds of each row.")
@click.option("--profile", type=click.Path(path_type=Path), help="Write cProfile's figures of the agent there.")
@click.option("--case", "chosen", type=click.Choice(list(CASES)), hidden=True)
def main(names: tuple[str, ...], seconds: float, profile: Path | None, chosen: str | None) -> None:
    """Print a row for each kind of noise."""
    if chosen or profile:
        found = measure(chosen or names[0], seconds, profile)
        click.echo(msgspec.json.encode(found) if chosen else row(names[0], found))
        return
    click.echo(
        "| row | noise | changes | wait, s: p50 | p90 | p99 | most | processor time in it, s: p50 | p90 | p99 | most"
        " | processors | peak | load |"
    )
    click.echo("| --- " * 14 + "|")
    for each in rows(names or tuple(CASES), seconds):
        click.echo(each)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
