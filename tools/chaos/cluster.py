"""The cluster: Services that never change, Services that change at random, and the allowed outcomes of connections to
them.

A change is put on the API server as objects.  From then on until the kernel is known to hold it (`settled`) a
connection may meet the old objects or the new, also an old Service with new endpoints, as they come by different
watches.  The oracle says which outcome a Service and its endpoints mean for a connection.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import DROPPED, Origin, Outcome, Probe
from nftproxy_conformance.lab.topology import NODE_IP
from nftproxy_conformance.specification.oracle import REJECTED, Oracle
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies.probes import NODE_ADDRESSES, SOURCES

from nftproxy.api.parse import parse_object
from nftproxy.model.addresses import Address, Protocol, family_of
from nftproxy.model.objects import EndpointSlice, Ignored, Node, Service, ServiceCIDR
from nftproxy.model.settings import Config
from tests.support.factories import INSTALLED_KINDS
from tests.system.faults.bench import endpoints, node, service, service_cidr, vip

ANCHORS = range(1, 6)
"""Numbers of the Services that never change."""
CHANGING = range(100, 130)
"""Numbers of the Services that change."""

Manifest = dict[str, Any]


def node_port(number: int) -> int:
    """The node port of a Service by its number."""
    return 30000 + number


def external_ip(number: int) -> str:
    """The external address of a Service by its number."""
    return f"203.0.114.{number}"


KEPT = 60.0
"""Seconds for which past objects are kept: longer than a connection takes to be judged."""


class Past(NamedTuple):
    """An object (None: absent), and the times between which the kernel may have held it, by `time.monotonic`."""

    since: float
    manifest: Manifest | None
    until: float = math.inf


States = Callable[[str, int, float, float], list[Manifest | None]]
"""Returns the states of an object, by its kind and number, between two times."""


class Histories:
    """The past of the Services and slices, as far back as the kernel may still have it.  For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pasts: dict[tuple[str, int], list[Past]] = {}

    def note(self, kind: str, number: int, manifest: Manifest | None, now: float) -> None:
        """An object is about to be put or deleted."""
        with self._lock:
            self._pasts.setdefault((kind, number), [Past(0.0, None)]).append(Past(now, manifest))

    def settled(self, now: float) -> None:
        """The kernel holds all that was put before now: from here on nothing older may be met."""
        with self._lock:
            for key, pasts in self._pasts.items():
                last = max(index for index, past in enumerate(pasts) if past.since <= now)
                older = [past._replace(until=min(past.until, now)) for past in pasts[:last]]
                self._pasts[key] = [past for past in older if past.until > now - KEPT] + pasts[last:]

    def between(self, kind: str, number: int, began: float, ended: float) -> list[Manifest | None]:
        """The states of an object that the kernel may have had between two times, the oldest first."""
        return [each.manifest for each in self._of(kind, number) if each.since <= ended and began <= each.until]

    def given(self, kind: str, number: int, began: float, ended: float) -> list[Manifest | None]:
        """The states of an object on the server between two times, the oldest first, whatever the kernel had."""
        pasts = self._of(kind, number)
        ends = [each.since for each in pasts[1:]] + [math.inf]
        return [past.manifest for past, end in zip(pasts, ends, strict=True) if past.since <= ended and began <= end]

    def _of(self, kind: str, number: int) -> list[Past]:
        with self._lock:
            return list(self._pasts.get((kind, number), [Past(0.0, None)]))

    def latest(self) -> dict[tuple[str, int], Manifest | None]:
        """The last state of each object, by kind and number."""
        with self._lock:
            return {key: pasts[-1].manifest for key, pasts in self._pasts.items()}


