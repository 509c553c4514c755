"""Parts of explanations that packets can't show: names, reasons, losers, quarantined Services, and missing objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec
import pytest

from nftproxy.explanation.answer import MOST_ENDPOINTS, Admits, ExplainedPlace, Explanation, Fate, List
from nftproxy.explanation.answering import MAX_PLACES, explain
from nftproxy.explanation.question import Question, SourceKind, parse_source, parse_to
from nftproxy.extensions.external_addresses.fields import ExternalAddresses
from nftproxy.extensions.least_connections.balanced_rows import MOST_BALANCED
from nftproxy.extensions.localhost.forwardings import LocalhostPorts
from nftproxy.model.addresses import Address, Family
from nftproxy.model.codes import Code
from nftproxy.model.events import Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, Ignored, Node, ObjectKey, Place, Service, TrafficDistribution
from nftproxy.model.pods import NO_PODS, Pods
from nftproxy.pipeline import Pipeline
from nftproxy.policy.choosing.verdicts import ChoiceReason
from tests.support.factories import host_addresses, key, networks, node, pipeline, service, service_cidr, slice_of
from tests.support.words import ALGORITHMS


def asked(made: Pipeline, to: str, source: str = "", pods: Pods = NO_PODS) -> Explanation:
    """Return the answer to a question."""
    return explain(made, Question(parse_to(to), parse_source(source) if source else None), pods)


def place(made: Pipeline, to: str, source: str = "", pods: Pods = NO_PODS) -> ExplainedPlace:
    """Return the answer to a question about a single place."""
    (found,) = asked(made, to, source, pods).places
    return found


BALANCED = service(
    type="LoadBalancer",
    load_balancer_ips=["203.0.113.7"],
    source_ranges=["198.51.100.0/24", "192.168.0.0/24"],
    ports=["http:80:30080"],
    external_policy="Local",
    health_check_node_port=32000,
)


def test_an_explanation_is_json_without_loss() -> None:
    """An explanation written as JSON is read back as the same values."""
    explanation = asked(pipeline(BALANCED, slice_of()), "svc/shop/web")
    assert msgspec.json.decode(msgspec.json.encode(explanation), type=Explanation) == explanation


def test_every_front_of_a_service_is_explained() -> None:
    """A question about a Service covers all its addresses and ports, or only the port that the question names."""
    made = pipeline(service(ports=["http:80:30080", "dns:53/udp"], type="NodePort"), slice_of())
    fronts = [(each.address, each.port, each.protocol.value, each.front) for each in asked(made, "svc/shop/web").places]
    assert fronts == [
        ("10.96.0.10", 80, "tcp", "ClusterIP"),
        ("192.168.0.2", 30080, "tcp", "node port"),
        ("10.96.0.10", 53, "udp", "ClusterIP"),
    ]
    for port in ("dns", "53", "53/udp"):
        assert [each.port for each in asked(made, f"svc/shop/web:{port}").places] == [53]
    assert asked(made, "svc/shop/web:53/tcp").notes == ("Service shop/web has no such port",)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: each.value)
def test_the_algorithm_and_shares_by_weight_are_explained(algorithm: Enum) -> None:
    """A case names the algorithm, gives each endpoint a share by its weight, and gives a drained endpoint none."""
    made = pipeline(
        service(annotations={"algorithm": algorithm.value, "weights": "zone:a=3"}),
        slice_of(endpoints=["10.1.0.4 in=a", "10.1.0.5 in=b"]),
        slice_of(endpoints=["10.1.0.6"], suffix="2", weight=0),
    )
    (case,) = place(made, "10.96.0.10:80", "10.1.0.9").cases
    assert case.drawn == algorithm.value
    assert [round(each.share) for each in case.endpoints] == [75, 25, 0]
    assert case.endpoints[-1].why == ChoiceReason.DRAINED.value
    assert algorithm.value in case.why


def test_an_address_on_two_nodes_is_noted() -> None:
    """An address that serves on two nodes, which two pods have, is a note.  One pod that moves between slices isn't."""
    both = [slice_of("shop/web", [f"10.1.0.4@node-{each}"], suffix=each) for each in ("a", "b")]
    again = slice_of("shop/web", ["10.1.0.4@node-a"], suffix="c")
    text = "pods of several nodes have the same address, and only one pod is reached: 10.1.0.4 (on node-a, node-b)"
    asked = Question(parse_to("svc/shop/web"))
    assert explain(pipeline(service("shop/web"), *both, again), asked).notes == (text,)
    assert explain(pipeline(service("shop/web"), both[0], again), asked).notes == ()


