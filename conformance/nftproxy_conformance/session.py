"""A whole run against a proxy: a control plane, the proxy's node, optionally a node with nftproxy, and the report."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem, Unavailable
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.reports.comparison import compare, show
from nftproxy_conformance.reports.report import Effort, show_progress, try_features
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies.focused import sample
from nftproxy_conformance.subjects.manifests import Manifest
from nftproxy_conformance.subjects.plane import ControlPlane
from nftproxy_conformance.subjects.proxy import Presentation, Proxy, made_up, suited
from nftproxy_conformance.trials.against import Against
from nftproxy_conformance.trials.features import Feature
from nftproxy_conformance.trials.finding import Finding
from nftproxy_conformance.trials.own import MOST_MORE, own_cluster
from nftproxy_conformance.trials.trial import Trial

OURS = f"{sys.executable} -m nftproxy run --config {{config}}"
"""The command of nftproxy itself."""

DRAWN = frozenset(
    {
        "clusterCIDR",
        "detectLocal",
        "detectLocalMode",
        "healthzBindAddress",
        "metricsBindAddress",
        "nftproxy",
        "nodePortAddresses",
    }
)
"""The fields of a configuration that made-up worlds override."""


class Session(NamedTuple):
    """The proxy to try, and the report.

    Args:
        command: the proxy's command line.
        is_against: whether nftproxy runs beside it.
        configuration: a KubeProxyConfiguration that the proxy needs.
        output: how the report is printed, as text, JSON or YAML.
    """

    command: str
    is_against: bool
    configuration: Manifest
    output: str

    def try_made_up(self, effort: Effort) -> bool:
        """Try made-up clusters, and return True if all features pass.

        Raises:
            ProxyFailed: the proxy doesn't serve even a plain cluster.
            Unavailable: this machine doesn't allow a lab, or is too busy.
        """
        base = {name: value for name, value in self.configuration.items() if name not in DRAWN}
        suited_features = [each._replace(judge=_suited_judge(each)) for each in effort.features]
        with self._trial(made_up(base)) as trial:
            show_progress("the proxy starts", 0)
            trial.load(suited(sample()))
            return try_features(trial, effort._replace(features=suited_features), output=self.output)

    def try_own(self, documents: Sequence[Manifest], node: str) -> bool:
        """Try an operator's cluster from one of its Nodes, and return True if all differences are explained.

        Raises:
            BadInput: there is no such Node, or the configuration is wrong.
            ProxyFailed: the proxy doesn't serve the cluster.
            Unavailable: this machine doesn't allow a lab, or is too busy.
        """
        cluster = own_cluster(documents, self.configuration, node)
        for problem in cluster.problems:
            click.echo(f"warning: {problem.coded}", err=True)
        if not cluster.world.services:
            raise BadInput(Problem("", "", "", "no Service is among the manifests", Code.TRIAL_IMPOSSIBLE))
        with self._trial(cluster.presentation(), most_more=MOST_MORE) as trial:
            show_progress("the proxy starts", 0)
            compared = compare(trial, cluster)
            show_progress("", 0)
        return show(compared, output=self.output)

    @contextmanager
    def _trial(self, shown: Presentation, most_more: float = float("inf")) -> Iterator[Trial]:
        if why := obstacle():
            raise Unavailable(why)
        with (
            tempfile.TemporaryDirectory(prefix="nftproxy-conformance-") as name,
            closing(ControlPlane(Path(name))) as plane,
            self._both(plane, shown, Path(name), most_more) as trial,
        ):
            yield trial

    def _both(self, plane: ControlPlane, shown: Presentation, directory: Path, most_more: float) -> Trial:
        theirs = Proxy(self.command, plane, shown, _made(directory / "theirs"))
        if not self.is_against:
            return Trial(theirs, most_more=most_more)
        ours = Proxy(OURS, plane, shown, _made(directory / "ours"), may_deviate=False)
        return Against(theirs, ours, most_more=most_more)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _suited_judge(feature: Feature) -> Any:
    """The judge of a feature, for worlds that any proxy can know, or ignores as far as it can't."""
    suit = functools.partial(suited, kept=feature.settings)

    def judge(trial: Trial, case: Any) -> Finding | None:
        is_world = isinstance(case, World)
        return feature.judge(trial, suit(case) if is_world else (suit(case[0]), *case[1:]))

    return judge
