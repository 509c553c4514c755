"""A tenant's Service that claims the API server's address and port is served without this address and port."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from nftproxy_conformance.apiserver.faults import EndWatch, Fault
from nftproxy_conformance.lab import NODE, Origin, obstacle

from tests.support.cluster import IP, at
from tests.system.e2e.agent import World, eventually
from tests.system.e2e.objects import service, slice_of

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]

WATCHES = 4
"""The agent's watches: Services, EndpointSlices, ServiceCIDRs and Nodes."""


def test_no_external_address_captures_the_api_server(tmp_path: Path) -> None:
    """The agent reaches an API server that a Service claims, for new watches and at a start, and names the Service."""
    with World(tmp_path, host=IP.node) as world:
        port = urlsplit(world.server.url).port
        assert port is not None
        claiming = service(ports=["web:80", f"api:{port}"], externalIPs=[IP.node])
        world.put(claiming, slice_of(IP.here, ports=["web:8080", "api:8080"]))
        assert world.outcomes(Origin.OUTSIDE, IP.node, 80) == at(IP.here, masqueraded=True)
        assert world.outcomes(Origin.OUTSIDE, IP.node, port, times=2) == {NODE}
        why = "this node reaches the API server there"
        line = f"shop/web does not get {IP.node}:{port}/TCP, and is served without it: {why}"
        eventually(lambda: line in world.agent.log(), True)
        note = f"NFT312: {IP.node}:{port}/TCP of port api is not served: {why}"
        eventually(lambda: note in [each["note"] for each in world.server.objects("Event")], True)
        world.server.faults.add(Fault(EndWatch(), verb="watch", count=WATCHES))
        world.put(service("other", vips=[IP.vip2]), slice_of(IP.away, name="other"))
        assert world.outcomes(Origin.POD, IP.vip2) == at(IP.away)
        world.agent.stop()
        world.agent.start()
        world.delete(service("other", vips=[IP.vip2]))