def test_unknown_objects_are_noted() -> None:
    """The answer has a note about an unknown Service, a family without rules, or a pod without a known address."""
    made = pipeline(service(), families=[Family.IPV4])
    assert asked(made, "svc/shop/other").notes == ("this proxy knows no Service shop/other",)
    assert asked(made, "[fd00:96::1]:80").notes == ("there are no rules for this address's family",)
    assert asked(made, "10.96.0.10:80", "pod/shop/a").notes == (
        "the address of pod shop/a is not known: no EndpointSlice refers to it",
    )


@pytest.mark.parametrize(
    ("to", "source", "is_known"),
    [
        ("svc/shop/other", "", False),
        ("svc/shop/web:81", "", False),
        ("svc/shop/web", "pod/shop/a", False),
        ("svc/shop/web", "", True),
        ("svc/shop/headless", "", True),
        ("10.96.7.7:80", "", True),
    ],
)
def test_answers_about_unknown_objects_are_marked(to: str, source: str, is_known: bool) -> None:
    """An answer about a Service, port or pod that this proxy doesn't know is marked, for the command's exit status."""
    made = pipeline(service())
    made.ingest([Listed(Service, (service(),), (ignored("shop/headless", "it is headless (clusterIP None)"),))])
    assert asked(made, to, source).is_known is is_known


def ignored(name: str, reason: str, *cluster_ips: str) -> Ignored:
    """A Service that isn't for this proxy."""
    return Ignored(f"Service {name}", reason, key(name), tuple(map(Address, cluster_ips)))


@pytest.mark.parametrize(
    ("reason", "instead"),
    [
        (
            "it is headless (clusterIP None)",
            "; its name resolves to the addresses of its pods, which clients connect to by themselves",
        ),
        ("its type is ExternalName", "; its name resolves to another name"),
        ("it is for another proxy (label service.kubernetes.io/service-proxy-name)", ""),
    ],
)
def test_a_service_that_is_not_served_has_its_reason(reason: str, instead: str) -> None:
    """The answer about a Service that isn't for this proxy says why, until the Service is for it or is deleted."""
    made = pipeline(service())
    made.ingest([Removed(Service, key("shop/other"), ignored("shop/other", reason))])
    assert asked(made, "svc/shop/other").notes == (f"this proxy doesn't serve Service shop/other: {reason}{instead}",)
    made.ingest([Put(service("shop/other", cluster_ips=["10.96.0.11"]))])
    assert asked(made, "svc/shop/other").notes == ()
    made.ingest(
        [Removed(Service, key("shop/other"), ignored("shop/other", reason)), Removed(Service, key("shop/other"))]
    )
    assert asked(made, "svc/shop/other").notes == ("this proxy knows no Service shop/other",)


def test_a_canary_names_the_label_of_its_services() -> None:
    """A canary knows only labelled Services, and says so of any other name."""
    made = pipeline(service(), service_proxy_name="canary")
    label = "service.kubernetes.io/service-proxy-name=canary"
    assert asked(made, "svc/blog/site").notes == (f"this proxy knows no Service blog/site with the label {label}",)


