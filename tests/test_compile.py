"""What a Service is becomes membership: each rule of a proxy's behaviour, as the elements that it makes.

Elements are asserted as nft has them, so these tests hold for compile.py, its facts and service.nft.j2 together.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any

import pytest

from nftproxy.addresses import Family
from nftproxy.compile import Lost, compile_service, compile_table, lost_claims
from nftproxy.conformance.strategies import Told
from nftproxy.facts import TableFacts
from nftproxy.model import Service, ServiceCIDR
from nftproxy.pipeline import SKELETON, Pipeline
from nftproxy.state import HostAddresses, Put, Removed
from tests.factories import (
    IPV4,
    IPV6,
    elements,
    host_addresses,
    key,
    node,
    pipeline,
    service,
    service_cidr,
    slice_of,
)

VIP = "203.0.113.7"
ONE_LOCAL = slice_of(endpoints=["10.1.0.4@node-a", "10.1.1.4@node-b"])
NONE_LOCAL = slice_of(endpoints=["10.1.1.4@node-b"])
DUAL = node(internal_ips=["192.168.0.2", "192.168.0.3"], external_ips=["203.0.113.2"])


def rules(made: Pipeline, family: Family = IPV4) -> dict[str, dict[str, str]]:
    """All that Services put into a family's table: what each set and map holds.

    Counts of endpoints are told with the verdicts that lead to them, as in "goto draw-tcp-endpoints: 2".
    """
    blocks = made.generations[family].blocks
    names = {element.container for owner, block in blocks.items() if owner != SKELETON for element in block.elements}
    found = {name: elements(made, family, name) for name in names if not name.endswith("-count")}
    for name in found.keys() & {
        f"{prefix}{each}" for prefix in ("", "nodeport-") for each in ("services", "short-circuit")
    }:
        found[name] = {front: _with_count(made, family, front, verdict) for front, verdict in found[name].items()}
    return found


def _with_count(made: Pipeline, family: Family, front: str, verdict: str) -> str:
    chain = re.fullmatch(r"goto draw-(.*endpoints)(?:-sticky-\d+|-by-client)?", verdict)
    assert chain, verdict
    *address, _, port = front.split(" . ")
    count = elements(made, family, f"{chain[1]}-count").get(" . ".join([*address, port]), "0.0.0.0")
    return f"{verdict}: {int(ipaddress.ip_address(count))}"


def memberships(made: Pipeline, front: str, family: Family = IPV4) -> dict[str, str]:
    """The sets and maps that one key is in, with its value there."""
    return {name: held[front] for name, held in rules(made, family).items() if front in held}


def compiled(*objects: Told, family: Family = IPV4, **tweaks: Any) -> TableFacts:
    """The facts of a table's skeleton; `tweaks` are those of `pipeline`."""
    made = pipeline(*objects, **tweaks)
    return compile_table(made.state, made.settings, family)


# Virtual addresses


def test_a_cluster_ip_is_served() -> None:
    """A Service with two endpoints, one of them here, is seven elements."""
    assert rules(pipeline(service(), ONE_LOCAL)) == {
        "cluster-ips": {"10.96.0.10": ""},
        "services": {"10.96.0.10 . tcp . 80": "goto draw-tcp-endpoints: 2"},
        "fronts": {"10.96.0.10 . tcp . 80": ""},
        "tcp-endpoints": {"10.96.0.10 . 80 . 0": "10.1.0.4 . 8080", "10.96.0.10 . 80 . 1": "10.1.1.4 . 8080"},
        "hairpin": {"10.1.0.4 . 10.1.0.4 . tcp . 8080": ""},
    }


def test_each_family_has_its_own() -> None:
    """A dual-stack Service is in each table with the addresses and endpoints of that family."""
    dual = service(cluster_ips=["fd00:96::10", "10.96.0.10"], external_ips=[VIP, "2001:db8::7"])
    made = pipeline(dual, NONE_LOCAL, slice_of(endpoints=["fd00:1:0:1::4@node-b"], suffix="2"))
    assert rules(made, IPV6) == {
        "cluster-ips": {"fd00:96::10": ""},
        "services": {
            "fd00:96::10 . tcp . 80": "goto draw-tcp-endpoints: 1",
            "2001:db8::7 . tcp . 80": "goto draw-tcp-endpoints: 1",
        },
        "masqueraded": {"2001:db8::7 . tcp . 80": ""},
        "fronts": {"fd00:96::10 . tcp . 80": "", "2001:db8::7 . tcp . 80": ""},
        "tcp-endpoints": {
            "fd00:96::10 . 80 . 0": "fd00:1:0:1::4 . 8080",
            "2001:db8::7 . 80 . 0": "fd00:1:0:1::4 . 8080",
        },
    }
    assert elements(made, IPV4, "services").keys() == {"10.96.0.10 . tcp . 80", f"{VIP} . tcp . 80"}


def test_a_service_is_nothing_in_a_family_without_its_cluster_ip() -> None:
    """External IPs and node ports of a family in which a Service has no ClusterIP are not served."""
    made = pipeline(service(external_ips=["2001:db8::7"], ports=["http:80:30080"]), ONE_LOCAL)
    assert rules(made, IPV6) == {}


