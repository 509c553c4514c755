"""The UDP flows that conntrack must forget after a change of the cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from nftproxy_conformance.strategies import quick
from nftproxy_conformance.strategies.histories import clusters, histories, survivors
from nftproxy_conformance.strategies.objects import Given, all_settings

from nftproxy.model.addresses import Address, Family, Protocol, family_of
from nftproxy.model.annotations import WEIGHT, WEIGHTS
from nftproxy.model.events import Event, Put, Removed
from nftproxy.model.objects import EndpointSlice, Service, TrafficPolicy, key_of
from nftproxy.pipeline import Pipeline
from nftproxy.policy import flows
from nftproxy.policy.choosing.verdicts import ServiceEndpoints
from nftproxy.policy.extension import Settings
from nftproxy.policy.flows import (
    NO_ENDPOINTS,
    AddressPort,
    Endpoints,
    Flow,
    Kept,
    LastingFronts,
    Sweeps,
    Unanswered,
    is_stale,
    lasting_fronts,
)
from nftproxy.policy.fronts import nodeport_addresses
from tests.support.factories import IPV4, elements, host_addresses, key, node, pipeline, renderer, service, slice_of

VIP, PODS = "10.96.0.10", ("10.1.0.4@node-a", "10.1.1.4@node-b")
DNS = service("kube/dns", ports=["dns:53/udp"])


def dns_slice(*endpoints: str, port: int = 5353) -> EndpointSlice:
    """The EndpointSlice of `DNS`, by default with a pod on this node and a pod elsewhere."""
    return slice_of("kube/dns", endpoints or PODS, ports=[f"dns:{port}/udp"])


def ends(*texts: str) -> Endpoints:
    """Addresses and ports from "address port"."""
    pairs = (text.split() for text in texts)
    return frozenset(AddressPort(Address(address), int(port)) for address, port in pairs)


def kept(*texts: str) -> Kept:
    """These endpoints, for flows of any source."""
    return Kept(ends(*texts), ends(*texts))


def sweeps(**usable: str) -> LastingFronts:
    """Sweeps as `sweeps(**{"10.96.0.10 53": "10.1.0.4 5353, 10.1.1.4 5353"})`.  "" is no endpoint."""
    return {
        front: kept(*filter(None, texts.split(", "))) for text, texts in usable.items() for (front,) in [ends(text)]
    }


def settled(*objects: Given, **tweaks: object) -> Pipeline:
    """A pipeline that knows these objects, and whose fronts have all been swept."""
    made = pipeline(*objects, **tweaks)  # type: ignore[arg-type]
    made.flows.pop_due()
    return made


def empty(of: EndpointSlice) -> EndpointSlice:
    """The same EndpointSlice without endpoints."""
    return slice_of(str(of.service), [], ports=["dns:5353/udp"])


# ---- one flow ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "usable", "stale"),
    [
        ("pod", {"pod"}, False),
        ("pod", {"other"}, True),
        ("pod", set(), True),
        ("front", {"pod"}, True),
        ("front", set(), False),
    ],
    ids=["usable", "lost", "none left", "never translated", "never translated, and none to go to"],
)
def test_a_flow_is_stale_by_where_it_goes(source: str, usable: set[str], stale: bool) -> None:
    """A flow stays with a usable endpoint, and untranslated only as long as there is none."""
    named = {each: AddressPort(Address(each), 53) for each in ("front", "pod", "other")}
    present = frozenset(map(named.__getitem__, usable))
    assert is_stale(named["front"], Flow(named[source]), Kept(present, present)) is stale


@pytest.mark.parametrize(
    ("source", "seen_source", "pod", "stale"),
    [
        ("198.51.100.7", "192.168.0.2", "away", True),
        ("198.51.100.7", "198.51.100.7", "away", False),
        ("198.51.100.7", "192.168.0.2", "here", False),
        ("192.168.0.77", "192.168.0.2", "away", False),
        ("192.168.0.2", "192.168.0.2", "away", False),
        ("198.51.100.7", "192.168.0.2", "gone", True),
    ],
    ids=["masqueraded", "a pod's", "at a local pod", "the node's other address", "the node's", "lost"],
)
def test_masqueraded_flows_stay_on_this_node_under_policy_local(
    source: str, seen_source: str, pod: str, stale: bool
) -> None:
    """A flow of a client outside, which is masqueraded, may stay with a local pod only.  The node's own may not be."""
    front, here, away = (AddressPort(Address(each), 53) for each in ("203.0.113.9", "here", "away"))
    present = Kept(frozenset({here, away}), frozenset({here}), frozenset({Address("192.168.0.77")}))
    flow = Flow(AddressPort(Address(pod), 53), Address(source), Address(seen_source))
    assert is_stale(front, flow, present) is stale


