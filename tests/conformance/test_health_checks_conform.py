"""Health-check node ports answer as the oracle says, at every address of the node."""

from __future__ import annotations

import pytest
from hypothesis import given
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import Destination, World
from nftproxy_conformance.strategies import quick
from nftproxy_conformance.strategies.worlds import worlds
from nftproxy_conformance.subjects.rendered import events

from nftproxy.installed import INSTALLED
from nftproxy.model.addresses import ANY, Protocol, family_of
from nftproxy.model.settings import Capabilities
from nftproxy.policy.extension import Settings
from nftproxy.policy.health_checks import health_check_addresses
from tests.support.factories import pipeline

pytestmark = pytest.mark.slow


@quick(200)
@given(worlds)
def test_health_checks_answer_as_specified(world: World) -> None:
    """At each address and port of the node, the answer has the number of pods that the oracle counts there, or none."""
    made = pipeline(node=world.node, settings=Settings(world.config, Capabilities(), INSTALLED))
    made.ingest(events(world))
    served = health_check_addresses(made.state, world.config)
    oracle = Oracle(world)
    ports = {each.health_check_node_port for each in world.services} - {0}
    for place in (Destination(address, Protocol.TCP, port) for address in world.interfaces for port in ports):
        front = oracle.front_of(place)
        if front and front.port:  # a connection reaches an endpoint in place of the listener
            continue
        family = family_of(place.address)
        is_served = place.address in served or ANY[family] in served
        check = made.health_checks.by_port.get(place.port) if is_served else None
        assert (check and check.local_endpoints.get(family)) == oracle.checked(place)
