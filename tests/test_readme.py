"""The way to a canary in README.md: its commands, in their order, with the program of the checkout.

`docker` and `kubectl` are scripts that note their arguments.  The image is the checkout, and the cluster has a kubeadm
cluster's ConfigMap.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from nftproxy import __version__
from tests.commands.test_manifests import API_VERSIONS, Made, expect_valid
from tests.conftest import CHECKOUT

SECTION = (CHECKOUT / "README.md").read_text().partition("## Try it beside kube-proxy")[2].partition("\n## ")[0]
FORTH, BACK = re.findall(r"^```sh\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
IMAGE = f"registry.example.com/nftproxy:{__version__}"

NOTED = 'echo "$(basename "$0") $*" >>"$NOTES"\n'
DOCKER = f"""#!/bin/bash
{NOTED}
case $1 in
build) cat >context.tar ;;
run) shift 4; exec "{sys.executable}" -m nftproxy "$@" ;;
esac
"""
KUBECTL = f"""#!/bin/bash
{NOTED}
case "$*" in *"get configmap kube-proxy"*) cat "{CHECKOUT}/examples/deploy/kube-proxy.yaml" ;; esac
"""


@pytest.fixture
def noted(tmp_path: Path) -> list[str]:
    """The commands that the section runs, in a folder with the stand-ins."""
    for name, text in (("docker", DOCKER), ("kubectl", KUBECTL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "NOTES": str(tmp_path / "notes"),
        "PYTHONPATH": str(CHECKOUT),
        "GIT_DIR": subprocess.run(
            ["git", "-C", CHECKOUT, "rev-parse", "--absolute-git-dir"], capture_output=True, text=True, check=False
        ).stdout.strip(),
    }
    if not environment["GIT_DIR"]:
        pytest.skip("this is no clone")
    script = f"set -euo pipefail\n{FORTH}{BACK}"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, check=True)
    return (tmp_path / "notes").read_text().splitlines()


@pytest.mark.slow
def test_the_commands_of_the_readme_lead_to_a_canary(noted: list[str], tmp_path: Path) -> None:
    """The context has the recipe, the API takes the manifests of a canary, and the Service gets its label."""
    assert noted == [
        f"docker build --tag {IMAGE} --file examples/deploy/Containerfile -",
        f"docker push {IMAGE}",
        "kubectl --namespace kube-system get configmap kube-proxy --output yaml",
        f"docker run --rm --interactive {IMAGE} manifests --image {IMAGE} --service-proxy-name canary -",
        "kubectl apply --filename canary.yaml",
        "kubectl --namespace kube-system rollout status daemonset nftproxy",
        "kubectl label service web service.kubernetes.io/service-proxy-name=canary",
        "kubectl --namespace kube-system exec daemonset/nftproxy -- nftproxy explain svc/default/web",
        "kubectl label service web service.kubernetes.io/service-proxy-name-",
        "kubectl delete --filename canary.yaml",
    ]
    with tarfile.open(tmp_path / "context.tar") as context:
        assert "examples/deploy/Containerfile" in context.getnames()
    text = (tmp_path / "canary.yaml").read_text()
    for document in yaml.safe_load_all(text):
        expect_valid(yaml.safe_dump(document), API_VERSIONS[-1])
    made = Made.of(text)
    assert (made.config.service_proxy_name, made.agent["image"]) == ("canary", IMAGE)
