"""Services' connections are counted where that is configured: by endpoint, and by reason where no endpoint got them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from nftproxy_conformance.lab import Lab, Origin

from nftproxy.extensions.counts.agent.count_reader import CountReader
from nftproxy.extensions.counts.agent.service_counts import CountTotals
from nftproxy.extensions.counts.counted_fronts import CountedFronts
from nftproxy.model.addresses import Family
from nftproxy.model.events import HostAddresses
from nftproxy.model.objects import ClusterObject, EndpointSlice, Service
from nftproxy.rules.transaction import delete_transaction, join
from tests.support.cluster import IP, IP6, Cluster, Ip, exposed_service, pods
from tests.support.factories import service

OUTSIDE, POD, NODE = Origin.OUTSIDE, Origin.POD, Origin.NODE
KINDS = ("cluster_ip", "external_ip", "load_balancer", "node_port")
SERIES = re.compile(
    r'nftproxy_service_(?:connections|unserved_packets)_total{namespace="(\w+)",service="(\w+)",port="(\w+)",'
    r'protocol="(\w+)",front="(\w+)"(?:,reason="(\w+)")?} (\d+)'
)

Counts = dict[str, int]
"""How many have come since the last look, by the kind of address, and the reason if nobody got them."""


class Counted(Cluster):
    """A cluster that counts."""

    def __init__(self, lab: Lab, *objects: ClusterObject | HostAddresses, **tweaks: Any) -> None:
        super().__init__(lab, *objects, service_counts=True, **tweaks)
        self.reader = CountReader()
        OPEN.append(self.reader)
        self.totals = CountTotals(self.pipeline.view(CountedFronts))
        self.before: dict[tuple[str, ...], int] = {}

    def scrape(self) -> dict[tuple[str, ...], int]:
        """All series: namespace, name, port, protocol, kind, reason."""
        for family in Family:
            if reading := self.lab.node.call(self.reader.read, family):
                self.totals.add(family, reading)
        lines = self.totals.exposition().decode().splitlines()
        return {found.groups("")[:6]: int(found[7]) for line in lines if (found := SERIES.fullmatch(line))}

    def counts(self) -> Counts:
        """The counts since the last look."""
        self.scrape()  # in which new series begin
        before, self.before = self.before, self.scrape()
        more = {series: value - before.get(series, 0) for series, value in self.before.items()}
        assert all(series[:2] == ("shop", "web") for series in more)
        return {" ".join(series[4:]).strip(): value for series, value in more.items() if value}


OPEN: list[CountReader] = []


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    """Leave no reader open."""
    yield
    while OPEN:
        OPEN.pop().close()


def counted(ip: Ip, protocol: str, *endpoints: str, **tweaks: Any) -> tuple[Service, EndpointSlice]:
    """A Service with all kinds of addresses, and endpoints as in `cluster.pods`."""
    return exposed_service(ip, protocol, **tweaks), pods(ip, *endpoints, protocol=protocol)


each_family_and_protocol = pytest.mark.parametrize(("ip", "protocol"), [(IP, "tcp"), (IP6, "udp"), (IP, "sctp")])

# ---- connections that endpoints get --------------------------------------------------------------------------------


@pytest.mark.parametrize("affinity", [None, 60], ids=["", "sticky"])
def test_connections_are_counted_by_kind(lab: Lab, ip: Ip, protocol: str, affinity: int | None) -> None:
    """Each connection that an endpoint gets is counted once, at the front that it came to, from any origin."""
    cluster = Counted(lab, *counted(ip, protocol, "here", "away", affinity_timeout=affinity))
    for number, (address, port) in enumerate(ip.fronts, 1):
        for origin in (POD, NODE, OUTSIDE):
            cluster.connect(origin, address, port, protocol, times=number)
    assert cluster.counts() == {kind: 3 * number for number, kind in enumerate(KINDS, 1)}
    cluster.connect(POD, ip.vip, 80, protocol, times=2)
    assert cluster.counts() == {"cluster_ip": 2}
    assert set(cluster.before) == {("shop", "web", "http", protocol, kind, "") for kind in KINDS}


def test_a_connections_later_packets_are_not_counted(lab: Lab, ip: Ip) -> None:
    """A client that sends its first packet again, as nobody has answered, is a single connection."""
    cluster = Counted(lab, *counted(ip, "udp", "here"))
    cluster.connect(OUTSIDE, ip.external, 80, "udp", sport=1234, times=5)
    cluster.connect(OUTSIDE, ip.node, 30080, "udp", sport=1235, times=5)
    assert cluster.counts() == {"external_ip": 1, "node_port": 1}


@pytest.mark.parametrize("cidrs", [["0.0.0.0/0", "::/0"], ["localhost", "primary"]], ids=["everywhere", "primary"])
def test_node_ports_are_counted_wherever_they_are_served(lab: Lab, ip: Ip, cidrs: list[str]) -> None:
    """A node port is a single front at all of the node's addresses."""
    cluster = Counted(lab, *counted(ip, "tcp", "here"), node_port_addresses=cidrs)
    cluster.connect(OUTSIDE, ip.node, 30080, times=2)
    cluster.connect(OUTSIDE, ip.own, 30080, times=3)
    assert cluster.counts() == {"node_port": 2 if "primary" in cidrs else 5}


