"""Counting connections changes nothing about them: every feature is as specified with counts on."""

from __future__ import annotations

import msgspec
import pytest

from nftproxy.conformance import suite
from nftproxy.conformance.oracle import World
from nftproxy.conformance.rendered import Rendered
from nftproxy.conformance.trial import Trial
from nftproxy.kernel.capabilities import probe
from nftproxy.lab import obstacle
from tests.support.factories import renderer
from tests.system.fuzz.effort import IS_LONG

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

EXAMPLES = 20 if IS_LONG else 2


class Counting(Rendered):
    """Rules that count, whatever a world's configuration says."""

    worlds = 0

    def load(self, world: World) -> bool:
        """Make the rules those of a world, with counts."""
        self.worlds += 1
        return super().load(world._replace(config=msgspec.structs.replace(world.config, service_counts=True)))


def test_all_features_conform_with_counts() -> None:
    """The suite's features all pass in clusters whose connections are counted."""
    rules = Counting(renderer(), probe().capabilities)
    with Trial(rules) as trial:
        results = list(suite.run(trial, examples=EXAMPLES))
    assert [(each.feature, each.finding, each.refused) for each in results if not each.ok] == []
    assert rules.worlds >= EXAMPLES * len(results) > 20
