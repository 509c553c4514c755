"""Made-up clusters: packets of `explain --trace` to every front do as the explanation says."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies import worlds

from nftproxy.explanation.packets import Plan, plan
from nftproxy.explanation.question import Question, ToService
from nftproxy.kernel.capabilities import probe
from nftproxy.trace.node import obstacle
from nftproxy.trace.scene import Scene
from nftproxy.trace.tracing import trace_packet
from tests.support.explained import as_known, pipeline_of
from tests.system.fuzz.effort import IS_LONG, Tally, effort

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


def _one(plans: list[Plan]) -> Plan:
    """Several plans for a node as a single plan."""
    networks = dict.fromkeys(network for each in plans for network in each.node.pod_networks)
    node = msgspec.structs.replace(plans[0].node, pod_networks=tuple(networks))
    return Plan(node, tuple(packet for each in plans for packet in each.packets))


@given(world=worlds.worlds)
@settings(effort(6, 500), derandomize=not IS_LONG, database=None)
def test_the_kernel_does_as_explained(tally: Tally, world: World) -> None:
    """On any cluster, from each kind of source that fares differently, a packet does as explained."""
    pipeline = pipeline_of(as_known(world), probe().capabilities)
    plans = [plan(pipeline, Question(ToService(key))) for key in sorted(pipeline.state.services)]
    if not plans:
        return
    whole = _one(plans)
    with Scene(whole.node) as scene:
        scene.load(pipeline.full_transaction({}))
        traces = [trace_packet(scene, packet) for packet in whole.packets]
    tally.count("clusters")
    tally.count("packets", len(traces))
    assert [trace for trace in traces if trace.differences] == []