@pytest.mark.parametrize("cidrs", [(), ("10.96.0.0/16",)])
def test_an_address_of_another_proxys_service_is_named(cidrs: tuple[str, ...]) -> None:
    """The ClusterIP of another proxy's Service isn't called nobody's, in a ServiceCIDR and outside of all."""
    made = pipeline(service(), *map(service_cidr, cidrs))
    reason = "it is for another proxy (label service.kubernetes.io/service-proxy-name)"
    made.ingest([Removed(Service, key("shop/other"), ignored("shop/other", reason, "10.96.0.11"))])
    (case,) = place(made, "10.96.0.11:80", "outside").cases
    assert f"Service shop/other has it, which this proxy doesn't serve: {reason}" in case.why
    assert case.fate is (Fate.DROPPED if cidrs else Fate.PASSED)


POD_SLICE = msgspec.structs.replace(slice_of(endpoints=["10.1.0.4@node-a", "10.1.1.4@node-b"]), pods="web-1 web-2")


def test_pods_are_known_by_their_endpoint_slices() -> None:
    """Without manifests of pods, as in the agent, endpoints have the names of their pods, and a source may be a pod."""
    made = pipeline(service(), POD_SLICE)
    (case,) = place(made, "10.96.0.10:80", "pod/shop/web-2").cases
    assert case.sources == ("10.1.1.4 (pods of other nodes)",)
    assert [each.pod for each in case.endpoints] == ["shop/web-1", "shop/web-2"]
    assert not asked(made, "10.96.0.10:80", "pod/blog/web-2").is_known


@pytest.mark.parametrize(
    ("slices", "why"),
    [
        ([], "the Service has no EndpointSlice of IPv4"),
        ([slice_of(endpoints=[])], "its EndpointSlices have no endpoints, as when its selector matches no pod"),
        (
            [slice_of(endpoints=["10.1.0.4", "10.1.0.5", "10.1.0.6"], ports=["web:8080"])],
            "its EndpointSlices have 3 endpoints, none with the port `http`, as when targetPort names no container "
            "port of the pods",
        ),
    ],
)
def test_a_port_without_any_endpoint_has_its_reason(slices: list[EndpointSlice], why: str) -> None:
    """A Service port without endpoints says whether its EndpointSlices lack endpoints, or the port."""
    (case,) = place(pipeline(service(), *slices), "10.96.0.10:80").cases
    assert case.why == f"the Service port has no usable endpoint on any node: {why}"


def test_a_node_port_at_an_address_that_serves_none_is_named() -> None:
    """At an address without node ports the answer names the node port's Service, and the addresses that serve it."""
    made = pipeline(
        service(ports=["http:80:30080"], type="NodePort"), slice_of(), host_addresses("192.168.0.2", "10.9.9.9")
    )
    cases = place(made, "10.9.9.9:30080").cases
    assert [case.why for case in cases] == [
        "it is the node's own address, and the port is a node port of Service shop/web:http, but node ports are served "
        "only at 192.168.0.2 (nodePortAddresses)"
    ]
    assert "no Service is served at the port" in place(made, "10.9.9.9:30081").cases[0].why
    (elsewhere,) = place(made, "10.9.9.10:30080").cases
    assert elsewhere.why == (
        "the port is a node port of Service shop/web:http, but node ports are served only at 192.168.0.2 "
        "(nodePortAddresses), so the packet is routed as any other"
    )


@pytest.mark.parametrize(
    ("of_node", "ranges", "why"),
    [
        (node(internal_ips=[]), ["primary"], "the Node node-a has no InternalIP or ExternalIP of IPv4"),
        (node(internal_ips=["127.0.0.1"]), ["primary"], "the Node node-a has only loopback addresses of IPv4"),
        (None, ["primary"], "the cluster has no Node node-a"),
        (node(), ["172.16.0.0/12"], "nodePortAddresses selects none"),
    ],
)
def test_a_node_port_that_no_address_serves_is_named(of_node: Node | None, ranges: list[str], why: str) -> None:
    """At the node's address, and for the port of the node, the answer names the Service and why nothing serves it."""
    served = service(ports=["http:80:30080"], type="NodePort")
    made = pipeline(served, slice_of(), node=of_node, node_port_addresses=ranges)
    nowhere = f"no address of this node serves it, as {why}"
    (case,) = place(made, "192.168.0.2:30080").cases
    assert f"the port is a node port of Service shop/web, but {nowhere}" in case.why
    assert f"node port 30080 (IPv4): {nowhere}" in asked(made, "node:30080").notes
    assert f"node port 30080 (IPv4): {nowhere}" in asked(made, "svc/shop/web").notes
    assert "a node port" not in place(made, "192.168.0.2:30081").cases[0].why
    assert not any("30081" in each for each in asked(made, "node:30081").notes)


