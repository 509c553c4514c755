"""The observation of failover: endpoints that don't answer."""

from __future__ import annotations

from nftproxy.model.events import Observation
from nftproxy.model.objects import Place


class SilentPlaces(Observation, frozen=True):
    """All endpoints that don't answer this node by TCP, in the order in which they fell silent.

    `refusing` are those of them that answer with a reset.
    """

    places: tuple[Place, ...]
    refusing: frozenset[Place] = frozenset()
