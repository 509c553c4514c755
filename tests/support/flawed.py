"""nftproxy with faults, as a process: `python -m tests.support.flawed FAULT,... run --config FILE`.

Each is a fault that a service proxy may have.  It is made where objects come in, so that all else is the real thing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn
from unittest import mock

from msgspec import structs

from nftproxy.commands import cli
from nftproxy.model.addresses import Protocol
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.objects import ClusterObject, Endpoints, EndpointSlice, ObjectKey, Service, TrafficPolicy
from nftproxy.policy.state import ClusterState

Edit = Callable[[Any], Any]


def _of(kind: type[Service | EndpointSlice], **fields: Callable[[Any], object]) -> Edit:
    """An edit that gives objects of a kind other values in some fields."""

    def edit(given: Any) -> Any:
        if not isinstance(given, kind):
            return given
        made: Any = structs.replace(given, **{name: make(getattr(given, name)) for name, make in fields.items()})
        return made

    return edit


FAULTS: dict[str, Edit] = {
    "ignores-external-policy": _of(Service, external_policy=lambda _: TrafficPolicy.CLUSTER),
    "forgets-udp": _of(Service, ports=lambda ports: tuple(p for p in ports if p.protocol is not Protocol.UDP)),
    "ignores-source-ranges": _of(Service, source_ranges=lambda _: ()),
    "ignores-affinity": _of(Service, affinity_timeout=lambda _: None),
    "ignores-node-ports": _of(Service, ports=lambda ports: tuple(structs.replace(p, node_port=0) for p in ports)),
    "serves-the-unready": _of(
        EndpointSlice, endpoints=lambda pods: Endpoints.of(structs.replace(pod, ready=True) for pod in pods)
    ),
}
"""The edit that each fault makes to each object that comes in."""


class _Hoarder:
    """Keeps every endpoint that it has ever seen."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, EndpointSlice] = {}

    def __call__(self, given: Any) -> Any:
        if not isinstance(given, EndpointSlice):
            return given
        old = self._known.get(given.key)
        known = {pod.address: pod for pod in (*(old.endpoints if old else ()), *given.endpoints)}
        self._known[given.key] = structs.replace(given, endpoints=Endpoints.of(known.values()))
        return self._known[given.key]


FAULTS["keeps-what-is-gone"] = _Hoarder()


def edited(happened: Iterable[Event], edit: Edit) -> list[Event]:
    """The events, with their objects as the fault changes them."""
    made: list[Event] = []
    for event in happened:
        match event:
            case Put(object=given):
                made.append(Put(edit(given)))
            case Listed(kind=kind, objects=given):
                objects: tuple[ClusterObject, ...] = tuple(map(edit, given))
                made.append(Listed(kind, objects))
            case Removed():
                made.append(event)
    return made


def _with(real: Callable[..., Any], edits: Sequence[Edit]) -> Callable[..., Any]:
    """Return a replacement of `ingest_in_steps` that edits the events first."""

    def ingest_in_steps(self: ClusterState, happened: Iterable[Event]) -> Any:
        return real(self, functools.reduce(edited, edits, list(happened)))

    return ingest_in_steps


def main() -> NoReturn:
    """Run the command line with the faults that its first argument names."""
    edits = [FAULTS[name] for name in sys.argv.pop(1).split(",")]
    with mock.patch.object(ClusterState, "ingest_in_steps", _with(ClusterState.ingest_in_steps, edits)):
        cli.main()


if __name__ == "__main__":
    main()
