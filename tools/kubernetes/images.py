"""The images of the cluster's pods, built from the release binaries and Debian's packages."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path

from tools.image.build import ARCHIVE, build, build_archive
from tools.kubernetes.binaries import END_TO_END, Binaries

CONTAINERFILE = Path(__file__).with_name("Containerfile")
REGISTRY = "registry.k8s.io"
PAUSE = f"{REGISTRY}/pause:lab"
COREDNS = f"{REGISTRY}/coredns/coredns:lab"
AGNHOST_IMAGE = f"{REGISTRY}/agnhost:lab"
"""For our own pods: the names of the tests' images depend on the version of Kubernetes."""
TARGETS = {
    PAUSE: "pause",
    COREDNS: "coredns",
    AGNHOST_IMAGE: "agnhost",
    f"{REGISTRY}/busybox:lab": "busybox",
}
REGRESSION = "regression-issue-74839"
TESTS_TARGETS = {
    "agnhost": "agnhost",
    "pause": "pause",
    **dict.fromkeys(("busybox", "distroless-iptables", "glibc-dns-testing"), "busybox"),
    REGRESSION: "regression",
}
"""Targets of the Containerfile, by the last part of the names of the tests' images."""
OPTIONAL = {"coredns": "coredns", "regression": REGRESSION}
"""Targets that are built if the folder has their program."""


def wanted(listing: str, absent: Collection[str] = ()) -> dict[str, list[str]]:
    """The names of the images that can be built, by the target that builds them.

    Args:
        listing: the output of `e2e.test --list-images`, a name in each line.
        absent: targets that can't be built.
    """
    found = {target: [name] for name, target in TARGETS.items() if target not in absent}
    for name in listing.split():
        registry, _, path = name.partition("/")
        target = TESTS_TARGETS.get(path.rpartition("/")[2].partition(":")[0], "")
        if registry == REGISTRY and target and target not in absent:
            found.setdefault(target, []).append(name)
    return found


def build_images(binaries: Binaries, directory: Path) -> None:
    """Write an archive for each image, nftproxy's too, and beside it a file with the image's further names.

    Args:
        binaries: the release binaries.
        directory: the files go there.
    """
    listing = ""
    if binaries.has(END_TO_END):
        command = [binaries.path(END_TO_END), "--list-images"]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    context = Path(binaries.path("agnhost")).parent
    absent = [target for target, program in OPTIONAL.items() if not binaries.has(program)]
    for target, (name, *more) in wanted(listing, absent).items():
        build_archive(name, CONTAINERFILE, context, directory / f"{target}.tar", "--target", target)
        (directory / f"{target}.names").write_text("".join(f"{name} {other}\n" for other in more))
    build()
    (directory / "nftproxy.tar").symlink_to(ARCHIVE)
