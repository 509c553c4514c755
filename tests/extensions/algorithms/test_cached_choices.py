"""Algorithms and the cache of choices."""

from __future__ import annotations

from enum import Enum

import pytest

from nftproxy.policy.choosing.choice import ChoiceCache
from nftproxy.policy.choosing.verdicts import MANY
from nftproxy.policy.compile import compile_service
from tests.support.crowds import slices_of
from tests.support.factories import IPV4, pipeline, service
from tests.support.words import ALGORITHMS


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("weights", ["zone:c=1", "zone:b=3"], ids=["plain", "weighted"])
def test_each_algorithm_places_many_as_without_a_cache(algorithm: Enum, weights: str) -> None:
    """The facts of a Service with many endpoints don't depend on the cache."""
    web = service(annotations={"algorithm": algorithm.value, "weights": weights})
    made = pipeline(web, *slices_of(MANY))
    expected, found = (
        list(compile_service(made.state, made.settings, IPV4, web, cache=cache)) for cache in (None, ChoiceCache())
    )
    assert found == expected
