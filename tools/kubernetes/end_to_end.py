"""Kubernetes' own end-to-end tests, by e2e.test."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import msgspec

from tools.kubernetes.binaries import END_TO_END
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.results import SpecResult, merged, read

SKIPS = Path(__file__).with_name("skips.toml")


def skips() -> dict[str, str]:
    """Reasons not to run tests, by regular expressions for the tests' names."""
    return tomllib.loads(SKIPS.read_text())


def run_tests(cluster: RealCluster, focus: str, labels: str, timeout: str) -> list[SpecResult]:
    """Run the tests of sig-network that are asked for, and return their results.

    Args:
        cluster: with a service proxy on each node.
        focus: a regular expression for the tests' names.
        labels: a filter of Ginkgo labels beside.
        timeout: after it no further test begins, in the form of Go's durations.
    """
    report = cluster.directory / "report.json"
    command = [
        cluster.binaries.path(END_TO_END),
        f"--kubeconfig={cluster.control.kubeconfig}",
        f"--kubectl-path={cluster.binaries.path('kubectl')}",
        "--provider=skeleton",
        "--dump-logs-on-failure=false",
        f"--ginkgo.focus={focus}",
        f"--ginkgo.label-filter={labels}",
        f"--ginkgo.skip={'|'.join(skips())}",
        f"--ginkgo.timeout={timeout}",
        f"--ginkgo.json-report={report}",
        "--ginkgo.no-color",
        "--ginkgo.v",
    ]
    with (cluster.directory / "e2e.log").open("ab") as log:
        cluster.start(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cluster.directory, env=dict(os.environ)
        ).wait()
    return list(read(json.loads(report.read_text()), skips()))


def keep(results: list[SpecResult], file: Path) -> list[SpecResult]:
    """Add results to those that a file keeps from earlier runs, and return all of them."""
    earlier = msgspec.json.decode(file.read_bytes(), type=list[SpecResult]) if file.exists() else []
    found = merged(earlier, results)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    return found
