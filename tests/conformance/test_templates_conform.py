"""Our own templates before the suite of features, as `nftproxy conformance` tries anybody's."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.subjects.rendered import Rendered
from nftproxy_conformance.trials.suite import run
from nftproxy_conformance.trials.trial import Trial

from nftproxy.kernel.capabilities import probe
from tests.support.factories import renderer

pytestmark = pytest.mark.slow

CLUSTERS = 5
"""For each feature: tools/mutation runs this for each fault in a template, of which it finds three of four."""


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_our_templates_conform() -> None:
    """All features pass on made-up clusters."""
    with Trial(Rendered(renderer(), probe().capabilities)) as trial:
        results = run(trial, examples=CLUSTERS, shrinks=False)
        assert [each for each in results if not each.ok] == []
