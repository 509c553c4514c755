"""How a connection gets its endpoint, drawn or remembered, and the verdict if there is no endpoint."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from nftproxy.model.addresses import Family
from nftproxy.model.events import Put
from nftproxy.model.objects import Service
from nftproxy.policy.compile import compile_service
from nftproxy.policy.skeleton import compile_table
from tests.policy.compile.membership import NONE_LOCAL, ONE_LOCAL, VIP, drawn, memberships
from tests.support.factories import IPV4, IPV6, elements, key, pipeline, service, slice_of

# ---- no endpoints --------------------------------------------------------------------------------------------------

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
def test_untranslated_packets_are_rejected_or_dropped(
    front: str, policy: str, pods: list[str], is_refused: bool
) -> None:
    """A packet to a front is rejected if no endpoint is usable on any node, else dropped."""
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
        assert all(verdict == "nothing" for verdict in verdicts)


@pytest.mark.parametrize(
    ("front", "found"),
    [
        ("ClusterIP", {"services": "nothing", "fronts": ""}),
        (
            "load balancer IP",
            {
                "services": "nothing",
                "fronts": "",
                "short-circuit": "tcp-endpoints-of-1",
                "local-policy": "",
            },
        ),
        (
            "node port",
            {
                "nodeport-services": "nothing",
                "nodeport-fronts": "",
                "nodeport-short-circuit": "nodeport-tcp-endpoints-of-1",
                "nodeport-local-policy": "",
            },
        ),
    ],
)
def test_with_local_policy_and_no_local_endpoint(front: str, found: dict[str, str]) -> None:
    """Sources with the cluster list still reach external addresses, and all other packets are dropped."""
    made = pipeline(everywhere("Local"), NONE_LOCAL)
    assert memberships(made, EVERY_FRONT[front]) == found


@pytest.mark.parametrize("at", ["@node-a", ""], ids=["of this node", "without a node"])
def test_a_server_at_its_own_front_is_reached_untranslated(at: str) -> None:
    """A server at the front's address, or at the node port of the node's address, is not dropped.

    A pod's port may have the number of the node port.  Packets to the node port are translated to that.
    """
    given = service(type="NodePort", ports=["http:80:30080"], external_ips=["10.1.0.5", "203.0.113.8"])
    pods = [f"10.1.0.4{at}", f"10.1.0.5{at}"]
    at_port = {port: pipeline(given, slice_of(endpoints=pods, ports=[f"http:{port}"])) for port in (80, 30080, 8080)}
    fronts = {port: elements(made, IPV4, "fronts").keys() for port, made in at_port.items()}
    node_ports = {port: elements(made, IPV4, "nodeport-fronts").keys() for port, made in at_port.items()}
    rest = {"10.96.0.10 . tcp . 80", "203.0.113.8 . tcp . 80"}
    assert fronts == {80: rest, 30080: rest | {"10.1.0.5 . tcp . 80"}, 8080: rest | {"10.1.0.5 . tcp . 80"}}
    assert all(found == {"tcp . 30080"} for found in node_ports.values())
    server = f"192.168.0.2{at}"
    at_port = {port: pipeline(given, slice_of(endpoints=[server], ports=[f"http:{port}"])) for port in (80, 30080)}
    node_ports = {port: elements(made, IPV4, "nodeport-fronts").keys() for port, made in at_port.items()}
    assert node_ports == {80: {"tcp . 30080"}, 30080: set()}


# ---- the draw ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "asked", "draw"),
    [
        ("udp-endpoints-of-2", "ct original ip daddr . udp dport", "numgen random mod 2"),
        ("nodeport-udp-endpoints-of-2", "udp dport", "numgen random mod 2"),
        (
            "udp-endpoints-of-3-by-client",
            "ct original ip6 daddr . udp dport",
            "meta l4proto . jhash ip6 saddr mod 3 seed 0x6e667470 map @udp-slots-4",
        ),
        (
            "nodeport-udp-endpoints-of-3-by-client",
            "udp dport",
            "meta l4proto . jhash ip6 saddr mod 3 seed 0x6e667470 map @udp-slots-4",
        ),
    ],
)
def test_how_an_endpoint_is_drawn(chain: str, asked: str, draw: str) -> None:
    """A draw is by address and port or by node port, and at random, or by client address without affinity maps."""
    dual = service(cluster_ips=["10.96.0.10", "fd00:96::10"], ports=["dns:53:30053/udp"], affinity_timeout=60)
    pods = [
        slice_of(endpoints=["10.1.1.4", "10.1.1.5"], ports=["dns:53/udp"]),
        slice_of(endpoints=["fd00:1::4", "fd00:1::5", "fd00:1::6"], ports=["dns:53/udp"], suffix="6"),
    ]
    made = pipeline(dual, *pods, wide_maps=False)
    ((_, found),) = compile_service(
        made.state, made.settings, IPV6 if chain.endswith("by-client") else IPV4, made.state.services[key("shop/web")]
    )
    keys = {each.list: each.asked for each in found.lists}
    facts = {f"{each.list}-of-{each.count}{each.suffix}": each for each in found.draws}[chain]
    assert (keys[facts.list], facts.draw) == (asked, draw)


@pytest.mark.parametrize(
    ("algorithm", "draw"),
    [
        ("random", "numgen random mod 2"),
        ("round-robin", "numgen inc mod 16"),
        ("source-hash", "jhash ip saddr mod 2 seed 0x6e667470"),
        ("source-hash-with-port", "jhash ip saddr . tcp sport mod 2 seed 0x6e667470"),
    ],
)
def test_how_an_algorithm_draws(algorithm: str, draw: str) -> None:
    """At random, in turn over slots enough for weights, or by a hash of the client."""
    web = service(annotations={"algorithm": algorithm})
    made = pipeline(web, slice_of(endpoints=["10.1.1.4", "10.1.1.5"]))
    ((_, found),) = compile_service(made.state, made.settings, IPV4, web)
    assert [each.draw for each in found.draws] == [draw]


@pytest.mark.parametrize(
    ("count", "name"), [(1, "tcp-slots-1"), (2, "tcp-slots-2"), (3, "tcp-slots-4"), (4, "tcp-slots-4")]
)
def test_slots_become_addresses_of_ipv6_by_a_map(count: int, name: str) -> None:
    """A slot is a number of 32 bits, which the kernel doesn't write over 128: a map of a power of two has all."""
    pods = slice_of(endpoints=[f"fd00:1::{number}" for number in range(4, 4 + count)])
    made = pipeline(service(cluster_ips=["fd00:96::10"]), pods)
    size = int(name.removeprefix("tcp-slots-"))
    assert elements(made, IPV6, name) == {f"tcp . {slot}": f"::{slot or ''}" for slot in range(size)}


