"""The agent that the tests of a module share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab, obstacle

from tests.support.processes import CHECKOUT
from tests.system.faults.bench import PERMISSIONS, SYNC_PERIOD, Bench, furnish
from tests.system.faults.hasty import BOOKMARKS

TEMPLATES = CHECKOUT / "templates"


@pytest.fixture(scope="module")
def shared_bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A lab, an API server with TLS and tokens on its node, and a running agent.

    The tests are skipped where there can be no lab.  A module may define AGENT (the agent's program), PERIOD (the
    seconds between periodic checks), ARGUMENTS (further arguments of the agent) and REFUSED (text appended to the
    agent's template for Services).
    """
    if why := obstacle():
        pytest.skip(why)
    with Lab() as lab, ApiServer(tls=True, authenticate=True, make_socket=lab.node.socket) as server:
        server.rbac = PERMISSIONS
        furnish(server)
        server.settings.bookmark_interval = BOOKMARKS
        program = getattr(request.module, "AGENT", "nftproxy")
        period = getattr(request.module, "PERIOD", SYNC_PERIOD)
        arguments = list(getattr(request.module, "ARGUMENTS", []))
        if end := getattr(request.module, "REFUSED", ""):
            templates = shutil.copytree(TEMPLATES, tmp_path_factory.mktemp("templates"), dirs_exist_ok=True)
            with (templates / "service.nft.j2").open("a") as template:
                template.write(end)
            arguments += ["--templates", str(templates)]
        with Bench(lab, server, tmp_path_factory.mktemp("agent"), program, period, arguments) as bench:
            bench.start()
            yield bench
            assert "Traceback" not in bench.log(), bench.log()


@pytest.fixture
def bench(shared_bench: Bench) -> Iterator[Bench]:
    """An agent with the wanted rules.  At the end all faults and denials are removed, and it and its server run."""
    server = shared_bench.server
    shared_bench.wait_until_right()
    shared_bench.count_anew()
    yield shared_bench
    server.faults.clear()
    server.rbac = PERMISSIONS
    server.start()
    if shared_bench.is_stopped:
        shared_bench.start()


@pytest.fixture
def server(bench: Bench) -> ApiServer:
    """The API server that the agent follows."""
    return bench.server