# ---- fronts --------------------------------------------------------------------------------------------------------


def fronts_of(made: Pipeline, name: str = "kube/dns", family: Family = IPV4) -> LastingFronts:
    """The UDP fronts of a Service in a pipeline."""
    return lasting_fronts(made.state, made.settings, family, made.state.services[key(name)])


def test_every_address_of_a_udp_port_is_a_front() -> None:
    """ClusterIP, external IPs, load balancer IPs and the node port are fronts, in their family.  TCP ports aren't."""
    everything = service(
        "kube/dns",
        type="LoadBalancer",
        cluster_ips=[VIP, "fd00:96::10"],
        external_ips=["203.0.113.9"],
        load_balancer_ips=["203.0.113.7", "2001:db8:113::7"],
        ports=["dns:53:30053/udp", "dns-tcp:53:30053/tcp"],
    )
    made = pipeline(everything, dns_slice("10.1.0.4"))
    ipv4 = (f"{VIP} 53", "203.0.113.9 53", "203.0.113.7 53", "192.168.0.2 30053")
    assert fronts_of(made) == sweeps(**dict.fromkeys(ipv4, "10.1.0.4 5353"))
    ipv6 = ("fd00:96::10 53", "2001:db8:113::7 53", "fd00:c0a8::2 30053")
    assert fronts_of(made, family=Family.IPV6) == sweeps(**dict.fromkeys(ipv6, ""))


@pytest.mark.parametrize(
    ("cidrs", "addresses"),
    [
        (None, {"192.168.0.2"}),
        (["10.0.0.0/8"], {"10.9.9.9"}),
        (["0.0.0.0/0"], {"10.9.9.9", "192.168.0.2", "198.51.100.1"}),
        (["::/0"], set()),
    ],
    ids=["primary", "a range", "every address", "another family's"],
)
def test_a_node_port_has_a_front_on_each_address_that_serves_it(cidrs: list[str] | None, addresses: set[str]) -> None:
    """A node port has a front on each address that nodePortAddresses selects, even if that is every local address."""
    own = host_addresses("192.168.0.2", "10.9.9.9", "198.51.100.1", "fd00:c0a8::2")
    made = pipeline(service("kube/dns", ports=["dns:53:30053/udp"]), own, node_port_addresses=cidrs)
    assert {front.address for front in fronts_of(made)} == {VIP, *addresses}


def test_every_udp_port_has_fronts_with_its_own_endpoints() -> None:
    """Each of several UDP ports has its own endpoints, and ports of other protocols have no fronts."""
    pods = slice_of("kube/dns", ["10.1.1.4"], ports=["a:5301/udp", "b:5302/udp", "c:5303/tcp"])
    made = pipeline(service("kube/dns", cluster_ips=[VIP], ports=["a:53/udp", "b:54/udp", "c:55/tcp"]), pods)
    assert fronts_of(made) == sweeps(**{f"{VIP} 53": "10.1.1.4 5301", f"{VIP} 54": "10.1.1.4 5302"})


