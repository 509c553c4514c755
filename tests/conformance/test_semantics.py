"""Broken rules and deviations are named as docs/semantics.md has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec import structs
from nftproxy_conformance.lab import (
    DROPPED,
    NODE,
    PING,
    PORT_UNREACHABLE,
    TCP_RESET,
    UNTOUCHED,
    Origin,
    Outcome,
    Probe,
    endpoint,
)
from nftproxy_conformance.specification.deviations import SHOWN, deviation_of, deviation_of_move
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import CHANGES_ONLY, NOT_REMEMBERED, WRONGLY_REFUSED, Rule, rule_of
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies.focused import PLAIN_CONFIG, PLAIN_NODE
from nftproxy_conformance.strategies.worlds import world_of
from nftproxy_conformance.trials.trial import but_for_sources, exactly

from nftproxy.extensions.algorithms.annotations import ALGORITHM, Algorithm
from nftproxy.extensions.external_addresses.fields import ExternalAddresses, Ping
from nftproxy.model.annotations import Options
from nftproxy.model.objects import ClusterObject, Node, TrafficPolicy
from nftproxy.model.settings import NodePortAddresses
from tests.support.factories import config_of, networks, service, service_cidr, slice_of

SEMANTICS = (Path(__file__).resolve().parents[2] / "docs" / "semantics.md").read_text()
SECTIONS = {
    text.partition("\n")[0]: " ".join(text.split()) for text in re.split(r"^##+ ", SEMANTICS, flags=re.MULTILINE)
}
"""The sections of the page by title, each in a line."""

HERE, AWAY = "10.1.0.4", "10.1.1.4"
TO_HERE, TO_AWAY = endpoint(HERE, 8080), endpoint(AWAY, 8080)


def world(*objects: ClusterObject, node: Node = PLAIN_NODE) -> World:
    """A world of these objects."""
    return world_of(node, PLAIN_CONFIG, objects)


def probe(address: str, port: int = 80, origin: Origin = Origin.OUTSIDE, protocol: str = "tcp") -> Probe:
    """A connection from a plain client of some kind."""
    sources = {Origin.POD: "10.1.0.200", Origin.NODE: "192.168.0.77", Origin.OUTSIDE: "198.51.100.200"}
    return Probe(origin, address, port, protocol, sources[origin])


@pytest.mark.parametrize("rule", Rule)
def test_a_rule_is_a_sentence_of_the_page(rule: Rule) -> None:
    """Each rule stands in the section that it names, word by word."""
    assert rule.sentence in SECTIONS[rule.section]


def test_a_deviation_has_its_row() -> None:
    """Each deviation that explains something has its row in the table."""
    assert set(re.findall(r"^\| \*\*(D\d+)\*\* \|", SEMANTICS, re.MULTILINE)) >= SHOWN


SERVED = service("shop/web", cluster_ips=["10.96.0.1"], ports=["80:30080", "53/udp"], type="LoadBalancer")
PODS = slice_of("shop/web", [f"{HERE}@node-a", f"{AWAY}@node-b"], ports=["8080", "5353/udp"])


@pytest.mark.parametrize(
    ("rule", "given", "tried", "seen"),
    [
        (Rule.PROTOCOLS, [SERVED, PODS], probe("10.96.0.1", 53, protocol="udp"), [UNTOUCHED]),
        (Rule.CAPTURED, [SERVED, PODS], probe("10.96.0.1"), [DROPPED]),
        (Rule.NODE_PORTS, [SERVED, PODS], probe("192.168.0.2", 30080), [NODE]),
        (Rule.OTHER_PORTS, [SERVED, PODS], probe("10.96.0.1", 9999), [UNTOUCHED]),
        (Rule.DRAW, [SERVED, PODS], probe("10.96.0.1"), [endpoint("10.1.9.9", 8080, masqueraded=True)]),
        (Rule.MASQUERADING, [SERVED, PODS], probe("10.96.0.1"), [TO_AWAY]),
        (Rule.EXTERNAL_MASQUERADING, [SERVED, PODS], probe("192.168.0.2", 30080), [TO_AWAY]),
        (Rule.REJECTED, [SERVED], probe("10.96.0.1"), [DROPPED]),
        (
            Rule.DROPPED,
            [
                structs.replace(SERVED, internal_policy=TrafficPolicy.LOCAL),
                slice_of("shop/web", [f"{AWAY}@node-b"], ports=["8080"]),
            ],
            probe("10.96.0.1"),
            [TO_AWAY],
        ),
        (
            Rule.INTERNAL_POLICY,
            [structs.replace(SERVED, internal_policy=TrafficPolicy.LOCAL), PODS],
            probe("10.96.0.1", origin=Origin.POD),
            [TO_AWAY],
        ),
        (
            Rule.POLICY,
            [structs.replace(SERVED, external_policy=TrafficPolicy.LOCAL), PODS],
            probe("192.168.0.2", 30080),
            [endpoint(AWAY, 8080, masqueraded=True)],
        ),
        (
            Rule.USABLE,
            [SERVED, slice_of("shop/web", [f"{HERE}@node-a", f"{AWAY}@node-b unready"], ports=["8080"])],
            probe("10.96.0.1", origin=Origin.POD),
            [TO_AWAY],
        ),
        (
            Rule.TERMINATING,
            [SERVED, slice_of("shop/web", [f"{HERE}@node-a", f"{AWAY}@node-b draining"], ports=["8080"])],
            probe("10.96.0.1", origin=Origin.POD),
            [TO_AWAY],
        ),
        (
            Rule.TOPOLOGY,
            [SERVED, slice_of("shop/web", [f"{HERE}@node-a zone=a", f"{AWAY}@node-b zone=b"], ports=["8080"])],
            probe("10.96.0.1", origin=Origin.POD),
            [TO_AWAY],
        ),
    ],
)
def test_a_wrong_outcome_has_its_rule(
    rule: Rule, given: list[ClusterObject], tried: Probe, seen: list[Outcome]
) -> None:
    """A wrong outcome leads to the rule that it breaks."""
    oracle = Oracle(world(*given))
    assert not set(seen) <= oracle.expected(tried)
    assert rule_of(oracle, tried, seen, "went elsewhere") is rule


def test_a_closed_external_address_has_its_rule() -> None:
    """A packet that passes at a closed address leads to the sentence about closed addresses."""
    config = config_of(
        PLAIN_CONFIG, external_addresses=ExternalAddresses.CLOSED, external_ip_cidrs=networks(["203.0.113.0/24"])
    )
    balanced = service("shop/web", load_balancer_ips=["203.0.113.7"], type="LoadBalancer")
    oracle = Oracle(world_of(PLAIN_NODE, config, [balanced]))
    assert rule_of(oracle, probe("203.0.113.7", 81), [UNTOUCHED], "went elsewhere") is Rule.CLOSED


@pytest.mark.parametrize(("word", "rule"), [(Ping.ANSWER, Rule.PINGS), (Ping.REJECT, Rule.OTHER_PORTS)])
def test_a_ping_has_its_rule(word: Ping, rule: Rule) -> None:
    """A wrong ping leads to the sentence about answers if there are any, else to that about the address."""
    oracle = Oracle(world_of(PLAIN_NODE, config_of(PLAIN_CONFIG, ping=word), [SERVED, PODS]))
    assert rule_of(oracle, probe("10.96.0.1", 0, protocol=PING), [DROPPED], "went elsewhere") is rule


def test_what_went_wrong_may_say_it_all() -> None:
    """A client that isn't remembered, and a fault that a new node doesn't have, have rules of their own."""
    oracle = Oracle(world(SERVED, PODS))
    assert rule_of(oracle, probe("10.96.0.1"), [TO_HERE, TO_AWAY], NOT_REMEMBERED) is Rule.AFFINITY
    assert rule_of(oracle, probe("10.96.0.1"), [TCP_RESET], WRONGLY_REFUSED) is Rule.REFUSED
    assert rule_of(oracle, probe("10.96.0.1"), [DROPPED], f"went elsewhere{CHANGES_ONLY}") is Rule.CHANGES


# Deviations


def explains(given: World, tried: Probe, seen: Iterable[Outcome], start: Node = PLAIN_NODE) -> str:
    """The deviation that explains an outcome, which the oracle doesn't allow."""
    assert not set(seen) <= Oracle(given).expected(tried)
    return deviation_of(given, tried, seen, exactly, [given._replace(node=start)])


