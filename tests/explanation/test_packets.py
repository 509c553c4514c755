"""The packets that verify an explanation: a packet for each kind of source with a different fate."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nftproxy.explanation.clients import kind_of
from nftproxy.explanation.packets import OUTSIDERS, STAND_INS, STRAY_PODS, NodeFacts, Plan, node_facts, plan
from nftproxy.explanation.question import Question, Source, SourceKind, parse_source, parse_to
from nftproxy.model.addresses import Address, Family
from nftproxy.model.events import HostAddresses
from nftproxy.model.settings import DetectLocalMode
from nftproxy.pipeline import Pipeline
from tests.support.examples import EXAMPLES, example_pipeline
from tests.support.factories import addresses, node, pipeline, service, slice_of
from tests.support.selection import every


def _sources(seen: Pipeline, to: str, source: Source | None = None) -> list[tuple[SourceKind, str]]:
    return [(packet.kind, packet.source) for packet in plan(seen, Question(parse_to(to), source)).packets]


def test_kinds_that_fare_alike_send_one_packet() -> None:
    """A question about a ClusterIP has a packet that keeps its source, and a masqueraded packet."""
    assert _sources(example_pipeline("cluster-ip"), "10.96.0.10:80") == [
        (SourceKind.POD, "10.1.0.254"),
        (SourceKind.NODE, "192.168.0.2"),
    ]


def test_a_guarded_front_has_clients_in_and_out_of_its_ranges() -> None:
    """If source ranges decide, packets come from an admitted client and from a client that isn't admitted."""
    found = plan(
        example_pipeline("source-ranges"), Question(parse_to("203.0.113.9:443"), Source(SourceKind.OUTSIDE))
    ).packets
    assert [packet.case.fate.value for packet in found] == ["endpoint", "dropped"]
    assert tuple(packet.source for packet in found) == OUTSIDERS[Family.IPV4]


def test_a_client_that_is_named_is_the_only_one() -> None:
    """An address in the question is the only packet's source, and determines its kind."""
    seen = example_pipeline("cluster-ip")
    assert _sources(seen, "10.96.0.10:80", parse_source("10.1.2.4")) == [(SourceKind.REMOTE_POD, "10.1.2.4")]
    assert _sources(seen, "10.96.0.10:80", parse_source("fd00:1::4")) == []


@pytest.mark.parametrize("example", every(3, EXAMPLES))
def test_a_packet_is_of_its_kind(example: str) -> None:
    """The proxy itself classifies each packet's source address as the packet's kind of source."""
    seen = example_pipeline(example)
    for key in sorted(seen.state.services):
        for packet in plan(seen, Question(parse_to(f"svc/{key}"))).packets:
            assert kind_of(seen, packet.source) is packet.kind
            assert len(packet.case.sources) == 1


def test_pods_have_addresses_that_nobody_has() -> None:
    """A typical pod of this node is in its range without being an endpoint, and a remote pod is outside the range."""
    taken = [f"10.1.0.{number}@node-a" for number in range(200, 255)]
    here = node(pod_cidrs=["10.1.0.0/24"])
    seen = pipeline(service("shop/web"), slice_of("shop/web", taken), node=here)
    assert _sources(seen, "10.96.0.10:80", Source(SourceKind.POD)) == [(SourceKind.POD, "10.1.0.199")]
    assert _sources(seen, "10.96.0.10:80", Source(SourceKind.REMOTE_POD)) == [(SourceKind.REMOTE_POD, "10.1.255.253")]


def test_without_ranges_pods_have_addresses_too() -> None:
    """If no range says which addresses pods have, stand-in addresses are used."""
    seen = pipeline(service("shop/web"), node=node(pod_cidrs=[]), cluster_cidrs=())
    for kind, stand_in in zip((SourceKind.POD, SourceKind.REMOTE_POD), STRAY_PODS[Family.IPV4], strict=True):
        assert _sources(seen, "10.96.0.10:80", Source(kind)) == [(kind, stand_in)]
    facts = plan(seen, Question(parse_to("10.96.0.10:80"), Source(SourceKind.POD))).node
    assert facts.pod_networks == ("100.64.0.200/32",)


@pytest.mark.parametrize("ranges", [(), ("10.1.0.0/16",)], ids=["none", "one for all nodes"])
def test_pods_here_and_elsewhere_are_never_one(ranges: tuple[str, ...]) -> None:
    """If interfaces tell pods apart, no address is both a local and a remote pod's, as a rejection has one way back."""
    local = service("shop/web", type="NodePort", ports=["http:80:30080"], external_policy="Local")
    seen = pipeline(
        local,
        node=node(pod_cidrs=[]),
        cluster_cidrs=ranges,
        detect_local_mode=DetectLocalMode.BRIDGE_INTERFACE,
        bridge_interface="br0",
    )
    found = _sources(seen, "svc/shop/web")
    assert {SourceKind.POD, SourceKind.REMOTE_POD} <= {kind for kind, _ in found}
    assert {address for kind, address in found if kind is SourceKind.POD}.isdisjoint(
        address for kind, address in found if kind is not SourceKind.POD
    )


def test_the_node_is_as_its_interfaces_are() -> None:
    """The copy has the routable addresses of the node's interfaces, and its main address is the first."""
    own = HostAddresses(frozenset(addresses(["10.0.0.9", "192.168.0.2", "127.0.0.1", "fe80::1", "169.254.1.1"])))
    seen = pipeline(
        own, node=node(internal_ips=["192.168.0.2"], external_ips=["203.0.113.1"], pod_cidrs=["10.1.0.0/24"])
    )
    assert node_facts(seen) == NodeFacts(
        (Address("192.168.0.2"), Address("10.0.0.9"), STAND_INS[Family.IPV6]), ("10.1.0.0/24",)
    )


@pytest.mark.parametrize(
    ("tweaks", "interface", "uplink"),
    [
        ({}, "cni0", "eth0"),
        ({"detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE, "bridge_interface": "eth0"}, "eth0", "uplink"),
        ({"detect_local_mode": DetectLocalMode.INTERFACE_NAME_PREFIX, "interface_name_prefix": "e"}, "e0", "uplink"),
        (
            {"detect_local_mode": DetectLocalMode.INTERFACE_NAME_PREFIX, "interface_name_prefix": "a23456789012345"},
            "a23456789012345",
            "eth0",
        ),
    ],
)
def test_interfaces_are_what_the_rules_take_them_for(tweaks: dict[str, Any], interface: str, uplink: str) -> None:
    """If local sources are known by interfaces, only pods' packets come in through such an interface."""
    facts = node_facts(example_pipeline("cluster-ip", **tweaks))
    assert (facts.pods_interface, facts.uplink) == (interface, uplink)


def test_node_ports_at_localhost_are_not_for_packets() -> None:
    """A question about a port that the agent forwards itself, without rules, has no packets."""
    seen = example_pipeline("node-port")
    assert _sources(seen, "127.0.0.1:30080") == []


def test_a_range_of_one_address_is_looked_at() -> None:
    """A source range may be a single address, even an address that can't be a source at all."""
    seen = example_pipeline("source-ranges")
    sources = _sources(seen, "203.0.113.10:443", Source(SourceKind.OUTSIDE))
    assert sources == [(SourceKind.OUTSIDE, OUTSIDERS[Family.IPV4][0])]


def test_a_plan_survives_as_json() -> None:
    """The plan, which is the sender's only input, is the same after a round trip through JSON."""
    made = plan(example_pipeline("everything"), Question(parse_to("svc/edge/gateway")))
    assert made.packets
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made
