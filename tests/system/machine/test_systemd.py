"""The unit of examples/deploy below systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from operator import gt
from pathlib import Path

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.faults import EndWatch, Fault

from nftproxy.model.codes import Code
from tests.support.cluster import IP
from tests.support.processes import CHECKOUT
from tests.support.waiting import wait_until
from tests.system.e2e.objects import node, service, slice_of

SYSTEMD = "NFTPROXY_SYSTEMD"
"""The environment variable of commands whose systemd is there for tests (tools/debian/debian.sh, tools/vm)."""
UNIT = CHECKOUT / "examples" / "deploy" / "nftproxy.service"
SETTINGS = Path("/etc/nftproxy")
KUBECONFIG = SETTINGS / "kubeconfig"
DROP_IN = Path("/etc/systemd/system", f"{UNIT.name}.d", "copy.conf")
COPY = "/run/credentials/nftproxy.service/kubeconfig"
FOLLOWED = ("services", "endpointslices")
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


def serves(address: str = IP.vip) -> bool:
    """True if a Service of the cluster is in the kernel."""
    return address in run("nft", "list", "map", "ip", "nftproxy", "services")


def report() -> str:
    """The unit's state and log."""
    return run("systemctl", "status", "nftproxy") + run("journalctl", "--unit=nftproxy", "--no-pager")


def status() -> str:
    """The output of `nftproxy status`."""
    return run("/opt/nftproxy/bin/nftproxy", "status")


def share_kubeconfig() -> None:
    """Let the unit's group read the kubeconfig, as the unit says."""
    shutil.chown(KUBECONFIG, group="nftproxy")
    KUBECONFIG.chmod(0o640)


def rotate(server: ApiServer) -> None:
    """Have a new token in the kubeconfig, and end the watches, so that other requests follow."""
    server.rotate_token()
    share_kubeconfig()
    for resource in FOLLOWED:
        server.faults.add(Fault(EndWatch(), verb="watch", resource=resource))


def add_service(server: ApiServer) -> None:
    """Have another Service in the cluster."""
    server.put(service("other"), slice_of("10.1.0.5@node-a", name="other"))


def answers(server: ApiServer, status: int) -> list[int]:
    """How many requests about each resource had a status."""
    return [len(server.requests(resource=resource, status=status)) for resource in FOLLOWED]


@pytest.fixture
def installed() -> Iterator[ApiServer]:
    """The server of a cluster, with the unit as installed for it.  The program is this interpreter's."""
    if SYSTEMD not in os.environ:
        pytest.skip("it installs a unit; `tox run -e unit` starts a systemd of its own")
    SETTINGS.mkdir(exist_ok=True)
    Path("/opt/nftproxy/bin").mkdir(parents=True, exist_ok=True)
    Path("/opt/nftproxy/bin/nftproxy").write_text(f'#!/bin/sh\nexec {sys.executable} -m nftproxy "$@"\n')
    Path("/opt/nftproxy/bin/nftproxy").chmod(0o755)
    (SETTINGS / "config.yaml").write_text(CONFIGURATION)
    Path("/etc/systemd/system", UNIT.name).write_text(UNIT.read_text())
    os.environ["SYSTEMD_COLORS"] = "0"
    with ApiServer(tls=True, authenticate=True) as server:
        server.put(node("node-a"), service(), slice_of("10.1.0.4@node-a"))
        run("groupadd", "--system", "nftproxy")
        server.write_kubeconfig(KUBECONFIG)
        share_kubeconfig()
        run("systemctl", "daemon-reload")
        yield server
        run("systemctl", "stop", "nftproxy")
        run("nft", "flush", "ruleset")


@pytest.mark.usefixtures("installed")
def test_the_unit_loads_rules() -> None:
    """The rules come after `systemctl start`, stay after `stop`, and a start brings back what is missing."""
    for _ in range(2):
        run("systemctl", "start", "nftproxy")
        wait_until(serves, report, pause=1)
        run("systemctl", "stop", "nftproxy")
        assert serves()
        run("nft", "flush", "ruleset")


def test_a_rotated_token_is_used(installed: ApiServer) -> None:
    """A running unit follows changes with the token that a rotation has written, and its health has no warning."""
    run("systemctl", "start", "nftproxy")
    wait_until(serves, report, pause=1)
    before = answers(installed, 200)
    rotate(installed)
    wait_until(lambda: all(map(gt, answers(installed, 200), before)), report, pause=1)
    add_service(installed)
    wait_until(lambda: serves(IP.vip2), report, pause=1)
    wait_until(lambda: "Agent:" in status() and Code.OUT_OF_TOUCH not in status(), report, pause=1)


@pytest.fixture
def copying(installed: ApiServer) -> Iterator[None]:  # noqa: ARG001
    """The unit with a copy of its kubeconfig, which systemd makes when the unit starts."""
    DROP_IN.parent.mkdir(exist_ok=True)
    DROP_IN.write_text(f"[Service]\nLoadCredential=kubeconfig:{KUBECONFIG}\n")
    (SETTINGS / "config.yaml").write_text(CONFIGURATION.replace(str(KUBECONFIG), COPY))
    run("systemctl", "daemon-reload")
    yield
    DROP_IN.unlink()


@pytest.mark.usefixtures("copying")
def test_a_copy_that_is_no_longer_valid_is_named(installed: ApiServer) -> None:
    """With `LoadCredential=`, whose copy is made once, status names the copy and its time after a rotation."""
    run("systemctl", "start", "nftproxy")
    wait_until(serves, report, pause=1)
    rotate(installed)
    wait_until(lambda: all(answers(installed, 401)), report, pause=1)
    add_service(installed)
    stale = f"{COPY} was written at "
    wait_until(lambda: Code.OUT_OF_TOUCH in status(), report, pause=1)
    assert stale in status()
    assert stale in report()
    before = answers(installed, 401)
    wait_until(lambda: all(map(gt, answers(installed, 401), before)), report, pause=1)
    assert not serves(IP.vip2)
