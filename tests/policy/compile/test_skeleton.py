"""The skeleton of a table: local sources, the mark, ServiceCIDRs, and the addresses of node ports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from nftproxy.model.addresses import Family
from nftproxy.model.events import HostAddresses, Put
from nftproxy.model.objects import ServiceCIDR
from tests.policy.compile.membership import DUAL, ONE_LOCAL, compiled, rules
from tests.support.factories import IPV4, IPV6, elements, host_addresses, node, pipeline, service, service_cidr

# ---- local sources and masquerading of ClusterIPs ------------------------------------------------------------------

DETECTORS: list[tuple[dict[str, Any], Family, str]] = [
    ({"detect_local_mode": "ClusterCIDR"}, IPV4, "ip saddr {}10.1.0.0/16"),
    ({"detect_local_mode": "ClusterCIDR"}, IPV6, "ip6 saddr {}fd00:1::/48"),
    ({"detect_local_mode": "ClusterCIDR", "cluster_cidrs": ["fd00:1::/48"]}, IPV4, ""),
    ({"detect_local_mode": "ClusterCIDR", "cluster_cidrs": []}, IPV6, ""),
    ({"detect_local_mode": "NodeCIDR"}, IPV4, "ip saddr {}10.1.0.0/24"),
    ({"detect_local_mode": "NodeCIDR"}, IPV6, "ip6 saddr {}fd00:1::/64"),
    ({"detect_local_mode": "NodeCIDR", "node": node(pod_cidrs=[])}, IPV4, ""),
    (
        {"detect_local_mode": "NodeCIDR", "node": node(pod_cidrs=["10.1.7.0/24", "10.1.8.0/24"])},
        IPV4,
        "ip saddr {}10.1.7.0/24",
    ),
    ({"detect_local_mode": "BridgeInterface", "bridge_interface": "br0"}, IPV4, 'iifname {}"br0"'),
    ({"detect_local_mode": "BridgeInterface", "bridge_interface": "br0"}, IPV6, 'iifname {}"br0"'),
    ({"detect_local_mode": "InterfaceNamePrefix", "interface_name_prefix": "veth"}, IPV4, 'iifname {}"veth*"'),
]


@pytest.mark.parametrize(("tweaks", "family", "match"), DETECTORS)
def test_local_sources_follow_detect_local_mode(tweaks: dict[str, Any], family: Family, match: str) -> None:
    """Local sources follow detectLocalMode, and no source is local without a detector."""
    facts = compiled(family=family, **tweaks)
    assert facts.local_sources == ((match.format(""),) if match else ())


@pytest.mark.parametrize(("tweaks", "family", "match"), DETECTORS)
def test_what_a_cluster_ip_masquerades(tweaks: dict[str, Any], family: Family, match: str) -> None:
    """A ClusterIP masquerades non-local sources, nothing without a detector, and everything with masqueradeAll."""
    facts = compiled(family=family, **tweaks)
    assert facts.masqueraded_sources == ((match.format("!= "),) if match else ())
    assert compiled(family=family, masquerade_all=True, **tweaks).masqueraded_sources == ("",)


def test_the_skeleton_has_rules_for_each_protocol() -> None:
    """Rules for a single protocol exist for each protocol."""
    assert compiled().protocols == ("tcp", "udp", "sctp")


@pytest.mark.parametrize(
    ("bit", "mark", "unmark"),
    [(0, "0x1", "0xfffffffe"), (14, "0x4000", "0xffffbfff"), (31, "0x80000000", "0x7fffffff")],
)
def test_masquerading_is_asked_for_with_one_bit(bit: int, mark: str, unmark: str) -> None:
    """The mark is masqueradeBit alone, and taking it away leaves all other bits."""
    facts = compiled(masquerade_bit=bit)
    assert (facts.mark, facts.unmark) == (mark, unmark)


def test_a_canary_rejects_before_the_other_proxy_drops() -> None:
    """Chains that reject are at the priority of filters, and just before it beside another proxy.

    Packets of the node itself are rejected before all filters.
    """
    assert (compiled().filter_priority, compiled(service_proxy_name="canary").filter_priority) == (0, -1)
    for name, priority in (("", "0"), ("canary", "-1")):
        made = pipeline(service_proxy_name=name)
        bodies = {each.name: each.body[0] for each in made.generations[IPV4].declarations.values() if each.body}
        for hook, its_priority in (("input", priority), ("forward", priority), ("output", "-90")):
            assert bodies[f"filter-{hook}"] == f"type filter hook {hook} priority {its_priority}"


def test_only_tcp_keeps_its_ports_when_masqueraded() -> None:
    """Only TCP connections keep their ports, and with masqueradeFullyRandom all get random ports."""
    random_ports = ("", "masquerade fully-random")
    assert compiled().masquerades == (("meta l4proto tcp", "masquerade"), random_ports)
    assert compiled(masquerade_fully_random=True).masquerades == (random_ports,)


@pytest.mark.parametrize(
    ("objects", "family", "cidrs"),
    [
        ([], IPV4, ()),
        ([service_cidr()], IPV4, ("10.96.0.0/16",)),
        ([service_cidr()], IPV6, ("fd00:96::/112",)),
        ([service_cidr("10.96.0.0/16"), service_cidr("10.97.0.0/16", name="more")], IPV4, ("10.96.0.0/15",)),
        ([service_cidr("10.96.0.0/17", "10.96.0.0/16", "10.98.0.0/16")], IPV4, ("10.96.0.0/16", "10.98.0.0/16")),
        ([service_cidr("10.98.0.1/32")], IPV4, ("10.98.0.1",)),
    ],
)
def test_service_cidrs_are_merged(objects: list[ServiceCIDR], family: Family, cidrs: tuple[str, ...]) -> None:
    """The family's ranges of all ServiceCIDRs are merged, and written as nft writes them."""
    assert compiled(*objects, family=family).service_cidrs == cidrs


