"""The programs of a Kubernetes cluster, from a folder of release binaries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

VARIABLE = "NFTPROXY_KUBERNETES"
"""The environment variable with the folder."""
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
WITHOUT_DNS = (*CONTROL_PLANE, "kubelet", "kubectl", "agnhost")
"""The programs of a cluster whose pods look up no names."""
CLUSTER = (*WITHOUT_DNS, "coredns")
END_TO_END = "e2e.test"
DEBIAN = {
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""Programs of the machine, and the packages that have them."""


class Binaries:
    """A folder of release binaries.

    Args:
        directory: the folder, None if nobody has named it.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def lack(self, programs: Sequence[str], packages: Mapping[str, str] | None = None) -> str:
        """Say in a line what is missing, "" if nothing is.

        Args:
            programs: of the folder.
            packages: of Debian, by a program of each.
        """
        if self._directory is None:
            return f"no folder of Kubernetes' release binaries: give --binaries DIRECTORY, or set {VARIABLE}"
        if missing := [name for name in programs if not os.access(self._directory / name, os.X_OK)]:
            return f"{self._directory} lacks {', '.join(missing)}"
        if missing := [package for program, package in (packages or {}).items() if shutil.which(program) is None]:
            return f"the machine lacks Debian's packages {', '.join(missing)}"
        return ""

    def path(self, program: str) -> str:
        """The path of a program."""
        assert self._directory is not None, "lack has not been asked"
        return str(self._directory / program)

    def has(self, program: str) -> bool:
        """Whether the folder has a program."""
        return Path(self.path(program)).exists()

    def version(self, program: str) -> str:
        """The version of a program, such as "1.36.2"."""
        command = [self.path(program), *(("version", "--client") if program == "kubectl" else ("--version",))]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        (found, *_) = re.findall(r"v(\d+\.\d+\.\d\S*)", told)
        return str(found)
