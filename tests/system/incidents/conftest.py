"""The node of the incidents: an agent, an API server, and five healthy Services."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab, obstacle

from tests.support.cluster import IP
from tests.system.faults.bench import PERMISSIONS, Bench, furnish
from tests.system.faults.hasty import BOOKMARKS


@pytest.fixture(scope="module")
def agents_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A node with an agent, an API server, and five healthy Services."""
    if why := obstacle():
        pytest.skip(why)
    with Lab() as lab, ApiServer(tls=True, authenticate=True, make_socket=lab.node.socket) as server:
        lab.add_address(IP.own)
        server.rbac = PERMISSIONS
        furnish(server)
        server.settings.bookmark_interval = BOOKMARKS
        with Bench(lab, server, tmp_path_factory.mktemp("agent"), "tests.system.faults.hasty") as bench:
            bench.start()
            yield bench
            assert "Traceback" not in bench.log(), bench.log()


@pytest.fixture
def bench(agents_bench: Bench) -> Bench:
    """The node, without the Services and EndpointSlices of the last incident."""
    server = agents_bench.server
    for kind in ("Service", "EndpointSlice"):
        for each in server.objects(kind):
            if not re.match(r"s\d", each["metadata"]["name"]):
                server.delete(kind, each["metadata"]["namespace"], each["metadata"]["name"])
    agents_bench.wait_until_right()  # else the next incident's objects could be there before these have gone
    return agents_bench
