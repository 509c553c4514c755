"""EndpointSlices of Services that don't exist, compressed until their Service comes.

No rule depends on an orphan, but its Service may come at any time, and a watch doesn't repeat objects.  So an orphan
can't be dropped.  A tenant may write any number of them, each with 1,000 endpoints.  Compressed, an endpoint takes
some 15 bytes instead of 45.

The *outline* of an orphan isn't compressed: it has the number of endpoints, but neither addresses nor states.  An
outline is enough for limits and the budget (limits.py).
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from nftproxy.model.objects import Endpoints, EndpointSlice, EndpointState, ObjectKey

FASTEST = 1
"""zlib's level: an orphan of 1,000 endpoints takes 0.7 ms."""


class _Content(NamedTuple):
    """The parts of an EndpointSlice that grow with its endpoints."""

    addresses: str
    states: tuple[EndpointState, ...]
    pods: str


class _Orphan(NamedTuple):
    outline: EndpointSlice
    content: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Content).decode


class Orphans:
    """The orphans by their keys, and by the Service that they name."""

    def __init__(self) -> None:
        self._orphans: dict[ObjectKey, _Orphan] = {}
        self._of: dict[ObjectKey, dict[ObjectKey, None]] = {}

    def keys(self) -> Collection[ObjectKey]:
        """The keys of all orphans."""
        return self._orphans.keys()

    def service_of(self, key: ObjectKey) -> ObjectKey | None:
        """The Service that an orphan names, None if there is no such orphan."""
        found = self._orphans.get(key)
        return found.outline.service if found else None

    def outlines(self, service: ObjectKey) -> Iterator[EndpointSlice]:
        """The outline of each orphan of a Service."""
        return (self._orphans[key].outline for key in self._of.get(service, ()))

    def add(self, new: EndpointSlice) -> None:
        """Compress an orphan, and keep it."""
        content = _Content(new.endpoints.text, new.endpoints.states, new.pods)
        outline = msgspec.structs.replace(new, endpoints=_of_number(len(new.endpoints.states)), pods="")
        self._orphans[new.key] = _Orphan(outline, zlib.compress(_encode(content), FASTEST))
        self._of.setdefault(new.service, {})[new.key] = None

    def remove(self, key: ObjectKey) -> None:
        """Remove an orphan."""
        service = self._orphans.pop(key).outline.service
        del self._of[service][key]
        if not self._of[service]:
            del self._of[service]

    def pop_of(self, services: Iterable[ObjectKey]) -> Iterator[EndpointSlice]:
        """Remove the orphans of these Services one after the other, and yield each as it was."""
        for service in services:
            for key in list(self._of.get(service, ())):
                outline, packed = self._orphans[key]
                self.remove(key)
                text, states, pods = _decode(zlib.decompress(packed))
                endpoints = Endpoints(text, tuple(map(_shared_state, states)))
                yield msgspec.structs.replace(outline, endpoints=endpoints, pods=pods)


@functools.lru_cache(maxsize=1024)
def _of_number(count: int) -> Endpoints:
    """Return so many endpoints without addresses, which all outlines share."""
    return Endpoints("", (EndpointState(),) * count)


@functools.lru_cache(maxsize=16384)
def _shared_state(state: EndpointState) -> EndpointState:
    """Return the state that all endpoints share whose fields are the same."""
    return state
