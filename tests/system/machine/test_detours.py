"""`nftproxy run` in a user namespace, by detours to an API server whose authority is an intermediate."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.detours import ADDRESS, DETOURS, PORT, USER_AND_NETWORK, Company
from tests.support.processes import CHECKOUT

SERVER = """\
import trustme
intermediate = trustme.CA().create_child_ca()
trustme.CA = lambda: intermediate
from nftproxy_conformance.apiserver.__main__ import main
main()
"""
"""The tests' API server, whose kubeconfigs have only the intermediate that has issued its certificate."""


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    """A company's network."""
    if subprocess.run(["unshare", *USER_AND_NETWORK, "--map-root-user", "true"], check=False).returncode:
        pytest.skip("this machine makes no user namespaces")
    with Company(tmp_path) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DETOURS))
def test_the_agent_serves(company: Company, tmp_path: Path, name: str) -> None:
    """The agent serves a Service that is created while it runs, names its way in `status`, and ends by SIGTERM."""
    kubeconfig = tmp_path / "kubeconfig"
    command = [sys.executable, "-c", SERVER, "--host", ADDRESS, "--port", str(PORT), "--tls", "--authenticate"]
    ready = ("test", "-s", str(kubeconfig))
    environment = os.environ | {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/conformance"}
    with company.running(*command, "--kubeconfig", str(kubeconfig), ready=ready, env=environment):
        assert company.serve(kubeconfig, DETOURS[name], "10.96.0.10") == DETOURS[name].way
