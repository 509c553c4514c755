"""The events that wait to be applied, without those that a later event supersedes.

However long events wait, and however often objects change meanwhile, there is one entry for each object.  An object
that comes and goes while its kind's listing waits leaves no entry.

The changes of some Services can be postponed (turns.py): they stay here, and later events supersede them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from nftproxy.model.events import Event, Listed, Put, Removed, Seen
from nftproxy.model.objects import ClusterObject, EndpointSlice, Ignored, ObjectKey, Service, key_of

Key = ObjectKey | str
ServiceOf = Callable[[ObjectKey], ObjectKey | None]
"""Returns the Service of an EndpointSlice that is known, by the key of the EndpointSlice."""


class _Change(NamedTuple):
    """The latest event about an object, and the time since which an event about it has waited."""

    event: Put | Removed
    since: float


class Inbox:
    """The events that have come since the last `pop_all`."""

    def __init__(self) -> None:
        self._listings: dict[type[ClusterObject], dict[Key, ClusterObject | Ignored]] = {}
        self._changes: dict[tuple[type, Key], _Change] = {}

    def __len__(self) -> int:
        """Return the number of objects that have an entry."""
        return len(self._changes) + sum(map(len, self._listings.values()))

    def add(self, events: Iterable[Event], at: float = 0.0) -> None:
        """Add events that have come at a time.  Each replaces the events that it supersedes."""
        for event in events:
            if isinstance(event, Listed):
                self._list(event)
            elif isinstance(event, Put) and isinstance(event.object, Seen):
                self._keep_latest((type(event.object), ""), event, at)
            else:
                self._change(event, at)

    def pop_all(self) -> list[Event]:
        """Remove and return all events, listings first."""
        return self.pop_except((), lambda _: None)

    def pop_except(self, postponed: Collection[ObjectKey], service_of: ServiceOf) -> list[Event]:
        """Do as `pop_all`, but keep the changes of some Services, and of their EndpointSlices, for later."""
        listed = [_listed(kind, values.values()) for kind, values in self._listings.items()]
        left = {}
        if postponed:
            left = {key: each for key, each in self._changes.items() if _service(each.event, service_of) in postponed}
        taken = (each.event for key, each in self._changes.items() if key not in left)
        events = [*listed, *taken]
        self._listings, self._changes = {}, left
        return events

    def waiting(self, service_of: ServiceOf) -> dict[ObjectKey, float]:
        """Return the Services with changes that can be postponed, each with the time when its oldest change came.

        The deletion of a Service can't be postponed.
        """
        found: dict[ObjectKey, float] = {}
        for each in self._changes.values():
            service = _service(each.event, service_of)
            if service is not None:
                found[service] = min(each.since, found.get(service, each.since))
        return found

    def waiting_endpoints(self, service_of: ServiceOf) -> dict[ObjectKey, float]:
        """Return the part of `waiting` of which only EndpointSlices have changed, nothing while a listing waits."""
        if self._listings:
            return {}
        changed = {key for kind, key in self._changes if kind is Service}
        return {key: since for key, since in self.waiting(service_of).items() if key not in changed}

    def pop_of(self, services: Collection[ObjectKey], service_of: ServiceOf) -> list[Event]:
        """Remove and return the changes of some Services and of their EndpointSlices."""
        of_services = [key for key, each in self._changes.items() if _service(each.event, service_of) in services]
        return [self._changes.pop(key).event for key in of_services]

    def deleted(self) -> list[ObjectKey]:
        """Return the Services that were deleted."""
        events = (each.event for each in self._changes.values())
        removed = (event for event in events if isinstance(event, Removed) and event.kind is Service)
        return [event.key for event in removed if isinstance(event.key, ObjectKey)]

    def services(self) -> list[Service]:
        """Return the new versions of Services that have changed."""
        events = (each.event for each in self._changes.values())
        return [event.object for event in events if isinstance(event, Put) and isinstance(event.object, Service)]

    def objects_by_service(self) -> dict[ObjectKey, list[Service | EndpointSlice]]:
        """Return the new versions of Services and EndpointSlices that have changed, by Service."""
        found = dict[ObjectKey, list[Service | EndpointSlice]]()
        for each in self._changes.values():
            match each.event:
                case Put(object=Service(key=key) | EndpointSlice(service=key) as new):
                    found.setdefault(key, []).append(new)
        return found

    def _list(self, event: Listed) -> None:
        self._changes = {key: change for key, change in self._changes.items() if key[0] is not event.kind}
        objects: dict[Key, ClusterObject | Ignored] = {key_of(each): each for each in event.objects}
        self._listings[event.kind] = objects | {each.key: each for each in event.ignored}

    def _change(self, event: Put | Removed, at: float) -> None:
        kind, key, value = _change_of(event)
        listing = self._listings.get(kind)
        if listing is None:
            self._keep_latest((kind, key), event, at)
        elif value is None:
            listing.pop(key, None)
        else:
            listing[key] = value

    def _keep_latest(self, identity: tuple[type, Key], event: Put | Removed, at: float) -> None:
        known = self._changes.get(identity)
        self._changes[identity] = _Change(event, known.since if known else at)


def _service(event: Put | Removed, service_of: ServiceOf) -> ObjectKey | None:
    """Return the Service whose change can be postponed, None if there is none."""
    if isinstance(event, Put):
        match event.object:
            case Service(key=key) | EndpointSlice(service=key):
                return key
    elif event.kind is EndpointSlice and isinstance(event.key, ObjectKey):
        return service_of(event.key)
    return None


def _listed(kind: type[ClusterObject], values: Iterable[ClusterObject | Ignored]) -> Listed:
    objects, ignored = list[ClusterObject](), list[Ignored]()
    for value in values:
        if isinstance(value, Ignored):
            ignored.append(value)
        else:
            objects.append(value)
    return Listed(kind, tuple(objects), tuple(ignored))


def _change_of(event: Put | Removed) -> tuple[type[ClusterObject], Key, ClusterObject | Ignored | None]:
    """Return the kind and key of an object, and its new value (None if it was removed)."""
    if isinstance(event, Removed):
        return event.kind, event.key, event.ignored
    assert not isinstance(event.object, Seen), "not an object of the cluster"
    return type(event.object), key_of(event.object), event.object
