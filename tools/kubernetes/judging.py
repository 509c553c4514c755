"""`nftproxy conformance` with the real kube-proxy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.processes import CHECKOUT
from tools.kubernetes.binaries import Binaries

CONFIGURATION = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.1.0.0/16,fd00:1::/32
conntrack: {maxPerCore: 0, min: 0}
"""


JUDGED = {"kube-proxy by our semantics": [], "kube-proxy and nftproxy on the same packets": ["--against"]}
"""The command's options for each trial, by the name of the trial."""


def judge(binaries: Binaries, directory: Path, *arguments: str) -> tuple[int, str]:
    """Run the suite with kube-proxy, and return its exit status and output.

    Args:
        binaries: have kube-proxy.
        directory: for its configuration, and the output as a file.
        arguments: further arguments of the command.
    """
    configuration = directory / "kube-proxy-config.yaml"
    configuration.write_text(CONFIGURATION)
    proxy = f"{binaries.path('kube-proxy')} --config {{config}}"
    command = [sys.executable, "-m", "nftproxy", "conformance", "--proxy", proxy, "--config", str(configuration)]
    done = subprocess.run([*command, *arguments], check=False, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
    return done.returncode, done.stdout


def verdict(output: str) -> str:
    """The line of the suite's output that counts features, and the features that fail."""
    counts = re.search(r"^\d+ of \d+ features pass.*", output, re.MULTILINE)
    failed = re.findall(r"^(\S.*?) {2,}FAIL", output, re.MULTILINE)
    return "; ".join([counts[0] if counts else "no result", *(f"{name} fails" for name in failed)])