RIVAL = service("blog/web", cluster_ips=["10.96.0.2"], ports=["80"], external_ips=["203.0.113.7"])
RIVALS_POD = slice_of("blog/web", ["10.1.1.9@node-b"], ports=["8080"])
TO_RIVAL = endpoint("10.1.1.9", 8080, masqueraded=True)


def test_an_error_in_place_of_a_reset() -> None:
    """D4: TCP may be rejected in another way, but not dropped."""
    given = world(SERVED)
    assert explains(given, probe("10.96.0.1"), [PORT_UNREACHABLE]) == "D4"
    assert explains(given, probe("10.96.0.1"), [DROPPED]) == ""
    assert explains(given, probe("10.96.0.1", 53, protocol="udp"), [TCP_RESET]) == "D4"


def test_another_entry_of_an_endpoint() -> None:
    """D3: of an endpoint in two slices, either entry may count."""
    ready = slice_of("shop/web", [f"{HERE}@node-a"], ports=["8080"])
    unready = slice_of("shop/web", [f"{HERE}@node-a unready"], ports=["8080"], suffix="2")
    tried = probe("10.96.0.1", origin=Origin.POD)
    assert explains(world(SERVED, ready, unready), tried, [TCP_RESET]) == "D3"
    assert explains(world(SERVED, ready, unready), tried, [DROPPED]) == ""
    assert explains(world(SERVED, ready), tried, [TCP_RESET]) == ""
    twice = slice_of("shop/web", [f"{HERE}@node-a", f"{HERE}@node-a unready"], ports=["8080"])
    assert explains(world(SERVED, twice), tried, [TCP_RESET]) == "D3"
    ending = slice_of("shop/web", [f"{HERE}@node-a", f"{HERE}@node-a stopped"], ports=["8080"])
    assert explains(world(SERVED, ending), tried, [TCP_RESET]) == ""


