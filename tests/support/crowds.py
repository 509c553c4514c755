"""Services with many endpoints in several EndpointSlices, and sequences of changes to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import strategies as st
from msgspec.structs import replace

from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.annotations import PLAIN, WEIGHT, Options
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import Endpoint, EndpointPort, Endpoints, EndpointSlice
from tests.support.factories import node, slice_of

WEIGHTS = (PLAIN, Options.of({WEIGHT: 0}), Options.of({WEIGHT: 50}))
NODES, ZONES = ("node-a", "node-b", "node-c"), ("a", "b")


def pod(number: int) -> Endpoint:
    """A ready endpoint in either zone.  Every twentieth is on this node, node-a."""
    address = Address(f"10.{number >> 8 & 255}.{number & 255}.{number % 97}")
    return Endpoint(address=address, node_name=NODES[1 + number % 2 if number % 20 else 0], zone=ZONES[number % 2])


def slices_of(count: int, per_slice: int = 50, name: str = "shop/web") -> list[EndpointSlice]:
    """EndpointSlices with `count` endpoints in all."""
    starts = range(0, count, per_slice)
    return [
        slice_of(name, map(pod, range(start, min(start + per_slice, count))), suffix=str(start)) for start in starts
    ]


class Crowd:
    """The EndpointSlices of a Service, and this node.  Each method changes something and returns the events."""

    def __init__(self, count: int, per_slice: int = 50) -> None:
        self.slices = slices_of(count, per_slice)
        self.node = node()
        self._fresh = count

    @property
    def events(self) -> list[Event]:
        """All objects, as events."""
        return [Put(self.node), *map(Put, self.slices)]

    def change(self, step: tuple[str, int, int]) -> list[Event]:
        """Make a change by its name.  Numbers choose a slice, and an endpoint in it."""
        name, at, number = step
        at %= len(self.slices)
        return CHANGES[name](self, at, number)

    def endpoint(self, at: int, number: int, edit: Callable[[Endpoint], Iterable[Endpoint]]) -> list[Event]:
        """Replace an endpoint by the endpoints that `edit` returns."""
        had = list(self.slices[at].endpoints)
        number %= max(1, len(had))
        made = [new for each in had[number : number + 1] for new in edit(each)]
        return self.put_endpoints(at, *had[:number], *made, *had[number + 1 :])

    def put(self, at: int, **fields: object) -> list[Event]:
        """Change fields of a slice."""
        self.slices[at] = replace(self.slices[at], **fields)
        return [Put(self.slices[at])]

    def put_endpoints(self, at: int, *endpoints: Endpoint) -> list[Event]:
        """Give other endpoints to a slice."""
        return self.put(at, endpoints=Endpoints.of(endpoints))

    def everywhere(self, **fields: object) -> list[Event]:
        """Change fields of all endpoints."""
        return [
            event
            for at, each in enumerate(self.slices)
            for event in self.put_endpoints(at, *(replace(e, **fields) for e in each.endpoints))
        ]

    def newcomer(self) -> Endpoint:
        """An endpoint that wasn't there before."""
        self._fresh += 1
        return pod(self._fresh)

    def move(self, **fields: str) -> list[Event]:
        """Change fields of this node."""
        self.node = replace(self.node, **fields)
        return [Put(self.node)]

    def ghost(self, at: int, number: int) -> list[Event]:
        """Copy an endpoint to the next slice, where it terminates."""
        had = list(self.slices[at].endpoints)
        first = number % max(1, len(had))
        copied = [replace(each, terminating=True, ready=bool(number % 2)) for each in had[first : first + 1]]
        other = (at + 1) % len(self.slices)
        return self.put_endpoints(other, *self.slices[other].endpoints, *copied)

    def carry(self, at: int, number: int) -> list[Event]:
        """Copy an endpoint to the next slice, and change its own slice too, which still has it."""
        had = list(self.slices[at].endpoints)
        first = number % max(1, len(had))
        events = self.put_endpoints(at, *had, self.newcomer())
        other = (at + 1) % len(self.slices)
        return events + self.put_endpoints(other, *self.slices[other].endpoints, *had[first : first + 1])


CHANGES: dict[str, Callable[[Crowd, int, int], list[Event]]] = {
    "gone": lambda crowd, at, number: crowd.endpoint(at, number, lambda _: []),
    "come": lambda crowd, at, number: crowd.endpoint(at, number, lambda each: [each, crowd.newcomer()]),
    "replaced": lambda crowd, at, number: crowd.endpoint(at, number, lambda _: [crowd.newcomer()]),
    "unready": lambda crowd, at, number: crowd.endpoint(at, number, lambda e: [replace(e, ready=False, serving=False)]),
    "draining": lambda crowd, at, number: crowd.endpoint(
        at, number, lambda each: [replace(each, ready=False, terminating=True)]
    ),
    "moved": lambda crowd, at, number: crowd.endpoint(
        at, number, lambda each: [replace(each, node_name=NODES[number % 3])]
    ),
    "zone hint": lambda crowd, at, number: crowd.endpoint(
        at, number, lambda each: [replace(each, zone_hints=(ZONES[number % 2],))]
    ),
    "no hint": lambda crowd, at, number: crowd.endpoint(at, number, lambda each: [replace(each, zone_hints=None)]),
    "zone hints": lambda crowd, _, number: crowd.everywhere(zone_hints=ZONES[number % 2 :]),
    "node hints": lambda crowd, _, number: crowd.everywhere(node_hints=NODES[number % 2 :][:2]),
    "no hints": lambda crowd, _, __: crowd.everywhere(zone_hints=None, node_hints=None),
    "nobody ready": lambda crowd, _, __: crowd.everywhere(ready=False, terminating=True),
    "ghost": lambda crowd, at, number: crowd.ghost(at, number),
    "carried": lambda crowd, at, number: crowd.carry(at, number),
    "twice": lambda crowd, at, number: crowd.endpoint(at, number, lambda each: [each, each]),
    "turned": lambda crowd, at, _: crowd.put_endpoints(at, *reversed(list(crowd.slices[at].endpoints))),
    "emptied": lambda crowd, at, _: crowd.put_endpoints(at),
    "weight": lambda crowd, at, number: crowd.put(at, options=WEIGHTS[number % 3]),
    "port": lambda crowd, at, number: crowd.put(at, ports=(EndpointPort("http", Protocol.TCP, 8080 + number % 2),)),
    "no port": lambda crowd, at, _: crowd.put(at, ports=()),
    "zone of the node": lambda crowd, _, number: crowd.move(zone=("", *ZONES)[number % 3]),
    "touched": lambda crowd, at, number: crowd.put(at, triggered=float(number)),
}
"""All changes, by name."""

OFTEN = ("gone", "come", "replaced", "unready", "draining", "moved", "carried")

steps = st.lists(
    st.tuples(st.sampled_from(OFTEN) | st.sampled_from(sorted(CHANGES)), st.integers(0, 9), st.integers(0, 999)),
    min_size=1,
    max_size=12,
)
"""Sequences of changes, mostly of single endpoints."""
