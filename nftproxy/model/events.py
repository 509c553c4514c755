"""The events that sources report about the cluster and this machine.

Events of the API, which the agent sends, are in agent/reporting/event_recorder.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Address, Family
from nftproxy.model.objects import ClusterObject, Ignored, Node, ObjectKey, Place, ServiceCIDR, TrafficPolicy


class HostAddresses(msgspec.Struct, frozen=True):
    """All addresses on this machine's interfaces.  Until they are known, the Node's own addresses replace them."""

    addresses: frozenset[Address]


class SilentPlaces(msgspec.Struct, frozen=True):
    """All endpoints that don't answer this node by TCP, in the order in which they fell silent.

    `refusing` are those of them that answer with a reset.
    """

    places: tuple[Place, ...]
    refusing: frozenset[Place] = frozenset()


class ListKey(NamedTuple):
    """A list of endpoints of a Service's TCP port, by the port's name and the policy that asks for the list."""

    service: ObjectKey
    port: str
    family: Family
    policy: TrafficPolicy

    @property
    def rank(self) -> tuple[ObjectKey, str, str, str]:
        """Sort key, as members of an Enum have no order."""
        return self.service, self.port, self.family.value, self.policy.value


NEUTRAL = 100
Factors = Mapping[Place, int]
"""The percentage of its weight that each endpoint of a list gets, 1 or more.  Absent endpoints are `NEUTRAL`."""


class LoadFactors(msgspec.Struct, frozen=True):
    """The factors of lists whose endpoints have unequal numbers of connections (extensions/least_connections/)."""

    by_list: Mapping[ListKey, Factors]


class ApiServers(msgspec.Struct, frozen=True):
    """All addresses and ports at which this agent reaches the API server."""

    places: frozenset[Place]


Seen = HostAddresses | SilentPlaces | LoadFactors | ApiServers
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


def key_of(value: ClusterObject) -> ObjectKey | str:
    """Return the key of an object among the objects of its kind."""
    return value.name if isinstance(value, Node | ServiceCIDR) else value.key
