"""Least connections (`nftproxy.dev/algorithm: least-connections`): shares that follow connections."""

from __future__ import annotations

from collections.abc import Collection

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.least_connections.balanced_lists import BalancedLists
from nftproxy.extensions.least_connections.factors import LoadFactors
from nftproxy.extensions.least_connections.known_factors import concerned
from nftproxy.model.annotations import ALGORITHM, Algorithm
from nftproxy.model.objects import Service


def _uses(service: Service) -> Collection[Algorithm]:
    algorithm = service.options[ALGORITHM]
    return (algorithm,) if algorithm is Algorithm.LEAST_CONNECTIONS else ()


LEAST_CONNECTIONS = ExplainedExtension(
    name="least_connections",
    uses=_uses,
    view=lambda settings, _: BalancedLists(settings),
    concerned={LoadFactors: concerned},
)
