"""Counting connections changes nothing about them: every feature is as specified with counts on."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.subjects.rendered import Rendered
from nftproxy_conformance.trials import suite
from nftproxy_conformance.trials.trial import Trial

from nftproxy.kernel.capabilities import probe
from tests.support.factories import config_of, renderer
from tests.system.fuzz.effort import IS_LONG

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]

EXAMPLES = 20 if IS_LONG else 2


class Counting(Rendered):
    """Rules that count connections in any world."""

    worlds = 0

    def load(self, world: World) -> bool:
        """Load the rules of a world, with counts."""
        self.worlds += 1
        return super().load(world._replace(config=config_of(world.config, service_counts=True)))


def test_all_features_conform_with_counts() -> None:
    """All features pass in clusters that count connections."""
    rules = Counting(renderer(), probe().capabilities)
    with Trial(rules) as trial:
        results = list(suite.run(trial, examples=EXAMPLES))
    assert [(each.feature, each.finding, each.refused) for each in results if not each.ok] == []
    assert rules.worlds >= EXAMPLES * len(results) > 20
