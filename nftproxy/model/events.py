"""The events that sources report about the cluster and this machine.

Events of the API, which the agent sends, are in agent/reporting/event_recorder.py.
"""

from __future__ import annotations

import msgspec

from nftproxy.model.addresses import Address
from nftproxy.model.objects import ClusterObject, Ignored, ObjectKey, Place


class Observation(msgspec.Struct, frozen=True):
    """An observation of this node by an extension.  Each type has a single value at a time."""


class HostAddresses(msgspec.Struct, frozen=True):
    """All addresses on this machine's interfaces.  Until they are known, the Node's own addresses replace them."""

    addresses: frozenset[Address]


class ApiServers(msgspec.Struct, frozen=True):
    """All addresses and ports at which this agent reaches the API server."""

    places: frozenset[Place]


Seen = HostAddresses | ApiServers | Observation
"""An observation of this node itself.  Each type has a single value at a time."""


class Put(msgspec.Struct, frozen=True):
    """An object exists with this value, new or changed."""

    object: ClusterObject | Seen


class Removed(msgspec.Struct, frozen=True):
    """An object is gone, or not for this proxy.  `key` is an ObjectKey, or the name of a ServiceCIDR or Node.

    `ignored` has the reason if the object exists and isn't for this proxy.
    """

    kind: type[ClusterObject]
    key: ObjectKey | str
    ignored: Ignored | None = None


class Listed(msgspec.Struct, frozen=True):
    """All objects of a kind.  An object that is not among them is gone, so no deletion can be missed.

    `ignored` has the objects that aren't for this proxy, as far as the source tells.
    """

    kind: type[ClusterObject]
    objects: tuple[ClusterObject, ...]
    ignored: tuple[Ignored, ...] = ()


Event = Put | Removed | Listed
