"""The factors of least connections, as the state knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nftproxy.extensions.least_connections.factors import Factors, ListKey, LoadFactors
from nftproxy.model.objects import ObjectKey
from nftproxy.policy.state import ClusterState


def factors_of(state: ClusterState) -> Mapping[ListKey, Factors]:
    """The factors of the lists that follow their connections."""
    found = state.observed.get(LoadFactors)
    return found.by_list if isinstance(found, LoadFactors) else {}


def concerned(state: ClusterState, before: LoadFactors | None, after: LoadFactors) -> Iterator[ObjectKey]:
    """The Services of the lists whose factors change."""
    known, new = before.by_list if before else {}, after.by_list
    for key in {key.service for key in {*known, *new} if known.get(key) != new.get(key)}:
        if key in state.services:
            yield key