def test_limits_say_that_they_drop() -> None:
    """Limits of a Service for each client are listed, with the outcome of connections beyond them."""
    limits = {"client-connections": "1", "client-connection-rate": "2,burst=4"}
    answer = str(asked(pipeline(service(annotations=limits), slice_of()), "10.96.0.10:80"))
    assert (
        "limits for each client: new connections per second: 2, in a row: 4; connections at a time: 1; new connections "
        "beyond them are dropped\n"
    ) in answer
    assert "translated within the limits: to " in answer


@pytest.mark.parametrize("limits", [{}, {"client-connections": "1"}])
def test_only_translation_depends_on_limits(limits: Mapping[str, str]) -> None:
    """Connections that no limit drops aren't said to be within limits."""
    made = pipeline(service(annotations=limits), slice_of(endpoints=[] if limits else ["10.1.0.4"]))
    assert "within the limits" not in str(asked(made, "10.96.0.10:80"))


@pytest.mark.parametrize(("cidr", "fate"), [("203.0.113.0/24", Fate.REJECTED), ("192.0.2.0/24", Fate.PASSED)])
def test_a_closed_external_address_names_its_service(cidr: str, fate: Fate) -> None:
    """Another port of an external address is rejected in the ranges that are closed, and the Service is named."""
    balanced = service(type="LoadBalancer", load_balancer_ips=["203.0.113.7"])
    made = pipeline(balanced, external_addresses=ExternalAddresses.CLOSED, external_ip_cidrs=networks([cidr]))
    found = place(made, "203.0.113.7:81")
    assert {case.fate for case in found.cases} == {fate}
    expected = [(each.container, each.value) for each in found.expected if each.container == "external-ips"]
    assert expected == [("external-ips", "" if fate is Fate.REJECTED else None)]
    if fate is Fate.REJECTED:
        assert found.cases[0].why == "it is an external address of Service shop/web, and no Service has this port"


def test_a_service_without_rules_for_its_family_is_no_service_without_the_port() -> None:
    """The ports of a Service in a family without rules are known, but have no rules."""
    made = pipeline(service(cluster_ips=["fd00:96::10"]), families=[Family.IPV4])
    answer = asked(made, "svc/shop/web")
    assert (answer.notes, answer.is_known) == (("there are no rules for the families of Service shop/web",), True)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("svc/shop/wbe", "; is svc/shop/web meant?"),
        ("svc/default/web", "; is svc/shop/web meant?"),
        ("svc/default/wbe", ""),
        ("svc/shop/database", ""),
    ],
)
def test_a_service_that_may_be_meant_is_named(text: str, meant: str) -> None:
    """For a mistyped name or a wrong namespace the answer names the most similar Service, if any is similar."""
    made = pipeline(service(), service("shop/front", cluster_ips=["10.96.0.11"]))
    name = text.removeprefix("svc/")
    assert asked(made, text).notes == (f"this proxy knows no Service {name}{meant}",)


def test_losers_of_a_place_are_named_with_the_reason() -> None:
    """The answer names the owner of a contested place, and each Service that loses it, with the reason."""
    ages = {"shop/old": 1, "shop/new": 2, "shop/newer": 3}
    rivals = [
        service(name, cluster_ips=[f"10.96.0.{age}"], external_ips=["203.0.113.7"], created=age)
        for name, age in ages.items()
    ]
    found = place(pipeline(*rivals), "203.0.113.7:80")
    assert str(found.owner) == "shop/old:http"
    assert [(loser.owner.name, loser.why) for loser in found.losers] == [
        (name, "it belongs to Service shop/old, which takes precedence") for name in ("new", "newer")
    ]


