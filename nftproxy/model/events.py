"""What sources report about the cluster and this machine, one event at a time."""

from __future__ import annotations

import msgspec

from nftproxy.model.addresses import Address
from nftproxy.model.objects import ClusterObject, Node, ObjectKey, Place, ServiceCIDR


class HostAddresses(msgspec.Struct, frozen=True):
    """The addresses on this machine's interfaces, all of them; until these are known, the Node's own stand in."""

    addresses: frozenset[Address]


class SilentPlaces(msgspec.Struct, frozen=True):
    """The endpoints that don't answer this node by TCP, all of them, the one that has been silent for longest first."""

    places: tuple[Place, ...]


Seen = HostAddresses | SilentPlaces
"""What this node sees itself, of which there is one value at a time."""


class Put(msgspec.Struct, frozen=True):
    """An object is there, or has changed to this."""

    object: ClusterObject | Seen


class Removed(msgspec.Struct, frozen=True):
    """An object is gone, or no longer for this proxy; `key` is an ObjectKey, or a ServiceCIDR's or Node's name."""

    kind: type[ClusterObject]
    key: ObjectKey | str


class Listed(msgspec.Struct, frozen=True):
    """All objects of one kind that there are: what is not among them is gone, so no deletion can be missed."""

    kind: type[ClusterObject]
    objects: tuple[ClusterObject, ...]


Event = Put | Removed | Listed


def key_of(value: ClusterObject) -> ObjectKey | str:
    """What distinguishes an object from the others of its kind."""
    return value.name if isinstance(value, Node | ServiceCIDR) else value.key