def test_policy_local_counts_both_ways(lab: Lab, ip: Ip) -> None:
    """With policy Local, connections to the endpoints here count like connections of pods to endpoints elsewhere."""
    cluster = Counted(lab, *counted(ip, "tcp", "here", "away", external_policy="Local"))
    for address, port in ip.fronts[1:]:
        cluster.connect(OUTSIDE, address, port, times=2)
        cluster.connect(POD, address, port, times=3)
    assert cluster.counts() == dict.fromkeys(KINDS[1:], 5)


def test_what_is_no_services_is_not_counted(lab: Lab, ip: Ip) -> None:
    """Connections elsewhere count for no Service, even if another program translates them."""
    cluster = Counted(lab, *counted(ip, "tcp", "here"))
    lab.load(
        f"table {ip.nft} other {{\n chain c {{\n type nat hook prerouting priority -100\n"
        f" {ip.nft} daddr {ip.unallocated} tcp dport 80 dnat to {ip.away}\n }}\n}}\n"
    )
    assert cluster.connect(OUTSIDE, ip.unallocated, 80)[0].endpoint is not None
    cluster.connect(OUTSIDE, ip.away, 80)
    cluster.connect(OUTSIDE, ip.vip, 81)
    assert cluster.counts() == {}


# ---- packets that no endpoint gets ---------------------------------------------------------------------------------


@each_family_and_protocol
def test_rejections_are_counted(lab: Lab, ip: Ip, protocol: str) -> None:
    """Where there is no endpoint at all, each packet is rejected, and counted as that."""
    cluster = Counted(lab, *counted(ip, protocol))
    for address, port in ip.fronts:
        for origin in (POD, NODE, OUTSIDE):
            assert cluster.connect(origin, address, port, protocol, times=2)[0].kind.value != "dropped"
    assert cluster.counts() == {f"{kind} no_endpoint": 6 for kind in KINDS}


@each_family_and_protocol
def test_drops_without_local_endpoints_are_counted(lab: Lab, ip: Ip, protocol: str) -> None:
    """Where policy Local finds endpoints on other nodes only, drops are counted as that."""
    policies = {"internal_policy": "Local", "external_policy": "Local"}
    cluster = Counted(lab, *counted(ip, protocol, "away", **policies))
    for address, port in ip.fronts:
        cluster.connect(OUTSIDE, address, port, protocol, times=2)
    assert cluster.counts() == {f"{kind} none_local": 2 for kind in KINDS}
    cluster.connect(POD, ip.external, 80, protocol)
    cluster.connect(POD, ip.vip, 80, protocol)
    assert cluster.counts() == {"external_ip": 1, "cluster_ip none_local": 1}


@each_family_and_protocol
@pytest.mark.parametrize("gone", ["guard", "guard-translated"])
def test_drops_by_source_ranges_are_counted(lab: Lab, ip: Ip, protocol: str, gone: str) -> None:
    """Clients that aren't admitted are counted at the load balancer's address, by either of the two guards."""
    made = counted(ip, protocol, "here", source_ranges=[ip.alone(ip.client)], external_policy="Local")
    cluster = Counted(lab, *made)
    lab.load(f"flush chain {ip.nft} nftproxy {gone}")
    for address, port in ip.fronts:
        cluster.connect(POD, address, port, protocol, times=2)
    cluster.connect(OUTSIDE, ip.balanced, 80, protocol, times=3)
    assert cluster.counts() == {
        "cluster_ip": 2,
        "external_ip": 2,
        "node_port": 2,
        "load_balancer": 3,
        "load_balancer not_admitted": 2,
    }