def test_each_endpoint_has_a_share_or_a_reason() -> None:
    """Chosen endpoints share all connections, and every other endpoint has the policy's reason against it."""
    pods = slice_of(endpoints=["10.1.0.4@node-a", "10.1.0.5@node-a", "10.1.1.4 draining", "10.1.1.5 unready"])
    found = place(pipeline(service(), pods), "10.96.0.10:80", "outside")
    (case,) = found.cases
    assert [(each.address, each.share, each.why) for each in case.endpoints] == [
        ("10.1.0.4", 50.0, ChoiceReason.READY.value),
        ("10.1.0.5", 50.0, ChoiceReason.READY.value),
        ("10.1.1.4", 0.0, ChoiceReason.TERMINATING.value),
        ("10.1.1.5", 0.0, ChoiceReason.NOT_READY.value),
    ]


def test_sources_with_the_same_fate_share_a_case() -> None:
    """With policy Local, kinds of sources with the same fate share a case, and different fates are different cases."""
    cases = asked(pipeline(BALANCED, slice_of()), "node:30080").places[0].cases
    assert [(case.sources, case.list, case.is_masqueraded) for case in cases] == [
        ((SourceKind.POD.value, SourceKind.REMOTE_POD.value), List.CLUSTER, False),
        ((SourceKind.NODE.value,), List.CLUSTER, True),
        ((SourceKind.OUTSIDE.value,), List.LOCAL, False),
    ]


@pytest.mark.parametrize(
    ("source", "admits", "by"),
    [
        ("198.51.100.7", Admits.YES, "198.51.100.0/24"),
        ("198.51.101.7", Admits.NO, ""),
        ("203.0.113.7", Admits.YES, ""),  # the node's own range admits the Service's addresses
        ("outside", Admits.DEPENDS, ""),
        ("node", Admits.YES, "192.168.0.0/24"),
    ],
)
def test_source_ranges_say_whom_they_admit(source: str, admits: Admits, by: str) -> None:
    """A client is admitted by a named range or dropped, and for a client without a known address it depends."""
    (case,) = place(pipeline(BALANCED, slice_of()), "203.0.113.7:80", source).cases
    assert case.admission
    assert (case.admission.admits, case.admission.by) == (admits, by)
    assert (case.fate is Fate.DROPPED) is (admits is Admits.NO)


def test_a_quarantined_service_is_named_with_the_reason() -> None:
    """If a quarantined Service has the place, the explanation names the Service and the reason."""
    made = pipeline(service(), slice_of(), service_cidr())
    made.withhold(Family.IPV4, [key("shop/web")])
    made.withheld[Family.IPV4][key("shop/web")] = "No such file or directory"
    found = place(made, "10.96.0.10:80")
    assert found.owner is None
    assert [case.fate for case in found.cases] == [Fate.DROPPED]
    assert found.notes == (
        "NFT407: Service shop/web has this place but is quarantined, so it has no rules of this family: "
        "No such file or directory",
    )


def test_a_service_over_a_limit_is_named_with_the_reason() -> None:
    """A Service over a limit claims nothing, and questions about it or its address are answered with the reason."""
    made = pipeline(service(source_ranges=[f"10.{n >> 8}.{n & 255}.0/24" for n in range(1001)]))
    reason = "it has 1001 source ranges, and 1000 are allowed"
    assert asked(made, "svc/shop/web").notes == (f"{Code.LIMIT_EXCEEDED}: Service shop/web is quarantined: {reason}",)
    (note,) = place(made, "10.96.0.10:80").notes
    what = "Service shop/web asks for this address but is quarantined, so it isn't served"
    assert note == f"{Code.LIMIT_EXCEEDED}: {what}: {reason}"
    (case,) = place(made, "10.96.0.10:80").cases
    assert case.why == "no Service is served there, so the packet is routed as any other"


