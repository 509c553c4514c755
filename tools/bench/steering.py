"""How each algorithm spreads connections, and how many clients move when an endpoint goes: counted from packets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nftproxy.kernel.capabilities import probe
from nftproxy.lab import Lab, Origin, Probe
from nftproxy.library import renderer
from nftproxy.model.addresses import Address, Family, Protocol, parse_network
from nftproxy.model.annotations import Algorithm, ServiceOptions
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Node,
    ObjectKey,
    Service,
    ServicePort,
    ServiceType,
)
from nftproxy.model.settings import Config, Settings
from nftproxy.pipeline import Pipeline
from tools.bench.cluster import Size
from tools.bench.figures import Figures

ENDPOINTS = 10
CLIENTS = 4_000
MOVERS = 1_000
SIZES = (2, 3, 5, 10, 20, 40, 80)
HASHES = (Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH)
_SERVICE = ObjectKey("shop", "web")
_VIP = "10.96.0.10"


def measure_steering(_: Size, figures: Figures) -> None:
    """Count where connections go, by each algorithm, and how many clients of each hash go elsewhere afterwards."""
    with Lab() as lab:
        for algorithm in Algorithm:
            pipeline = _pipeline(lab, algorithm, ENDPOINTS)
            counts = Counter(_ends(lab, CLIENTS))
            for number in range(ENDPOINTS):
                figures[share(algorithm, number)] = counts[_pod(number)] / CLIENTS
        for algorithm in HASHES:
            for size in SIZES:
                pipeline = _pipeline(lab, algorithm, size)
                before = _ends(lab, MOVERS)
                lab.load(pipeline.apply([_slice(range(1, size))]).text)
                after = _ends(lab, MOVERS)
                figures[moved(algorithm, size)] = sum(map(str.__ne__, before, after)) / MOVERS


def share(algorithm: Algorithm, endpoint: int) -> str:
    """What the part of connections that an endpoint got is called."""
    return f"steering/{algorithm.value}/share/{endpoint}"


def moved(algorithm: Algorithm, endpoints: int) -> str:
    """What the part of clients is called that another endpoint serves when the first of so many has gone."""
    return f"steering/{algorithm.value}/moved/{endpoints}"


def _pipeline(lab: Lab, algorithm: Algorithm, endpoints: int) -> Pipeline:
    """A Service with so many endpoints, whose rules the lab's node has."""
    config = Config(cluster_cidrs=(parse_network("10.1.0.0/16"),))
    pipeline = Pipeline("node-a", Settings(config, probe().capabilities), renderer())
    service = Service(
        _SERVICE,
        0,
        ServiceType.CLUSTER_IP,
        (Address(_VIP),),
        (ServicePort("http", Protocol.TCP, 80),),
        options=ServiceOptions(algorithm=algorithm),
    )
    pipeline.apply([Put(Node("node-a")), Put(service), _slice(range(endpoints))])
    lab.reset()
    lab.load(pipeline.full_transaction({}).text)
    return pipeline


def _slice(numbers: Sequence[int]) -> Event:
    pods = tuple(Endpoint(Address(_pod(number))) for number in numbers)
    ports = (EndpointPort("http", Protocol.TCP, 8080),)
    return Put(EndpointSlice(ObjectKey("shop", "web-1"), _SERVICE, Family.IPV4, ports, pods))


def _pod(number: int) -> str:
    return f"10.1.1.{number + 10}"


def _ends(lab: Lab, count: int) -> list[str]:
    """Where one connection of each of so many clients comes out."""
    clients = [f"10.1.{10 + number // 250}.{number % 250 + 1}" for number in range(count)]
    found = lab.connect_many([Probe(Origin.REMOTE_POD, _VIP, 80, source=client) for client in clients])
    return [each.endpoint.ip if each.endpoint else "" for each in found]
