"""A trace compares the kernel's treatment of packets with the explanation, and reports differences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from nftproxy.explanation.answer import Fate
from nftproxy.explanation.packets import Packet, node_facts, plan
from nftproxy.explanation.question import Question, Source, SourceKind, ToService, parse_to
from nftproxy.kernel.capabilities import probe
from nftproxy.model.addresses import Family, of_family
from nftproxy.model.settings import Config, DetectLocalMode
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import NODE
from nftproxy.policy.fronts import claimed_fronts
from nftproxy.rules.transaction import Transaction
from nftproxy.trace.node import obstacle
from nftproxy.trace.scene import Scene
from nftproxy.trace.text import text
from nftproxy.trace.tracing import Trace, trace_packet, trace_plan
from tests.support.examples import EXAMPLES, example_pipeline
from tests.support.factories import pipeline, service, slice_of
from tests.support.selection import every

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """A node for all examples, which share it."""
    with Scene(node_facts(example_pipeline("cluster-ip"))) as made:
        yield made


def packets_of(seen: Pipeline) -> list[Packet]:
    """The packets to every front of every Service, from each kind of source that fares differently."""
    return [packet for key in sorted(seen.state.services) for packet in plan(seen, Question(ToService(key))).packets]


def fronts_of(seen: Pipeline) -> Iterator[tuple[str, str, int]]:
    """Every address, protocol and port that a Service claims, a node port at each of the node's addresses."""
    own = {family: of_family(seen.state.node.addresses, family) for family in Family}
    for each, family in itertools.product(seen.state.services.values(), Family):
        for _, reaches_of_port in claimed_fronts(seen.state, seen.settings.config, family, each):
            for claim in (reach.claim for reach in reaches_of_port):
                for address in own[family] if claim.address == NODE else (claim.address,):
                    yield address, claim.protocol.value, claim.port


@pytest.mark.parametrize("example", every(3, EXAMPLES))
def test_every_front_of_the_examples_does_what_is_explained(example: str, scene: Scene) -> None:
    """The kernel does as explained for packets from all sources to all fronts."""
    seen = example_pipeline(example, wide_maps=probe().capabilities.wide_maps)
    scene.load(seen.full_transaction({}))
    packets = packets_of(seen)
    tried = {(packet.place.address, packet.place.protocol.value, packet.place.port) for packet in packets}
    assert tried == set(fronts_of(seen))
    traces = [trace_packet(scene, packet) for packet in packets]
    assert [trace for trace in traces if trace.differences] == []
    assert all(trace.steps for trace in traces)
    assert len(traces) > len(seen.state.services)


def _traced(scene: Scene, seen: Pipeline, change: str, to: str, source: Source | None = None) -> list[Trace]:
    """The ways of packets through the rules of a pipeline that somebody has changed."""
    scene.load(Transaction(seen.full_transaction({}).text + change))
    return [trace_packet(scene, packet) for packet in plan(seen, Question(parse_to(to), source)).packets]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            "flush map ip nftproxy draws\n",
            "explained as translated, but dropped by the kernel",
        ),
        (
            "delete element ip nftproxy services { 10.96.0.10 . tcp . 80 }\n"
            "delete element ip nftproxy fronts { 10.96.0.10 . tcp . 80 }\n",
            "explained as translated, but rejected (tcp reset) by the kernel",
        ),
        (
            "flush map ip nftproxy tcp-endpoints\n"
            "add element ip nftproxy tcp-endpoints { 10.96.0.10 . 80 . 0.0.0.0 : 10.1.9.9 . 8080, "
            "10.96.0.10 . 80 . 0.0.0.1 : 10.1.9.9 . 8080, 10.96.0.10 . 80 . 0.0.0.2 : 10.1.9.9 . 8080 }\n",
            "the kernel sends it to 10.1.9.9:8080, where the explanation sends no connection",
        ),
        (
            "flush chain ip nftproxy hide-source\n",
            "its source is explained as masqueraded, but kept by the kernel",
        ),
        (
            "flush chain ip nftproxy services\nflush chain ip nftproxy unused-cluster-ips\n"
            "flush chain ip nftproxy untranslated\n",
            "explained as translated, but let through by the kernel",
        ),
    ],
)
def test_rules_that_somebody_has_broken_differ(scene: Scene, change: str, difference: str) -> None:
    """A trace through broken rules reports the explained fate and the kernel's."""
    (trace,) = _traced(scene, example_pipeline("cluster-ip"), change, "10.96.0.10:80", Source(SourceKind.OUTSIDE))
    assert trace.differences == (difference,)
    assert f"  DIFFERS: {difference}" in list(text([trace], "broken rules", []))


def test_what_is_rejected_in_another_way_differs(scene: Scene) -> None:
    """An ICMP error where a reset is explained is a difference, too."""
    change = "flush chain ip nftproxy refuse\nadd rule ip nftproxy refuse reject\n"
    (trace,) = _traced(scene, example_pipeline("cluster-ip"), change, "10.96.0.20:80")
    assert trace.differences == (
        "explained as rejected (tcp reset), but rejected (icmp port-unreachable) by the kernel",
    )


def test_a_kept_source_that_is_masqueraded_differs(scene: Scene) -> None:
    """A local source that comes out as the node's address is a difference."""
    change = "insert rule ip nftproxy services meta mark set meta mark | 0x4000\n"
    found = _traced(scene, example_pipeline("cluster-ip"), change, "10.96.0.10:80", Source(SourceKind.POD))
    assert [trace.differences for trace in found] == [
        ("its source is explained as kept, but masqueraded by the kernel",)
    ]
    assert found[0].source_there == "192.168.0.2"


def test_a_server_at_the_place_itself_is_an_endpoint(scene: Scene) -> None:
    """A node port that leads to a server at this very address and port is served by it, not merely let through."""
    web = service("shop/web", ports=["http:80:30080"], type="NodePort")
    seen = pipeline(web, slice_of("shop/web", ["192.168.0.2@node-a"], ports=["http:30080"]))
    found = _traced(scene, seen, "", "192.168.0.2:30080")
    assert [(trace.fate, trace.differences) for trace in found] == [(Fate.ENDPOINT, ())] * len(found)
    assert "  => the server at this address and port, its source kept: 10.1.0.254" in list(text(found, "rules", []))


@pytest.mark.parametrize(
    "config",
    [
        Config(detect_local_mode=DetectLocalMode.BRIDGE_INTERFACE, bridge_interface="docker0"),
        Config(detect_local_mode=DetectLocalMode.INTERFACE_NAME_PREFIX, interface_name_prefix="eth"),
        Config(masquerade_all=True),
        Config(),
    ],
    ids=["bridge", "prefix", "masquerade-all", "no-range"],
)
def test_sources_are_local_in_the_copy_if_they_are_on_the_node(config: Config) -> None:
    """With each way to recognise local sources, packets of pods enter as local, and other packets don't."""
    fields = ("detect_local_mode", "bridge_interface", "interface_name_prefix", "masquerade_all", "cluster_cidrs")
    seen = example_pipeline("load-balancer-local", **{name: getattr(config, name) for name in fields})
    traces = trace_plan(plan(seen, Question(ToService(min(seen.state.services)))), seen.full_transaction({}))
    assert [trace for trace in traces if trace.differences] == []
    assert {trace.kind for trace in traces} > {SourceKind.NODE}
