"""The objects, each as the JSON that clients get, and the history of their changes.

A single number, the revision, counts all changes of all objects, as in etcd.  It is the resourceVersion of the objects
that are written at that moment.  Each resource keeps its latest changes.  An older state is the present state with
changes undone.  So all pages of a list agree, and a watch can begin in the past.  The floor is the earliest revision
that can be restored in this way.

The store doesn't wait, lock or do I/O.  Use it from a single thread.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from nftproxy_conformance.apiserver.resources import RESOURCES, Object, Resource, resource_named
from nftproxy_conformance.apiserver.selectors import Selection

Key = tuple[str, str]

FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
"""The namespaces of every cluster."""
NAMESPACES = resource_named("Namespace")

SNAPSHOTS = 8
"""The sorted states in the cache, for the next pages of lists.  Few clients list at the same time."""


class TooOldError(Exception):
    """The requested revision is below the floor.

    Args:
        floor: the earliest available revision.
    """

    def __init__(self, floor: int) -> None:
        super().__init__(floor)
        self.floor = floor


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An object at a revision.

    Args:
        resource: its resource.
        key: its namespace (or "") and name.
        revision: its resourceVersion.
        labels: its values for label selectors.
        fields: its values for field selectors.
        item: its JSON as an item of a list, without kind and apiVersion.
    """

    resource: Resource
    key: Key
    revision: int
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    item: bytes

    @property
    def whole(self) -> bytes:
        """The object's JSON as it stands alone."""
        return self.resource.opening + self.item[1:]

    def decoded(self) -> Object:
        """The object as a new dict."""
        decoded: Object = msgspec.json.decode(self.whole)
        return decoded

    def at(self, revision: int) -> Stored:
        """The same object with another resourceVersion."""
        content = msgspec.json.decode(self.item)
        content["metadata"]["resourceVersion"] = str(revision)
        return _stored(self.resource, self.key, revision, content)

    def is_in(self, selection: Selection) -> bool:
        """True if a selection contains this object."""
        return selection.matches(self.key[0], self.labels, self.fields)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A change by a write.  `old` is None for a new object, `new` for a deleted object."""

    revision: int
    old: Stored | None
    new: Stored | None
    _lines: dict[str, bytes] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The key of the changed object."""
        stored = self.new or self.old
        assert stored is not None
        return stored.key

    def type_for(self, selection: Selection) -> str | None:
        """The type of event for a watch of these objects, or None.

        For a watch with a selector, an object that no longer matches is deleted, and an object that begins to match is
        added.
        """
        was = self.old is not None and self.old.is_in(selection)
        now = self.new is not None and self.new.is_in(selection)
        return {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}.get((was, now))

    def line(self, type_: str) -> bytes:
        """The event as a line of JSON, the same bytes for every watch.

        A deleted object is sent as the watch last had it, with the resourceVersion of the deletion.
        """
        if type_ not in self._lines:
            stored = self.old.at(self.revision) if type_ == "DELETED" and self.old else self.new
            assert stored is not None
            self._lines[type_] = event_line(type_, stored)
        return self._lines[type_]


def copied(document: Mapping[str, Any]) -> Object:
    """A copy of an object, as plain JSON."""
    copy: Object = msgspec.json.decode(msgspec.json.encode(document))
    return copy


