"""The claims that Services don't get, as they are and as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nftproxy.model.addresses import Family
from nftproxy.model.objects import ObjectKey
from nftproxy.policy.extension import Settings
from nftproxy.policy.fronts import LostClaim
from nftproxy.policy.restrictions import lost_claims
from nftproxy.policy.state import ClusterState


class JudgedClaims(NamedTuple):
    """The Services whose claims were judged, or that went, and the claims that they newly lose, Service by Service."""

    services: set[ObjectKey]
    losses: list[LostClaim]


class Losses:
    """The claims that Services don't get in the families given.

    Attributes:
        by_service: the lost claims of each Service that has any.  A node port that is lost in both families counts
            once.
        judged: the claims that were judged since the last `pop_judged`.
    """

    def __init__(self, settings: Settings, families: Sequence[Family]) -> None:
        self.by_service: dict[ObjectKey, list[LostClaim]] = {}
        self.judged = JudgedClaims(set(), [])
        self._settings = settings
        self._families = families

    def refresh(self, state: ClusterState, key: ObjectKey) -> None:
        """Judge the claims of a Service, which may be gone."""
        known = set(self.by_service.pop(key, ()))
        self.judged.services.add(key)
        service = state.services.get(key)
        if service is not None:
            lost = [lost for each in self._families for lost in lost_claims(state, self._settings, each, service)]
            if lost:
                self.by_service[key] = list(dict.fromkeys(lost))
                self.judged.losses.extend(each for each in self.by_service[key] if each not in known)

    def all(self) -> Iterator[LostClaim]:
        """Yield the lost claims, in the order of the Services."""
        for key in sorted(self.by_service):
            yield from self.by_service[key]

    def pop_judged(self) -> JudgedClaims:
        """Return the claims that were judged since the last call.  Each loss is returned once."""
        judged, self.judged = self.judged, JudgedClaims(set(), [])
        return judged
