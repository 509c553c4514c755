"""The seam between the proxy and its extensions: what a feature of ours may add to the rules.

The proxy's rooms hold what Kubernetes' API says about Services.  A feature that only nftproxy has is a folder of
nftproxy/extensions/, and an `Extension` is its value.  `Settings` carries the extensions to the code that asks them.

* An extension is asked about a Service only if the Service's annotations ask for it (`uses`), or if the configuration
  asks for it everywhere (`is_everywhere`).  So a plain Service costs no call.
* Every field but the name has a default that adds nothing.
* An extension adds elements, declarations, and rules at the insertion points of the proxy's templates
  (`facts.INSERTION_POINTS`).  It takes nothing away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from typing import Protocol as Interface

from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.annotations import PLAIN, Option, Options, joined
from nftproxy.model.codes import AnyCode
from nftproxy.model.events import Observation
from nftproxy.model.objects import ObjectKey, Place, Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Capabilities, Config
from nftproxy.policy.choosing.choice import ChoiceCache
from nftproxy.policy.choosing.verdicts import Candidate, Choice
from nftproxy.policy.claims import Claim
from nftproxy.policy.facts import Addition, Endings, Part
from nftproxy.policy.fronts import ClaimedFront
from nftproxy.policy.limits import MostRows
from nftproxy.policy.numbers import Draw
from nftproxy.policy.state import ClusterState, Extended


class Restriction(NamedTuple):
    """The clients that a Service excludes in a family, in addition to spec.loadBalancerSourceRanges.

    `guarded` are further addresses to which these ranges apply (`NODE` stands for node ports).  `denies` says that
    some sources are denied at all of its addresses.
    """

    guarded: tuple[Address, ...] = ()
    denies: bool = False


UNRESTRICTED = Restriction()


class CompiledService(NamedTuple):
    """A Service in a family, while its ports are compiled.

    `own_list` names its list of source ranges, `allowed` are the sources on it, and `guarded` its guarded addresses.
    """

    state: ClusterState
    settings: Settings
    family: Family
    service: Service
    own_list: Address
    allowed: tuple[str, ...]
    guarded: tuple[Address, ...]


class CompiledPort(NamedTuple):
    """A port of such a Service: the fronts that it has, and the choice of endpoints for it.

    `untranslated` are the claims of external fronts that are an endpoint's own address and port.
    """

    port: ServicePort
    had: Sequence[ClaimedFront]
    choice: Choice
    untranslated: Collection[Claim]


class DrawnPort(NamedTuple):
    """A Service port in a family, whose endpoints are drawn on a node.

    `is_hashed` says that a hash of the client's address must bring clients back, as nft can't remember them.
    """

    family: Family
    service: Service
    port: ServicePort
    node_name: str
    state: ClusterState
    is_hashed: bool


class Drawn(NamedTuple):
    """How the endpoints of a Service port are drawn.

    `rows` returns the endpoint in each row of a list that a policy asks for.  None: each endpoint has as many rows as
    its weight comes to.
    """

    draw: Draw
    rows: Callable[[Sequence[Candidate], TrafficPolicy], Sequence[Place]] | None = None


class Change(NamedTuple):
    """A change of the state whose rules have just been made, for views that follow it.

    `services` are the changed Services, and `claiming` the changed Services whose fronts may differ.  `without_rules`
    has the Services without rules in each family.  `size_of` returns the elements of a Service.  `cache` saves time,
    and changes no outcome.
    """

    state: ClusterState
    services: Sequence[ObjectKey]
    claiming: Sequence[ObjectKey]
    without_rules: Mapping[Family, Collection[ObjectKey]]
    size_of: Callable[[ObjectKey], int]
    cache: ChoiceCache | None


class View(Interface):
    """Something that an extension derives from the state beside rules."""

    def refresh(self, change: Change) -> None:
        """Update the view after a change.

        It is called while a Service or the configuration asks for the extension, and after the change by which the last
        of them stops asking.
        """


AddToPort = Callable[[CompiledPort], Addition | None]
"""Returns the share of an extension for a port.  It is called for the ports of a Service in their order."""


def _no_uses(_: Service) -> Collection[Hashable]:
    return ()


@dataclass(frozen=True)
class Extension:
    """A feature of ours.  A frozen value without state.

    Attributes:
        name: the name of its folder.
        templates: the names of its templates.
        codes: the codes of its warnings.  articles.toml in its folder has their articles.
        options: the annotations that it declares.  Extensions share an annotation if each declares its own words.
        defaults: the values that the configuration gives to Services without these annotations.
        uses: the parts of the feature that a Service's annotations ask for, empty if they ask for none.
            `ClusterState.users` has the Services of each.
        is_everywhere: whether the configuration asks for it in all Services.
        endings: the verdicts for packets that no endpoint gets, None to leave the proxy's.
        restriction: the clients that a Service excludes by it.
        elements: the most elements that a Service has by it, in both families together.
        table: its share of the skeleton of a table, None without any.
        later: the share whose declarations belong to the shape of every table, as a Service may ask for them later.
        ports: returns a function that adds to the ports of a Service.
        drawn: how the endpoints of a port are drawn, None to leave it to the proxy.
        most_rows: the most rows of a list that the extension draws, otherwise the rows as given: see `MostRows`.
        own_table: the name of its table of nft's family inet, "" if it never has a table of its own.
        whole_table: the table of that name, None if the configuration doesn't ask for it.
        view: makes the view that follows the state, given the settings and the families.
        left_out: the endpoints that a Service leaves out, the first ones first if not all may be left out.
        of_table: the types of observations on which its share of the skeleton depends.
        concerned: by the type of an observation, a function that returns the Services whose endpoints change by it,
            given the state and the observations before and after.
    """

    name: str
    templates: tuple[str, ...] = ()
    codes: tuple[AnyCode, ...] = ()
    options: tuple[Option[Any], ...] = ()
    defaults: Callable[[Config], Options] = lambda _: PLAIN
    uses: Callable[[Service], Collection[Hashable]] = _no_uses
    is_everywhere: Callable[[Config], bool] = lambda _: False
    endings: Callable[[Config], Endings | None] = lambda _: None
    restriction: Callable[[Service, Family], Restriction] = lambda _, __: UNRESTRICTED
    elements: Callable[[Service, Config], int] = lambda _, __: 0
    table: Callable[[ClusterState, Settings, Family], Part | None] = lambda _, __, ___: None
    later: Callable[[Family], Part | None] = lambda _: None
    ports: Callable[[CompiledService], AddToPort] | None = None
    drawn: Callable[[DrawnPort], Drawn | None] = lambda _: None
    most_rows: MostRows | None = None
    own_table: str = ""
    whole_table: Callable[[Config], Part | None] = lambda _: None
    view: Callable[[Settings, Sequence[Family]], View] | None = None
    left_out: Callable[[ClusterState, Service], Sequence[Place]] = lambda _, __: ()
    of_table: tuple[type[Observation], ...] = ()
    concerned: Mapping[type[Observation], Callable[[ClusterState, Any, Any], Iterable[ObjectKey]]] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Settings:
    """The configuration, the capabilities and the extensions, which are fixed for the life of a process."""

    config: Config = field(default_factory=Config)
    capabilities: Capabilities = field(default_factory=Capabilities)
    extensions: tuple[Extension, ...] = ()
    everywhere: tuple[Extension, ...] = field(init=False)
    """The extensions for which the configuration asks in all Services."""
    endings: Endings = field(init=False)
    """The verdicts for packets that no endpoint gets."""

    def __post_init__(self) -> None:
        asked = tuple(each for each in self.extensions if each.is_everywhere(self.config))
        endings = (each.endings(self.config) for each in self.extensions)
        object.__setattr__(self, "everywhere", asked)
        object.__setattr__(self, "endings", next(filter(None, endings), Endings()))

    @property
    def options(self) -> tuple[Option[Any], ...]:
        """The annotations that the extensions declare."""
        return joined(option for each in self.extensions for option in each.options)

    def extensions_of(self, service: Service) -> tuple[Extension, ...]:
        """The extensions that a Service asks for, and those that the configuration asks for everywhere."""
        if service.options is PLAIN:  # as with nearly every Service
            return self.everywhere
        return tuple(each for each in self.extensions if each in self.everywhere or each.uses(service))

    def drawn(self, port: DrawnPort) -> Drawn | None:
        """How an extension draws the endpoints of a port, None if the proxy draws them."""
        return next(filter(None, (each.drawn(port) for each in self.extensions)), None)

    def extended(self) -> Extended:
        """Return the functions and values by which extensions take part in the state."""
        concerned = {kind: found for each in self.extensions for kind, found in each.concerned.items()}
        defaults = PLAIN
        for each in self.extensions:
            defaults = each.defaults(self.config).over(defaults)
        of_tables = frozenset(kind for each in self.extensions for kind in each.of_table)
        return Extended(self._uses, self._left_out, concerned, self._elements, defaults, self._most_rows, of_tables)

    def _uses(self, service: Service) -> frozenset[Hashable]:
        """The names of the extensions that a Service's annotations ask for, and the parts of these."""
        if service.options is PLAIN:
            return frozenset()
        asked = {each.name: each.uses(service) for each in self.extensions}
        return frozenset(use for name, uses in asked.items() if uses for use in (name, *uses))

    def _elements(self, service: Service) -> int:
        return sum([each.elements(service, self.config) for each in self.extensions_of(service)])

    def _left_out(self, state: ClusterState, service: Service) -> Sequence[Place]:
        found = [place for each in self.extensions for place in each.left_out(state, service)]
        return tuple(dict.fromkeys(found)) if found else ()

    def _most_rows(self, service: Service, protocol: Protocol, endpoints: int, rows: int) -> int:
        for each in self.extensions:
            if each.most_rows:
                rows = each.most_rows(service, protocol, endpoints, rows)
        return rows
