"""Kubernetes' own end-to-end tests, by e2e.test."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.kubernetes.binaries import END_TO_END
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.deployment import KUBE_SYSTEM, ROLLOUT
from tools.kubernetes.results import SpecResult, read

SKIPS = Path(__file__).with_name("skips.toml")


def skips(version: str) -> dict[str, str]:
    """Reasons not to run tests on a cluster of a version, by regular expressions for the tests' names."""
    given: dict[str, dict[str, Any]] = tomllib.loads(SKIPS.read_text())
    minor = int(version.split(".")[1])
    too_new = {test: f"is of Kubernetes 1.{since}" for test, since in given["since-minor"].items() if minor < since}
    return given["always"] | too_new


def run_tests(cluster: RealCluster, focuses: Sequence[str]) -> dict[str, list[SpecResult]]:
    """Run the tests of sig-network that are asked for, and return their results by focus.

    Args:
        cluster: with a service proxy on each node.
        focuses: regular expressions for the tests' names.  Each has a run of its own, at the same time as the others.
    """
    _be_known(cluster)
    skipped = skips(cluster.binaries.version("kube-apiserver"))
    reports = [cluster.directory / f"report-{number}.json" for number in range(len(focuses))]
    running = [
        _start(cluster, report, f"--ginkgo.skip={'|'.join(skipped)}", f"--ginkgo.focus={focus}")
        for report, focus in zip(reports, focuses, strict=True)
    ]
    for process in running:
        process.wait()
    return {
        focus: list(read(json.loads(report.read_text()), skipped, focus))
        for report, focus in zip(reports, focuses, strict=True)
    }


def _be_known(cluster: RealCluster) -> None:
    """Give our agents the label by which the tests find kube-proxy's pods, to restart them."""
    change = {"spec": {"template": {"metadata": {"labels": {"k8s-app": "kube-proxy"}}}}}
    cluster.kubectl(KUBE_SYSTEM, "patch", "daemonset", "nftproxy", "--patch", json.dumps(change))
    cluster.kubectl(KUBE_SYSTEM, "rollout", "status", "daemonset/nftproxy", ROLLOUT)


def _start(cluster: RealCluster, report: Path, *arguments: str) -> subprocess.Popen[Any]:
    command = [
        cluster.binaries.path(END_TO_END),
        f"--kubeconfig={cluster.control.kubeconfig}",
        f"--kubectl-path={cluster.binaries.path('kubectl')}",
        "--provider=skeleton",
        "--ginkgo.timeout=4h",
        "--dump-logs-on-failure=false",
        f"--ginkgo.json-report={report}",
        "--ginkgo.no-color",
        "--ginkgo.v",
        *arguments,
    ]
    with report.with_suffix(".log").open("ab") as log:
        return cluster.fabric.popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cluster.directory, env=dict(os.environ)
        )
