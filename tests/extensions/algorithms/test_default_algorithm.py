"""The configuration's algorithm."""

from __future__ import annotations

from nftproxy.extensions.algorithms.annotations import ALGORITHM, Algorithm
from nftproxy.model.events import Listed
from nftproxy.model.objects import Service
from tests.policy.test_state import configured, state
from tests.support.factories import service


def test_the_default_algorithm_is_of_services_without_the_annotation() -> None:
    """Plain Services share the configuration's options, and are untouched where the configuration names nothing."""
    plain, own = service("shop/a"), service("shop/b", annotations={"algorithm": "random"})
    other = service("shop/c")
    made = configured(algorithm=Algorithm.SOURCE_HASH)
    made.ingest(Listed(Service, (plain, own, other)))
    assert [each.options[ALGORITHM] for each in made.services.values()] == [
        Algorithm.SOURCE_HASH,
        Algorithm.RANDOM,
        Algorithm.SOURCE_HASH,
    ]
    assert made.services[plain.key].options is made.services[other.key].options
    unchanged = state(plain)
    assert unchanged.services[plain.key] is plain
