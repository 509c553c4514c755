"""The events that wait to be applied, without those that a later event supersedes.

However long events wait, and however often objects change meanwhile, there is one entry for each object.  An object
that comes and goes while its kind's listing waits leaves no entry.
"""

from __future__ import annotations

from collections.abc import Iterable

from nftproxy.model.events import Event, Listed, Put, Removed, Seen, key_of
from nftproxy.model.objects import ClusterObject, Ignored, ObjectKey

Key = ObjectKey | str


class Inbox:
    """The events that have come since the last `take`."""

    def __init__(self) -> None:
        self._listings: dict[type[ClusterObject], dict[Key, ClusterObject | Ignored]] = {}
        self._changes: dict[tuple[type, Key], Put | Removed] = {}

    def __len__(self) -> int:
        """Return the number of objects that have an entry."""
        return len(self._changes) + sum(map(len, self._listings.values()))

    def add(self, events: Iterable[Event]) -> None:
        """Add events.  Each replaces the events that it supersedes."""
        for event in events:
            if isinstance(event, Listed):
                self._list(event)
            elif isinstance(event, Put) and isinstance(event.object, Seen):
                self._changes[type(event.object), ""] = event
            else:
                self._change(event)

    def take(self) -> list[Event]:
        """Remove and return all events, listings first."""
        listed = [_listed(kind, values.values()) for kind, values in self._listings.items()]
        events = [*listed, *self._changes.values()]
        self._listings, self._changes = {}, {}
        return events

    def _list(self, event: Listed) -> None:
        self._changes = {key: change for key, change in self._changes.items() if key[0] is not event.kind}
        objects: dict[Key, ClusterObject | Ignored] = {key_of(each): each for each in event.objects}
        self._listings[event.kind] = objects | {each.key: each for each in event.ignored}

    def _change(self, event: Put | Removed) -> None:
        kind, key, value = _change_of(event)
        listing = self._listings.get(kind)
        if listing is None:
            self._changes[kind, key] = event
        elif value is None:
            listing.pop(key, None)
        else:
            listing[key] = value


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