def test_one_number_may_have_three_protocols() -> None:
    """TCP, UDP and SCTP ports of one number have nothing to do with each other."""
    made = pipeline(
        service(ports=["a:80/tcp", "b:80/udp", "c:80/sctp"]),
        slice_of(endpoints=["10.1.1.4@node-b"], ports=["a:8080/tcp", "c:8082/sctp"]),
        slice_of(endpoints=["10.1.1.5@node-b", "10.1.1.6@node-b"], ports=["b:8081/udp"], suffix="2"),
    )
    assert rules(made) == {
        "cluster-ips": {"10.96.0.10": ""},
        "services": {
            "10.96.0.10 . tcp . 80": "goto draw-tcp-endpoints: 1",
            "10.96.0.10 . udp . 80": "goto draw-udp-endpoints: 2",
            "10.96.0.10 . sctp . 80": "goto draw-sctp-endpoints: 1",
        },
        "fronts": {
            "10.96.0.10 . tcp . 80": "",
            "10.96.0.10 . udp . 80": "",
            "10.96.0.10 . sctp . 80": "",
        },
        "tcp-endpoints": {"10.96.0.10 . 80 . 0": "10.1.1.4 . 8080"},
        "udp-endpoints": {"10.96.0.10 . 80 . 0": "10.1.1.5 . 8081", "10.96.0.10 . 80 . 1": "10.1.1.6 . 8081"},
        "sctp-endpoints": {"10.96.0.10 . 80 . 0": "10.1.1.4 . 8082"},
    }


def test_a_service_without_ports_is_known_by_its_address() -> None:
    """The ClusterIP of a Service without any port is known, so that what is sent there is refused."""
    assert rules(pipeline(service(ports=[]))) == {"cluster-ips": {"10.96.0.10": ""}}


def test_services_share_what_they_have_in_common() -> None:
    """One pod behind two Services is one hairpin element, which stays until both have gone."""
    other = service("shop/cart", cluster_ips=["10.96.0.20"])
    made = pipeline(service(), ONE_LOCAL, other, slice_of("shop/cart", ["10.1.0.4@node-a"]))
    assert elements(made, IPV4, "hairpin") == {"10.1.0.4 . 10.1.0.4 . tcp . 8080": ""}


# Policies and masquerading: kind of address x policy x family x protocol

ADDRESSES = {
    IPV4: {"cluster": "10.96.0.10", "external": VIP, "balanced": VIP, "pods": ["10.1.0.4@node-a", "10.1.1.4@node-b"]},
    IPV6: {
        "cluster": "fd00:96::10",
        "external": "2001:db8::7",
        "balanced": "2001:db8::7",
        "pods": ["fd00:1::4@node-a", "fd00:1:0:1::4@node-b"],
    },
}


def exposed(kind: str, policy: str, family: Family, protocol: str) -> Service:
    """A Service with one address of a kind beside its ClusterIP, which has the other policy."""
    own = ADDRESSES[family]
    other = {"Cluster": "Local", "Local": "Cluster"}[policy]
    return service(
        cluster_ips=[str(own["cluster"])],
        ports=[f"http:80:30080/{protocol}" if kind == "node port" else f"http:80/{protocol}"],
        external_ips=[str(own["external"])] if kind == "external" else [],
        load_balancer_ips=[str(own["balanced"])] if kind == "balanced" else [],
        internal_policy=policy if kind == "cluster" else other,
        external_policy=other if kind == "cluster" else policy,
    )


def front_of(kind: str, family: Family, protocol: str) -> str:
    """The key of that address and port."""
    own = ADDRESSES[family]
    return f"{protocol} . 30080" if kind == "node port" else f"{own[kind]} . {protocol} . 80"


EXPECTED = {
    ("cluster", "Cluster"): {"services": "goto draw-{p}-endpoints: 2"},
    ("cluster", "Local"): {"services": "goto draw-{p}-local-endpoints: 1"},
    ("external", "Cluster"): {"services": "goto draw-{p}-endpoints: 2", "masqueraded": ""},
    ("external", "Local"): {
        "services": "goto draw-{p}-local-endpoints: 1",
        "local-policy": "",
        "short-circuit": "goto draw-{p}-endpoints: 2",
    },
    ("node port", "Cluster"): {"nodeport-services": "goto draw-nodeport-{p}-endpoints: 2", "nodeport-masqueraded": ""},
    ("node port", "Local"): {
        "nodeport-services": "goto draw-nodeport-{p}-local-endpoints: 1",
        "nodeport-local-policy": "",
        "nodeport-short-circuit": "goto draw-nodeport-{p}-endpoints: 2",
    },
}
EXPECTED |= {("balanced", policy): EXPECTED["external", policy] for policy in ("Cluster", "Local")}