@pytest.mark.parametrize(("protocol", "times"), [("udp", 1), ("tcp", 0)])
def test_endpoints_are_indexed_once_for_all_udp_ports(
    protocol: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slices of a Service are indexed once for all of its UDP ports, and not at all without UDP ports."""
    made = pipeline(service("kube/dns", cluster_ips=[VIP], ports=[f"p{n}:{n}/{protocol}" for n in range(1, 9)]))
    indexed: list[object] = []

    def counted(*arguments: Any) -> ServiceEndpoints:
        indexed.append(arguments)
        return index(*arguments)

    index = ServiceEndpoints.of
    monkeypatch.setattr(ServiceEndpoints, "of", counted)
    assert len(fronts_of(made)) == 8 * times
    assert len(indexed) == times


def test_both_families_of_a_service_go_with_it() -> None:
    """The fronts of a dual-stack Service are due in both families when it goes."""
    made = settled(service("kube/dns", cluster_ips=[VIP, "fd00:96::10"], ports=["dns:53/udp"]), dns_slice("10.1.1.4"))
    made.ingest([Put(slice_of("kube/dns", ["fd00:1::4"], ports=["dns:5353/udp"], suffix="6"))])
    made.flows.pop_due()
    made.ingest([Removed(Service, DNS.key)])
    assert {front.address for front in made.flows.pop_due()} == {VIP, "fd00:96::10"}


def test_a_service_of_another_family_has_no_fronts() -> None:
    """Where a Service has no ClusterIP of a family, neither its node port nor its external IPs are served in it."""
    made = pipeline(
        service("kube/dns", cluster_ips=["fd00:96::10"], external_ips=["203.0.113.9"], ports=["dns:53:30053/udp"])
    )
    assert fronts_of(made) == {}


def test_fronts_of_other_owners_are_left_out() -> None:
    """An older Service's front, a ClusterIP or a protected port of the node is no front of another Service."""
    older = service(
        "kube/a", created=1, cluster_ips=["10.96.0.20"], external_ips=["203.0.113.9"], ports=["53:30053/udp"]
    )
    younger = service(
        "kube/dns",
        created=2,
        external_ips=["203.0.113.9", "203.0.113.8", "10.96.0.20", "192.168.0.2"],
        ports=["dns:53:30053/udp", "vxlan:4789/udp"],
    )
    own = (f"{VIP} 53", "203.0.113.8 53", "192.168.0.2 53", *(f"{a} 4789" for a in (VIP, "203.0.113.8", "203.0.113.9")))
    assert fronts_of(pipeline(older, younger)).keys() == ends(*own)


@pytest.mark.parametrize(
    ("conditions", "usable"),
    [("", True), ("draining", True), ("unready", False), ("serving", False), ("stopped", False), ("published", True)],
)
def test_usable_is_ready_or_draining(conditions: str, usable: bool) -> None:
    """A flow may stay with an endpoint that serves while it terminates, though new flows go elsewhere."""
    made = pipeline(DNS, dns_slice("10.1.0.4", f"10.1.0.5 {conditions}"))
    (endpoints,) = fronts_of(made).values()
    assert endpoints == kept("10.1.0.4 5353", *["10.1.0.5 5353"] * usable)


def test_topology_cuts_no_existing_flow() -> None:
    """Topology takes no existing flow from its endpoint."""
    made = pipeline(DNS, dns_slice("10.1.0.4@node-a zone=a", "10.1.1.4@node-b zone=b"))
    assert fronts_of(made) == sweeps(**{f"{VIP} 53": "10.1.0.4 5353, 10.1.1.4 5353"})


def test_policy_local_keeps_flows_on_this_node() -> None:
    """With policy Local, flows to a ClusterIP stay with local endpoints, and at external addresses the masqueraded."""
    local = service(
        "kube/dns",
        internal_policy="Local",
        external_policy="Local",
        external_ips=["203.0.113.9"],
        ports=["dns:53/udp"],
    )
    made = pipeline(local, dns_slice(), host_addresses("192.168.0.2", "192.168.0.77"))
    here, both = ends("10.1.0.4 5353"), ends("10.1.0.4 5353", "10.1.1.4 5353")
    own = frozenset(map(Address, ("192.168.0.2", "192.168.0.77")))
    (vip,), (external,) = ends(f"{VIP} 53"), ends("203.0.113.9 53")
    assert fronts_of(made) == {vip: Kept(here, here), external: Kept(both, here, own)}


def test_associations_stay_with_endpoints_in_the_slices() -> None:
    """An SCTP association stays with an endpoint of any condition and node until it leaves the slices."""
    given = slice_of("kube/sig", ["10.1.0.4 stopped", "10.1.1.4@node-b"], ports=["sig:3868/sctp"])
    made = settled(service("kube/sig", internal_policy="Local", ports=["sig:3868/sctp"]), given)
    both = frozenset(AddressPort(Address(each), 3868, Protocol.SCTP) for each in ("10.1.0.4", "10.1.1.4"))
    front = AddressPort(Address(VIP), 3868, Protocol.SCTP)
    assert fronts_of(made, "kube/sig") == {front: Kept(both, both)}
    made.ingest([Put(slice_of("kube/sig", ["10.1.1.4@node-b"], ports=["sig:3868/sctp"]))])
    left = frozenset(each for each in both if each.address == "10.1.1.4")
    assert made.flows.pop_due() == {front: Kept(left, left)}


def test_flows_of_drained_endpoints_go_on() -> None:
    """Weight 0 takes no flow from the endpoint that has it."""
    given = slice_of("kube/dns", ["10.1.0.4"], ports=["dns:5353/udp"], weight=0)
    assert fronts_of(pipeline(DNS, given)) == sweeps(**{f"{VIP} 53": "10.1.0.4 5353"})


@quick()
@given(all_settings, clusters)
def test_fronts_are_what_the_rules_serve(settings: Settings, cluster: list[Given]) -> None:
    """The UDP fronts are the keys of the maps of all fronts, with a node port at each node-port address."""
    made = Pipeline("node-a", settings, renderer())
    made.ingest([Put(each) for each in cluster])
    for family in made.generations:
        served = {
            front: usable.endpoints
            for front, usable in _told(made).items()
            if family_of(front.address) is family and front.protocol is Protocol.UDP
        }
        assert served.keys() == _ruled(made, family, "fronts").keys()
        on_node = _kept_on_node(made)
        refused = _ruled(made, family, "no-endpoints").keys() - on_node
        unusable = {front for front, usable in served.items() if not usable} - on_node
        assert unusable <= refused
        assert unusable == refused or _drains(made)
        for front, endpoint in _slots(made, family):
            assert endpoint in served[front]


def _kept_on_node(made: Pipeline) -> set[AddressPort]:
    """The UDP fronts of ClusterIPs with policy Local, whose flows stay with local endpoints, if there are any."""
    return {
        AddressPort(address, port.port)
        for each in made.state.services.values()
        if each.internal_policy is TrafficPolicy.LOCAL
        for address in each.cluster_ips
        for port in each.ports
    }


def _drains(made: Pipeline) -> bool:
    weights = [each.options[WEIGHT] for key in made.state.services for each in made.state.slices_of(key)]
    return 0 in weights or any(0 in dict(each.options[WEIGHTS]).values() for each in made.state.services.values())


def _told(made: Pipeline) -> LastingFronts:
    """The UDP fronts of all Services.  No two overlap, although a virtual address may be the machine's own too."""
    found: LastingFronts = {}
    for each in made.state.services.values():
        for family in made.generations:
            found |= lasting_fronts(made.state, made.settings, family, each)
    return found


def _ruled(made: Pipeline, family: Family, name: str) -> dict[AddressPort, str]:
    """The UDP entries of a map of fronts."""
    found: dict[AddressPort, str] = {}
    for front, verdict in elements(made, family, f"nodeport-{name}").items():
        for address in nodeport_addresses(made.state, made.settings.config, family):
            found |= _ruled_one(f"{address} . {front}", verdict)
    for front, verdict in elements(made, family, name).items():
        found |= _ruled_one(front, verdict)
    return found


def _ruled_one(front: str, verdict: str) -> dict[AddressPort, str]:
    address, protocol, port = front.split(" . ")
    return {AddressPort(Address(address), int(port)): verdict} if protocol == Protocol.UDP.value else {}


def _slots(made: Pipeline, family: Family) -> Iterable[tuple[AddressPort, AddressPort]]:
    """Each front and endpoint in the maps of UDP endpoints."""
    for scope in ("", "local-"):
        for slot, endpoint in elements(made, family, f"udp-{scope}endpoints").items():
            front, _, _ = slot.rpartition(" . ")
            yield _end(front), _end(endpoint)


def _end(text: str) -> AddressPort:
    address, _, port = text.rpartition(" . ")
    return AddressPort(Address(address), int(port))


# ---- what is due ---------------------------------------------------------------------------------------------------


def with_ports(*ports: str, **tweaks: object) -> Service:
    """The Service `DNS` with other ports."""
    return service("kube/dns", ports=ports, **tweaks)  # type: ignore[arg-type]


ONE, BOTH = "10.1.0.4 5353", "10.1.0.4 5353, 10.1.1.4 5353"
RIVAL = service("kube/a", cluster_ips=["10.96.0.20"], external_ips=["203.0.113.9"], ports=["dns:53/udp"])


@pytest.mark.parametrize(
    ("objects", "events", "due"),
    [
        ([DNS, dns_slice()], [Put(dns_slice(*PODS, "10.1.1.5"))], {}),
        ([DNS, dns_slice()], [Put(dns_slice("10.1.1.4"))], {f"{VIP} 53": "10.1.1.4 5353"}),
        ([DNS, dns_slice()], [Put(dns_slice("10.1.1.5", "10.1.1.6"))], {f"{VIP} 53": "10.1.1.5 5353, 10.1.1.6 5353"}),
        ([DNS, dns_slice()], [Put(dns_slice(port=5354))], {f"{VIP} 53": "10.1.0.4 5354, 10.1.1.4 5354"}),
        ([DNS, dns_slice()], [Put(empty(dns_slice()))], {f"{VIP} 53": ""}),
        ([DNS, dns_slice()], [Removed(EndpointSlice, key("kube/dns-1"))], {f"{VIP} 53": ""}),
        ([DNS, empty(dns_slice())], [Put(dns_slice())], {f"{VIP} 53": BOTH}),
        ([dns_slice()], [Put(DNS)], {f"{VIP} 53": BOTH}),
        ([], [Put(DNS)], {}),
        ([DNS], [Removed(Service, DNS.key)], {}),
        ([DNS, dns_slice()], [Removed(Service, DNS.key)], {f"{VIP} 53": ""}),
        ([DNS, dns_slice()], [Removed(Service, DNS.key), Put(DNS)], {}),
        ([DNS, dns_slice()], [Put(dns_slice("10.1.1.4")), Put(dns_slice())], {}),
        ([DNS, dns_slice()], [Put(dns_slice("10.1.0.4", "10.1.1.4 unready"))], {f"{VIP} 53": ONE}),
        ([DNS, dns_slice()], [Put(dns_slice("10.1.0.4", "10.1.1.4 draining"))], {}),
        (
            [DNS, dns_slice("10.1.0.4", "10.1.1.4 draining")],
            [Put(dns_slice("10.1.0.4"))],
            {f"{VIP} 53": "10.1.0.4 5353"},
        ),
        ([DNS, dns_slice()], [Put(with_ports("dns:53/udp", internal_policy="Local"))], {f"{VIP} 53": ONE}),
        ([with_ports("dns:53/udp", internal_policy="Local"), dns_slice()], [Put(DNS)], {}),
        ([DNS, dns_slice()], [Put(with_ports("dns:53/udp", affinity_timeout=60))], {}),
        ([DNS, dns_slice()], [Put(with_ports("dns:54/udp"))], {f"{VIP} 53": "", f"{VIP} 54": BOTH}),
        ([DNS, dns_slice()], [Put(with_ports("dns:53/tcp"))], {f"{VIP} 53": ""}),
        (
            [DNS, dns_slice()],
            [Put(with_ports("dns:53/udp", cluster_ips=["10.96.0.20"]))],
            {f"{VIP} 53": "", "10.96.0.20 53": BOTH},
        ),
        (
            [with_ports("dns:53:30053/udp"), dns_slice()],
            [Put(with_ports("dns:53:30054/udp"))],
            {"192.168.0.2 30053": "", "192.168.0.2 30054": BOTH},
        ),
        (
            [with_ports("dns:53:30053/udp"), dns_slice()],
            [Put(node(internal_ips=["192.168.0.3"]))],
            {"192.168.0.2 30053": "", "192.168.0.3 30053": BOTH},
        ),
        (
            [with_ports("dns:53/udp", external_ips=["203.0.113.9"], created=5), dns_slice()],
            [Put(RIVAL)],
            {"203.0.113.9 53": ""},
        ),
        (
            [with_ports("dns:53/udp", external_ips=["203.0.113.9"], created=5), dns_slice(), RIVAL],
            [Removed(Service, RIVAL.key)],
            {"203.0.113.9 53": BOTH},
        ),
        ([service(), slice_of()], [Put(slice_of(endpoints=["10.1.9.9"]))], {}),
    ],
    ids=[
        "an endpoint more",
        "an endpoint less",
        "other endpoints",
        "another target port",
        "no endpoints left",
        "its slice is gone",
        "the first endpoints",
        "a Service for a slice",
        "a Service without endpoints",
        "a Service without endpoints is gone",
        "a Service is gone",
        "a Service that is made again",
        "an endpoint that comes back",
        "an endpoint that isn't ready",
        "an endpoint that drains",
        "an endpoint that has drained",
        "policy Local",
        "policy Cluster",
        "affinity",
        "another port",
        "another protocol",
        "another virtual address",
        "another node port",
        "another address of the node",
        "an older claimant",
        "an older claimant is gone",
        "TCP",
    ],
)
def test_fronts_that_lose_an_endpoint_or_get_their_first_are_due(
    objects: list[Given], events: list[Event], due: dict[str, str]
) -> None:
    """After a change exactly the fronts are due whose flows may go to another endpoint."""
    made = settled(*objects)
    made.ingest(events)
    assert made.flows.pop_due() == sweeps(**due)


def test_at_first_everything_is_due() -> None:
    """Every UDP front is swept at the start, even without endpoints, as earlier changes are unknown."""
    made = pipeline(DNS, dns_slice(), service("kube/log", cluster_ips=["10.96.0.20"], ports=["514/udp"]))
    assert made.flows.pop_due() == sweeps(**{f"{VIP} 53": BOTH, "10.96.0.20 514": ""})


def test_a_front_removed_before_the_first_sweep_is_due() -> None:
    """A front that is removed before the first sweep is swept together with the existing fronts."""
    made = pipeline(DNS, dns_slice(), service("kube/log", cluster_ips=["10.96.0.20"], ports=["514/udp"]))
    made.ingest([Removed(Service, DNS.key)])
    assert made.flows.pop_due() == sweeps(**{f"{VIP} 53": "", "10.96.0.20 514": ""})


def test_a_due_front_is_returned_once() -> None:
    """A front that has been returned is not due until it loses an endpoint again."""
    made = settled(DNS, dns_slice())
    made.ingest([Put(dns_slice("10.1.1.4"))])
    assert made.flows.pop_due()
    assert made.flows.pop_due() == {}


def test_a_due_front_is_swept_with_its_current_endpoints() -> None:
    """Changes between two sweeps add up, and each due front is swept with its current endpoints."""
    made = settled(DNS, dns_slice())
    made.ingest([Put(dns_slice("10.1.1.4"))])
    made.ingest([Put(dns_slice("10.1.1.4", "10.1.1.5"))])
    assert made.flows.pop_due() == sweeps(**{f"{VIP} 53": "10.1.1.4 5353, 10.1.1.5 5353"})
    made.ingest([Put(dns_slice("10.1.1.5"))])
    made.ingest([Removed(Service, DNS.key)])
    assert made.flows.pop_due() == sweeps(**{f"{VIP} 53": ""})


def test_a_change_costs_what_it_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed slice makes lookups only for the fronts of its Service, once for each family."""
    many = [service(f"kube/s{number}", cluster_ips=[f"10.96.1.{number}"], ports=["53/udp"]) for number in range(20)]
    made = settled(DNS, *many)
    asked: list[object] = []

    def counted(*arguments: object) -> LastingFronts:
        asked.append(key_of(arguments[-1]))  # type: ignore[arg-type]
        return {}

    monkeypatch.setattr(flows, "lasting_fronts", counted)
    made.ingest([Put(slice_of("kube/s7", ["10.1.0.4"], ports=["53/udp"]))])
    assert asked == [key("kube/s7")] * 2


# ---- restrictions ------------------------------------------------------------------------------------------------

RANGES = {"source_ranges": ["198.51.100.0/24"]}
DENIED = {"annotations": {"denied-source-ranges": "192.0.2.0/24"}}


def balanced(**tweaks: Any) -> Service:
    """A Service with ports of two protocols and a load balancer."""
    fields = {"type": "LoadBalancer", "load_balancer_ips": ["203.0.113.7"], "ports": ["dns:53:30053/udp", "web:80"]}
    return service("kube/dns", **fields | tweaks)


FRONTS = {
    AddressPort(Address(address), port, protocol)
    for address, port, protocol in [
        (VIP, 53, Protocol.UDP),
        (VIP, 80, Protocol.TCP),
        ("203.0.113.7", 53, Protocol.UDP),
        ("203.0.113.7", 80, Protocol.TCP),
        ("192.168.0.2", 30053, Protocol.UDP),
    ]
}


@pytest.mark.parametrize(
    ("before", "after", "is_due"),
    [
        ({}, RANGES, True),
        ({}, DENIED, True),
        (RANGES, RANGES | DENIED, True),
        (RANGES, {"source_ranges": ["198.51.101.0/24"]}, True),
        (RANGES, RANGES, False),
        (RANGES, {}, False),
        ({}, {}, False),
        ({}, {"affinity_timeout": 60}, False),
    ],
)
def test_new_restrictions_hold_for_flows_without_an_answer(
    before: dict[str, Any], after: dict[str, Any], is_due: bool
) -> None:
    """All fronts of a Service that restricts its clients anew are due for unanswered flows, of any protocol."""
    made = settled(balanced(**before))
    made.ingest([Put(balanced(**after))])
    assert made.flows.pop_due() == (dict.fromkeys(map(Unanswered, FRONTS), NO_ENDPOINTS) if is_due else {})


def test_at_first_restrictions_are_due() -> None:
    """A restriction that was added while no agent ran holds for flows without an answer from the start."""
    made = pipeline(balanced(**RANGES), service("kube/other", cluster_ips=["10.96.0.20"], ports=["80"]))
    assert {each for each in made.flows.pop_due() if isinstance(each, Unanswered)} == set(map(Unanswered, FRONTS))


def test_a_plain_service_costs_no_call_for_restrictions() -> None:
    """A change of a Service that admits all clients enters no function of the restrictions."""
    made = settled(balanced())
    entered = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == flows.__file__:
            entered.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        made.ingest([Put(balanced(affinity_timeout=60))])
    finally:
        sys.setprofile(None)
    assert "lasting_fronts" in entered
    assert {name for name in entered if "restrict" in name} == set()


# ---- any history ---------------------------------------------------------------------------------------------------


@quick()
@given(all_settings, histories)
def test_incremental_equals_from_scratch(settings: Settings, history: list[list[Event]]) -> None:
    """After any events the fronts and their endpoints equal those of a pipeline made from the present objects."""
    made = Pipeline("node-a", settings, renderer())
    for batch in history:
        made.ingest(batch)
    whole = Pipeline("node-a", settings, renderer())
    whole.ingest([Put(each) for each in survivors(history)])
    told, expected = made.flows.pop_due(), whole.flows.pop_due()
    assert {front: usable for front, usable in told.items() if front in expected} == expected
    assert all(each == NO_ENDPOINTS for front, each in told.items() if front not in expected)


@quick()
@given(all_settings, histories)
def test_sweeps_leave_the_flows_that_are_right(settings: Settings, history: list[list[Event]]) -> None:
    """After any events, a sweep removes exactly the flows that are stale by the present fronts.

    Flows are made in between by what the rules would do with them: to every usable endpoint of a front, or untranslated
    where there is none.
    """
    made = Pipeline("node-a", settings, renderer())
    seen = _fronts_ever(settings, history)
    alive: set[tuple[AddressPort, AddressPort]] = {(front, front) for front in seen}
    for batch in history:
        made.ingest(batch)
        now = _told(made)
        right = {(f, e) for f, e in alive if not is_stale(f, Flow(e), now.get(f, NO_ENDPOINTS))}
        alive = {(f, e) for f, e in alive if not _is_swept(f, e, swept)} if (swept := made.flows.pop_due()) else alive
        assert alive == right
        alive |= {(front, endpoint) for front in seen for endpoint in now.get(front, NO_ENDPOINTS).endpoints or {front}}


def _fronts_ever(settings: Settings, history: list[list[Event]]) -> set[AddressPort]:
    made = Pipeline("node-a", settings, renderer())
    seen: set[AddressPort] = set()
    for batch in history:
        made.ingest(batch)
        seen |= _told(made).keys()
    return seen


def _is_swept(front: AddressPort, endpoint: AddressPort, swept: Sweeps) -> bool:
    return front in swept and is_stale(front, Flow(endpoint), swept[front])