def test_health_checks_are_explained() -> None:
    """A health-check node port belongs to its Service, and a note gives the agent's answer."""
    made = pipeline(BALANCED, slice_of())
    found = asked(made, "node:32000").places[0]
    assert (found.front, str(found.owner)) == ("health-check node port", "shop/web")
    assert found.notes == (
        "the agent answers load balancers here: ready endpoints on this node: 1, so the status is 200, "
        "while the proxy is healthy",
    )


def test_localhost_is_explained() -> None:
    """The agent forwards a node port at localhost for the node alone, and other localhost ports are the node's own."""
    made = pipeline(
        service(type="NodePort", ports=["http:80:30080"], affinity_timeout=60),
        slice_of(),
        node_port_addresses=["localhost"],
    )
    found = place(made, "127.0.0.1:30080")
    (case,) = found.cases
    assert (found.front, case.sources, case.fate) == (
        "node port at localhost",
        (SourceKind.NODE.value,),
        Fate.FORWARDED,
    )
    assert [each.share for each in case.endpoints] == [50.0, 50.0]
    assert found.affinity
    assert "agent" in found.affinity.how
    assert [case.fate for case in place(made, "127.0.0.1:30081").cases] == [Fate.NODE]
    assert place(made, "127.0.0.1:30080", "outside").cases == ()


def test_shares_take_no_walk_for_each_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a list are counted once for all of its endpoints, at localhost as well."""

    class Walked(tuple[Place, ...]):
        __slots__ = ()

        def count(self, value: object, /) -> int:
            raise AssertionError(f"a walk through all rows for {value}")

    def counted(of: Counter[object]) -> int:
        totals.append(sum(of.values()))
        return totals[-1]

    totals: list[int] = []
    pods = [f"10.1.2.{number}" for number in range(100)]
    made = pipeline(
        service(type="NodePort", ports=["http:80:30080"]), slice_of(endpoints=pods), node_port_addresses=["localhost"]
    )
    by_port = made.view(LocalhostPorts).by_port
    made.view(LocalhostPorts).by_port = {
        port: each._replace(endpoints=Walked(each.endpoints)) for port, each in by_port.items()
    }
    monkeypatch.setattr(Counter, "total", counted)
    for to in ("10.96.0.10:80", "127.0.0.1:30080"):
        case = place(made, to, "node").cases[0]
        assert [each.share for each in case.endpoints] == [1.0] * 100
        assert totals == [100]
        totals.clear()


@pytest.mark.parametrize(
    ("policy", "where"),
    [("Cluster", "any node"), ("Local", "this node (externalTrafficPolicy Local)")],
)
def test_localhost_without_endpoints_is_explained(policy: str, where: str) -> None:
    """If the agent serves localhost but not this node port, the reason is that there are no usable endpoints."""
    made = pipeline(
        service(type="NodePort", ports=["http:80:30080"], external_policy=policy), node_port_addresses=["localhost"]
    )
    (case,) = place(made, "127.0.0.1:30080").cases
    assert case.why.endswith(f"the port is a node port of Service shop/web:http, but no usable endpoint is on {where}")


def test_the_wrong_protocol_is_noticed() -> None:
    """A question by TCP about a port that a Service serves by UDP gets a note with the right question."""
    made = pipeline(service(ports=["dns:53/udp"]))
    assert place(made, "10.96.0.10:53").notes == ("over UDP this is Service shop/web:dns: ask for 53/UDP",)


def test_unfollowed_hints_are_explained() -> None:
    """If a Service asks for near endpoints and gets all of them, a note says why."""
    made = pipeline(service(traffic_distribution=TrafficDistribution.PREFER_SAME_ZONE), slice_of())
    (note,) = place(made, "10.96.0.10:80", "outside").notes
    assert note.startswith(
        f"{Code.TOPOLOGY_UNUSED}: all endpoints are used in spite of trafficDistribution PreferSameZone: "
    )


def test_affinity_by_hash_is_explained() -> None:
    """If nft can't remember IPv6 clients, a hash decides and no map is named."""
    made = pipeline(
        service(cluster_ips=["fd00:96::10"], affinity_timeout=60), slice_of(endpoints=["fd00:1::4"]), wide_maps=False
    )
    found = place(made, "[fd00:96::10]:80")
    assert found.affinity
    assert (found.affinity.map, found.affinity.timeout) == ("", 60)
    assert "hash" in found.affinity.how