@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize(("kind", "policy"), EXPECTED)
def test_policies_and_masquerading(kind: str, policy: str, family: Family, protocol: str) -> None:
    """Each kind of address is in just the sets that its policy asks for, with the list that this policy has."""
    pods = slice_of(endpoints=ADDRESSES[family]["pods"], ports=[f"http:8080/{protocol}"])
    made = pipeline(exposed(kind, policy, family, protocol), pods)
    prefix = "nodeport-" if kind == "node port" else ""
    expected = {name: value.format(p=protocol) for name, value in EXPECTED[kind, policy].items()}
    assert memberships(made, front_of(kind, family, protocol), family) == {
        **expected,
        f"{prefix}fronts": "",
    }


def test_the_two_lists_of_a_local_policy_are_two_maps() -> None:
    """With externalTrafficPolicy Local an address has its local endpoints in one map, all of them in another."""
    made = pipeline(service(ports=["http:80:30080"], load_balancer_ips=[VIP], external_policy="Local"), ONE_LOCAL)
    both = {f"{VIP} . 80 . 0": "10.1.0.4 . 8080", f"{VIP} . 80 . 1": "10.1.1.4 . 8080"}
    cluster_ip = {"10.96.0.10 . 80 . 0": "10.1.0.4 . 8080", "10.96.0.10 . 80 . 1": "10.1.1.4 . 8080"}
    assert elements(made, IPV4, "tcp-endpoints") == both | cluster_ip
    assert elements(made, IPV4, "tcp-local-endpoints") == {f"{VIP} . 80 . 0": "10.1.0.4 . 8080"}
    assert elements(made, IPV4, "nodeport-tcp-endpoints") == {
        "30080 . 0": "10.1.0.4 . 8080",
        "30080 . 1": "10.1.1.4 . 8080",
    }
    assert elements(made, IPV4, "nodeport-tcp-local-endpoints") == {"30080 . 0": "10.1.0.4 . 8080"}


def test_only_local_endpoints_are_hairpins() -> None:
    """A pod that may reach itself is on this node, on a list, and has the Service port's protocol."""
    made = pipeline(
        service(ports=["dns:53/udp"]),
        slice_of(
            endpoints=[
                "10.1.0.4@node-a",
                "10.1.0.5@node-a unready",
                "10.1.0.6@node-a draining",
                "10.1.0.7@node-a",
                "10.1.1.4@node-b",
            ],
            ports=["dns:5353/udp"],
        ),
    )
    assert elements(made, IPV4, "hairpin") == {
        "10.1.0.4 . 10.1.0.4 . udp . 5353": "",
        "10.1.0.7 . 10.1.0.7 . udp . 5353": "",
    }


def test_an_endpoint_on_the_local_list_only_is_a_hairpin_too() -> None:
    """A local pod that topology rules out for the cluster list may still reach itself by the local one."""
    made = pipeline(
        service(internal_policy="Local"), slice_of(endpoints=["10.1.0.4@node-a zone=b", "10.1.1.4@node-b zone=a"])
    )
    assert elements(made, IPV4, "hairpin") == {"10.1.0.4 . 10.1.0.4 . tcp . 8080": ""}


# Local sources and masquerading of ClusterIPs, in the skeleton

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
def test_what_a_local_source_is(tweaks: dict[str, Any], family: Family, match: str) -> None:
    """Local sources are told as detectLocalMode says, and nothing is known to be local without a detector."""
    facts = compiled(family=family, **tweaks)
    assert facts.local_sources == ((match.format(""),) if match else ())


@pytest.mark.parametrize(("tweaks", "family", "match"), DETECTORS)
def test_what_a_cluster_ip_masquerades(tweaks: dict[str, Any], family: Family, match: str) -> None:
    """A ClusterIP masquerades what isn't local, nothing without a detector, and everything with masqueradeAll."""
    facts = compiled(family=family, **tweaks)
    assert facts.masqueraded_sources == ((match.format("!= "),) if match else ())
    assert compiled(family=family, masquerade_all=True, **tweaks).masqueraded_sources == ("",)


def test_the_skeleton_has_rules_for_each_protocol() -> None:
    """Where a rule is of one protocol, there is one for each."""
    assert compiled().protocols == ("tcp", "udp", "sctp")


@pytest.mark.parametrize(
    ("bit", "mark", "unmark"),
    [(0, "0x1", "0xfffffffe"), (14, "0x4000", "0xffffbfff"), (31, "0x80000000", "0x7fffffff")],
)
def test_masquerading_is_asked_for_with_one_bit(bit: int, mark: str, unmark: str) -> None:
    """The mark is masqueradeBit alone, and taking it away leaves all other bits."""
    facts = compiled(masquerade_bit=bit)
    assert (facts.mark, facts.unmark) == (mark, unmark)


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
    """The ranges of all ServiceCIDRs, those of the family, without overlaps and as nft writes them."""
    assert compiled(*objects, family=family).service_cidrs == cidrs


# No endpoints

EVERY_FRONT = {
    "ClusterIP": "10.96.0.10 . tcp . 80",
    "external IP": "203.0.113.8 . tcp . 80",
    "load balancer IP": f"{VIP} . tcp . 80",
    "node port": "tcp . 30080",
}


