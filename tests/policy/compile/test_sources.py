"""Treatment of a connection by its source: traffic policies, masquerading, source ranges, hairpins."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from nftproxy.model.addresses import Family
from nftproxy.model.events import Removed
from nftproxy.model.objects import Service
from nftproxy.policy.claims import Denial
from nftproxy.policy.ranges import range_keys
from nftproxy.policy.restrictions import lost_claims
from tests.policy.compile.membership import DUAL, ONE_LOCAL, VIP, memberships, rules
from tests.support.factories import IPV4, IPV6, elements, pipeline, service, slice_of

# ---- policies and masquerading: kind of address x policy x family x protocol ---------------------------------------

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
    """A Service whose ClusterIP has one policy and whose only other address has the other."""
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
    ("cluster", "Cluster"): {"services": "{p}-endpoints-of-2"},
    ("cluster", "Local"): {"services": "{p}-local-endpoints-of-1"},
    ("external", "Cluster"): {"services": "{p}-endpoints-of-2", "masqueraded": ""},
    ("external", "Local"): {
        "services": "{p}-local-endpoints-of-1",
        "local-policy": "",
        "short-circuit": "{p}-endpoints-of-2",
    },
    ("node port", "Cluster"): {"nodeport-services": "nodeport-{p}-endpoints-of-2", "nodeport-masqueraded": ""},
    ("node port", "Local"): {
        "nodeport-services": "nodeport-{p}-local-endpoints-of-1",
        "nodeport-local-policy": "",
        "nodeport-short-circuit": "nodeport-{p}-endpoints-of-2",
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
    """With externalTrafficPolicy Local an address has its local endpoints in one map, and all endpoints in another."""
    made = pipeline(service(ports=["http:80:30080"], load_balancer_ips=[VIP], external_policy="Local"), ONE_LOCAL)
    both = {f"{VIP} . 80 . 0.0.0.0": "10.1.0.4 . 8080", f"{VIP} . 80 . 0.0.0.1": "10.1.1.4 . 8080"}
    cluster_ip = {"10.96.0.10 . 80 . 0.0.0.0": "10.1.0.4 . 8080", "10.96.0.10 . 80 . 0.0.0.1": "10.1.1.4 . 8080"}
    assert elements(made, IPV4, "tcp-endpoints") == both | cluster_ip
    assert elements(made, IPV4, "tcp-local-endpoints") == {f"{VIP} . 80 . 0.0.0.0": "10.1.0.4 . 8080"}
    assert elements(made, IPV4, "nodeport-tcp-endpoints") == {
        "30080 . 0.0.0.0": "10.1.0.4 . 8080",
        "30080 . 0.0.0.1": "10.1.1.4 . 8080",
    }
    assert elements(made, IPV4, "nodeport-tcp-local-endpoints") == {"30080 . 0.0.0.0": "10.1.0.4 . 8080"}


def test_only_local_endpoints_are_hairpins() -> None:
    """A hairpin is of a pod on this node that is on a list, with the Service port's protocol."""
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
    """A local pod that topology takes off the cluster list may still reach itself by the local list."""
    made = pipeline(
        service(internal_policy="Local"), slice_of(endpoints=["10.1.0.4@node-a zone=b", "10.1.1.4@node-b zone=a"])
    )
    assert elements(made, IPV4, "hairpin") == {"10.1.0.4 . 10.1.0.4 . tcp . 8080": ""}


# ---- source ranges -------------------------------------------------------------------------------------------------


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
    """The family's ranges restrict, merged, unless there are none or a range has all addresses."""
    made = pipeline(service(type="LoadBalancer", load_balancer_ips=[VIP], source_ranges=ranges), ONE_LOCAL)
    front = f"{VIP} . tcp . 80"
    assert elements(made, IPV4, "guarded") == ({} if allowed is None else {front: "10.96.0.10"})
    keys = [f"10.96.0.10 . {key}" for source in allowed or [] for key in range_keys([ip_network(source)])]
    assert list(elements(made, IPV4, "allowed")) == keys


