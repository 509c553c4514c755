"""The suite of features: each is tried on made-up clusters, and a failure is made as small as possible.

Hypothesis finds failures and makes them small.  It makes up the same clusters for the same seed, whatever was found
before on whatever machine; only what endpoints the kernel draws is chance.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky

from nftproxy.conformance.features import FEATURES, Feature, Finding
from nftproxy.conformance.focused_worlds import PLAIN_CONFIG, sample
from nftproxy.conformance.proxy import ProxyFailed
from nftproxy.conformance.rendered import events
from nftproxy.conformance.trial import Trial
from nftproxy.kernel.check import CheckResult, check_ruleset
from nftproxy.model.errors import Refused
from nftproxy.model.settings import Capabilities, Settings
from nftproxy.pipeline import Pipeline
from nftproxy.rules.render import Renderer

SHRINKING = 20.0
"""Seconds that making a counterexample small may take: after that, the smallest until then will do."""

Progress = Callable[[str, int], None]
"""Called with the feature that is being tried and the number of connections so far."""


class Result(NamedTuple):
    """What came of one feature: `finding` is what went wrong, `refused` why nothing could be tried; else all is well.

    `clusters` are those that were tried until something went wrong, `connections` those of making it small too, and
    `deviations` counts those that went as only a documented deviation from kube-proxy explains, by its number.
    """

    feature: str
    clusters: int
    connections: int
    finding: Finding | None = None
    refused: str = ""
    deviations: Mapping[str, int] = MappingProxyType({})

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return self.finding is None and not self.refused


class _Wrong(Exception):
    """An example shows a fault."""


class _Search:
    """One feature's search for a fault."""

    def __init__(self, trial: Trial, feature: Feature, progress: Progress) -> None:
        self._trial, self._feature, self._progress = trial, feature, progress
        self._before = trial.connections
        self._deviations_before = trial.deviations.copy()
        self._deadline = float("inf")
        self.clusters = 0
        self.result = Result(feature.name, 0, 0)

    def try_one(self, case: Any) -> None:
        """Try one example, and keep what is wrong with it: Hypothesis comes to the smallest last."""
        if time.monotonic() > self._deadline:
            return
        finding, refused = None, ""
        try:
            finding = self._feature.judge(self._trial, case)
        except (Refused, ProxyFailed) as error:
            refused = str(error)
        if self.result.ok:
            self.clusters += 1
        connections = self._trial.connections - self._before
        deviations = self._trial.deviations - self._deviations_before
        self._progress(self._feature.name, connections)
        if finding or refused:
            if self.result.ok:
                self._deadline = time.monotonic() + SHRINKING
            self.result = Result(self._feature.name, self.clusters, connections, finding, refused, deviations)
            raise _Wrong
        if self.result.ok:
            self.result = Result(self._feature.name, self.clusters, connections, deviations=deviations)


def run(
    trial: Trial,
    *,
    examples: int,
    start: int = 0,
    features: Iterable[Feature] = FEATURES,
    progress: Progress = lambda _name, _connections: None,
    shrinks: bool = True,
) -> Iterator[Result]:
    """Try features one by one; of the first that fails, the counterexample is made small.

    Args:
        trial: of what is tried; the caller closes it.
        examples: how many clusters are made up for each feature.
        start: the seed.
        features: which to try.
        progress: called as this goes on.
        shrinks: whether the first counterexample is made small, which takes its time.

    Raises:
        LabError: the machine loses packets.
        TemplateError: a template fails.
    """
    for feature in features:
        result = _search(trial, feature, examples, start, progress, shrinks=shrinks)
        shrinks &= result.ok
        yield result


def _search(trial: Trial, feature: Feature, examples: int, start: int, progress: Progress, *, shrinks: bool) -> Result:
    search = _Search(trial, feature, progress)
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]

    @seed(start)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(feature.cases)
    def look(case: Any) -> None:
        search.try_one(case)

    with contextlib.suppress(_Wrong, Flaky):  # Flaky if time was up, or the fault shows by chance only
        look()
    return search.result


def check_loading(renderer: Renderer, capabilities: Capabilities) -> CheckResult:
    """What this machine says of the rules of a cluster with everything, loaded where they may kill the library.

    Raises:
        TemplateError: a template fails.
        Unavailable: there is no libnftables, or no way to make a namespace.
    """
    world = sample()
    pipeline = Pipeline(world.node.name, Settings(PLAIN_CONFIG, capabilities), renderer)
    pipeline.apply(events(world))
    return check_ruleset(pipeline.full_transaction({}).text)