@pytest.mark.parametrize("front", EVERY_FRONT.values(), ids=list(EVERY_FRONT))
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
@pytest.mark.parametrize(
    ("pods", "is_refused"),
    [
        ([], True),
        (["10.1.0.4@node-a unready"], True),
        (["10.1.1.4@node-b stopped"], True),
        (["10.1.1.4@node-b serving"], True),
        (["10.1.1.4@node-b"], False),
        (["10.1.1.4@node-b draining"], False),
        (["10.1.0.4@node-a unready", "10.1.1.4@node-b"], False),
        (["10.1.0.4@node-a"], False),
    ],
)
def test_what_becomes_of_what_is_not_translated(front: str, policy: str, pods: list[str], is_refused: bool) -> None:
    """It is refused if no endpoint is usable anywhere, else dropped: there are some, only not here or not yet."""
    made = pipeline(everywhere(policy), slice_of(endpoints=pods))
    found = {name.removeprefix("nodeport-") for name in memberships(made, front)}
    assert "fronts" in found
    assert ("no-endpoints" in found) is is_refused


def everywhere(policy: str) -> Service:
    """A Service with an address of every kind."""
    return service(
        type="LoadBalancer",
        ports=["http:80:30080"],
        external_ips=["203.0.113.8"],
        load_balancer_ips=[VIP],
        internal_policy=policy,
        external_policy=policy,
    )


@pytest.mark.parametrize("front", EVERY_FRONT.values(), ids=list(EVERY_FRONT))
def test_nothing_is_translated_without_an_endpoint(front: str) -> None:
    """A Service without usable endpoints has none to draw, for any source and with either policy."""
    for policy in ("Cluster", "Local"):
        found = memberships(pipeline(everywhere(policy), slice_of(endpoints=["10.1.0.4@node-a unready"])), front)
        verdicts = {verdict for name, verdict in found.items() if name.endswith(("services", "short-circuit"))}
        assert verdicts
        assert all(verdict.endswith(": 0") for verdict in verdicts)


@pytest.mark.parametrize(
    ("front", "found"),
    [
        ("ClusterIP", {"services": "goto draw-tcp-local-endpoints: 0", "fronts": ""}),
        (
            "load balancer IP",
            {
                "services": "goto draw-tcp-local-endpoints: 0",
                "fronts": "",
                "short-circuit": "goto draw-tcp-endpoints: 1",
                "local-policy": "",
            },
        ),
        (
            "node port",
            {
                "nodeport-services": "goto draw-nodeport-tcp-local-endpoints: 0",
                "nodeport-fronts": "",
                "nodeport-short-circuit": "goto draw-nodeport-tcp-endpoints: 1",
                "nodeport-local-policy": "",
            },
        ),
    ],
)
def test_with_local_policy_and_no_local_endpoint(front: str, found: dict[str, str]) -> None:
    """Sources that take the cluster list still get through to external addresses; all else is dropped."""
    made = pipeline(everywhere("Local"), NONE_LOCAL)
    assert memberships(made, EVERY_FRONT[front]) == found


# Session affinity


def test_affinity_remembers_clients() -> None:
    """The verdict goes by way of what is remembered, a second one remembers, and a third map checks the pod."""
    made = pipeline(service(affinity_timeout=10800), ONE_LOCAL)
    front = "10.96.0.10 . tcp . 80"
    assert memberships(made, front) == {
        "services": "goto draw-tcp-endpoints-sticky-10800: 2",
        "affinity": "goto remember-tcp-10800",
        "fronts": "",
    }
    assert list(elements(made, IPV4, "sticky-tcp-endpoints").items()) == [
        ("10.96.0.10 . 80 . 10.1.0.4", "10.1.0.4 . 8080"),
        ("10.96.0.10 . 80 . 10.1.1.4", "10.1.1.4 . 8080"),
    ]


def test_affinity_is_for_every_address_and_list() -> None:
    """External addresses and node ports remember too, and check a pod against the list of this very source."""
    made = pipeline(
        service(ports=["http:80:30080"], load_balancer_ips=[VIP], external_policy="Local", affinity_timeout=60),
        ONE_LOCAL,
    )
    assert elements(made, IPV4, "affinity") == {
        "10.96.0.10 . tcp . 80": "goto remember-tcp-60",
        f"{VIP} . tcp . 80": "goto remember-tcp-60",
    }
    assert elements(made, IPV4, "nodeport-affinity") == {"tcp . 30080": "goto remember-tcp-60"}
    assert elements(made, IPV4, "services")[f"{VIP} . tcp . 80"] == "goto draw-tcp-local-endpoints-sticky-60"
    assert elements(made, IPV4, "short-circuit") == {f"{VIP} . tcp . 80": "goto draw-tcp-endpoints-sticky-60"}
    assert elements(made, IPV4, "sticky-tcp-local-endpoints") == {f"{VIP} . 80 . 10.1.0.4": "10.1.0.4 . 8080"}
    assert elements(made, IPV4, "sticky-nodeport-tcp-endpoints") == {
        "30080 . 10.1.0.4": "10.1.0.4 . 8080",
        "30080 . 10.1.1.4": "10.1.1.4 . 8080",
    }
    assert elements(made, IPV4, "sticky-nodeport-tcp-local-endpoints") == {"30080 . 10.1.0.4": "10.1.0.4 . 8080"}


