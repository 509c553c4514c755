"""The packets that show what an explanation says: one for each kind of source that fares differently."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nftproxy.explanation.clients import kind_of
from nftproxy.explanation.packets import OUTSIDERS, STAND_INS, STRAY_PODS, NodeFacts, Plan, node_facts, plan
from nftproxy.explanation.question import Kind, Question, Source, parse_source, parse_to
from nftproxy.model.addresses import Address, Family
from nftproxy.model.events import HostAddresses
from nftproxy.model.settings import DetectLocalMode
from nftproxy.pipeline import Pipeline
from tests.support.examples import EXAMPLES, example_pipeline
from tests.support.factories import addresses, node, pipeline, service, slice_of


def _sources(seen: Pipeline, to: str, source: Source | None = None) -> list[tuple[Kind, str]]:
    return [(packet.kind, packet.source) for packet in plan(seen, Question(parse_to(to), source)).packets]


def test_kinds_that_fare_alike_send_one_packet() -> None:
    """A ClusterIP has a packet that keeps its source, and one that doesn't."""
    assert _sources(example_pipeline("cluster-ip"), "10.96.0.10:80") == [
        (Kind.POD, "10.1.0.254"),
        (Kind.NODE, "192.168.0.2"),
    ]


def test_a_guarded_front_has_clients_in_and_out_of_its_ranges() -> None:
    """Where ranges decide, one client that they admit and one that they don't are tried."""
    found = plan(example_pipeline("source-ranges"), Question(parse_to("203.0.113.9:443"), Source(Kind.OUTSIDE))).packets
    assert [packet.case.fate.value for packet in found] == ["endpoint", "dropped"]
    assert tuple(packet.source for packet in found) == OUTSIDERS[Family.IPV4]


def test_a_client_that_is_named_is_the_only_one() -> None:
    """An address in the question is the packet's source, and its kind is what the address says."""
    seen = example_pipeline("cluster-ip")
    assert _sources(seen, "10.96.0.10:80", parse_source("10.1.2.4")) == [(Kind.REMOTE_POD, "10.1.2.4")]
    assert _sources(seen, "10.96.0.10:80", parse_source("fd00:1::4")) == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_packet_is_of_its_kind(example: str) -> None:
    """The address of each packet is one that the proxy itself takes for that kind of source."""
    seen = example_pipeline(example)
    for key in sorted(seen.state.services):
        for packet in plan(seen, Question(parse_to(f"svc/{key}"))).packets:
            assert kind_of(seen, packet.source) is packet.kind
            assert len(packet.case.sources) == 1


def test_pods_have_addresses_that_nobody_has() -> None:
    """A typical pod is in the node's range, and isn't an endpoint; of another node, it is outside that range."""
    taken = [f"10.1.0.{number}@node-a" for number in range(200, 255)]
    here = node(pod_cidrs=["10.1.0.0/24"])
    seen = pipeline(service("shop/web"), slice_of("shop/web", taken), node=here)
    assert _sources(seen, "10.96.0.10:80", Source(Kind.POD)) == [(Kind.POD, "10.1.0.199")]
    assert _sources(seen, "10.96.0.10:80", Source(Kind.REMOTE_POD)) == [(Kind.REMOTE_POD, "10.1.255.253")]


def test_without_ranges_pods_have_addresses_too() -> None:
    """Where no range says which addresses pods have, stand-ins are used."""
    seen = pipeline(service("shop/web"), node=node(pod_cidrs=[]), cluster_cidrs=())
    for kind, stand_in in zip((Kind.POD, Kind.REMOTE_POD), STRAY_PODS[Family.IPV4], strict=True):
        assert _sources(seen, "10.96.0.10:80", Source(kind)) == [(kind, stand_in)]
    facts = plan(seen, Question(parse_to("10.96.0.10:80"), Source(Kind.POD))).node
    assert facts.pod_networks == ("100.64.0.200/32",)


@pytest.mark.parametrize("ranges", [(), ("10.1.0.0/16",)], ids=["none", "one for all nodes"])
def test_pods_here_and_elsewhere_are_never_one(ranges: tuple[str, ...]) -> None:
    """Where interfaces tell pods apart, a rejection goes where its address is: no address has two places."""
    local = service("shop/web", type="NodePort", ports=["http:80:30080"], external_policy="Local")
    seen = pipeline(
        local,
        node=node(pod_cidrs=[]),
        cluster_cidrs=ranges,
        detect_local_mode=DetectLocalMode.BRIDGE_INTERFACE,
        bridge_interface="br0",
    )
    found = _sources(seen, "svc/shop/web")
    assert {Kind.POD, Kind.REMOTE_POD} <= {kind for kind, _ in found}
    assert {address for kind, address in found if kind is Kind.POD}.isdisjoint(
        address for kind, address in found if kind is not Kind.POD
    )


def test_the_node_is_as_its_interfaces_are() -> None:
    """The copy has the addresses that the node's interfaces have, its main one first, but none that can't be routed."""
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
    """Where local sources are known by interfaces, pods' packets come in by such a one, and others' don't."""
    facts = node_facts(example_pipeline("cluster-ip", **tweaks))
    assert (facts.pods_interface, facts.uplink) == (interface, uplink)


def test_node_ports_at_localhost_are_not_for_packets() -> None:
    """What the agent forwards by itself, without rules, sends no packet."""
    seen = example_pipeline("node-port")
    assert _sources(seen, "127.0.0.1:30080") == []


def test_a_range_of_one_address_is_looked_at() -> None:
    """A source range may be a single client, or one that can't be a source at all."""
    seen = example_pipeline("source-ranges")
    sources = _sources(seen, "203.0.113.10:443", Source(Kind.OUTSIDE))
    assert sources == [(Kind.OUTSIDE, OUTSIDERS[Family.IPV4][0])]


def test_a_plan_survives_as_json() -> None:
    """Who sends the packets needs nothing but the plan, so it comes out of JSON as it went in."""
    made = plan(example_pipeline("everything"), Question(parse_to("svc/edge/gateway")))
    assert made.packets
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made
