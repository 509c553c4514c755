"""Which addresses answer pings: none that anything but Services may use, and none without being asked."""

from __future__ import annotations

from typing import Any

import pytest

from nftproxy.extensions.external_addresses.fields import Ping
from nftproxy.model.addresses import Address, Family
from nftproxy.model.events import ApiServers, Put
from nftproxy.model.objects import Place, Service
from nftproxy.pipeline import Pipeline
from tests.support.factories import host_addresses, networks, node, pipeline, service, slice_of

BALANCED = service(type="LoadBalancer", external_ips=["203.0.113.9"], load_balancer_ips=["203.0.113.7"])
RANGE = networks(["203.0.113.0/24"])


def answering(*objects: Any, **tweaks: Any) -> Pipeline:
    """A pipeline with a Service that has an endpoint, and answers pings."""
    return pipeline(BALANCED, slice_of(), *objects, **{"ping": Ping.ANSWER} | tweaks)


def keys(made: Pipeline) -> list[str]:
    """The keys of the map of pings."""
    return [each.key for each in made.generations[Family.IPV4].elements() if each.container == "pings"]


def addresses(made: Pipeline) -> set[str]:
    """The addresses that answer pings."""
    return {key.partition(" . ")[0] for key in keys(made)}


def test_only_the_configuration_asks_for_answers() -> None:
    """Without the word no set, chain or element is there for pings."""
    plain = answering(ping=Ping.REJECT, external_ip_cidrs=RANGE).full_transaction(dict.fromkeys(Family)).text
    assert "@pings" not in plain
    assert "echo-request" not in plain


@pytest.mark.parametrize(
    ("ranges", "found"),
    [
        ((), {"10.96.0.10"}),
        (networks(["203.0.113.7/32"]), {"10.96.0.10", "203.0.113.7"}),
        (RANGE, {"10.96.0.10", "203.0.113.7", "203.0.113.9"}),
    ],
)
def test_external_addresses_answer_in_the_ranges_only(ranges: Any, found: set[str]) -> None:
    """A Service that names a stranger's address as a load balancer's doesn't answer its pings."""
    # spec.externalIPs out of the ranges aren't served at all
    assert addresses(answering(external_ip_cidrs=ranges)) == found


def test_source_ranges_never_guard_a_cluster_ip() -> None:
    """A ClusterIP that a Service also has as a load balancer's address answers every client."""
    mine: Service = service(type="LoadBalancer", load_balancer_ips=["10.96.0.10"], source_ranges=["198.51.100.0/24"])
    made = pipeline(mine, slice_of(), ping=Ping.ANSWER)
    assert set(keys(made)) == {"10.96.0.10 . 0.0.0.0 . 0"}


PORTS = ("a:80", "b:81", "c:82/udp")
GUARDED: dict[str, Any] = {
    "type": "LoadBalancer",
    "load_balancer_ips": ["203.0.113.7", "203.0.113.8"],
    "source_ranges": ["198.51.100.0/24", "203.0.113.64/28"],
    "external_policy": "Local",
}
ADMITTED = ("198.51.100.0 . 24", "203.0.113.64 . 28", "198.51.100.0 . 280", "203.0.113.64 . 284")
"""The keys of these ranges, for all sources in them and for local sources."""
ASKED: dict[str, Any] = {"ping": Ping.ANSWER, "external_ip_cidrs": RANGE}


def test_ports_multiply_no_source_ranges() -> None:
    """All ports of a Service share the rows of each address: its ranges, and the same for local sources."""
    made = pipeline(service(ports=PORTS, **GUARDED), slice_of(ports=PORTS), **ASKED)
    rows = [f"{address} . {source}" for address in ("203.0.113.7", "203.0.113.8") for source in ADMITTED]
    blocks = made.generations[Family.IPV4].blocks.values()
    lines = [each.key for block in blocks for each in block.elements if each.container == "pings"]
    assert lines == ["10.96.0.10 . 0.0.0.0 . 0", *rows]


@pytest.mark.parametrize("left", [PORTS[:1], PORTS[1:2], PORTS[1:]])
def test_shared_rows_stay_while_a_port_needs_them(left: tuple[str, ...]) -> None:
    """No row is deleted or written again while any port has endpoints, whichever port had the rows before."""
    made = pipeline(service(ports=PORTS, **GUARDED), slice_of(ports=PORTS), **ASKED)
    for ports, served in ((PORTS, left), (PORTS, PORTS), (left, PORTS), (PORTS, PORTS)):
        text = made.ingest([Put(service(ports=ports, **GUARDED)), Put(slice_of(ports=served))]).text
        assert text
        assert "pings" not in text
        assert len(keys(made)) == 1 + 2 * len(ADMITTED)
    made.ingest([Put(slice_of(ports=()))])
    assert keys(made) == []


def test_addresses_of_the_node_and_the_api_server_answer_by_themselves() -> None:
    """A Service that names the node's address, the API server's, or one that a load balancer serves itself, has no say
    there, as long as it is theirs.
    """
    both = {"203.0.113.7", "203.0.113.9"}
    made = answering(node(external_ips=["203.0.113.7"]), external_ip_cidrs=RANGE)
    assert addresses(made) & both == {"203.0.113.9"}
    made.ingest([Put(node())])
    assert addresses(made) & both == both
    made.ingest([Put(ApiServers(frozenset({Place(Address("203.0.113.9"), 6443)})))])
    assert addresses(made) & both == {"203.0.113.7"}
    proxied: Service = service("shop/b", type="LoadBalancer", cluster_ips=["10.96.0.11"], proxied_ips=["203.0.113.7"])
    made.ingest([Put(proxied)])
    assert addresses(made) & both == set()


def test_the_nodes_first_address_on_an_interface_answers() -> None:
    """Without an address of the Node's own nothing is translated, and all pings are rejected."""
    for interfaces, answer in ((None, "192.168.0.2"), (["192.168.0.3"], "192.168.0.3"), (["10.9.9.9"], None)):
        made = answering(node(internal_ips=["192.168.0.2", "192.168.0.3"]))
        if interfaces is not None:
            made.ingest([Put(host_addresses(*interfaces))])
        text = made.full_transaction(dict.fromkeys(Family)).text
        assert ("dnat to 192.168.0" in text) is (answer is not None)
        assert answer is None or f"dnat to {answer}" in text
