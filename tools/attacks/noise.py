"""Noisy tenants, and the wait of a quiet tenant beside them.

Noisy tenants change their Services, as a case says.  The quiet tenant's only endpoint is replaced some five times a
second.  A *wait* is the time from the API server's event until this process, which is the API server too, finds the new
endpoint in the kernel.  The processor time that the agent takes meanwhile depends less on other load of the machine.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from nftproxy_conformance.apiserver import ApiServer

from nftproxy.kernel.nfnetlink.elements import ElementLookup
from nftproxy.model.addresses import Family
from nftproxy.model.annotations import PREFIX
from tests.support import objects as api
from tests.support.background import repeating
from tests.support.processes import AgentProcess
from tests.support.waiting import wait_until
from tests.system.faults.bench import Bench, delete
from tools.bench.cluster import NODE, Object

MOVES = 0.2
"""Seconds between a commit of the quiet tenant's endpoint and its next change."""
TWICE_A_SECOND = 0.5
PER_SLICE = 1_000
QUIET, ITS_IP = "quiet", "10.96.255.1"
ANSWER = 120.0
"""The longest wait that is measured, in seconds."""


class Case(NamedTuple):
    """The objects that noisy tenants have at first, and the objects of each change, by its number."""

    start: Callable[[], Sequence[Object]]
    change: Callable[[int], Sequence[Object]]
    pause: float = TWICE_A_SECOND
    """Seconds between two changes."""


class Noise(NamedTuple):
    """A kind of noise, the waits beside it before it was cured, and its case."""

    what: str
    before: str
    case: Case


class Wait(NamedTuple):
    """The seconds of a wait, and of the agent's processor time in it."""

    seconds: float
    work: float


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
    """A Service with as many rows as endpoints times ports, which has an annotation every second time."""

    def change(number: int) -> list[Object]:
        return [service(namespace, "one", address, named(ports), **(options if number % 2 else {}))]

    slices = slices_of(namespace, "one", first, pods, named(ports), 2)
    return Case(lambda: [*change(0), *slices], change)


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

    return Case(start, change, 1 / count)


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


PORTS = Case(lambda: [service("ports", "one", "10.96.4.1", named(100)), *shifted(0)], shifted)
UDP = Case(fronts, flapping, 0.25)
ROUND_ROBIN = annotated("algorithm", "10.96.4.2", "24", 1_000, algorithm="round-robin")
MAGLEV = annotated("maglev", "10.96.4.3", "25", 10, 20, algorithm="consistent-hash")
WEIGHTS = annotated("weights", "10.96.4.4", "26", 250, weights="zone:b=2")

MIX = (PORTS, ROUND_ROBIN, MAGLEV, WEIGHTS, UDP, small(10, 2))
"""The cases that happen at once."""


NOISES = (
    Noise("50 Services of ten namespaces exchange an endpoint of 400 each second", "p50 1.9 s, most 4.4 s", small(10)),
    Noise("a Service of 100,000 rows has other ports, twice a second", "most 13.0 s", PORTS),
    Noise("the same has round-robin, and not", "most 7.2 s", ROUND_ROBIN),
    Noise("a Service with 20 ports has consistent hashing, and not", "most 3.0 s", MAGLEV),
    Noise("a Service of 25,000 rows has weights, and not", "most 1.2 s", WEIGHTS),
    Noise("30 Services of 60,000 rows come at once", "most 15.6 s", Case(lambda: burst(0), burst, 10.0)),
    Noise("an endpoint of 1,000 fronts of UDP flaps four times a second", "p90 0.5 s", UDP),
)


def quiet(number: int) -> tuple[str, Object]:
    """The quiet tenant's slice, and the address of its only endpoint."""
    address = f"10.50.{number >> 8 & 255}.{number & 255}"
    return address, api.endpoint_slice("web-1", address, namespace=QUIET)


def changes(server: ApiServer, case: Case) -> Callable[[], object]:
    """Return a function that makes the next change of a case."""
    numbers = iter(range(1, 1 << 30))
    return lambda: server.put(*case.change(next(numbers)))


def waits(server: ApiServer, kernel: ElementLookup, agent: AgentProcess, is_over: Callable[[], bool]) -> Iterator[Wait]:
    """Replace the quiet tenant's endpoint again and again, and yield each wait."""
    number = 0
    while not is_over():
        number += 1
        address, changed = quiet(number)
        server.put(changed)
        began, work = time.monotonic(), agent.cpu
        _wait_for(kernel, address)
        yield Wait(time.monotonic() - began, agent.cpu - work)
        time.sleep(MOVES)


def beside(bench: Bench, case: Case, seconds: float) -> list[Wait]:
    """Return the waits beside a case that goes on for so long.  Its objects are removed at the end."""
    server = bench.server
    server.put(api.service("web", namespace=QUIET, vips=[ITS_IP]), quiet(0)[1], *case.start())
    over = time.monotonic() + seconds
    with bench.lab.node.call(ElementLookup) as kernel, repeating(changes(server, case), case.pause):
        found = list(waits(server, kernel, bench, lambda: time.monotonic() > over))
    delete(server, [*case.start(), *case.change(0)])
    return found


def _wait_for(kernel: ElementLookup, address: str) -> None:
    """Wait until the quiet tenant's only slot has an address."""

    def is_there() -> bool:
        found = kernel.find(Family.IPV4, "tcp-endpoints", f"{ITS_IP} . 80 . 0.0.0.0")
        return found is not None and found.value.startswith(f"{address} ")

    wait_until(is_there, patience=ANSWER, pause=0.004)
