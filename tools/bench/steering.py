"""How each algorithm spreads connections, and how many clients move when an endpoint goes: counted from packets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nftproxy_conformance.lab import Lab, Origin, Probe

from nftproxy.model.annotations import ALGORITHM, Algorithm, Options
from nftproxy.model.objects import EndpointSlice
from tests.support.cluster import IP, Cluster
from tests.support.factories import service, slice_of
from tools.bench.cluster import Size
from tools.bench.figures import Figures

ENDPOINTS = 10
CLIENTS = 4_000
MOVERS = 1_000
SIZES = (2, 3, 5, 10, 20, 40, 80)
SPREAD: Sequence[Algorithm] = tuple(each for each in Algorithm if each is not Algorithm.LEAST_CONNECTIONS)
"""The algorithms whose shares don't depend on the connections that there are."""
HASHES = (Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH)


def measure_steering(_: Size, figures: Figures) -> None:
    """Count where connections go, by each algorithm, and how many clients of each hash go elsewhere afterwards."""
    with Lab() as lab:
        for algorithm in SPREAD:
            _cluster(lab, algorithm, ENDPOINTS)
            counts = Counter(_ends(lab, CLIENTS))
            for number in range(ENDPOINTS):
                figures[share(algorithm, number)] = counts[_pod(number)] / CLIENTS
        for algorithm in HASHES:
            for size in SIZES:
                cluster = _cluster(lab, algorithm, size)
                before = _ends(lab, MOVERS)
                cluster.put(_slice(range(1, size)))
                after = _ends(lab, MOVERS)
                figures[moved(algorithm, size)] = sum(map(str.__ne__, before, after)) / MOVERS


def share(algorithm: Algorithm, endpoint: int) -> str:
    """The name of the part of connections that an endpoint got."""
    return f"steering/{algorithm.value}/share/{endpoint}"


def moved(algorithm: Algorithm, endpoints: int) -> str:
    """The name of the figure for clients that move when the first of `endpoints` endpoints goes."""
    return f"steering/{algorithm.value}/moved/{endpoints}"


def _cluster(lab: Lab, algorithm: Algorithm, endpoints: int) -> Cluster:
    lab.reset()
    return Cluster(lab, service(options=Options.of({ALGORITHM: algorithm})), _slice(range(endpoints)))


def _slice(numbers: Sequence[int]) -> EndpointSlice:
    return slice_of(endpoints=map(_pod, numbers))


def _pod(number: int) -> str:
    return f"10.1.1.{number + 10}"


def _ends(lab: Lab, count: int) -> list[str]:
    """The endpoint that a connection reaches, for each of `count` clients."""
    clients = [f"10.1.{10 + number // 250}.{number % 250 + 1}" for number in range(count)]
    found = lab.connect_many([Probe(Origin.REMOTE_POD, IP.vip, 80, source=client) for client in clients])
    return [each.endpoint.ip if each.endpoint else "" for each in found]
