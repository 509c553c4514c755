"""The suite of features: each is tried on made-up clusters, and a counterexample is shrunk.

Hypothesis finds and shrinks counterexamples.  It makes up the same clusters for the same seed on every machine.  Only
the endpoints that the kernel draws are random.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky

from nftproxy.installed import INSTALLED
from nftproxy.kernel.ruleset_check import CheckResult, check_ruleset
from nftproxy.model.errors import Refused
from nftproxy.model.settings import Capabilities
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.rules.renderer import Renderer
from nftproxy_conformance.lab import LabError
from nftproxy_conformance.lab.established import WentAstray
from nftproxy_conformance.strategies.focused import PLAIN_CONFIG, sample
from nftproxy_conformance.subjects.proxy import ProxyFailed
from nftproxy_conformance.subjects.rendered import events
from nftproxy_conformance.trials.features import FEATURES, Feature
from nftproxy_conformance.trials.finding import Finding
from nftproxy_conformance.trials.trial import Trial

SHRINKING = 20.0
"""Seconds for shrinking a counterexample.  Then the smallest so far is reported."""

Progress = Callable[[str, int], None]
"""Called with the present feature and the number of connections so far."""


class Result(NamedTuple):
    """The result of a feature.  `finding` is a counterexample, `refused` the reason why no connection could be tried.

    `clusters` counts the clusters until the first fault, `connections` also those of shrinking.  `deviations` counts
    the connections that a documented deviation from kube-proxy explains, by its number.
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
    """The search for a fault of a feature."""

    def __init__(self, trial: Trial, feature: Feature, progress: Progress) -> None:
        self._trial, self._feature, self._progress = trial, feature, progress
        self._before = trial.connections
        self._deviations_before = trial.deviations.copy()
        self._deadline = float("inf")
        self.clusters = 0
        self.result = Result(feature.name, 0, 0)
        self.error: LabError | None = None

    def try_one(self, case: Any) -> None:
        """Try an example, and keep its fault.  Hypothesis ends with the smallest example."""
        if time.monotonic() > self._deadline:
            return
        finding, refused = None, ""
        try:
            finding = self._feature.judge(self._trial, case)
        except (Refused, ProxyFailed, WentAstray) as error:
            refused = str(error)
        except LabError as error:
            self.error = error
            raise
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
    """Try features one by one, and shrink the first counterexample.

    Args:
        trial: the trial, which the caller closes.
        examples: the number of clusters for each feature.
        start: the seed.
        features: the features to try.
        progress: called with the progress.
        shrinks: whether to shrink the first counterexample, which is slow.

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

    try:
        look()
    except _Wrong:
        pass
    except Flaky as error:  # time was up, or the fault shows by chance only, or the lab failed by chance
        if search.result.ok:
            raise search.error or error from error
    return search.result


def check_loading(renderer: Renderer, capabilities: Capabilities) -> CheckResult:
    """Load the rules of a cluster with all features on this machine, in a child process, as the library may die of
    them.

    Raises:
        TemplateError: a template fails.
        Unavailable: libnftables is missing, or no namespace can be made.
    """
    world = sample()
    pipeline = Pipeline(world.node.name, Settings(PLAIN_CONFIG, capabilities, INSTALLED), renderer)
    pipeline.ingest(events(world))
    return check_ruleset(pipeline.full_transaction({}).text)