@pytest.mark.parametrize(("family", "number"), [(IPV4, "0.0.0.1"), (IPV6, "::1")])
def test_a_number_of_endpoints_is_written_as_an_address(family: Family, number: str) -> None:
    """It is an address of the family, since that is where it is put."""
    pods = [slice_of(endpoints=["10.1.1.4"]), slice_of(endpoints=["fd00:1::4"], suffix="6")]
    made = pipeline(service(cluster_ips=["10.96.0.10", "fd00:96::10"]), *pods)
    assert list(elements(made, family, "services").values()) == [number]


@pytest.mark.parametrize(("family", "numbers"), [(IPV4, "0.0.0.0/8"), (IPV6, "::/96")])
def test_numbers_are_no_addresses(family: Family, numbers: str) -> None:
    """A packet with a number for an address is recognised by it, as no network uses such addresses."""
    pods = [slice_of(endpoints=["10.1.1.4"]), slice_of(endpoints=["fd00:1::4"], suffix="6")]
    made = pipeline(service(cluster_ips=["10.96.0.10", "fd00:96::10"]), *pods)
    ((_, found),) = compile_service(made.state, made.settings, family, made.state.services[key("shop/web")])
    assert [each.numbers for each in found.lists] == [numbers]
    assert compile_table(made.state, made.settings, family).numbers == numbers


def test_no_map_that_grows_with_services_has_verdicts() -> None:
    """The number of verdicts that the kernel walks through doesn't grow with Services."""
    few, many = (_verdicts(100 * times) for times in (1, 3))
    assert few == many
    assert sum(few.values()) > 10


def _verdicts(services: int) -> Counter[str]:
    """The number of verdicts in each map, with Services of all kinds."""
    made = pipeline(
        *(
            service(
                f"shop/web{number}",
                cluster_ips=[f"10.96.{number // 200}.{number % 200 + 1}"],
                ports=[f"http:80:{30000 + number}"],
                external_ips=[f"203.0.{number // 200}.{number % 200 + 1}"],
                external_policy="Local" if number % 2 else "Cluster",
                affinity_timeout=60 if number % 3 else None,
            )
            for number in range(services)
        ),
        *(
            slice_of(f"shop/web{number}", endpoints=[f"10.1.0.{each}@node-a" for each in range(1, number % 4 + 1)])
            for number in range(services)
        ),
    )
    return Counter(
        each.container for each in made.generations[IPV4].elements() if " " in each.value and ". " not in each.value
    )