def test_a_node_as_it_was() -> None:
    """D8: a change of the Node may count after a restart only."""
    moved = structs.replace(PLAIN_NODE, internal_ips=("192.168.0.77",))
    given = world(SERVED, PODS, node=moved)
    arrived = [endpoint(HERE, 8080, masqueraded=True)]
    assert explains(given, probe("192.168.0.2", 30080), arrived, PLAIN_NODE) == "D8"
    assert explains(given, probe("192.168.0.2", 30080), arrived, moved) == ""


def test_ranges_as_they_were() -> None:
    """D8: a ServiceCIDR that is gone may count until the next full sync."""
    before = world(SERVED, PODS, service_cidr("10.96.0.0/16"))
    given = world(SERVED, PODS)
    assert deviation_of(given, probe("10.96.7.7"), [DROPPED], exactly, [before, given]) == "D8"
    assert deviation_of(given, probe("10.96.7.7"), [DROPPED], exactly, [given]) == ""


def test_node_ports_without_a_node_address() -> None:
    """D9: in a family without a node address all local addresses may serve node ports."""
    bare = structs.replace(PLAIN_NODE, internal_ips=())
    given = world(SERVED, PODS, node=bare)
    assert explains(given, probe("192.168.0.2", 30080), [endpoint(HERE, 8080, masqueraded=True)], bare) == "D9"


def test_node_ports_without_a_range() -> None:
    """D9: in a family without a range in nodePortAddresses all local addresses may serve node ports."""
    elsewhere = structs.replace(PLAIN_CONFIG, node_port_addresses=ranges_alone("fd00:c0a8::/64"))
    given = world_of(PLAIN_NODE, elsewhere, [SERVED, PODS])
    arrived = [endpoint(HERE, 8080, masqueraded=True)]
    assert explains(given, probe("192.168.0.2", 30080), arrived) == "D9"
    both = structs.replace(PLAIN_CONFIG, node_port_addresses=ranges_alone("fd00:c0a8::/64", "192.168.9.0/24"))
    assert explains(world_of(PLAIN_NODE, both, [SERVED, PODS]), probe("192.168.0.2", 30080), arrived) == ""


