"""The way to a canary in README.md, and back: its own commands, on a real cluster that has kube-proxy.

No daemon of Docker and no registry are here.  So the `docker` on PATH is this module: buildah builds from the context
that it gets, a push imports the image on each node, and a container of `docker run` is the image's root.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import CHECKOUT
from tools.image.build import build_archive, unpacked
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.deployment import deploy_kube_proxy
from tools.kubernetes.workload import Workload

README = CHECKOUT / "README.md"
HEADER = ("commands", "result")
SERVICE = "web"
"""The Service of the commands, in the namespace default."""
DIRECTORY, NODES, HOST = "CANARY_DIRECTORY", "CANARY_NODES", "CANARY_HOST"
"""Variables for the stand-in of `docker`: its files, the processes that are the nodes, and one outside of them."""
DOCKER = '#!/bin/sh\nexec nsenter --net="/proc/$CANARY_HOST/ns/net" "{python}" -P -m tools.kubernetes.canary "$@"\n'


class Ways(NamedTuple):
    """The shell commands of the section of README.md."""

    forth: str
    back: str


def ways(readme: str) -> Ways:
    """Return the commands to a canary, and back."""
    section = readme.partition("## Try it beside kube-proxy")[2].partition("\n## ")[0]
    return Ways(*re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))


def try_canary(cluster: RealCluster) -> Iterator[tuple[str, str]]:
    """Put kube-proxy on the cluster, run the commands, and yield what became of each block of them.

    Raises:
        subprocess.CalledProcessError: a command failed.
        AssertionError: a node doesn't serve the Service.
    """
    deploy_kube_proxy(cluster)
    workload = Workload(cluster, SERVICE, 0)
    workload.await_service()
    there = ways(README.read_text())
    yield "there", _run(cluster, there.forth)
    workload.await_service()
    yield "back", _run(cluster, there.back)
    workload.await_service()


def _run(cluster: RealCluster, commands: str) -> str:
    """Run commands in a clone of the checkout beside the control plane, and return the last line of their output."""
    folder = cluster.directory / "canary"
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", CHECKOUT, folder / "clone"], check=True)
        (folder / "bin").mkdir()
        (folder / "bin" / "docker").write_text(DOCKER.format(python=sys.executable))
        (folder / "bin" / "docker").chmod(0o755)
        (folder / "bin" / "kubectl").symlink_to(cluster.binaries.path("kubectl"))
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "KUBECONFIG": str(cluster.control.kubeconfig),
        DIRECTORY: str(folder),
        NODES: " ".join(str(node.process) for node in cluster.nodes),
        HOST: str(os.getpid()),
    }
    with (folder / "output").open("a+") as output:
        command = ["bash", "-euxo", "pipefail", "-c", commands]
        process = cluster.start(command, cwd=folder / "clone", env=environment, stdout=output, stderr=output)
        if status := process.wait():
            raise subprocess.CalledProcessError(status, command, (folder / "output").read_text())
    return (folder / "output").read_text().splitlines()[-1]


def _docker(verb: str, *arguments: str) -> None:
    """Do the part of `docker` that the commands use."""
    folder = Path(os.environ[DIRECTORY])
    archive = folder / "image.tar"
    if verb == "build":
        given = dict(zip(arguments[::2], arguments[1::2], strict=False))
        context = folder / "context"
        shutil.rmtree(context, ignore_errors=True)
        context.mkdir()
        subprocess.run(["tar", "--extract", "--directory", context], check=True)
        build_archive(given["--tag"], context / given["--file"], context, archive)
    elif verb == "push":
        for node in os.environ[NODES].split():
            enter = ["nsenter", f"--target={node}", "--mount"]
            subprocess.run([*enter, "ctr", "--namespace=k8s.io", "images", "import", archive], check=True)
    elif verb == "run":
        _, _, image, *rest = arguments
        with unpacked(image) as root:
            subprocess.run(["chroot", "--userspec=65532:65532", root, "/venv/bin/nftproxy", *rest], check=True)


if __name__ == "__main__":
    _docker(*sys.argv[1:])