@pytest.mark.parametrize(
    ("algorithm", "tweaks", "endpoints", "drawn"),
    [
        ("random", {"affinity_timeout": 60}, 2, "source-hash"),
        ("consistent-hash", {"affinity_timeout": 60}, 2, "consistent-hash"),
        ("least-connections", {}, MOST_BALANCED, "least-connections"),
        ("least-connections", {}, MOST_BALANCED + 1, "random"),
    ],
)
def test_the_algorithm_is_that_of_the_rules(algorithm: str, tweaks: dict[str, Any], endpoints: int, drawn: str) -> None:
    """Affinity that nft can't remember goes by a hash, and a long list with least connections is drawn at random."""
    web = service(cluster_ips=["fd00:96::10"], annotations={"algorithm": algorithm}, **tweaks)
    pods = [f"fd00:1::{number:x}" for number in range(1, endpoints + 1)]
    (case,) = place(pipeline(web, slice_of(endpoints=pods), wide_maps=False), "[fd00:96::10]:80", "fd00:9::9").cases
    assert case.drawn == drawn


def test_a_service_without_ports_is_known() -> None:
    """A question about it as a whole has its answer.  A question about a port of it has none."""
    made = pipeline(service(ports=[]))
    found = asked(made, "svc/shop/web")
    assert found.notes == ("Service shop/web has no ports, so connections to its ClusterIP are rejected",)
    assert found.is_known
    assert not asked(made, "svc/shop/web:80").is_known


PODS = Pods.of(
    [
        (ObjectKey("shop", "web-1"), Address("10.1.0.4")),
        (ObjectKey("shop", "proxy-a"), Address("192.168.0.2")),
        (ObjectKey("kube-system", "other"), Address("192.168.0.2")),
    ]
)


def test_pods_are_known_by_name() -> None:
    """A question may name a pod, and an answer names each endpoint's pod unless several pods share the address."""
    made = pipeline(service(), slice_of(endpoints=["10.1.0.4@node-a", "192.168.0.2@node-a"]))
    (case,) = place(made, "10.96.0.10:80", "pod/shop/web-1", PODS).cases
    assert case.sources == (f"10.1.0.4 ({SourceKind.POD.value})",)
    assert [(each.pod, each.is_masqueraded) for each in case.endpoints] == [("shop/web-1", True), ("", False)]
    (case,) = place(made, "10.96.0.10:80", "pod/shop/proxy-a", PODS).cases
    assert case.sources == (f"192.168.0.2 ({SourceKind.NODE.value})",)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("192.168.0.2", SourceKind.NODE),
        ("192.168.0.9", SourceKind.NODE),
        ("10.1.0.9", SourceKind.POD),
        ("172.16.0.4", SourceKind.POD),
        ("172.16.1.4", SourceKind.REMOTE_POD),
        ("10.1.9.9", SourceKind.REMOTE_POD),
        ("198.51.100.7", SourceKind.OUTSIDE),
    ],
)
def test_an_address_is_taken_for_what_it_is(address: str, kind: SourceKind) -> None:
    """An address is the node's, or a pod's (by a CIDR or an endpoint with the address), or else outside."""
    made = pipeline(
        service(),
        slice_of(endpoints=["172.16.0.4@node-a", "172.16.1.4@node-b"]),
        host_addresses("192.168.0.2", "192.168.0.9"),
    )
    (case,) = place(made, "10.96.0.10:80", address).cases
    assert case.sources == (f"{address} ({kind.value})",)