def timestamp() -> str:
    """The present time, as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def event_line(type_: str, stored: Stored) -> bytes:
    """The line of a watch event."""
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), stored.whole)


@dataclass(eq=False)
class _Table:
    """The objects of a resource.  The history has all changes after the floor."""

    floor: int
    objects: dict[Key, Stored] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=deque)
    subscribers: dict[Callable[[Change], None], None] = field(default_factory=dict)


class Store:
    """All objects of the server.

    Args:
        history: how many changes of each resource are kept.
    """

    def __init__(self, history: int = 100_000) -> None:
        self.revision = 1
        self.history = history
        self._tables = {resource: _Table(self.revision) for resource in RESOURCES}
        for name in FIRST_NAMESPACES:
            self._have_namespace(name)
        self._snapshots: OrderedDict[tuple[Resource, int], tuple[Stored, ...]] = OrderedDict()

    def get(self, resource: Resource, key: Key) -> Stored | None:
        """An object as it is now."""
        return self._tables[resource].objects.get(key)

    def put(self, resource: Resource, document: Mapping[str, Any]) -> Stored:
        """Store an object, with missing metadata added.

        A write without a change has no revision and notifies no watch, as on a real server.
        """
        content = copied(document)
        content = {"metadata": {}} | {name: content[name] for name in content if name not in {"kind", "apiVersion"}}
        given = content["metadata"]
        key = (given.get("namespace") or "default") if resource.namespaced else "", str(given["name"])
        if resource.namespaced:
            self._have_namespace(key[0])
        old = self.get(resource, key)
        before: Object | None = msgspec.json.decode(old.item) if old is not None else None
        content["metadata"] = _completed(resource, key, content, before)
        if old is not None and content == before:
            return old
        self.revision += 1
        content["metadata"]["resourceVersion"] = str(self.revision)
        new = _stored(resource, key, self.revision, content)
        self._tables[resource].objects[key] = new
        self._record(resource, Change(self.revision, old, new))
        return new

    def delete(self, resource: Resource, key: Key) -> Stored:
        """Remove an object, and return its last state.

        Raises:
            KeyError: the object doesn't exist.
        """
        old = self._tables[resource].objects.pop(key)
        self.revision += 1
        self._record(resource, Change(self.revision, old, None))
        return old

    def at(self, resource: Resource, revision: int) -> tuple[Stored, ...]:
        """Every object of a resource as it was at a revision, in the order of the keys.

        Raises:
            TooOldError: it is no longer known.
        """
        table = self._tables[resource]
        if revision < table.floor:
            raise TooOldError(table.floor)
        if (resource, revision) not in self._snapshots:
            objects = dict(table.objects)
            for change in self._undone(table, revision):
                if change.old is None:
                    del objects[change.key]
                else:
                    objects[change.key] = change.old
            self._snapshots[resource, revision] = tuple(objects[key] for key in sorted(objects))
            if len(self._snapshots) > SNAPSHOTS:
                self._snapshots.popitem(last=False)
        return self._snapshots[resource, revision]

    def since(self, resource: Resource, revision: int) -> list[Change]:
        """Every change of a resource after a revision, oldest first.

        Raises:
            TooOldError: not all of them are known.
        """
        table = self._tables[resource]
        if revision < table.floor:
            raise TooOldError(table.floor)
        return self._undone(table, revision)[::-1]

    def subscribe(self, resource: Resource, notify: Callable[[Change], None]) -> None:
        """Call `notify` for every later change of a resource, at once and in order."""
        self._tables[resource].subscribers[notify] = None

    def unsubscribe(self, resource: Resource, notify: Callable[[Change], None]) -> None:
        """Stop calling `notify`."""
        self._tables[resource].subscribers.pop(notify, None)

    def compact(self) -> None:
        """Drop all changes: no earlier revision can be listed, or watched from."""
        self._snapshots.clear()
        for table in self._tables.values():
            table.history.clear()
            table.floor = self.revision

    def restore(self, revision: int) -> None:
        """Go back to an earlier revision, as when etcd is restored from a backup, and drop later changes.

        Raises:
            TooOldError: the revision is below the floor.
        """
        for resource, table in self._tables.items():
            table.objects = {stored.key: stored for stored in self.at(resource, revision)}
        self.revision = revision
        self.compact()

    def _have_namespace(self, name: str) -> None:
        """Add a Namespace without a new revision, as if it had always existed."""
        table, key = self._tables[NAMESPACES], ("", name)
        if key not in table.objects:
            content: Object = {"metadata": {"labels": {"kubernetes.io/metadata.name": name}}}
            content["metadata"] = _completed(NAMESPACES, key, content, None) | {"resourceVersion": str(table.floor)}
            content |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
            table.objects[key] = _stored(NAMESPACES, key, table.floor, content)

    def _record(self, resource: Resource, change: Change) -> None:
        table = self._tables[resource]
        table.history.append(change)
        while len(table.history) > self.history:
            table.floor = table.history.popleft().revision
        for notify in list(table.subscribers):
            notify(change)

    @staticmethod
    def _undone(table: _Table, revision: int) -> list[Change]:
        """The changes after a revision, newest first.  Earlier changes aren't read."""
        changes = []
        for change in reversed(table.history):
            if change.revision <= revision:
                break
            changes.append(change)
        return changes


def _stored(resource: Resource, key: Key, revision: int, content: Object) -> Stored:
    fields = {"metadata.name": key[1], "metadata.namespace": key[0]}
    fields |= {path: _field(content, path) for path in resource.fields}
    labels = content["metadata"].get("labels") or {}
    return Stored(resource, key, revision, labels, fields, msgspec.json.encode(content))


def _field(content: Object, path: str) -> str:
    value: Any = content
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return str(value).lower() if isinstance(value, bool) else str(value or "")


def _completed(resource: Resource, key: Key, content: Object, before: Object | None) -> Object:
    """The object's metadata with the server's additions.  An existing object keeps its resourceVersion."""
    old = before["metadata"] if before else {}
    metadata: Object = {"name": key[1]} | ({"namespace": key[0]} if key[0] else {})
    metadata["uid"] = old.get("uid") or str(uuid.uuid4())
    metadata["creationTimestamp"] = old.get("creationTimestamp") or timestamp()
    metadata |= {name: value for name, value in content["metadata"].items() if value is not None}
    if before is not None:
        metadata["resourceVersion"] = old["resourceVersion"]
    if resource.has_generation:
        is_new = before is None or _desired(content) != _desired(before)
        metadata["generation"] = (old.get("generation") or 0) + is_new if old else metadata.get("generation") or 1
    return metadata


def _desired(content: Object) -> Object:
    """The fields whose changes make a new generation."""
    return {key: value for key, value in content.items() if key not in {"metadata", "status"}}