@pytest.mark.parametrize("pods", [[], ["10.1.0.4@node-a unready"]])
def test_no_pod_is_remembered_without_an_endpoint(pods: list[str]) -> None:
    """A Service with affinity and no usable endpoint has none that a client could be sent to still."""
    made = pipeline(service(affinity_timeout=60), slice_of(endpoints=pods))
    assert elements(made, IPV4, "sticky-tcp-endpoints") == {}
    assert memberships(made, "10.96.0.10 . tcp . 80") == {
        "services": "goto draw-tcp-endpoints-sticky-60: 0",
        "affinity": "goto remember-tcp-60",
        "fronts": "",
        "no-endpoints": "",
    }


def test_a_pod_that_serves_at_two_ports_is_remembered_once() -> None:
    """Affinity is to a pod: of its two endpoints a remembered client gets the first."""
    made = pipeline(
        service(affinity_timeout=60),
        slice_of(endpoints=["10.1.1.4@node-b"], ports=["http:8080"]),
        slice_of(endpoints=["10.1.1.4@node-b"], ports=["http:8081"], suffix="2"),
    )
    assert elements(made, IPV4, "services") == {"10.96.0.10 . tcp . 80": "goto draw-tcp-endpoints-sticky-60"}
    assert elements(made, IPV4, "sticky-tcp-endpoints") == {"10.96.0.10 . 80 . 10.1.1.4": "10.1.1.4 . 8080"}


def test_an_nft_with_wide_maps_remembers_ipv6_clients() -> None:
    """With wide maps IPv6 has the same affinity as IPv4."""
    made = pipeline(
        service(cluster_ips=["fd00:96::10"], affinity_timeout=60), slice_of(endpoints=["fd00:1:0:1::4"]), wide_maps=True
    )
    assert elements(made, IPV6, "services") == {"fd00:96::10 . tcp . 80": "goto draw-tcp-endpoints-sticky-60"}
    assert elements(made, IPV6, "sticky-tcp-endpoints") == {"fd00:96::10 . 80 . fd00:1:0:1::4": "fd00:1:0:1::4 . 8080"}


@pytest.mark.parametrize(
    ("chain", "facts"),
    [
        ("udp-endpoints-of-2", ("ip daddr . udp dport", "ct original ip daddr . udp dport", "numgen random mod 2")),
        ("nodeport-udp-endpoints-of-2", ("udp dport", "udp dport", "numgen random mod 2")),
        (
            "udp-endpoints-of-3-by-client",
            (
                "ip6 daddr . udp dport",
                "ct original ip6 daddr . udp dport",
                "jhash ip6 saddr mod 3 seed 0x6e667470",
            ),
        ),
        (
            "nodeport-udp-endpoints-of-3-by-client",
            ("udp dport", "udp dport", "jhash ip6 saddr mod 3 seed 0x6e667470"),
        ),
    ],
)
def test_how_an_endpoint_is_drawn(chain: str, facts: tuple[str, str, str]) -> None:
    """By address and port, or by node port; at random, or by the client's address where it can't be remembered."""
    dual = service(cluster_ips=["10.96.0.10", "fd00:96::10"], ports=["dns:53:30053/udp"], affinity_timeout=60)
    pods = [
        slice_of(endpoints=["10.1.1.4", "10.1.1.5"], ports=["dns:53/udp"]),
        slice_of(endpoints=["fd00:1::4", "fd00:1::5", "fd00:1::6"], ports=["dns:53/udp"], suffix="6"),
    ]
    made = pipeline(dual, *pods, wide_maps=False)
    ((_, found),) = compile_service(
        made.state, made.settings, IPV6 if chain.endswith("by-client") else IPV4, made.state.services[key("shop/web")]
    )
    asked = {each.list: each.asked for each in found.lists}
    drawn = {f"{each.list}-of-{each.count}{each.suffix}": each for each in found.draws}[chain]
    assert (drawn.where, asked[drawn.list], drawn.draw) == facts


@pytest.mark.parametrize(("family", "number"), [(IPV4, "0.0.0.1"), (IPV6, "::1")])
def test_a_number_of_endpoints_is_written_as_an_address(family: Family, number: str) -> None:
    """It is an address of the family, since that is where it is put."""
    pods = [slice_of(endpoints=["10.1.1.4"]), slice_of(endpoints=["fd00:1::4"], suffix="6")]
    made = pipeline(service(cluster_ips=["10.96.0.10", "fd00:96::10"]), *pods)
    assert list(elements(made, family, "tcp-endpoints-count").values()) == [number]


def test_what_is_its_own_endpoint_counts_as_not_translated() -> None:
    """A server of the node's own at the very address or node port is reached as it is, so that must not be dropped."""
    told = service(type="NodePort", ports=["http:80:30080"], external_ips=["10.1.0.5", "203.0.113.8"])
    pods = ["10.1.0.4@node-a", "10.1.0.5@node-a"]
    at_port = {port: pipeline(told, slice_of(endpoints=pods, ports=[f"http:{port}"])) for port in (80, 30080, 8080)}
    fronts = {port: elements(made, IPV4, "fronts").keys() for port, made in at_port.items()}
    node_ports = {port: elements(made, IPV4, "nodeport-fronts").keys() for port, made in at_port.items()}
    rest = {"10.96.0.10 . tcp . 80", "203.0.113.8 . tcp . 80"}
    assert fronts == {80: rest, 30080: rest | {"10.1.0.5 . tcp . 80"}, 8080: rest | {"10.1.0.5 . tcp . 80"}}
    assert node_ports == {80: {"tcp . 30080"}, 30080: set(), 8080: {"tcp . 30080"}}


