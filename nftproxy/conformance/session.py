"""A whole run against a proxy: a control plane, the proxy's node, nftproxy's beside it if asked for, and the report."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from nftproxy.conformance.against import Against
from nftproxy.conformance.comparison import compare, show
from nftproxy.conformance.features import Feature, Finding
from nftproxy.conformance.focused_worlds import sample
from nftproxy.conformance.manifests import Manifest
from nftproxy.conformance.oracle import World
from nftproxy.conformance.own import MOST_MORE, own_cluster
from nftproxy.conformance.plane import ControlPlane
from nftproxy.conformance.proxy import Presentation, Proxy, made_up, suited
from nftproxy.conformance.report import Effort, show_progress, try_features
from nftproxy.conformance.trial import Trial
from nftproxy.lab import LabError, obstacle
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem, Unavailable

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
"""The fields of a configuration that made-up worlds decide about, whatever was given."""


class Session(NamedTuple):
    """What is to be tried.

    Args:
        command: the proxy's command line.
        is_against: whether nftproxy runs beside it.
        configuration: a KubeProxyConfiguration that the proxy needs.
        in_json: how the report is printed.
    """

    command: str
    is_against: bool
    configuration: Manifest
    in_json: bool

    def try_made_up(self, effort: Effort) -> bool:
        """Try made-up clusters; whether all is well.

        Raises:
            ProxyFailed: the proxy doesn't serve even a plain cluster.
            Unavailable: there can be no lab here, or this machine is too busy for one.
        """
        base = {name: value for name, value in self.configuration.items() if name not in DRAWN}
        suited_features = [each._replace(judge=_suited_judge(each)) for each in effort.features]
        with self._trial(made_up(base)) as trial:
            show_progress("the proxy starts", 0)
            trial.load(suited(sample()))
            return try_features(trial, effort._replace(features=suited_features), in_json=self.in_json)

    def try_own(self, documents: Sequence[Manifest], node: str) -> bool:
        """Try an operator's cluster, seen from one of its Nodes; whether all differences are explained.

        Raises:
            BadInput: there is no such Node, or the configuration is wrong.
            ProxyFailed: the proxy doesn't serve the cluster.
            Unavailable: there can be no lab here, or this machine is too busy for one.
        """
        cluster = own_cluster(documents, self.configuration, node)
        for problem in cluster.problems:
            click.echo(f"warning: {problem.coded}", err=True)
        if not cluster.world.services:
            raise BadInput([Problem("", "", "", "no Service is among the manifests", Code.TRIAL_IMPOSSIBLE)])
        with self._trial(cluster.presentation(), most_more=MOST_MORE) as trial:
            show_progress("the proxy starts", 0)
            compared = compare(trial, cluster)
            show_progress("", 0)
        return show(compared, in_json=self.in_json)

    @contextmanager
    def _trial(self, shown: Presentation, most_more: float = float("inf")) -> Iterator[Trial]:
        if why := obstacle():
            raise Unavailable(why)
        try:
            with (
                tempfile.TemporaryDirectory(prefix="nftproxy-conformance-") as name,
                closing(ControlPlane(Path(name))) as plane,
                self._both(plane, shown, Path(name), most_more) as trial,
            ):
                yield trial
        except LabError as error:
            raise Unavailable(str(error)) from error

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
    """The judge of a feature, for worlds as any proxy can know them."""

    def judge(trial: Trial, case: Any) -> Finding | None:
        is_world = isinstance(case, World)
        return feature.judge(trial, suited(case) if is_world else (suited(case[0]), *case[1:]))

    return judge
