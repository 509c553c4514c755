"""The unit of examples/deploy below systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nftproxy_conformance.apiserver import ApiServer

from tests.support.cluster import IP
from tests.support.processes import CHECKOUT
from tests.support.waiting import wait_until
from tests.system.e2e.objects import node, service, slice_of
from tests.system.machine.conftest import require_own_machine

UNIT = CHECKOUT / "examples" / "deploy" / "nftproxy.service"
SETTINGS = Path("/etc/nftproxy")
CONFIGURATION = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.1.0.0/16
hostnameOverride: node-a
clientConnection:
  kubeconfig: /etc/nftproxy/kubeconfig
"""


def run(*command: str) -> str:
    """The output of a command, errors too."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout


def serves() -> bool:
    """True if the Service of the cluster is in the kernel."""
    return IP.vip in run("nft", "list", "map", "ip", "nftproxy", "services")


@pytest.fixture
def installed() -> Iterator[None]:
    """The unit as installed, with a cluster behind its kubeconfig.  The program is this interpreter's."""
    require_own_machine()
    if not Path("/run/systemd/system").exists():
        pytest.skip("systemd isn't running; `python -m tools.vm --systemd` starts it")
    SETTINGS.mkdir(exist_ok=True)
    Path("/opt/nftproxy/bin").mkdir(parents=True)
    Path("/opt/nftproxy/bin/nftproxy").write_text(f'#!/bin/sh\nexec {sys.executable} -m nftproxy "$@"\n')
    Path("/opt/nftproxy/bin/nftproxy").chmod(0o755)
    (SETTINGS / "config.yaml").write_text(CONFIGURATION)
    Path("/etc/systemd/system", UNIT.name).write_text(UNIT.read_text())
    os.environ["SYSTEMD_COLORS"] = "0"
    with ApiServer(tls=True, authenticate=True) as server:
        server.put(node("node-a"), service(), slice_of("10.1.0.4@node-a"))
        run("groupadd", "--system", "nftproxy")
        server.write_kubeconfig(SETTINGS / "kubeconfig")
        shutil.chown(SETTINGS / "kubeconfig", group="nftproxy")
        (SETTINGS / "kubeconfig").chmod(0o640)
        run("systemctl", "daemon-reload")
        yield
        run("systemctl", "stop", "nftproxy")


@pytest.mark.usefixtures("installed")
def test_the_unit_loads_rules() -> None:
    """The rules come after `systemctl start`, stay after `stop`, and a start brings back what is missing."""

    def report() -> str:
        return run("systemctl", "status", "nftproxy") + run("journalctl", "--unit=nftproxy", "--no-pager")

    for _ in range(2):
        run("systemctl", "start", "nftproxy")
        wait_until(serves, report, pause=1)
        run("systemctl", "stop", "nftproxy")
        assert serves()
        run("nft", "flush", "ruleset")