@each_family_and_protocol
@pytest.mark.parametrize("lost", ["services", "draws", "{protocol}-endpoints"])
def test_races_are_counted(lab: Lab, ip: Ip, protocol: str, lost: str) -> None:
    """A packet that finds its Service and, as if a commit came in between, no endpoint any more, is counted as that."""
    cluster = Counted(lab, *counted(ip, protocol, "here"))
    name = lost.format(protocol=protocol)
    lab.load(f"flush map {ip.nft} nftproxy {name}\nflush map {ip.nft} nftproxy nodeport-{name}\n")
    for address, port in ip.fronts:
        cluster.connect(OUTSIDE, address, port, protocol, times=2)
    assert cluster.counts() == {f"{kind} race": 2 for kind in KINDS}


def test_a_full_set_changes_nothing_else(lab: Lab, ip: Ip) -> None:
    """Where no more fronts can be counted, packets are translated, rejected and dropped all the same."""
    policies = {"internal_policy": "Local", "external_policy": "Local"}
    cluster = Counted(lab, *counted(ip, "tcp", "away", **policies))
    small = cluster.pipeline.full_transaction({}).text.replace("size 65536", "size 1")
    lab.load(join(map(delete_transaction, Family)).text + small)
    for first, second in ((ip.external, ip.balanced), (ip.balanced, ip.external)):
        for address in (first, second):
            assert {each.kind.value for each in cluster.connect(OUTSIDE, address)} == {"dropped"}
            assert cluster.connect(POD, address)[0].endpoint is not None
    assert cluster.counts() == {"external_ip": 2, "external_ip none_local": 2}


# ---- changes, loads and restarts -----------------------------------------------------------------------------------


def test_counts_survive_changes(lab: Lab, ip: Ip) -> None:
    """Endpoints that come and go, policies, affinity and another Service's changes take nothing from a count."""
    cluster = Counted(lab, *counted(ip, "tcp", "here"))
    changes: list[tuple[Any, ...]] = [
        counted(ip, "tcp", "here", "away"),
        counted(ip, "tcp", "here", external_policy="Local", affinity_timeout=30),
        (exposed_service(ip), service("shop/other", cluster_ips=[ip.vip2])),
    ]
    for change in changes:
        cluster.connect(OUTSIDE, ip.external, times=2)
        cluster.put(*change)
    cluster.connect(OUTSIDE, ip.external, times=2)
    assert cluster.counts() == {"external_ip": 2 * len(changes) + 2}


@pytest.mark.parametrize("replaced", [False, True], ids=["refilled", "replaced"])
def test_counts_survive_full_loads(lab: Lab, ip: Ip, replaced: bool) -> None:
    """Neither a load into the existing table nor a load into a new table makes a counter go down or count twice."""

    def load_again() -> None:
        if replaced:
            lab.load(join(map(delete_transaction, Family)).text + cluster.pipeline.full_transaction({}).text)
        else:
            cluster.load_again()

    cluster = Counted(lab, *counted(ip, "tcp", "here"))
    cluster.connect(OUTSIDE, ip.external, times=3)
    assert cluster.counts() == {"external_ip": 3}
    load_again()
    cluster.connect(OUTSIDE, ip.external, times=5)
    assert cluster.counts() == {"external_ip": 5}
    cluster.connect(OUTSIDE, ip.external, times=4)
    load_again()
    cluster.connect(OUTSIDE, ip.external, times=6)
    assert cluster.counts() == {"external_ip": 6 if replaced else 10}


def test_counts_survive_a_reset_by_others(lab: Lab) -> None:
    """Where another program deletes the counted fronts, a counter goes on from where it was."""
    cluster = Counted(lab, *counted(IP, "tcp", "here"))
    cluster.connect(OUTSIDE, IP.external, times=3)
    assert cluster.counts() == {"external_ip": 3}
    lab.load("flush set ip nftproxy counted-connections")
    cluster.connect(OUTSIDE, IP.external, times=2)
    assert cluster.counts() == {"external_ip": 2}


def test_a_restart_begins_at_zero(lab: Lab) -> None:
    """A new process counts connections from its start on, and none of the connections before it."""
    cluster = Counted(lab, *counted(IP, "tcp", "here"))
    cluster.connect(OUTSIDE, IP.external, times=3)
    cluster.totals = CountTotals(cluster.pipeline.view(CountedFronts))
    cluster.totals.set_baseline(Family.IPV4, lab.node.call(cluster.reader.read, Family.IPV4))
    cluster.load_again()
    cluster.connect(OUTSIDE, IP.external, times=2)
    assert cluster.counts() == {"external_ip": 2}