class Cluster:
    """The objects on an API server, their changes, and the allowed outcomes of connections.

    Args:
        server: where they are put.
        config: the agent's configuration.
        seed: of the changes.
    """

    def __init__(self, server: ApiServer, config: Config, seed: str) -> None:
        self.changes = 0
        self._server = server
        self._config = config
        self._seed = seed
        self.histories = Histories()
        (self._node,) = parsed([node()], Node)
        self._cidrs = tuple(parsed([service_cidr()], ServiceCIDR))

    def furnish(self, now: float) -> None:
        """Put the Node, the ServiceCIDR, and the Services that never change."""
        self._server.put(node(), service_cidr())
        for number in ANCHORS:
            self._put(anchor(number), number, now)
            self._put(anchor_slice(number), number, now)

    def change(self, now: float) -> None:
        """Let something happen, chosen by the seed and the number of the change."""
        rng = Random(f"{self._seed}/change/{self.changes}")
        self.changes += 1
        number = rng.choice(CHANGING)
        match rng.choices(["service", "endpoints", "no service", "no endpoints", "node"], [3, 8, 1, 1, 1])[0]:
            case "service":
                self._put(changing(number, rng), number, now)
            case "endpoints":
                self._put(changing_slice(number, rng), number, now)
            case "no service":
                self._delete("Service", number, now)
            case "no endpoints":
                self._delete("EndpointSlice", number, now)
            case _:
                self._server.put(node(zone=rng.choice("abc")))

    def _put(self, manifest: Manifest, number: int, now: float) -> None:
        self.histories.note(manifest["kind"], number, manifest, now)
        self._server.put(manifest)

    def _delete(self, kind: str, number: int, now: float) -> None:
        name = f"s{number}" if kind == "Service" else f"s{number}-1"
        if self._server.get(kind, "shop", name) is not None:
            self.histories.note(kind, number, None, now)
            self._server.delete(kind, "shop", name)

    def restore(self, revision: int, objects: Mapping[tuple[str, int], Manifest | None], now: float) -> None:
        """Let the server go back to a revision, at which the objects were these."""
        latest = self.histories.latest()
        for kind, number in latest:
            if latest[kind, number] != objects.get((kind, number)):
                self.histories.note(kind, number, objects.get((kind, number)), now)
        self._server.restart(revision=revision)

    def allowed(self, number: int, probe: Probe, began: float, ended: float) -> frozenset[Outcome]:
        """All that may become of a connection between two times, to a Service by its number."""
        return self._outcomes(self.histories.between, number, probe, began, ended)

    def explained(self, number: int, probe: Probe, began: float, ended: float) -> frozenset[Outcome]:
        """All that the server's objects between two times explain, as if the kernel held them at once."""
        return self._outcomes(self.histories.given, number, probe, began, ended)

    def _outcomes(self, states: States, number: int, probe: Probe, began: float, ended: float) -> frozenset[Outcome]:
        services, slices = (states(kind, number, began, ended) for kind in ("Service", "EndpointSlice"))
        pairs = list(itertools.product(services, slices))
        found = frozenset().union(*(self._expected(probe, *pair) for pair in pairs))
        if len(pairs) > 1:  # a packet in the instant of a change may be lost
            found |= {DROPPED, REJECTED[Protocol(probe.protocol)]}
        return found

    def _expected(self, probe: Probe, given: Manifest | None, slice_given: Manifest | None) -> frozenset[Outcome]:
        services = tuple(parsed(filter(None, [given]), Service))
        slices = tuple(parsed(filter(None, [slice_given]), EndpointSlice))
        world = World(self._node, self._config, services, slices, self._cidrs, NODE_ADDRESSES, knows_interfaces=False)
        return Oracle(world).expected(probe)


def parsed(manifests: Iterable[Manifest], model: type[Any]) -> Iterator[Any]:
    """Manifests as the agent reads them, if they are of a type."""
    for manifest in manifests:
        found = parse_object(manifest, "", [], kind=INSTALLED_KINDS[manifest["kind"]])
        if isinstance(found, model) and not isinstance(found, Ignored):
            yield found


# The objects


def anchor(number: int) -> Manifest:
    """A Service that never changes: older than all other Services, with a node port and an external address."""
    made = service(
        number,
        type="NodePort",
        externalIPs=[external_ip(number)],
        ports=[{"port": 80, "nodePort": node_port(number)}],
        sessionAffinity="ClientIP" if number == ANCHORS[-1] else "None",
    )
    made["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    return made


def anchor_slice(number: int) -> Manifest:
    """As many endpoints as its number, here and on another node by turns."""
    return endpoints(number, *(f"10.1.{each % 2}.{10 * number + each}" for each in range(number)))


def changing(number: int, rng: Random) -> Manifest:
    """A Service as a change makes it."""
    is_open = rng.random() < 0.5
    return service(
        number,
        type="NodePort" if is_open else "ClusterIP",
        ports=[{"port": 80} | ({"nodePort": node_port(number)} if is_open else {})],
        externalIPs=[external_ip(number)] if rng.random() < 0.3 else [],
        internalTrafficPolicy=rng.choice(["Cluster", "Cluster", "Local"]),
        **({"externalTrafficPolicy": rng.choice(["Cluster", "Local"])} if is_open else {}),
        sessionAffinity=rng.choice(["None", "None", "ClientIP"]),
    )


CONDITIONS = (
    {"ready": True},
    {"ready": True},
    {"ready": False, "serving": True, "terminating": True},
    {"ready": False, "serving": False},
)


def changing_slice(number: int, rng: Random) -> Manifest:
    """Its endpoints as a change makes them: none to five, in any condition."""
    places = [f"10.1.{each % 2}.{30 + (7 * number + each) % 200}" for each in range(rng.randint(0, 5))]
    made = endpoints(number, *places)
    made["endpoints"] = [
        each | {"conditions": rng.choice(CONDITIONS)} for each in (made["endpoints"] if places else [])
    ]
    return made


# Connections


def probe(number: int, rng: Random) -> Probe:
    """A connection to a front that a Service has, or may have."""
    origins = list(Origin)
    origin, (address, port) = rng.choice(
        [
            (rng.choice(origins), (vip(number), 80)),
            (rng.choice(origins), (external_ip(number), 80)),
            (rng.choice(origins), (str(NODE_IP), node_port(number))),
        ]
    )
    source = rng.choice(SOURCES[origin, family_of(Address(address))])
    return Probe(origin, address, port, "tcp", source)