def ranges_alone(*cidrs: str) -> NodePortAddresses:
    """Node ports at addresses in these ranges alone."""
    return NodePortAddresses(primary=False, networks=networks(cidrs))


def test_two_deviations_at_once() -> None:
    """D9 and D10: a node port that is another's on a family without a node address."""
    bare = structs.replace(PLAIN_NODE, internal_ips=())
    rival = structs.replace(RIVAL, ports=(structs.replace(RIVAL.ports[0], node_port=30080),), type=SERVED.type)
    given = world(structs.replace(SERVED, created=1), PODS, structs.replace(rival, created=2), RIVALS_POD, node=bare)
    assert explains(given, probe("192.168.0.2", 30080), [TO_RIVAL], bare) == "D9 and D10"


def test_another_owner_of_a_contested_address() -> None:
    """D10: either of two claimants may have an address, but no third Service."""
    first = structs.replace(SERVED, external_ips=("203.0.113.7",), created=1)
    given = world(first, PODS, structs.replace(RIVAL, created=2), RIVALS_POD)
    assert explains(given, probe("203.0.113.7"), [TO_RIVAL]) == "D10"
    assert explains(given, probe("203.0.113.7"), [endpoint("10.1.2.2", 8080, masqueraded=True)]) == ""
    assert explains(world(first, PODS), probe("203.0.113.7"), [TO_RIVAL]) == ""


def test_an_owner_with_fewer_endpoints() -> None:
    """D10: endpoints are never reached if another claimant lacks them, but for no other reason."""
    first = structs.replace(SERVED, external_ips=("203.0.113.7",), created=1)
    fewer = slice_of("blog/web", [f"{HERE}@node-a"], ports=["8080"])
    given = world(first, PODS, structs.replace(RIVAL, created=2), fewer)
    here, away = (endpoint(pod, 8080, masqueraded=True) for pod in (HERE, AWAY))
    assert deviation_of(given, probe("203.0.113.7"), [here], exactly, [given]) == "D10"
    assert deviation_of(given, probe("203.0.113.7"), [away], exactly, [given]) == ""
    assert deviation_of(world(first, PODS), probe("203.0.113.7"), [here], exactly, []) == ""


def test_a_cluster_ip_that_is_a_load_balancers_address() -> None:
    """D10: source ranges may guard a Service's ClusterIP if that is its load balancer's address too."""
    guarded = structs.replace(SERVED, load_balancer_ips=("10.96.0.1",), source_ranges=networks(["203.0.113.0/24"]))
    assert explains(world(guarded, PODS), probe("10.96.0.1"), [DROPPED]) == "D10"


def test_a_cluster_ip_of_two_services() -> None:
    """D10: kube-proxy follows the source ranges of each Service, ours those of the first with a ClusterIP."""
    guarded = structs.replace(
        RIVAL, cluster_ips=SERVED.cluster_ips, source_ranges=networks(["198.51.100.0/24"]), created=2
    )
    guarded = structs.replace(guarded, external_ips=(), load_balancer_ips=("203.0.113.7",), type=SERVED.type)
    assert explains(world(SERVED, guarded, RIVALS_POD), probe("203.0.113.7"), [TO_RIVAL]) == "D10"


STICKY = structs.replace(SERVED, affinity_timeout=10800, external_ips=("203.0.113.7",))
OTHER_CLIENTS = [probe("203.0.113.7"), probe("10.96.0.1", origin=Origin.POD)]


def moves(given: World, others: Iterable[Probe], pod: Outcome = TO_HERE) -> str:
    """The deviation by which a remembered client outside may be sent from the other pod to this one."""
    return deviation_of_move(given, probe("10.96.0.1"), [but_for_sources(pod)], but_for_sources, others)


def test_a_client_that_is_remembered_for_all_fronts() -> None:
    """D5: a front with other endpoints may have changed the pod of the same client, but of no other client."""
    given = world(structs.replace(STICKY, external_policy=TrafficPolicy.LOCAL), PODS)
    assert moves(given, OTHER_CLIENTS) == "D5"
    assert moves(given, OTHER_CLIENTS, TO_AWAY) == ""
    assert moves(given, OTHER_CLIENTS[1:]) == ""
    assert moves(world(STICKY, PODS), OTHER_CLIENTS) == ""