@pytest.mark.parametrize(("family", "numbers"), [(IPV4, "0.0.0.0/8"), (IPV6, "::/96")])
def test_numbers_are_no_addresses(family: Family, numbers: str) -> None:
    """What has a number of endpoints for an address is told by it: nothing on a network has such a one."""
    made = pipeline(service(cluster_ips=["10.96.0.10", "fd00:96::10"]), ONE_LOCAL)
    ((_, found),) = compile_service(made.state, made.settings, family, made.state.services[key("shop/web")])
    assert [each.numbers for each in found.lists] == [numbers]


def test_an_nft_that_cannot_remember_ipv6_clients_hashes_them() -> None:
    """Without wide maps IPv6 has no affinity elements, but a chain that draws by the client's address."""
    made = pipeline(
        service(cluster_ips=["10.96.0.10", "fd00:96::10"], affinity_timeout=60),
        ONE_LOCAL,
        slice_of(endpoints=["fd00:1:0:1::4@node-b", "fd00:1:0:1::5@node-b"], suffix="2"),
        wide_maps=False,
    )
    assert memberships(made, "fd00:96::10 . tcp . 80", IPV6) == {
        "services": "goto draw-tcp-endpoints-by-client: 2",
        "fronts": "",
    }
    assert elements(made, IPV6, "sticky-tcp-endpoints") == {}
    assert elements(made, IPV4, "services") == {"10.96.0.10 . tcp . 80": "goto draw-tcp-endpoints-sticky-60"}


# Source ranges


@pytest.mark.parametrize(
    ("ranges", "allowed"),
    [
        ([], None),
        (["198.51.100.0/24"], ["198.51.100.0/24"]),
        (["198.51.100.7/32"], ["198.51.100.7"]),
        (["198.51.100.128/25", "198.51.100.0/24"], ["198.51.100.0/24"]),
        (["198.51.101.0/24", "198.51.100.0/24"], ["198.51.100.0/23"]),
        (["198.51.100.0/24", "2001:db8::/32"], ["198.51.100.0/24"]),
        (["2001:db8::/32"], None),
        (["198.51.100.0/24", "0.0.0.0/0"], None),
        (["198.51.100.0/24", "::/0"], ["198.51.100.0/24"]),
        # the node's own address is admitted, so what it sends from the load balancer's address is too
        (["192.168.0.0/24"], ["192.168.0.0/24", VIP]),
        (["198.51.100.0/24", "192.168.0.2/32"], ["192.168.0.2", "198.51.100.0/24", VIP]),
        # nobody, as where none of the ranges could be read
        (["0.0.0.0/32"], ["0.0.0.0"]),
    ],
)
def test_source_ranges_restrict_a_load_balancer_ip(ranges: list[str], allowed: list[str] | None) -> None:
    """Ranges of the family restrict, merged; without any, or with one that is all addresses, nothing does."""
    made = pipeline(service(type="LoadBalancer", load_balancer_ips=[VIP], source_ranges=ranges), ONE_LOCAL)
    front = f"{VIP} . tcp . 80"
    assert elements(made, IPV4, "guarded") == ({} if allowed is None else {front: ""})
    assert list(elements(made, IPV4, "allowed")) == [f"{front} . {source}" for source in allowed or []]


def test_every_load_balancer_ip_is_restricted() -> None:
    """Each range is admitted to each of several load balancer IPs, all of which are masqueraded."""
    ranges, addresses = ["198.51.100.0/24", "203.0.113.64/26"], [VIP, "203.0.113.8"]
    made = pipeline(service(type="LoadBalancer", load_balancer_ips=addresses, source_ranges=ranges))
    fronts = [f"{address} . tcp . 80" for address in addresses]
    assert elements(made, IPV4, "guarded") == elements(made, IPV4, "masqueraded") == dict.fromkeys(fronts, "")
    wanted = {f"{front} . {source}": "" for front in fronts for source in ranges}
    assert elements(made, IPV4, "allowed") == wanted


def test_a_range_with_the_nodes_address_admits_every_load_balancer_ip() -> None:
    """What the node sends to one of several load balancer IPs may come from another of them."""
    addresses = [VIP, "203.0.113.9"]
    made = pipeline(service(type="LoadBalancer", load_balancer_ips=addresses, source_ranges=["192.168.0.0/24"]))
    sources = ["192.168.0.0/24", *addresses]
    assert elements(made, IPV4, "allowed") == {
        f"{address} . tcp . 80 . {source}": "" for address in addresses for source in sources
    }