@pytest.mark.parametrize("family", [IPV4, IPV6])
def test_a_new_number_of_endpoints_asks_no_map_that_grows(family: Family) -> None:
    """A new number's chain looks up no map but its own, as the kernel walks through every map of a new chain."""
    vip, pods = {IPV4: ("10.96.0.10", "10.1.1.{}"), IPV6: ("fd00:96::10", "fd00:1::{}")}[family]
    given = service(cluster_ips=[vip], ports=["http:80:30080"], affinity_timeout=60)
    endpoints = [pods.format(number) for number in range(1, 6)]
    made = pipeline(given, slice_of(endpoints=endpoints[:2]))
    before = made.generations[family].declarations.keys()
    known = set(before)
    made.ingest([Put(slice_of(endpoints=endpoints))])
    declared = made.generations[family].declarations
    new = {name for _, name in declared.keys() - known}
    assert "tcp-endpoints-of-5" in new
    asked = {
        name
        for (_, made_now), each in declared.items()
        if made_now in new
        for line in each.body
        for name in re.findall(r"@([\w-]+)", line)
    }
    assert asked == {IPV4: set(), IPV6: {"tcp-slots-8"}}[family]
    assert asked <= new


# ---- session affinity ----------------------------------------------------------------------------------------------


def test_affinity_remembers_clients() -> None:
    """The verdict jumps to the lookup of clients, a second verdict remembers, and a third map checks the pod."""
    made = pipeline(service(affinity_timeout=10800), ONE_LOCAL)
    front = "10.96.0.10 . tcp . 80"
    assert memberships(made, front) == {
        "services": "tcp-endpoints-of-2-sticky",
        "affinity": "0.0.42.48",
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
        "10.96.0.10 . tcp . 80": "0.0.0.60",
        f"{VIP} . tcp . 80": "0.0.0.60",
    }
    assert elements(made, IPV4, "nodeport-affinity") == {"tcp . 30080": "0.0.0.60"}
    assert drawn(made, IPV4, "services")[f"{VIP} . tcp . 80"] == "tcp-local-endpoints-of-1-sticky"
    assert drawn(made, IPV4, "short-circuit") == {f"{VIP} . tcp . 80": "tcp-endpoints-of-2-sticky"}
    assert elements(made, IPV4, "sticky-tcp-local-endpoints") == {f"{VIP} . 80 . 10.1.0.4": "10.1.0.4 . 8080"}
    assert elements(made, IPV4, "sticky-nodeport-tcp-endpoints") == {
        "30080 . 10.1.0.4": "10.1.0.4 . 8080",
        "30080 . 10.1.1.4": "10.1.1.4 . 8080",
    }
    assert elements(made, IPV4, "sticky-nodeport-tcp-local-endpoints") == {"30080 . 10.1.0.4": "10.1.0.4 . 8080"}


@pytest.mark.parametrize("pods", [[], ["10.1.0.4@node-a unready"]])
def test_no_pod_is_remembered_without_an_endpoint(pods: list[str]) -> None:
    """A Service with affinity and no usable endpoint has no pod for remembered clients."""
    made = pipeline(service(affinity_timeout=60), slice_of(endpoints=pods))
    assert elements(made, IPV4, "sticky-tcp-endpoints") == {}
    assert memberships(made, "10.96.0.10 . tcp . 80") == {
        "services": "nothing",
        "affinity": "0.0.0.60",
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
    assert drawn(made, IPV4, "services") == {"10.96.0.10 . tcp . 80": "tcp-endpoints-of-2-sticky"}
    assert elements(made, IPV4, "sticky-tcp-endpoints") == {"10.96.0.10 . 80 . 10.1.1.4": "10.1.1.4 . 8080"}


def test_an_nft_with_wide_maps_remembers_ipv6_clients() -> None:
    """With wide maps IPv6 has the same affinity as IPv4."""
    made = pipeline(
        service(cluster_ips=["fd00:96::10"], affinity_timeout=60), slice_of(endpoints=["fd00:1:0:1::4"]), wide_maps=True
    )
    assert drawn(made, IPV6, "services") == {"fd00:96::10 . tcp . 80": "tcp-endpoints-of-1-sticky"}
    assert elements(made, IPV6, "sticky-tcp-endpoints") == {"fd00:96::10 . 80 . fd00:1:0:1::4": "fd00:1:0:1::4 . 8080"}


def test_an_nft_that_cannot_remember_ipv6_clients_hashes_them() -> None:
    """Without wide maps IPv6 has no affinity elements, but a chain that draws by the client's address."""
    made = pipeline(
        service(cluster_ips=["10.96.0.10", "fd00:96::10"], affinity_timeout=60),
        ONE_LOCAL,
        slice_of(endpoints=["fd00:1:0:1::4@node-b", "fd00:1:0:1::5@node-b"], suffix="2"),
        wide_maps=False,
    )
    assert memberships(made, "fd00:96::10 . tcp . 80", IPV6) == {
        "services": "tcp-endpoints-of-2-by-client",
        "fronts": "",
    }
    assert elements(made, IPV6, "sticky-tcp-endpoints") == {}
    assert drawn(made, IPV4, "services") == {"10.96.0.10 . tcp . 80": "tcp-endpoints-of-2-sticky"}
