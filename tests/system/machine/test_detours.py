"""`nftproxy run` in a user namespace, by detours to an API server whose authority is an intermediate.

With `NFTPROXY_KUBERNETES`, the folder of Kubernetes' release binaries, the real API server has the same tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import trustme

from tests.support.detours import DETOURS, USER_AND_NETWORK, Company
from tests.support.processes import CHECKOUT
from tools.kubernetes.binaries import CONTROL_PLANE, VARIABLE, Binaries
from tools.kubernetes.control_plane import RealControlPlane
from tools.kubernetes.layout import CONTROL, CONTROL_PORT

SERVER = """\
import trustme
intermediate = trustme.CA().create_child_ca()
trustme.CA = lambda: intermediate
from nftproxy_conformance.apiserver.__main__ import main
main()
"""
"""The tests' API server, whose kubeconfigs have only the intermediate that has issued its certificate."""

Server = Callable[[Company, Path], AbstractContextManager[Path]]
"""Runs an API server in a company's network and a folder, and yields a kubeconfig."""


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    """A company's network."""
    if subprocess.run(["unshare", *USER_AND_NETWORK, "--map-root-user", "true"], check=False).returncode:
        pytest.skip("this machine makes no user namespaces")
    with Company(tmp_path) as made:
        yield made


@contextmanager
def of_the_tests(company: Company, directory: Path) -> Iterator[Path]:
    """Run the tests' API server, and yield a kubeconfig."""
    kubeconfig = directory / "kubeconfig"
    command = [sys.executable, "-c", SERVER, "--host", CONTROL, "--port", str(CONTROL_PORT), "--tls", "--authenticate"]
    environment = os.environ | {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/conformance"}
    ready = ("test", "-s", str(kubeconfig))
    with company.running(*command, "--kubeconfig", str(kubeconfig), ready=ready, env=environment):
        yield kubeconfig


@contextmanager
def of_kubernetes(company: Company, directory: Path) -> Iterator[Path]:
    """Run etcd and kube-apiserver, and yield a kubeconfig of the administrator."""
    folder = os.environ.get(VARIABLE)
    binaries = Binaries(Path(folder) if folder else None)
    if why := binaries.lack(CONTROL_PLANE):
        pytest.skip(why)
    intermediate = trustme.CA().create_child_ca()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trustme, "CA", lambda: intermediate)
        plane = RealControlPlane(binaries, directory / "control-plane", {}, company.start)
    try:
        plane.start()
        yield plane.kubeconfig
    finally:
        plane.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DETOURS))
@pytest.mark.parametrize("server", [of_the_tests, of_kubernetes])
def test_the_agent_serves(company: Company, tmp_path: Path, server: Server, name: str) -> None:
    """The agent serves a Service that is created while it runs, names its way in `status`, and ends by SIGTERM."""
    with server(company, tmp_path) as kubeconfig:
        assert company.serve(kubeconfig, DETOURS[name], "10.96.0.20") == DETOURS[name].way