def test_a_client_whose_front_changes_its_owner() -> None:
    """D10: a client may be sent to a pod of another claimant of the front."""
    rival = structs.replace(RIVAL, cluster_ips=("10.96.0.1",), created=1)
    given = world(STICKY, PODS, rival, RIVALS_POD)
    assert moves(given, [], TO_RIVAL) == "D10"
    assert moves(given, [], endpoint("10.1.2.2", 8080)) == ""


def test_a_client_whom_only_our_hash_remembers() -> None:
    """D19: an algorithm of ours keeps clients at a pod, kube-proxy doesn't know it."""
    hashed = structs.replace(SERVED, options=Options.of({ALGORITHM: Algorithm.SOURCE_HASH}))
    assert moves(world(hashed, PODS), []) == "D19"
    assert moves(world(STICKY, PODS), []) == ""


def test_an_external_address_that_captures() -> None:
    """D11: an external address may capture a protected port of the node, and another's ClusterIP."""
    at_node = service("blog/web", cluster_ips=["10.96.0.2"], ports=["22"], external_ips=["192.168.0.2"])
    given = world(at_node, RIVALS_POD)
    assert explains(given, probe("192.168.0.2", 22), [TO_RIVAL]) == "D11"
    at_service = structs.replace(RIVAL, external_ips=("10.96.0.1",))
    given = world(structs.replace(SERVED, ports=SERVED.ports[1:]), PODS, at_service, RIVALS_POD)
    assert explains(given, probe("10.96.0.1"), [TO_RIVAL]) in {"D10", "D11"}


def test_a_capture_by_a_service_with_annotations() -> None:
    """D11 with D19: kube-proxy ignores the weight 0 of the only endpoint of a Service that captures a ClusterIP."""
    at_service = service("blog/web", cluster_ips=["10.96.0.2"], ports=["22"], external_ips=["10.96.0.1"])
    unwanted = slice_of("blog/web", ["10.1.1.9@node-b"], ports=["8080"], weight=0)
    given = world(SERVED, PODS, at_service, unwanted)
    assert explains(given, probe("10.96.0.1", 22), [TO_RIVAL]) in {"D10", "D11"}
    assert explains(given, probe("10.96.0.1", 22), [DROPPED]) == ""


def test_a_service_without_ports() -> None:
    """D15: a Service without ports may be none."""
    given = world(structs.replace(SERVED, ports=()))
    assert explains(given, probe("10.96.0.1"), [UNTOUCHED]) == "D15"


def test_words_of_the_configuration() -> None:
    """D19: kube-proxy answers no pings, closes no external addresses, and takes those out of ranges too."""
    config = config_of(
        PLAIN_CONFIG,
        ping=Ping.ANSWER,
        external_addresses=ExternalAddresses.CLOSED,
        external_ip_cidrs=networks(["203.0.113.7/32"]),
    )
    web = structs.replace(SERVED, external_ips=("203.0.113.7", "203.0.113.9"))
    given = world_of(PLAIN_NODE, config, [web, PODS])
    assert explains(given, probe("10.96.0.1", 0, protocol=PING), [PORT_UNREACHABLE]) == "D19"
    assert explains(given, probe("203.0.113.7", 0, protocol=PING), [UNTOUCHED]) == "D19"
    assert explains(given, probe("203.0.113.7", 0, protocol=PING), [DROPPED]) == ""
    assert explains(given, probe("203.0.113.7", 81), [UNTOUCHED]) == "D19"
    assert explains(given, probe("203.0.113.9"), [endpoint(HERE, 8080, masqueraded=True)]) == "D19"


def test_what_does_not_count_needs_no_explanation() -> None:
    """Where it doesn't count whether sources are hidden, a deviation is judged without it too."""
    first = structs.replace(SERVED, external_ips=("203.0.113.7",), created=1)
    given = world(first, PODS, structs.replace(RIVAL, created=2), RIVALS_POD)
    seen = [but_for_sources(TO_RIVAL)]
    assert deviation_of(given, probe("203.0.113.7"), seen, but_for_sources, [given]) == "D10"