def test_answers_are_bounded() -> None:
    """A Service of very many ports or endpoints gets an answer that says how much it leaves out."""
    made = pipeline(service(ports=[f"p{n}:{n}" for n in range(1, MAX_PLACES + 6)]))
    explanation = asked(made, "svc/shop/web")
    assert len(explanation.places) == MAX_PLACES
    assert explanation.notes == ("5 more addresses and ports are left out: ask for one port",)
    crowd = slice_of(endpoints=[f"10.1.{n >> 8}.{n & 255}" for n in range(1, MOST_ENDPOINTS + 8)])
    words = str(asked(pipeline(service(), crowd), "10.96.0.10:80", "outside"))
    assert "and 7 more (--output json has all)" in words


def test_no_line_of_an_explanation_can_be_forged() -> None:
    """Text from the kernel or a cluster in a reason can't begin a new line."""
    made = pipeline(service(), node=node())
    made.withhold(Family.IPV4, [key("shop/web")])
    made.withheld[Family.IPV4][key("shop/web")] = "no\n10.96.0.10:80/TCP: fine"
    assert "\n10.96.0.10:80/TCP: fine" not in str(asked(made, "10.96.0.10:80"))


@pytest.mark.parametrize(
    ("pod_cidrs", "ranges", "source", "note"),
    [
        ((), ["10.1.0.0/16"], "10.1.0.9", "10.1.0.9 is taken for a pod of another node: Node node-a has no podCIDR"),
        (
            ("fd00:1::/64",),
            ["fd00:1::/48"],
            "10.1.0.9",
            "10.1.0.9 is taken for a client outside the cluster: no clusterCIDR tells pods' addresses",
        ),
        (("10.1.0.0/24",), ["10.1.0.0/16"], "10.1.2.9", ""),
        ((), ["10.1.0.0/16"], "10.1.0.4", ""),
        ((), ["10.1.0.0/16"], "198.51.100.7", ""),
        ((), [], "outside", ""),
    ],
    ids=["no podCIDR", "no clusterCIDR", "all ranges", "an endpoint", "outside", "a kind"],
)
def test_a_client_whose_kind_is_a_guess(pod_cidrs: tuple[str, ...], ranges: list[str], source: str, note: str) -> None:
    """A note says that the kind of a client is assumed, and which range would tell it."""
    here = node(pod_cidrs=pod_cidrs)
    made = pipeline(service(), slice_of(endpoints=["10.1.0.4@node-a"]), node=here, cluster_cidrs=ranges)
    assert asked(made, "10.96.0.10:80", source).notes == ((note,) if note else ())


def test_near_endpoints_that_policy_local_replaces_are_no_remark() -> None:
    """Policy Local uses the node's own endpoints whatever the hints, so nothing is said of near endpoints."""
    near = TrafficDistribution.PREFER_SAME_ZONE
    for policy, remarks in (("Cluster", 1), ("Local", 0)):
        made = pipeline(service(internal_policy=policy, traffic_distribution=near), slice_of())
        assert len([each for each in place(made, "10.96.0.10:80").notes if Code.TOPOLOGY_UNUSED in each]) == remarks


def test_a_node_that_the_cluster_does_not_have() -> None:
    """If the Node is missing, its addresses are unknown, and the answer doesn't say that it has none."""
    notes = [asked(pipeline(node=each), "node:30080").notes for each in (None, node(internal_ips=()))]
    assert notes == [("the cluster has no Node node-a, so its addresses are unknown",), ("the node has no address",)]


def test_the_fast_path_is_noted() -> None:
    """With a fast path an explanation says that established TCP and UDP connections pass no chain."""
    made = pipeline(service(), slice_of(), fast_path_interfaces=("eth0", "veth*"))
    note = (
        "once established, a connection to an endpoint that arrives and leaves at eth0, veth* takes the fast path, past"
        " all chains"
    )
    assert note in asked(made, "10.96.0.10:80").notes
    assert note not in asked(made, "10.96.0.10:80/SCTP").notes
    assert note not in asked(pipeline(service(), slice_of()), "10.96.0.10:80").notes
