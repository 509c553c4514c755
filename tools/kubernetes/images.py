"""The images of the cluster's pods, built from the release binaries and Debian's packages."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.image.build import ARCHIVE, NAME, build, build_archive
from tools.kubernetes.binaries import END_TO_END, Binaries

CONTAINERFILE = Path(__file__).with_name("Containerfile")
PAUSE = "registry.k8s.io/pause:lab"
KUBE_PROXY = "registry.k8s.io/kube-proxy:lab"
AGNHOST_IMAGE = "registry.k8s.io/agnhost:lab"
"""For our own pods: the names of the tests' images depend on the version of Kubernetes."""
TARGETS = {
    "agnhost": "agnhost",
    "busybox": "busybox",
    "distroless-iptables": "busybox",
    "regression-issue-74839": "regression",
}
"""Targets of the Containerfile, by the last part of the names of the tests' images."""


class BuiltImage(NamedTuple):
    """An image of the tests: its name, and the target that it is built by."""

    name: str
    target: str


def wanted(listing: str, *, regression: bool) -> list[BuiltImage]:
    """The images that can be built, of those that `e2e.test --list-images` lists.

    Args:
        listing: its output, a name in each line.
        regression: whether there is a binary of regression-issue-74839.
    """
    own = {PAUSE: "pause", KUBE_PROXY: "kube-proxy", AGNHOST_IMAGE: "agnhost"}
    return [*itertools.starmap(BuiltImage, own.items()), *_of_tests(listing.split(), regression)]


def _of_tests(names: list[str], regression: bool) -> Iterator[BuiltImage]:
    for name in names:
        target = TARGETS.get(name.rpartition("/")[2].partition(":")[0], "")
        if target and (regression or target != "regression"):
            yield BuiltImage(name, target)


def build_images(binaries: Binaries, directory: Path) -> dict[str, Path]:
    """Build the images, nftproxy's too, and return the archive of each by its name.

    Args:
        binaries: the release binaries.
        directory: the archives go there.
    """
    listing = ""
    if binaries.has(END_TO_END):
        listing = subprocess.run(
            [binaries.path(END_TO_END), "--list-images"], check=True, capture_output=True, text=True
        ).stdout
    images = wanted(listing, regression=binaries.has("regression-issue-74839"))
    context = Path(binaries.path("agnhost")).parent
    archives = {}
    for number, image in enumerate(images):
        archives[image.name] = directory / f"image-{number}.tar"
        build_archive(image.name, CONTAINERFILE, context, archives[image.name], "--target", image.target)
    build()
    return archives | {NAME: ARCHIVE}