# ---- node ports ----------------------------------------------------------------------------------------------------

PRIMARY = ["ip daddr @nodeport-ips"], ["ct original ip daddr @nodeport-ips"]
ALL = ["ip daddr != 127.0.0.0/8 fib daddr type local"], [""]
BOTH = ["192.168.0.3", "203.0.113.2"]
EXTERNAL = node(internal_ips=[], external_ips=["203.0.113.2", "203.0.113.3"])


@pytest.mark.parametrize(
    ("tweaks", "present", "matches", "served"),
    [
        ({"node": DUAL}, None, PRIMARY, ["192.168.0.2"]),
        ({"node": DUAL}, host_addresses("10.0.0.1"), PRIMARY, ["192.168.0.2"]),
        ({"node": EXTERNAL}, None, PRIMARY, ["203.0.113.2"]),
        ({"node": node(internal_ips=["fd00:c0a8::2"])}, None, PRIMARY, []),
        ({"node": None}, None, PRIMARY, []),
        ({"node": node(internal_ips=["127.0.0.1"])}, None, PRIMARY, []),
        ({"node": DUAL, "node_port_addresses": ["192.168.0.0/16"]}, None, PRIMARY, ["192.168.0.2", "192.168.0.3"]),
        ({"node": DUAL, "node_port_addresses": ["203.0.113.0/24", "192.168.0.3/32"]}, None, PRIMARY, BOTH),
        (
            {"node": DUAL, "node_port_addresses": ["203.0.113.0/24", "10.0.0.0/8"]},
            host_addresses("10.0.0.9", "10.0.0.1", "203.0.113.9", "192.168.0.2"),
            PRIMARY,
            ["10.0.0.1", "10.0.0.9", "203.0.113.9"],
        ),
        ({"node": DUAL, "node_port_addresses": ["127.0.0.0/8"]}, host_addresses("127.0.0.1"), PRIMARY, []),
        ({"node": DUAL, "node_port_addresses": ["localhost"]}, host_addresses("127.0.0.1"), PRIMARY, []),
        ({"node": DUAL, "node_port_addresses": ["primary", "localhost"]}, None, PRIMARY, ["192.168.0.2"]),
        ({"node": DUAL, "node_port_addresses": ["primary", "all"]}, None, ALL, []),
        (
            {"node": DUAL, "node_port_addresses": ["10.0.0.0/8", "primary", "192.168.0.0/31"]},
            host_addresses("10.0.0.9", "192.168.0.3", "192.168.0.2"),
            PRIMARY,
            ["192.168.0.2", "10.0.0.9"],
        ),
        ({"node": DUAL, "node_port_addresses": ["10.0.0.0/8"]}, None, PRIMARY, []),
        ({"node": DUAL, "node_port_addresses": ["::/0"]}, None, PRIMARY, []),
        ({"node": DUAL, "node_port_addresses": ["0.0.0.0/0"]}, None, ALL, []),
        ({"node": None, "node_port_addresses": ["10.0.0.0/8", "0.0.0.0/0"]}, None, ALL, []),
    ],
)
def test_which_addresses_serve_node_ports(
    tweaks: dict[str, Any],
    present: HostAddresses | None,
    matches: tuple[list[str], list[str]],
    served: Iterable[str],
) -> None:
    """By default the node's first address serves, else the addresses that CIDRs select, else every local address."""
    facts = compiled(*((present,) if present else ()), **tweaks)
    assert (list(facts.nodeport_matches), list(facts.remembered_nodeports)) == matches
    assert list(facts.nodeport_addresses) == served


def test_every_local_ipv6_address_but_loopback() -> None:
    """A CIDR that matches all is for its own family only."""
    everywhere: dict[str, Any] = {"node_port_addresses": ["::/0", "192.168.0.0/24"]}
    assert compiled(family=IPV6, **everywhere).nodeport_matches == ("ip6 daddr != ::1 fib daddr type local",)
    assert compiled(family=IPV4, **everywhere).nodeport_addresses == ("192.168.0.2",)


@pytest.mark.parametrize(
    "tweaks",
    [
        {"node": node(internal_ips=["fd00:c0a8::2"])},
        {"node": None},
        {"node_port_addresses": ["10.0.0.0/8"]},
        {"node_port_addresses": ["::/0"]},
    ],
)
def test_without_an_address_there_are_no_node_ports(tweaks: dict[str, Any]) -> None:
    """A family in which the node has no address for them serves no node ports, and claims no packet."""
    made = pipeline(service(ports=["http:80:30080"]), ONE_LOCAL, **tweaks)
    assert not [name for name in rules(made) if name.startswith("nodeport")]


def test_every_local_address_serves_where_none_is_known() -> None:
    """A CIDR that matches all needs no address of the node."""
    made = pipeline(service(ports=["http:80:30080"]), ONE_LOCAL, node=None, node_port_addresses=["0.0.0.0/0"])
    assert elements(made, IPV4, "nodeport-services") == {"tcp . 30080": "0.0.0.2"}


def test_node_ports_follow_the_nodes_addresses() -> None:
    """Node ports come and go as addresses that serve them do."""
    made = pipeline(service(ports=["http:80:30080"]), ONE_LOCAL, node_port_addresses=["10.0.0.0/8"])
    for present, served in [(["10.0.0.1", "11.0.0.1"], {"10.0.0.1": ""}), (["11.0.0.1"], {})]:
        made.ingest([Put(host_addresses(*present))])
        assert elements(made, IPV4, "nodeport-ips") == served
        assert bool(elements(made, IPV4, "nodeport-services")) is bool(served)
