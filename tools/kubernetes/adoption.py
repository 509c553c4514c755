"""Two releases by turns on a cluster under traffic, from their artefacts: image archive, chart and kustomize base."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.support.helm import rendered
from tools.image.build import NATIVE
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.deployment import AGENTS, KUBE_SYSTEM, ROLLOUT
from tools.kubernetes.layout import CONTROL, CONTROL_PORT, PODS, PODS6
from tools.kubernetes.workload import Workload
from tools.migration.switch import Account

CONNTRACK = {"maxPerCore": 0, "min": 0}
"""The kernel lets only its first network namespace change nf_conntrack_max."""
VALUES = {
    "apiServer": {"host": CONTROL, "port": CONTROL_PORT},
    "config": {"clusterCIDR": f"{PODS},{PODS6}", "conntrack": CONNTRACK},
}
OVERLAY = {
    "registry.example.com/nftproxy": "docker.io/library/nftproxy",
    "api.example.com": CONTROL,
    "clusterCIDR: 10.244.0.0/16": f"clusterCIDR: {PODS},{PODS6}\n        conntrack: {json.dumps(CONNTRACK)}",
}
"""Texts of the overlay, and what this cluster has there."""


class Release:
    """The artefacts of a version.

    Args:
        directory: has them, and SHA256SUMS.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (chart,) = directory.glob("nftproxy-*.tgz")
        self.version = chart.stem.removeprefix("nftproxy-")

    @property
    def image(self) -> Path:
        """The archive of the image for this machine."""
        return self._directory / f"nftproxy-image-{self.version}-{NATIVE}.tar"

    def check(self) -> None:
        """Compare the files with their checksums.

        Raises:
            subprocess.CalledProcessError: a file differs.
        """
        command = ["sha256sum", "--check", "--quiet", "--ignore-missing", "SHA256SUMS"]
        subprocess.run(command, check=True, cwd=self._directory)

    def install_chart(self, cluster: RealCluster) -> None:
        """Apply the objects that Helm makes of the chart."""
        archive = self._directory / f"nftproxy-{self.version}.tgz"
        cluster.kubectl("apply", "--filename=-", text=rendered(archive.read_bytes(), VALUES))

    def install_kustomize(self, cluster: RealCluster) -> None:
        """Apply the overlay with what this cluster must set."""
        directory = cluster.directory / f"kustomize-{self.version}"
        directory.mkdir(exist_ok=True)
        archive = self._directory / f"nftproxy-kustomize-{self.version}.tar.gz"
        subprocess.run(["tar", "-xf", archive, "-C", directory], check=True)
        overlay = directory / "nftproxy-kustomize" / "overlay"
        text = (overlay / "kustomization.yaml").read_text()
        for old, new in OVERLAY.items():
            assert text.count(old) == 1, f"the overlay has {old} {text.count(old)} times"
            text = text.replace(old, new)
        (overlay / "kustomization.yaml").write_text(text)
        cluster.kubectl("apply", f"--kustomize={overlay}")

    def await_rollout(self, cluster: RealCluster) -> None:
        """Wait until each node's agent is of this version.

        Raises:
            AssertionError: the program in a pod says otherwise.
        """
        cluster.kubectl(KUBE_SYSTEM, "rollout", "status", "daemonset/nftproxy", ROLLOUT)
        pods = cluster.kubectl(KUBE_SYSTEM, "get", "pods", AGENTS, "--output=name").split()
        said = {cluster.kubectl(KUBE_SYSTEM, "exec", pod, "--", "nftproxy", "--version").split()[2] for pod in pods}
        assert len(pods) == len(cluster.nodes)
        assert said == {self.version}


def adopt(cluster: RealCluster, old: Release, new: Release) -> Account:
    """Install a release, then go to another and back, by the chart and by the kustomize base."""
    for release in (old, new):
        release.check()
    old.install_chart(cluster)
    old.await_rollout(cluster)
    return Workload(cluster, "adoption", 8).follow("two versions", _steps(cluster, old, new))


def _steps(cluster: RealCluster, old: Release, new: Release) -> Iterator[tuple[str, Callable[[], object]]]:
    numbers = itertools.count(9)
    ways = {"chart": Release.install_chart, "kustomize": Release.install_kustomize}
    yield f"{old.version} on all nodes", lambda: None
    for (way, install), release in itertools.product(ways.items(), (new, old)):
        yield f"{release.version} by {way}", partial(install, release, cluster)
        yield "its agents are on all nodes", partial(release.await_rollout, cluster)
        yield "a new Service is served", partial(_add_service, cluster, next(numbers))


def _add_service(cluster: RealCluster, number: int) -> None:
    Workload(cluster, f"adopted-{number}", number, pods="adoption").await_service()
