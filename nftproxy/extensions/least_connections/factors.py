"""The observation of least connections: factors of the weights of endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nftproxy.model.addresses import Family
from nftproxy.model.events import Observation
from nftproxy.model.objects import ObjectKey, Place, TrafficPolicy


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


class LoadFactors(Observation, frozen=True):
    """The factors of lists whose endpoints have unequal numbers of connections (balance.py)."""

    by_list: Mapping[ListKey, Factors]
