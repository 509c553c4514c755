"""A world's rules in a kernel, real connections, and their outcomes compared with the oracle's.

Endpoints are drawn at random, so it takes many connections until all have shown.  Most show in the few that are tried
anyway; for the others there are more, so many that an endpoint that can be drawn stays unseen once in 10**9 times.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from nftproxy.conformance.oracle import Oracle, World
from nftproxy.conformance.probes import MORE_IPS, others_like
from nftproxy.kernel.libnftables import Kernel
from nftproxy.lab import Kind, Lab, Outcome, Probe
from nftproxy.model.addresses import Family
from nftproxy.model.events import Event, HostAddresses, Listed, Put
from nftproxy.model.objects import EndpointSlice, Node, Service, ServiceCIDR
from nftproxy.model.settings import Capabilities, Settings
from nftproxy.pipeline import Pipeline
from nftproxy.rules.render import Renderer
from nftproxy.rules.transaction import Transaction, delete_transaction, join

UNSEEN = 1e-9
"""How often an endpoint that can be drawn may go unseen, and so be missed wrongly."""
TIMES = 2
"""How often each connection is tried at first: a client that is remembered must be seen twice."""


View = Callable[[Outcome], Outcome]


def exactly(outcome: Outcome) -> Outcome:
    """All of an outcome counts."""
    return outcome


def but_for_sources(outcome: Outcome) -> Outcome:
    """An outcome as it is when nobody cares whether the source was hidden."""
    return dataclasses.replace(outcome, masqueraded=False)


class Difference(NamedTuple):
    """A connection that went otherwise than it must.

    `expected` is all that may become of it; `seen` is what became of it wrongly, or all that became of many like it
    where that is too little, as `what` says.
    """

    probe: Probe
    expected: frozenset[Outcome]
    seen: frozenset[Outcome]
    what: str


class Trial:
    """A lab whose node gets the rules of one world after the other.

    Args:
        renderer: of the templates on trial.
        capabilities: what this machine's nft is able to do.

    Raises:
        LabError: the lab can't be built.

    Attributes:
        connections: how many were tried.
    """

    def __init__(self, renderer: Renderer, capabilities: Capabilities) -> None:
        self.connections = 0
        self.lab = Lab()
        for address in MORE_IPS:
            self.lab.add_address(address)
        self._renderer, self._capabilities = renderer, capabilities
        self._kernel = Kernel()
        self._pipeline: Pipeline | None = None
        self._remembered: set[Probe] = set()  # clients that connected since the rules were loaded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.lab.close()

    def load(self, world: World) -> None:
        """Make the rules those of a world, and no others, as on a node where nothing was before.

        Raises:
            Refused: the kernel or its library refuses them.
            TemplateError: they can't be rendered.
        """
        self._pipeline = Pipeline(world.node.name, Settings(world.config, self._capabilities), self._renderer)
        self._pipeline.apply(events(world))
        self._remembered.clear()
        nothing = join(map(delete_transaction, Family))
        self._apply(join([nothing, self._pipeline.full_transaction({})]))

    def follow(self, happened: Iterable[Event]) -> None:
        """Let things happen in the world that was loaded last, in one transaction.

        Raises:
            Refused: the kernel or its library refuses it.
            TemplateError: it can't be rendered.
        """
        assert self._pipeline, "nothing was loaded"
        self._apply(self._pipeline.apply(happened))

    def _apply(self, transaction: Transaction) -> None:
        self.lab.node.call(self._kernel.apply, transaction)

    def connect(self, probes: Sequence[Probe]) -> list[Outcome]:
        """Try connections, one after the other."""
        self.connections += len(probes)
        return self.lab.connect_many(probes)

    def differences(self, world: World, probes: Iterable[Probe], view: View = exactly) -> list[Difference]:
        """What becomes of connections otherwise than the oracle says, in the world whose rules are loaded.

        Args:
            world: that world.
            probes: the connections.
            view: what of an outcome counts.
        """
        oracle = Oracle(world)
        expected = {probe: frozenset(map(view, oracle.expected(probe))) for probe in probes}
        tries = [probe for probe in expected for _ in range(TIMES)]
        seen: dict[Probe, list[Outcome]] = defaultdict(list)
        for probe, outcome in zip(tries, self.connect(tries), strict=True):
            seen[probe].append(view(outcome))
        return [
            *_wrong(expected, seen),
            *(difference for probe, outcomes in seen.items() if (difference := _unsteady(oracle, probe, outcomes))),
            *self._missing(oracle, expected, seen, view),
        ]

    def _missing(
        self,
        oracle: Oracle,
        expected: Mapping[Probe, frozenset[Outcome]],
        seen: Mapping[Probe, Sequence[Outcome]],
        view: View,
    ) -> list[Difference]:
        """Connections to a place that never reach what some of them must reach."""
        alike: dict[tuple[str, int, str, frozenset[Outcome]], list[Probe]] = defaultdict(list)
        for probe, outcomes in expected.items():
            if len(outcomes) > 1:
                alike[probe.address, probe.port, probe.protocol, outcomes].append(probe)
        found = []
        for (*_, wanted), probes in alike.items():
            unseen = wanted - {outcome for probe in probes for outcome in seen[probe]}
            if unseen and (more := self._more(oracle, probes, wanted, view)):
                unseen -= set(map(view, self.connect(more)))
                if unseen:
                    found.append(Difference(probes[0], wanted, wanted - unseen, "some are never reached"))
        return found

    def _more(self, oracle: Oracle, probes: Sequence[Probe], wanted: frozenset[Outcome], view: View) -> list[Probe]:
        """So many more connections that all of `wanted` show; none where there aren't as many new clients."""
        enough = math.ceil(math.log(UNSEEN / len(wanted)) / math.log(1 - 1 / len(wanted)))
        if not oracle.remembers(probes[0]):
            return list(itertools.islice(itertools.cycle(probes), enough))
        clients = {other: None for probe in probes for other in others_like(probe) if other not in self._remembered}
        alike = [other for other in clients if frozenset(map(view, oracle.expected(other))) == wanted][:enough]
        self._remembered.update(alike)
        return alike if len(alike) == enough else []


def events(world: World) -> list[Event]:
    """A world as the proxy learns of it."""
    given: list[Event] = [
        Listed(Node, (world.node,)),
        Listed(ServiceCIDR, world.service_cidrs),
        Listed(Service, world.services),
        Listed(EndpointSlice, world.slices),
    ]
    return [*given, Put(HostAddresses(world.interfaces))] if world.knows_interfaces else given


def _wrong(
    expected: Mapping[Probe, frozenset[Outcome]], seen: Mapping[Probe, Sequence[Outcome]]
) -> Iterable[Difference]:
    for probe, outcomes in seen.items():
        if wrong := set(outcomes) - expected[probe]:
            yield Difference(probe, expected[probe], frozenset(wrong), "went elsewhere")


def _unsteady(oracle: Oracle, probe: Probe, outcomes: Sequence[Outcome]) -> Difference | None:
    """A client that is sent to another pod than before, though it must be remembered."""
    pods = {outcome.endpoint.ip for outcome in outcomes if outcome.kind is Kind.ENDPOINT and outcome.endpoint}
    if len(pods) > 1 and oracle.remembers(probe):
        return Difference(probe, oracle.expected(probe), frozenset(outcomes), "was not remembered")
    return None
