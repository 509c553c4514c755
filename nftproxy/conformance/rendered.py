"""The rules that templates render from a world, loaded into a lab's node: no process, no API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nftproxy.conformance.oracle import World
from nftproxy.conformance.probes import MORE_IPS
from nftproxy.kernel.libnftables import Kernel
from nftproxy.lab import Lab
from nftproxy.model.addresses import Family
from nftproxy.model.events import Event, HostAddresses, Listed, Put, SilentPlaces
from nftproxy.model.objects import EndpointSlice, Node, Place, Service, ServiceCIDR
from nftproxy.model.settings import Capabilities, Settings
from nftproxy.pipeline import Pipeline
from nftproxy.rules.render import Renderer
from nftproxy.rules.transaction import Transaction, delete_transaction, join


class Rendered:
    """A lab whose node gets the rules of one world after the other; a `Subject`.

    Args:
        renderer: of the templates on trial.
        capabilities: what this machine's nft is able to do.

    Raises:
        LabError: the lab can't be built.
    """

    may_deviate = False

    def __init__(self, renderer: Renderer, capabilities: Capabilities) -> None:
        self.lab = Lab()
        for address in MORE_IPS:
            self.lab.add_address(address)
        self._renderer, self._capabilities = renderer, capabilities
        self._kernel = Kernel()
        self._pipeline: Pipeline | None = None

    def load(self, world: World) -> bool:
        """Make the rules those of a world, and no others; true, as nothing of earlier ones stays.

        Raises:
            Refused: the kernel or its library refuses them.
            TemplateError: they can't be rendered.
        """
        self._pipeline = Pipeline(world.node.name, Settings(world.config, self._capabilities), self._renderer)
        self._pipeline.apply(events(world))
        nothing = join(map(delete_transaction, Family))
        self._apply(join([nothing, self._pipeline.full_transaction({})]))
        return True

    def follow(self, after: World, happened: Sequence[Event]) -> None:  # noqa: ARG002 -- events say it all
        """Let things happen in the world that was loaded last, in one transaction.

        Raises:
            Refused: the kernel or its library refuses it.
            TemplateError: it can't be rendered.
        """
        assert self._pipeline, "nothing was loaded"
        self._apply(self._pipeline.apply(happened))

    def settle(self) -> bool:
        """False: what was loaded is in force."""
        return False

    def renew(self) -> bool:
        """False: the node is new at each load."""
        return False

    def close(self) -> None:
        """Remove the node."""
        self.lab.close()

    def _apply(self, transaction: Transaction) -> None:
        self.lab.node.call(self._kernel.apply, transaction)


def events(world: World) -> Iterable[Event]:
    """A world as the proxy learns of it."""
    given: list[Event] = [
        Listed(Node, (world.node,)),
        Listed(ServiceCIDR, world.service_cidrs),
        Listed(Service, world.services),
        Listed(EndpointSlice, world.slices),
    ]
    if world.knows_interfaces:
        given.append(Put(HostAddresses(world.interfaces)))
    if world.silent:
        given.append(Put(SilentPlaces(tuple(Place(*each) for each in world.silent))))
    return given
