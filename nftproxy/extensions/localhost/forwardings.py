"""The endpoints that serve node ports at localhost (nodePortAddresses, KEP-6032).

No rule can serve these: a packet to a loopback address has a loopback source, which no endpoint could answer.  So the
agent listens there and forwards (agent/forwarder.py), as is decided here.  The fronts and the choice of
endpoints are the same as for the rules, with three differences, all as in kube-proxy 1.37, except for annotations:

* TCP only.  Nothing listens for UDP and SCTP, so the kernel rejects packets sent there.
* Policy Local means the local list, for the node itself too: if it is empty, nothing listens.
* All of the node's own clients are one client, so session affinity sends all of them to the same endpoint, and the
  annotation nftproxy.dev/algorithm has no effect: weights count, and endpoints are drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from nftproxy.model.addresses import LOCALHOST, Family, Protocol
from nftproxy.model.objects import ObjectKey, Place, Service, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.choosing.verdicts import choose
from nftproxy.policy.claims import NODE
from nftproxy.policy.drawing import placed
from nftproxy.policy.extension import Change
from nftproxy.policy.fronts import claimed_fronts
from nftproxy.policy.state import ClusterState


class Forwarding(NamedTuple):
    """The targets of connections to a local port: any of `endpoints`, at random.

    `endpoints` isn't empty.  A larger weight puts an endpoint there more often.

    `affinity_timeout` is in seconds, None without session affinity.
    """

    service: ObjectKey
    endpoints: tuple[Place, ...]
    affinity_timeout: int | None


class Pin(NamedTuple):
    """The endpoint that session affinity remembers for a port at localhost, its Service, and when it was last used."""

    service: ObjectKey
    endpoint: Place
    at: float


def pinned(pin: Pin | None, wanted: Forwarding, now: float) -> Place | None:
    """The endpoint that session affinity has chosen, None if it has chosen none.

    Each new connection starts the time anew.  A pin to an endpoint that may no longer be chosen is forgotten, and so is
    a pin of another Service.
    """
    if pin is None or wanted.affinity_timeout is None:
        return None
    is_kept = pin.service == wanted.service and pin.endpoint in wanted.endpoints
    return pin.endpoint if is_kept and now - pin.at < wanted.affinity_timeout else None


class LocalhostPorts:
    """The node ports that are to be served at localhost, each for the Service that owns it.

    `by_port` is replaced whole when anything in it changes.  It stays empty unless the configuration asks for
    localhost.
    """

    def __init__(self, config: Config) -> None:
        self.by_port: Mapping[Place, Forwarding] = {}
        self._config = config
        self._families = tuple(family for family in Family if family in config.node_port_addresses.localhost)
        self._ports: dict[ObjectKey, tuple[Place, ...]] = {}

    def refresh(self, change: Change) -> None:
        """Update the local ports of some Services.  In a family without rules, a Service isn't served here either."""
        state, without_rules = change.state, change.without_rules
        if not self._families:
            return
        services = change.services
        old = {port: self.by_port[port] for key in services for port in self._ports.pop(key, ())}
        new: dict[Place, Forwarding] = {}
        for key in services:
            service = state.services.get(key)
            families = [family for family in self._families if key not in without_rules.get(family, ())]
            if service and (served := dict(self._served(state, service, families))):
                self._ports[key] = tuple(served)
                new |= served
        if old != new:
            self.by_port = {port: each for port, each in self.by_port.items() if port not in old} | new

    def unserved(self, state: ClusterState) -> Iterator[tuple[ObjectKey, Place, Protocol]]:
        """The node ports of other protocols than TCP, which nothing serves at localhost, in the order of Services."""
        for _, service in sorted(state.services.items()):
            for port in service.ports:
                if port.node_port and port.protocol is not Protocol.TCP:
                    for family in self._families:
                        yield service.key, Place(LOCALHOST[family], port.node_port), port.protocol

    def _served(
        self, state: ClusterState, service: Service, families: Iterable[Family]
    ) -> Iterator[tuple[Place, Forwarding]]:
        if all(port.protocol is not Protocol.TCP or not port.node_port for port in service.ports):
            return
        for family in families:
            endpoints = state.endpoints_of(service, family)
            for port, fronts in claimed_fronts(state, self._config, family, service):
                for claimed in fronts:
                    if claimed.claim.address != NODE or port.protocol is not Protocol.TCP or claimed.denial:
                        continue
                    choice = choose(endpoints, port)
                    chosen = choice.local if claimed.policy is TrafficPolicy.LOCAL else choice.cluster
                    if chosen:
                        targets = tuple(placed(chosen))
                        place = Place(LOCALHOST[family], port.node_port)
                        yield place, Forwarding(service.key, targets, service.affinity_timeout)
