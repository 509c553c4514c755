"""The cluster as far as events have shown it, and the Services that each event touched.

Rules play no part here: `ingest` takes an event and returns the Services to compile again, so that work stays in
proportion to the change.  The same objects make the same state, in any order of events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from nftproxy.model.addresses import Address, Family, Network
from nftproxy.model.annotations import PLAIN, Options
from nftproxy.model.events import ApiServers, Event, HostAddresses, Listed, Observation, Put, Removed, Seen
from nftproxy.model.objects import (
    ClusterObject,
    Endpoint,
    EndpointSlice,
    Ignored,
    Node,
    ObjectKey,
    Place,
    Service,
    ServiceCIDR,
    key_of,
)
from nftproxy.model.settings import Config
from nftproxy.model.steps import finish
from nftproxy.policy.budget import Budget, Shortage
from nftproxy.policy.choosing.verdicts import ServiceEndpoints
from nftproxy.policy.claims import Claims
from nftproxy.policy.limits import (
    Exceeded,
    MostRows,
    as_weighted,
    crowd_of,
    excess,
    offered_ports,
    size,
    weighs_the_same,
)
from nftproxy.policy.orphans import Orphans

STEP = 250
"""Objects of a listing that are taken in before other tasks get their turn: some 10 ms."""
STEP_PACKED = 10
"""Orphans that are compressed, or restored, before other tasks get their turn: some 10 ms for 1,000 endpoints each."""


class Invalidation(msgspec.Struct):
    """The parts to compile again: some Services, the table's skeleton, or everything.

    Services in `services` may have other claims or other fronts.  For Services in `endpoints` alone only EndpointSlices
    have changed.
    """

    services: set[ObjectKey] = msgspec.field(default_factory=set)
    endpoints: set[ObjectKey] = msgspec.field(default_factory=set)
    table: bool = False
    everything: bool = False

    def merge(self, other: Invalidation) -> None:
        """Add the parts that another event touched."""
        self.services |= other.services
        self.endpoints |= other.endpoints
        self.table |= other.table
        self.everything |= other.everything


class Extended(NamedTuple):
    """The functions and values by which extensions take part in the state (extension.py).

    `uses` returns the parts of extensions that a Service asks for.  `left_out` returns the endpoints that a Service
    leaves out, the first ones first if not all may be left out.  `concerned` has, by the type of an observation, a
    function that returns the Services whose endpoints change by it, given the observations before and after.
    `elements` returns the most elements that a Service has by extensions.  `defaults` are the values of options that
    the configuration gives to Services without the annotation.  `most_rows` returns the most rows of a list.
    `of_tables` are the observations on which skeletons depend.
    """

    uses: Callable[[Service], frozenset[Hashable]]
    left_out: Callable[[ClusterState, Service], Sequence[Place]]
    concerned: Mapping[type[Observation], Callable[[ClusterState, Any, Any], Iterable[ObjectKey]]]
    elements: Callable[[Service], int]
    defaults: Options
    most_rows: MostRows = as_weighted
    of_tables: frozenset[type[Observation]] = frozenset()


NOT_EXTENDED = Extended(lambda _: frozenset(), lambda _, __: (), {}, lambda _: 0, PLAIN)


class ClusterState:
    """Services, EndpointSlices, this Node and ServiceCIDRs, with the indexes that compiling needs.

    `services` are the Services within the limits (limits.py) and the budget (budget.py).  `excessive` has the rest,
    each with the reason.  `excess_changes` counts the changes of `excessive`.
    `ignored` are the Services that aren't for this proxy, which no rule depends on.
    `users` has the `services` that ask for each part of an extension.  `observed` are the observations of extensions.
    `own_addresses` are the addresses on the node's interfaces.  While these aren't known, those of the Node stand in.
    """

    def __init__(
        self,
        node_name: str,
        config: Config = Config(),  # noqa: B008  # a value
        extended: Extended = NOT_EXTENDED,
    ) -> None:
        self.node = Node(node_name)
        self.has_node = False
        """Whether the cluster has a Node of this name."""
        self.host_addresses: frozenset[Address] | None = None
        self.own_addresses = frozenset[Address]()
        self.observed: dict[type[Observation], Observation] = {}
        self.api_servers: frozenset[Place] = frozenset()
        self.services: dict[ObjectKey, Service] = {}
        self.users: dict[Hashable, set[ObjectKey]] = {}
        self._extended = extended
        self.excessive: dict[ObjectKey, Exceeded | Shortage] = {}
        self.excess_changes = 0
        self._budget = Budget(config.element_budget)
        self.ignored: dict[ObjectKey, Ignored] = {}
        self._given: dict[ObjectKey, Service] = {}
        self._unjudged: set[ObjectKey] = set()
        self.claims = Claims(config)
        self._slices: dict[ObjectKey, EndpointSlice] = {}
        self._crowds: dict[ObjectKey, int] = {}
        self._extra: dict[ObjectKey, int] = {}
        """The most elements that Services have by extensions, where there are any."""
        self._orphans = Orphans()
        self._moved = dict[ObjectKey, None]()
        """The Services that have come or gone, or that a slice names which doesn't exist: orphans begin or end here."""
        self._slices_of: dict[ObjectKey, dict[ObjectKey, EndpointSlice]] = {}
        self._service_cidrs: dict[str, ServiceCIDR] = {}

    def slices_of(self, service: ObjectKey) -> Collection[EndpointSlice]:
        """The EndpointSlices that belong to a Service that exists."""
        return self._slices_of.get(service, {}).values()

    def service_of(self, key: ObjectKey) -> ObjectKey | None:
        """The Service of an EndpointSlice, None if there is no such EndpointSlice."""
        found = self._slices.get(key)
        return found.service if found else self._orphans.service_of(key)

    def endpoints_of(self, service: Service, family: Family) -> ServiceEndpoints:
        """The inputs to the choice of a Service's endpoints in a family."""
        left_out = () if service.options is PLAIN else self._extended.left_out(self, service)
        return ServiceEndpoints.of(service, self.slices_of(service.key), family, self.node, left_out)

    def users_of(self, use: Hashable) -> Collection[ObjectKey]:
        """The Services that ask for a part of an extension."""
        return self.users.get(use, ())

    def slices(self) -> Collection[EndpointSlice]:
        """All EndpointSlices of Services that exist."""
        return self._slices.values()

    def endpoints_at(self, address: Address) -> Iterator[tuple[ObjectKey, Endpoint]]:
        """Every endpoint of a Service with this address.  A scan of all, so not to be used while making rules."""
        for each in self._slices.values():
            for endpoint in each.endpoints:
                if endpoint.address == address:
                    yield each.service, endpoint

    def places_of(self, service: ObjectKey) -> Iterator[Place]:
        """Every address and port in the EndpointSlices of a Service, of any protocol, ready or not."""
        for each in self.slices_of(service):
            for port in each.ports:
                yield from (Place(address, port.port) for address in each.endpoints.addresses)

    def pod_names(self, service: ObjectKey) -> dict[Address, str]:
        """The pods of a Service's endpoints as "namespace/name", by address.  An address of several pods has ""."""
        names: dict[Address, str] = {}
        for each in self.slices_of(service):
            for address, name in each.pod_names():
                text = f"{service.namespace}/{name}"
                if name:
                    names[address] = text if names.get(address, text) == text else ""
        return names

    def pod_addresses(self, pod: ObjectKey) -> tuple[Address, ...]:
        """The addresses of a pod that is an endpoint of a Service.  A scan of its namespace."""
        found = (
            each for each in self._slices.values() if each.key.namespace == pod.namespace and pod.name in each.pods
        )
        pairs = (pair for each in found for pair in each.pod_names())
        return tuple(dict.fromkeys(address for address, name in pairs if name == pod.name))

    def expected_size(self, key: ObjectKey, changed: Iterable[Service | EndpointSlice]) -> int:
        """The elements that a Service may come to with new versions of its objects, 0 if it will have no rules."""
        given, slices = self._given.get(key), {each.key: each for each in self._orphans.outlines(key)}
        slices |= self._slices_of.get(key, {})
        for each in changed:
            if isinstance(each, Service):
                given = each
            else:
                slices[each.key] = each
        extended = self._extended
        fits = given and not excess(given, slices.values(), extended.most_rows)
        extra = extended.elements(given) if given and fits else 0
        return size(given, slices.values(), extra=extra, most_rows=extended.most_rows) if given and fits else 0

    def counted_size(self, key: ObjectKey) -> int:
        """The elements that a Service may come to, 0 if it exceeds a limit."""
        return self._budget.size_of(key)

    def asks_for(self, service: ObjectKey, address: Address) -> bool:
        """Whether a Service names an address as its own, even if the Service exceeds a limit."""
        given = self._given.get(service)
        return given is not None and address in given.cluster_ips + given.external_ips + given.load_balancer_ips

    @property
    def given(self) -> Mapping[ObjectKey, Service]:
        """All Services as they were given, whether or not they are within the limits."""
        return self._given

    @property
    def service_cidrs(self) -> list[Network]:
        """Every range of every ServiceCIDR, both families.  They may overlap."""
        return [cidr for name in sorted(self._service_cidrs) for cidr in self._service_cidrs[name].cidrs]

    def ingest(self, event: Event) -> Invalidation:
        """Take an event in.  Return the parts that it touched."""
        return finish(self.ingest_in_steps([event]))

    def ingest_in_steps(self, events: Iterable[Event]) -> Generator[None, None, Invalidation]:
        """As `ingest` for several events.  Yields after each `STEP` objects, so that other tasks can run.

        Limits and the budget are judged at the end, once for each Service, for any number of new EndpointSlices.
        """
        touched = Invalidation()
        for event in events:
            match event:
                case Put(object=new):
                    self._put(new, touched)
                case Removed(kind=kind, key=key, ignored=ignored):
                    self._remove(kind, key, touched)
                    if kind is Service and ignored is not None:
                        self.ignored[ignored.key] = ignored
                case Listed(kind=kind, objects=objects, ignored=passed_over):
                    yield from self._list(kind, objects, touched)
                    if kind is Service:
                        self.ignored = {each.key: each for each in passed_over}
        if self._moved:
            yield from self._move_orphans(touched)
        yield from self._judge_all(touched)
        if self.claims.has_changed:  # not by a change of endpoints
            touched.services |= self.claims.pop_affected()
        return touched

    def _list(
        self, kind: type[ClusterObject], objects: Sequence[ClusterObject], touched: Invalidation
    ) -> Generator[None, None, None]:
        kept = {key_of(new) for new in objects}
        known = [*self._store(kind), *(self._orphans.keys() if kind is EndpointSlice else ())]
        for key in [key for key in known if key not in kept]:
            self._remove(kind, key, touched)
        for number, new in enumerate(objects, 1):
            self._put(new, touched)
            if number % STEP == 0:
                yield

    def _store(self, kind: type[ClusterObject]) -> Mapping[ObjectKey | str, ClusterObject]:
        stores: dict[type[ClusterObject], Mapping[ObjectKey | str, ClusterObject]] = {
            Service: self._given,  # type: ignore[dict-item]  # a Mapping's key type is invariant
            EndpointSlice: self._slices,  # type: ignore[dict-item]
            ServiceCIDR: self._service_cidrs,  # type: ignore[dict-item]
            Node: {self.node.name: self.node},
        }
        return stores[kind]

    def _put(self, new: ClusterObject | Seen, touched: Invalidation) -> None:
        match new:
            case Service():
                self.ignored.pop(new.key, None)
                self._change_service(new.key, self._with_defaults(new))
            case EndpointSlice():
                self._change_slice(new.key, new, touched)
            case Node() if new.name == self.node.name:
                self.has_node = True
                self._change_node(new, touched)
            case HostAddresses() if self.host_addresses != new.addresses:
                self.host_addresses = self.own_addresses = new.addresses
                touched.table = touched.everything = True
            case Observation():
                before = self.observed.get(type(new))
                if before != new:
                    self.observed[type(new)] = new
                    touched.table |= type(new) in self._extended.of_tables
                    if concerned := self._extended.concerned.get(type(new)):
                        touched.endpoints.update(concerned(self, before, new))
            case ApiServers() if self.api_servers != new.places:
                self.api_servers = new.places
                self.claims.set_api_servers(new.places)
            case ServiceCIDR() if self._service_cidrs.get(new.name) != new:
                self._service_cidrs[new.name] = new
                touched.table = True
            case _:
                pass

    def _remove(self, kind: type[ClusterObject], key: ObjectKey | str, touched: Invalidation) -> None:
        if isinstance(key, ObjectKey):
            if kind is Service:
                self.ignored.pop(key, None)
                self._change_service(key, None)
            elif kind is EndpointSlice:
                self._change_slice(key, None, touched)
        elif kind is Node and key == self.node.name:
            self.has_node = False
            nameless = Node(self.node.name)  # stands for a Node that never was, or is no more
            self._change_node(msgspec.structs.replace(nameless, is_deleted=self.node != nameless), touched)
        elif kind is ServiceCIDR and key in self._service_cidrs:
            del self._service_cidrs[key]
            touched.table = True

    def _with_defaults(self, new: Service) -> Service:
        """The Service with the configuration's defaults in place of annotations that it doesn't have."""
        if self._extended.defaults is PLAIN:
            return new
        return msgspec.structs.replace(new, options=new.options.over(self._extended.defaults))

    def _change_service(self, key: ObjectKey, new: Service | None) -> None:
        if self._given.get(key) == new:
            return
        self._extra.pop(key, None)
        if new is None:
            del self._given[key]
        else:
            self._given[key] = new
            if extra := self._extended.elements(new):
                self._extra[key] = extra
        self._unjudged.add(key)
        self._moved[key] = None

    def _move_orphans(self, touched: Invalidation) -> Generator[None, None, None]:
        """Restore the slices of Services that have come, and compress the slices of Services that don't exist."""
        moved, self._moved = self._moved, {}
        for number, restored in enumerate(self._orphans.pop_of(key for key in moved if key in self._given), 1):
            self._change_slice(restored.key, restored, touched)
            if number % STEP_PACKED == 0:
                yield
        lone = [each for key in moved if key not in self._given for each in self.slices_of(key)]
        for number, each in enumerate(lone, 1):
            self._change_slice(each.key, None, Invalidation())  # its Service is already touched
            self._orphans.add(each)
            if number % STEP_PACKED == 0:
                yield

    def _judge_all(self, touched: Invalidation) -> Generator[None, None, None]:
        """Judge all Services that have changed, then divide the budget, and enter the Services that this affects."""
        judged, self._unjudged = sorted(self._unjudged), set()
        exceeded: dict[ObjectKey, Exceeded] = {}
        for number, key in enumerate(judged, 1):
            if reason := self._weigh(key):
                exceeded[key] = Exceeded(reason)
            if number % STEP == 0:
                yield
        settled = self._budget.settle()
        for number, key in enumerate(sorted({*judged, *settled}) if settled else judged, 1):
            self._enter(key, exceeded.get(key) or self._budget.shortage(key), touched)
            if number % STEP == 0:
                yield

    def _weigh(self, key: ObjectKey) -> str:
        """Count the present version of a Service against the budget.  Return the limit that it exceeds."""
        given, slices = self._given.get(key), self.slices_of(key)
        most_rows = self._extended.most_rows
        reason = excess(given, slices, most_rows) if given else ""
        if given is None or reason:
            self._budget.remove(key)
        else:
            offered = zip(slices, offered_ports(given, slices), strict=True)
            crowded = sum([self._crowds.get(each.key, 0) * count for each, count in offered])
            self._budget.put(given, size(given, slices, crowded, self._extra.get(key, 0), most_rows))
        return reason

    def _enter(self, key: ObjectKey, excess: Exceeded | Shortage | None, touched: Invalidation) -> None:
        """Enter the present version of a Service.  It is treated as absent if it exceeds a limit or the budget."""
        before = self.excessive.pop(key, None)
        if excess:
            self.excessive[key] = excess
        if before != excess:
            self.excess_changes += 1
        if (before is None) != (excess is None):
            touched.services.add(key)
        old, new = self.services.get(key), None if excess else self._given.get(key)
        if old == new:
            return
        if old and new and old == msgspec.structs.replace(new, labels=old.labels, faults=old.faults):
            self.services[key] = new
            return
        if old is not None:
            self.claims.remove(old)
            del self.services[key]
        if new is not None:
            self.claims.add(new)
            self.services[key] = new
        if any(each is not None and each.options is not PLAIN for each in (old, new)):
            self._record_users(key, old, new, touched)
        touched.services.add(key)

    def _record_users(self, key: ObjectKey, old: Service | None, new: Service | None, touched: Invalidation) -> None:
        """Note the parts of extensions that a Service asks for.  The skeleton depends on whether any Service does."""
        before, after = (self._extended.uses(each) if each else frozenset() for each in (old, new))
        for use in before ^ after:
            users = self.users.setdefault(use, set())
            had = bool(users)
            users ^= {key}
            touched.table |= bool(users) != had
            if not users:
                del self.users[use]

    def _change_slice(self, key: ObjectKey, new: EndpointSlice | None, touched: Invalidation) -> None:
        old = self._slices.get(key)
        if old is None and (orphaned := self._orphans.service_of(key)) is not None:
            self._orphans.remove(key)
            touched.endpoints.add(orphaned)
        if old == new:
            return
        crowd = crowd_of(new) if new is not None else 0
        if not (old and new and crowd == self._crowds.get(key, 0) and weighs_the_same(old, new)):
            self._unjudged.update(each.service for each in (old, new) if each is not None)
        if old is not None:
            del self._slices[key]
            self._crowds.pop(key, None)
            siblings = self._slices_of[old.service]
            del siblings[key]
            if not siblings:
                del self._slices_of[old.service]
            touched.endpoints.add(old.service)
        if new is not None:
            self._slices[key] = new
            if crowd:
                self._crowds[key] = crowd
            self._slices_of.setdefault(new.service, {})[key] = new
            touched.endpoints.add(new.service)
            if new.service not in self._given:
                self._moved[new.service] = None

    def _change_node(self, new: Node, touched: Invalidation) -> None:
        old, self.node = self.node, new
        if self.host_addresses is None:
            self.own_addresses = frozenset(new.addresses)
        if old != msgspec.structs.replace(
            new, is_deleted=old.is_deleted, taints=old.taints
        ):  # no rule depends on these
            self.claims.set_node_addresses(frozenset(new.addresses))
            touched.table = touched.everything = True