def test_every_load_balancer_ip_is_restricted() -> None:
    """All load balancer IPs and ports, which are masqueraded, share one list.  Ports don't multiply the ranges."""
    ranges, addresses = ["198.51.100.0/24", "203.0.113.64/28"], [VIP, "203.0.113.8"]
    ports = ["a:80", "b:81"]
    made = pipeline(service(type="LoadBalancer", load_balancer_ips=addresses, source_ranges=ranges, ports=ports))
    fronts = [f"{address} . tcp . {port}" for port in (80, 81) for address in addresses]
    assert elements(made, IPV4, "guarded") == dict.fromkeys(fronts, "10.96.0.10")
    assert elements(made, IPV4, "masqueraded") == dict.fromkeys(fronts, "")
    assert elements(made, IPV4, "allowed") == {f"10.96.0.10 . {source.replace('/', ' . ')}": "" for source in ranges}
    blocks = made.generations[IPV4].blocks.values()
    assert sum(element.container == "allowed" for block in blocks for element in block.elements) == len(ranges)


def test_a_service_that_shares_its_cluster_ip_admits_nobody() -> None:
    """If two Services share a ClusterIP the first has the list, and the second's load balancer IP admits nobody."""
    older, younger = (
        service(
            name,
            created=age,
            load_balancer_ips=[ip, "10.96.0.10"],
            external_ips=[f"203.0.113.2{age}"],
            source_ranges=["198.51.100.0/24"],
            ports=[f"x:{age}:{30000 + age}"],
        )
        for name, age, ip in (("shop/web", 1, VIP), ("shop/cart", 2, "203.0.113.8"))
    )
    made = pipeline(older, younger)
    assert elements(made, IPV4, "guarded") == {f"{VIP} . tcp . 1": "10.96.0.10", "203.0.113.8 . tcp . 2": "0.0.0.0"}
    assert elements(made, IPV4, "allowed") == {"10.96.0.10 . 198.51.100.0 . 24": ""}
    (lost,) = lost_claims(made.state, made.settings, IPV4, younger)
    assert (lost.what, lost.denial) == ("203.0.113.8:2/TCP", Denial.CLOSED)
    assert lost_claims(made.state, made.settings, IPV4, older) == []
    made.ingest([Removed(Service, older.key)])
    assert elements(made, IPV4, "guarded") == {"203.0.113.8 . tcp . 2": "10.96.0.10"}
    assert made.losses.by_service == {}


def test_a_range_with_the_nodes_address_admits_every_load_balancer_ip() -> None:
    """The node's packets to a load balancer IP may come from another of these IPs."""
    addresses = [VIP, "203.0.113.9"]
    made = pipeline(service(type="LoadBalancer", load_balancer_ips=addresses, source_ranges=["192.168.0.0/24"]))
    sources = ["192.168.0.0 . 24", *(f"{address} . 32" for address in addresses)]
    assert elements(made, IPV4, "allowed") == {f"10.96.0.10 . {source}": "" for source in sources}


def test_the_nodes_address_is_the_first_of_the_family() -> None:
    """A range that holds only another address of the node admits no more than it says."""
    balanced = service(load_balancer_ips=[VIP], source_ranges=["192.168.0.3/32"])
    assert list(elements(pipeline(balanced, node=DUAL), IPV4, "allowed")) == ["10.96.0.10 . 192.168.0.3 . 32"]


def test_a_load_balancer_ip_that_is_the_cluster_ip_is_not_restricted() -> None:
    """A Service's own ClusterIP is never restricted, even if it is also its load balancer IP."""
    made = pipeline(service(load_balancer_ips=["10.96.0.10"], source_ranges=["198.51.100.0/24"]), ONE_LOCAL)
    assert rules(made) == rules(pipeline(service(), ONE_LOCAL))


def test_source_ranges_of_a_node_of_which_no_address_is_known() -> None:
    """Without the Node the ranges hold as they are given."""
    balanced = service(load_balancer_ips=[VIP], source_ranges=["192.168.0.0/24"])
    assert list(elements(pipeline(balanced, node=None), IPV4, "allowed")) == ["10.96.0.10 . 192.168.0.0 . 24"]


@pytest.mark.parametrize("pods", [[], ["10.1.1.4@node-b"]])
def test_source_ranges_restrict_nothing_else(pods: list[str]) -> None:
    """Only the load balancer IP is restricted, endpoints or not, and no ClusterIP, external IP or node port."""
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
    assert elements(made, IPV4, "guarded") == {f"{VIP} . tcp . 80": "10.96.0.10"}
    assert elements(made, IPV4, "allowed") == {"10.96.0.10 . 198.51.100.0 . 24": ""}
