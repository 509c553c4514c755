"""What serves node ports at localhost (nodePortAddresses, KEP-6032): which endpoints, for which Service.

No rule can: what a node sends to a loopback address has a loopback source, which no endpoint could answer.  So the
agent listens there and forwards (agent/forwarder.py), as is decided here.  It follows from the same fronts and the same
choice of endpoints as the rules do, with three things of its own, all as kube-proxy 1.37 has them, but for annotations:

* TCP only.  Nothing listens for UDP and SCTP, so the kernel rejects what is sent there.
* Policy Local means the local list, for the node itself too: where that is empty, nothing listens.
* All of the node's own clients are one client, so session affinity sends all of them to one endpoint, and what the
  annotation nftproxy.dev/algorithm asks for has no meaning: weights count, and endpoints are drawn at random.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from nftproxy.model.addresses import LOCALHOST, Address, Family, Protocol, host_port
from nftproxy.model.annotations import Algorithm
from nftproxy.model.objects import ObjectKey, Service, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.claims import NODE
from nftproxy.policy.endpoints import choice_for, offers
from nftproxy.policy.fronts import reaches
from nftproxy.policy.placement import placed
from nftproxy.policy.state import ClusterState


class LocalPort(NamedTuple):
    """A node port at localhost."""

    address: Address
    port: int

    def __str__(self) -> str:
        return host_port(self.address, self.port)


class Forwarding(NamedTuple):
    """What becomes of connections to a local port: any of `endpoints`, at random; there is at least one.

    An endpoint that weighs more than others is there more often.

    `affinity_timeout` is in seconds, None without session affinity.
    """

    service: ObjectKey
    endpoints: tuple[tuple[Address, int], ...]
    affinity_timeout: int | None


class Pin(NamedTuple):
    """The endpoint that a local port's clients were sent to, for which Service, and when: in seconds of any clock."""

    service: ObjectKey
    endpoint: tuple[Address, int]
    at: float


def pinned(pin: Pin | None, wanted: Forwarding, now: float) -> tuple[Address, int] | None:
    """The endpoint that session affinity asks for; None if any will do.

    Each new connection starts the time anew.  An endpoint that may no longer be chosen is forgotten, and so is another
    Service's.
    """
    if pin is None or wanted.affinity_timeout is None:
        return None
    is_kept = pin.service == wanted.service and pin.endpoint in wanted.endpoints
    return pin.endpoint if is_kept and now - pin.at < wanted.affinity_timeout else None


class LocalhostPorts:
    """The node ports that are to be served at localhost, each for the Service that owns it.

    `by_port` is replaced whole when anything in it changes.  Where nobody asked for localhost it stays empty.
    """

    def __init__(self, config: Config) -> None:
        self.by_port: Mapping[LocalPort, Forwarding] = {}
        self._config = config
        self._families = tuple(family for family in Family if family in config.node_port_addresses.localhost)
        self._ports: dict[ObjectKey, tuple[LocalPort, ...]] = {}

    def update(
        self,
        state: ClusterState,
        services: Iterable[ObjectKey],
        without_rules: Mapping[Family, Collection[ObjectKey]],
    ) -> None:
        """Follow the state in what was touched of it; where a Service has no rules, it isn't served here either.

        `without_rules` has the Services that have no rules of a family.
        """
        if not self._families:
            return
        services = tuple(services)
        old = {port: self.by_port[port] for key in services for port in self._ports.pop(key, ())}
        new: dict[LocalPort, Forwarding] = {}
        for key in services:
            service = state.services.get(key)
            families = [family for family in self._families if key not in without_rules.get(family, ())]
            if service and (served := dict(self._served(state, service, families))):
                self._ports[key] = tuple(served)
                new |= served
        if old != new:
            self.by_port = {port: each for port, each in self.by_port.items() if port not in old} | new

    def unserved(self, state: ClusterState) -> Iterator[tuple[ObjectKey, LocalPort, Protocol]]:
        """The node ports of other protocols than TCP, which nothing serves at localhost, in the order of Services."""
        for _, service in sorted(state.services.items()):
            for port in service.ports:
                if port.node_port and port.protocol is not Protocol.TCP:
                    for family in self._families:
                        yield service.key, LocalPort(LOCALHOST[family], port.node_port), port.protocol

    def _served(
        self, state: ClusterState, service: Service, families: Iterable[Family]
    ) -> Iterator[tuple[LocalPort, Forwarding]]:
        if all(port.protocol is not Protocol.TCP or not port.node_port for port in service.ports):
            return
        for family in families:
            offered = offers(service, state.slices_of(service.key), family)
            for port, claimed in reaches(state, self._config, family, service):
                for reach in claimed:
                    if reach.claim.address != NODE or port.protocol is not Protocol.TCP or reach.denial:
                        continue
                    choice = choice_for(port, offered, state.node, state.silent_of(service))
                    chosen = choice.local if reach.policy is TrafficPolicy.LOCAL else choice.cluster
                    if chosen:
                        endpoints = tuple(placed(chosen, Algorithm.RANDOM, ""))
                        place = LocalPort(LOCALHOST[family], port.node_port)
                        yield place, Forwarding(service.key, endpoints, service.affinity_timeout)