def test_the_nodes_address_is_the_first_of_the_family() -> None:
    """A range that holds only another address of the node admits no more than it says."""
    balanced = service(load_balancer_ips=[VIP], source_ranges=["192.168.0.3/32"])
    assert list(elements(pipeline(balanced, node=DUAL), IPV4, "allowed")) == [f"{VIP} . tcp . 80 . 192.168.0.3"]


def test_a_load_balancer_ip_that_is_the_cluster_ip_is_not_restricted() -> None:
    """A Service's own ClusterIP is never restricted, be it its load balancer IP too."""
    made = pipeline(service(load_balancer_ips=["10.96.0.10"], source_ranges=["198.51.100.0/24"]), ONE_LOCAL)
    assert rules(made) == rules(pipeline(service(), ONE_LOCAL))


def test_source_ranges_of_a_node_of_which_no_address_is_known() -> None:
    """Without the Node the ranges hold as they are given."""
    balanced = service(load_balancer_ips=[VIP], source_ranges=["192.168.0.0/24"])
    assert list(elements(pipeline(balanced, node=None), IPV4, "allowed")) == [f"{VIP} . tcp . 80 . 192.168.0.0/24"]


@pytest.mark.parametrize("pods", [[], ["10.1.1.4@node-b"]])
def test_source_ranges_restrict_nothing_else(pods: list[str]) -> None:
    """ClusterIP, external IPs and node ports are never restricted; the load balancer IP is, endpoints or not."""
    made = pipeline(
        service(
            type="LoadBalancer",
            ports=["http:80:30080"],
            external_ips=["203.0.113.8"],
            load_balancer_ips=[VIP],
            source_ranges=["198.51.100.0/24"],
        ),
        slice_of(endpoints=pods),
    )
    assert elements(made, IPV4, "guarded") == {f"{VIP} . tcp . 80": ""}
    assert elements(made, IPV4, "allowed") == {f"{VIP} . tcp . 80 . 198.51.100.0/24": ""}


# Node ports

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
    """By default the node's first address, else what CIDRs select on its interfaces, else every local one."""
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
    assert elements(made, IPV4, "nodeport-services") == {"tcp . 30080": "goto draw-nodeport-tcp-endpoints"}


def test_node_ports_follow_the_nodes_addresses() -> None:
    """Node ports come and go as addresses that serve them do."""
    made = pipeline(service(ports=["http:80:30080"]), ONE_LOCAL, node_port_addresses=["10.0.0.0/8"])
    for present, served in [(["10.0.0.1", "11.0.0.1"], {"10.0.0.1": ""}), (["11.0.0.1"], {})]:
        made.apply([Put(host_addresses(*present))])
        assert elements(made, IPV4, "nodeport-ips") == served
        assert bool(elements(made, IPV4, "nodeport-services")) is bool(served)


# Conflicts


def contested(**tweaks: Any) -> list[Told]:
    """Two Services, shop/web the older one, with an endpoint each."""
    return [
        service("shop/web", created=1, ports=["http:80:30080"], **tweaks),
        service("blog/api", created=2, ports=["http:80:30080"], external_ips=["203.0.113.8"], **tweaks),
        slice_of(endpoints=["10.1.1.4@node-b"]),
        slice_of("blog/api", ["10.1.1.5@node-b", "10.1.1.6@node-b"]),
    ]


def test_the_older_service_keeps_a_contested_address() -> None:
    """The winner is served as if it were alone; the loser keeps what nobody else claims."""
    made = pipeline(*contested())
    assert rules(made)["services"] == {
        "10.96.0.10 . tcp . 80": "goto draw-tcp-endpoints: 1",
        "203.0.113.8 . tcp . 80": "goto draw-tcp-endpoints: 2",
    }
    assert elements(made, IPV4, "nodeport-tcp-endpoints") == {"30080 . 0": "10.1.1.4 . 8080"}


def test_who_loses_everything_is_known_by_its_address_only() -> None:
    """A Service that owns nothing contributes no endpoints, chains or hairpins, only its ClusterIP."""
    loser = service("blog/api", created=2)
    made = pipeline(service(created=1), loser, slice_of("blog/api", ["10.1.0.4@node-a"]))
    assert rules(made) == rules(pipeline(service(created=1)))


def test_every_port_that_is_lost_is_told() -> None:
    """Each port of a Service counts, and of its ClusterIPs and external addresses each."""
    ports, addresses = ["a:80", "b:81"], ["203.0.113.8", "203.0.113.9"]
    made = pipeline(
        service(created=1, ports=ports, external_ips=addresses),
        service("blog/api", created=2, cluster_ips=["10.96.0.20"], ports=ports, external_ips=addresses),
    )
    lost = lost_claims(made.state, made.settings, IPV4, made.state.services[key("blog/api")])
    assert [(each.port_name, each.what) for each in lost] == [
        (name, f"{address} . tcp . {port}") for name, port in (("a", 80), ("b", 81)) for address in addresses
    ]


def test_the_loser_takes_over_when_the_winner_lets_go() -> None:
    """The moment that the older Service is gone the younger one is served everywhere."""
    made = pipeline(*contested())
    made.apply([Removed(Service, key("shop/web"))])
    assert elements(made, IPV4, "services")["10.96.0.10 . tcp . 80"] == "goto draw-tcp-endpoints"
    assert elements(made, IPV4, "nodeport-services") == {"tcp . 30080": "goto draw-nodeport-tcp-endpoints"}


