"""The rules that templates render from a world, loaded into a lab's node: no process, no API."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nftproxy.api.kinds import kinds_for
from nftproxy.api.parse import parse_object
from nftproxy.extensions.failover.gone_addresses import GoneAddresses
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.installed import INSTALLED, OPTIONS
from nftproxy.kernel.conntrack.sweeps import Sweeper
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import ANY, Address, Family, family_of
from nftproxy.model.events import Event, HostAddresses, Listed, Put
from nftproxy.model.objects import EndpointSlice, Node, Place, Service, ServiceCIDR
from nftproxy.model.settings import Capabilities
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.policy.health_checks import health_check_addresses
from nftproxy.rules.renderer import Renderer
from nftproxy.rules.transaction import Transaction, delete_transaction, join
from nftproxy_conformance.lab import TCP_RESET, Lab, Namespace, Outcome, Probe
from nftproxy_conformance.lab.outcome import HEALTHY, UNHEALTHY
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies.probes import MORE_IPS
from nftproxy_conformance.subjects.manifests import objects

_KINDS = kinds_for("", OPTIONS)


class Rendered:
    """A lab whose node gets the rules of one world after another, a `Subject`.

    Args:
        renderer: of the templates on trial.
        capabilities: of this machine's nft.
        with_fast_path: whether connections are also established and tried on the fast path.

    Raises:
        Unavailable: the lab can't be built.
    """

    may_deviate = False

    def __init__(self, renderer: Renderer, capabilities: Capabilities, *, with_fast_path: bool = False) -> None:
        self.lab = Lab(fast_path=renderer if with_fast_path else None)
        for address in MORE_IPS:
            self.lab.add_address(address)
        self._renderer, self._capabilities = renderer, capabilities
        self._kernel = Kernel()
        self._pipeline: Pipeline | None = None
        self._now = 0.0

    def load(self, world: World) -> bool:
        """Replace the rules by those of a world, and return True, as nothing of earlier rules stays.

        Raises:
            Refused: the kernel or its library refuses them.
            TemplateError: they can't be rendered.
        """
        self._pipeline = Pipeline(
            world.node.name, Settings(world.config, self._capabilities, INSTALLED), self._renderer
        )
        self._pipeline.ingest(events(world))
        nothing = join(map(delete_transaction, Family))
        self._apply(join([nothing, self._pipeline.full_transaction({})]))
        self._pipeline.flows.pop_due()  # the node has no flow that matters
        return True

    def follow(self, after: World, happened: Sequence[Event]) -> None:  # noqa: ARG002 -- events say it all
        """Apply events to the loaded world, in a transaction.

        Raises:
            Refused: the kernel or its library refuses it.
            TemplateError: it can't be rendered.
        """
        assert self._pipeline, "nothing was loaded"
        self._apply(self._pipeline.ingest(happened))
        self.sweep()

    def sweep(self) -> None:
        """Delete the flows that the rules no longer allow, as the agent does."""
        assert self._pipeline, "nothing was loaded"
        if due := self._pipeline.flows.pop_due():
            sweeper = Sweeper(lambda _: None)
            self.lab.node.call(sweeper.sweep, due)
            sweeper.close()

    def settle(self) -> bool:
        """Return False, as loaded rules are in force at once."""
        return False

    def leave_out(self, world: World) -> None:
        """Leave out the world's silent endpoints.

        Raises: as `follow` does.
        """
        self.follow(world, [_silence(world)])

    def end_gone(self) -> float:
        """Sweep the connections to gone addresses.  Return 5 s, as a fast path takes seconds to notice."""
        assert self._pipeline, "nothing was loaded"
        self._now = end_gone(self._pipeline, self.lab.node, self._now)
        return 5.0

    def health(self, probe: Probe) -> Outcome:
        """The answer that an agent would give."""
        assert self._pipeline, "nothing was loaded"
        state, config = self._pipeline.state, self._pipeline.settings.config
        address, family = Address(probe.address), family_of(Address(probe.address))
        check = self._pipeline.health_checks.by_port.get(probe.port)
        if check is None or {address, ANY[family]}.isdisjoint(health_check_addresses(state, config)):
            return TCP_RESET
        return HEALTHY if check.local_endpoints.get(family) else UNHEALTHY

    def renew(self) -> bool:
        """Return False, as each load makes the node new."""
        return False

    def close(self) -> None:
        """Remove the node."""
        self.lab.close()

    def _apply(self, transaction: Transaction) -> None:
        self.lab.node.call(self._kernel.apply, transaction)


def end_gone(pipeline: Pipeline, node: Namespace, now: float) -> float:
    """Sweep gone addresses as an agent does, without the waits between its looks.  Return the time of the last look."""
    sweeper = Sweeper(lambda _: None)
    while True:
        if swept := pipeline.view(GoneAddresses).look(pipeline.state, now):
            node.call(sweeper.sweep, swept)
        if pipeline.view(GoneAddresses).next_look == math.inf:
            sweeper.close()
            return now
        now = pipeline.view(GoneAddresses).next_look


def events(world: World) -> Iterable[Event]:
    """The events that describe a world to a proxy.  Old spellings go through manifests and parsing."""
    if world.old_spellings:
        read = [parse_object(each, "", [], kinds=_KINDS) for each in objects(world)]
        (node,) = (each for each in read if isinstance(each, Node))
        world = World.with_objects(
            node, world.config, read, interfaces=world.interfaces, knows_interfaces=world.knows_interfaces
        )
    given: list[Event] = [
        Listed(Node, (world.node,)),
        Listed(ServiceCIDR, world.service_cidrs),
        Listed(Service, world.services),
        Listed(EndpointSlice, world.slices),
    ]
    if world.knows_interfaces:
        given.append(Put(HostAddresses(world.interfaces)))
    if world.silent:
        given.append(_silence(world))
    return given


def _silence(world: World) -> Put:
    refusing = frozenset(Place(*each) for each in world.refusing)
    return Put(SilentPlaces(tuple(Place(*each) for each in world.silent), refusing))