def test_the_loser_is_told_what_and_why() -> None:
    """Every address, port and node port that a Service claims in vain is listed, with the winner."""
    made = pipeline(*contested())
    why = "it belongs to Service shop/web, which takes precedence"
    assert lost_claims(made.state, made.settings, IPV4, made.state.services[key("blog/api")]) == [
        Lost(key("blog/api"), "http", "10.96.0.10 . tcp . 80", why),
        Lost(key("blog/api"), "http", "tcp . 30080", why),
    ]
    assert lost_claims(made.state, made.settings, IPV4, made.state.services[key("shop/web")]) == []
    assert lost_claims(made.state, made.settings, IPV6, made.state.services[key("blog/api")]) == []


def test_the_losers_source_ranges_do_not_count() -> None:
    """Who may reach a contested load balancer IP is for its owner to say."""
    made = pipeline(
        service("shop/web", created=1, load_balancer_ips=[VIP]),
        service(
            "blog/api",
            created=2,
            cluster_ips=["10.96.0.20"],
            load_balancer_ips=[VIP, "203.0.113.8"],
            source_ranges=["198.51.100.0/24"],
        ),
    )
    assert elements(made, IPV4, "guarded") == {"203.0.113.8 . tcp . 80": ""}


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("10.96.0.10", "it is the ClusterIP of shop/web"),
        ("192.168.0.2", "it is an address of the node itself"),
        ("203.0.113.2", "it is an address of the node itself"),
    ],
)
@pytest.mark.parametrize("kind", ["external_ips", "load_balancer_ips"])
@pytest.mark.parametrize("port", ["http:80", "http:81"])
def test_an_external_address_captures_nothing_from_others(kind: str, address: str, why: str, port: str) -> None:
    """Neither another Service's ClusterIP nor an address of the node is captured, on any port, by whatever age."""
    claimed: dict[str, Any] = {kind: [address]}
    thief = service("blog/api", created=1, cluster_ips=["10.96.0.20"], ports=[port], **claimed)
    made = pipeline(service(created=2), thief, node=node(external_ips=["203.0.113.2"]))
    assert not memberships(made, f"{address} . tcp . 81")
    assert [(lost.what, lost.why) for lost in lost_claims(made.state, made.settings, IPV4, thief)] == [
        (f"{address} . tcp . {port[-2:]}", why)
    ]


def test_an_external_address_that_is_its_own_cluster_ip_is_the_cluster_ip() -> None:
    """A Service whose external IP is its ClusterIP is reached there by the internal policy, once."""
    made = pipeline(service(external_ips=["10.96.0.10"], external_policy="Local"), ONE_LOCAL)
    assert rules(made) == rules(pipeline(service(), ONE_LOCAL))


def test_external_ips_can_be_turned_off() -> None:
    """Without AllowServiceExternalIPs no external IP is served, and load balancer IPs still are."""
    both = service(external_ips=["203.0.113.8"], load_balancer_ips=[VIP])
    made = pipeline(both, ONE_LOCAL, allow_service_external_ips=False)
    assert elements(made, IPV4, "services").keys() == {"10.96.0.10 . tcp . 80", f"{VIP} . tcp . 80"}
    assert lost_claims(made.state, made.settings, IPV4, both) == []


def test_external_ips_that_are_turned_off_are_no_claims() -> None:
    """An older Service's external IP that is not served is free for a younger one's load balancer."""
    older = service("blog/api", cluster_ips=["10.96.0.20"], external_ips=[VIP], created=1)
    made = pipeline(older, service(load_balancer_ips=[VIP], created=2), ONE_LOCAL, allow_service_external_ips=False)
    assert elements(made, IPV4, "services")[f"{VIP} . tcp . 80"] == "goto draw-tcp-endpoints"


def test_a_health_check_port_takes_a_younger_node_port() -> None:
    """A node port that is an older Service's health-check port is not served."""
    made = pipeline(
        service(created=1, type="LoadBalancer", external_policy="Local", health_check_node_port=30080),
        service("blog/api", created=2, cluster_ips=["10.96.0.20"], ports=["http:80:30080"]),
    )
    assert not memberships(made, "tcp . 30080")


def test_a_lost_health_check_node_port_is_reported() -> None:
    """A health-check node port that an older Service has is reported as lost."""
    older = service("shop/older", cluster_ips=["10.96.0.1"], created=1, type="NodePort", ports=["http:80:32000/tcp"])
    younger = service(
        "shop/younger",
        cluster_ips=["10.96.0.2"],
        created=2,
        type="LoadBalancer",
        external_policy="Local",
        health_check_node_port=32000,
        ports=["http:80/tcp"],
    )
    made = pipeline(older, younger)
    lost = lost_claims(made.state, made.settings, Family.IPV4, younger)
    why = "it belongs to Service shop/older, which takes precedence"
    assert lost == [Lost(key("shop/younger"), "", "health-check node port 32000", why)]
