"""Which objects count, and how endpoints are read: manifests go in, connections come out."""

from __future__ import annotations

import itertools

import pytest
from nftproxy_conformance.lab import TCP_RESET, UNTOUCHED, Kind, Lab, Origin, Outcome

from tests.support.cluster import IP, IP6, Ip, at, masqueraded
from tests.system.packets.manifests import Manifest, Manifests, labelled, service_manifest, slice_manifest

POD = Origin.POD
PROXY = "service.kubernetes.io__service_proxy_name"

# ---- which objects count -------------------------------------------------------------------------------------------


def test_a_service_with_endpoints_is_reached(lab: Lab) -> None:
    """The plainest manifests of a Service and its slice make a connection arrive."""
    assert Manifests(lab, service_manifest(), slice_manifest()).outcomes(POD, IP.vip) == at(IP.here)


@pytest.mark.parametrize(
    "ignored",
    [
        labelled(service_manifest(), **{PROXY: "other"}),
        labelled(service_manifest(), **{PROXY: ""}),
        service_manifest({"clusterIP": "None", "clusterIPs": ["None"]}),
        service_manifest({"type": "ExternalName", "externalName": "example.com"}),
    ],
    ids=["other proxy's", "other proxy's, without its name", "headless", "ExternalName with a ClusterIP"],
)
def test_a_service_that_is_not_ours_is_left_alone(lab: Lab, ignored: Manifest) -> None:
    """A Service that is not for this proxy changes nothing for connections to its addresses."""
    external = ignored | {"spec": ignored["spec"] | {"externalIPs": [IP.external]}}
    cluster = Manifests(lab, external, slice_manifest())
    assert cluster.outcomes(POD, IP.vip) | cluster.outcomes(POD, IP.external) == {UNTOUCHED}


def test_a_service_without_a_cluster_ip_is_skipped(lab: Lab) -> None:
    """Without a ClusterIP, external IPs serve nothing either."""
    bare = service_manifest({"clusterIP": "", "clusterIPs": [], "externalIPs": [IP.external]})
    assert Manifests(lab, bare, slice_manifest()).outcomes(POD, IP.external) == {UNTOUCHED}


def test_a_service_serves_only_families_of_its_cluster_ips(lab: Lab) -> None:
    """An external IP of a family that the Service has no ClusterIP of is not served."""
    cluster = Manifests(lab, service_manifest({"externalIPs": [IP6.external, IP.external]}), slice_manifest())
    assert cluster.outcomes(POD, IP6.external) == {UNTOUCHED}
    assert cluster.outcomes(POD, IP.external) == masqueraded(IP.here)


@pytest.mark.parametrize(
    ("service", "target", "outcome"),
    [
        (labelled(service_manifest(), **{PROXY: "other"}), slice_manifest(), UNTOUCHED),
        (service_manifest(), labelled(slice_manifest(), **{"service.kubernetes.io__headless": ""}), TCP_RESET),
    ],
    ids=["another proxy's Service", "a headless slice"],
)
def test_a_label_that_comes_is_a_deletion(lab: Lab, service: Manifest, target: Manifest, outcome: Outcome) -> None:
    """A Service that another proxy gets, or a slice labelled headless, is gone, and there again without the label."""
    cluster = Manifests(lab, service_manifest(), slice_manifest())
    cluster.relist(service, target)
    assert cluster.outcomes(POD, IP.vip) == {outcome}
    cluster.relist(service_manifest(), slice_manifest())
    assert cluster.outcomes(POD, IP.vip) == at(IP.here)


@pytest.mark.parametrize(
    "changes",
    [
        {"addressType": "FQDN", "endpoints": [{"addresses": ["example.com"]}]},
        {"metadata": {"namespace": "shop", "name": "web-1", "labels": {}}},
        {"metadata": {"namespace": "other", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}}},
    ],
    ids=["FQDN", "no label", "another namespace"],
)
def test_a_slice_that_is_not_of_the_service_does_not_count(lab: Lab, changes: Manifest) -> None:
    """A slice without addresses to go to, or that doesn't name the Service, gives it no endpoint."""
    assert Manifests(lab, service_manifest(), slice_manifest(**changes)).outcomes(POD, IP.vip) == {TCP_RESET}


# ---- ports ---------------------------------------------------------------------------------------------------------


def test_the_target_port_is_not_read(lab: Lab) -> None:
    """The port that is reached is the slice's, and not the Service's targetPort."""
    given = service_manifest({"ports": [{"port": 80, "targetPort": 9999}]})
    assert Manifests(lab, given, slice_manifest()).outcomes(POD, IP.vip) == at(IP.here, port=8080)


def test_no_protocol_means_tcp(lab: Lab) -> None:
    """A port that names no protocol is a TCP port on both sides, and no UDP port."""
    cluster = Manifests(lab, service_manifest(), slice_manifest())
    assert cluster.outcomes(POD, IP.vip, 80, "tcp") == at(IP.here)
    assert {outcome.kind for outcome in cluster.outcomes(POD, IP.vip, 80, "udp")} == {Kind.REJECTED}


def test_endpoints_join_by_name_and_protocol(lab: Lab) -> None:
    """Of ports that share a number or a name, each reaches the slice's port of its name and protocol."""
    ports = [("dns", "TCP", 53), ("dns", "UDP", 53), ("web", "TCP", 80), ("web", "SCTP", 80)]
    own = [{"name": name, "protocol": protocol, "port": port} for name, protocol, port in ports]
    targets = [each | {"port": 8000 + number} for number, each in enumerate(own)]
    cluster = Manifests(lab, service_manifest({"ports": own}), slice_manifest(ports=targets))
    for number, (_, protocol, port) in enumerate(ports):
        assert cluster.outcomes(POD, IP.vip, port, protocol) == at(IP.here, port=8000 + number)


@pytest.mark.parametrize(
    "port",
    [{"name": None, "port": 8080}, {"port": 8080}, {"name": "", "port": None}, {"name": "", "protocol": "UDP"}],
    ids=["null name", "no name", "null number", "no number"],
)
def test_a_slice_port_without_a_name_or_a_number_is_skipped(lab: Lab, port: Manifest) -> None:
    """A slice's port that lacks its name or number is no port.  "" is a name."""
    assert Manifests(lab, service_manifest(), slice_manifest(ports=[port])).outcomes(POD, IP.vip) == {TCP_RESET}


def test_ports_come_and_go(lab: Lab) -> None:
    """A port that is added to a Service is served from then on, and a removed port is refused."""
    one, two = {"name": "a", "port": 80}, {"name": "b", "port": 81}
    target = slice_manifest(ports=[{"name": "a", "port": 8080}, {"name": "b", "port": 8081}])
    cluster = Manifests(lab, service_manifest({"ports": [one]}), target)
    assert cluster.outcomes(POD, IP.vip, 81) == {TCP_RESET}
    cluster.relist(service_manifest({"ports": [one, two]}), target)
    assert cluster.outcomes(POD, IP.vip, 81) == at(IP.here, port=8081)
    cluster.relist(service_manifest({"ports": [two]}), target)
    assert cluster.outcomes(POD, IP.vip, 80) == {TCP_RESET}


# ---- endpoints -----------------------------------------------------------------------------------------------------


def test_only_the_first_address_counts(lab: Lab) -> None:
    """An endpoint with several addresses is reached at the first only."""
    both = {"addresses": [IP.here2, IP.here]}
    assert Manifests(lab, service_manifest(), slice_manifest(both)).outcomes(POD, IP.vip) == at(IP.here2)


def is_usable(ready: bool | None, serving: bool | None, terminating: bool | None) -> bool:
    """The specification: ready, or serving and terminating.  Absent conditions are ready, as ready, and false."""
    is_ready = ready is not False
    is_serving = is_ready if serving is None else serving
    return is_ready or (is_serving and terminating is True)


def test_conditions_decide_which_endpoints_are_usable(lab: Lab) -> None:
    """Of all combinations of conditions, present or absent, exactly the usable endpoints are reached, and the rest is
    refused.
    """
    manifests, wanted, found = [], {}, {}
    combinations = list(itertools.product((None, True, False), repeat=3))
    for number, values in enumerate(combinations, 1):
        names = ("ready", "serving", "terminating")
        conditions = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        manifests += [
            service_manifest(name=f"web-{number}", vip=f"10.96.1.{number}"),
            slice_manifest({"addresses": [f"10.1.1.{number}"], "conditions": conditions}, name=f"web-{number}"),
        ]
        wanted[values] = at(f"10.1.1.{number}") if is_usable(*values) else {TCP_RESET}
    cluster = Manifests(lab, *manifests)
    for number, values in enumerate(combinations, 1):
        found[values] = cluster.outcomes(POD, f"10.96.1.{number}", times=2)
    assert found == wanted


@pytest.mark.parametrize(
    ("node_name", "is_local"), [({"nodeName": "node-a"}, True), ({"nodeName": "node-b"}, False), ({}, False)]
)
def test_endpoints_with_this_nodes_name_are_local(lab: Lab, node_name: Manifest, is_local: bool) -> None:
    """Policy Local reaches an endpoint whose nodeName is this node's.  An endpoint without nodeName is never local."""
    given = service_manifest({"internalTrafficPolicy": "Local"})
    cluster = Manifests(lab, given, slice_manifest({"addresses": [IP.here], **node_name}))
    assert (cluster.outcomes(POD, IP.vip) == at(IP.here)) is is_local


@pytest.mark.parametrize("bad", ["10.1.0.500", "::ffff:1:10.1.0.5", "fe80::5%eth0", "10.1.0", "web", "", "127.0.0.1"])
def test_a_bad_address_costs_one_endpoint(lab: Lab, bad: str) -> None:
    """An endpoint with a bad address is not reached and is reported, and the rest of its slice is unharmed."""
    cluster = Manifests(lab, service_manifest(), slice_manifest({"addresses": [bad]}, {"addresses": [IP.here]}))
    assert cluster.outcomes(POD, IP.vip) == at(IP.here)
    assert [problem.field for problem in cluster.problems] == ["endpoints[0].addresses[0]"]


def test_a_bad_cluster_ip_does_no_harm(lab: Lab) -> None:
    """A Service with a bad address does not keep other Services from being served."""
    bad = service_manifest(name="bad", vip="10.96.0.300")
    assert Manifests(lab, bad, service_manifest(), slice_manifest()).outcomes(POD, IP.vip) == at(IP.here)


def test_slices_serve_their_family(lab: Lab, ip: Ip) -> None:
    """A Service of two families is reached in each at the endpoints of the slices of that family."""
    dual = service_manifest({"clusterIPs": [IP.vip, IP6.vip]})
    other = slice_manifest({"addresses": [IP6.here]}, suffix="6", addressType="IPv6")
    assert Manifests(lab, dual, slice_manifest(), other).outcomes(POD, ip.vip) == at(ip.here)


# ---- the same endpoint twice ---------------------------------------------------------------------------------------

READY = {"conditions": {"ready": True}}
DRAINING = {"conditions": {"ready": False, "serving": True, "terminating": True}}


def test_an_endpoint_in_two_slices_is_one(lab: Lab) -> None:
    """An address and port that two slices have is drawn no more often than any other."""
    cluster = Manifests(
        lab,
        service_manifest(),
        slice_manifest({"addresses": [IP.here]}, {"addresses": [IP.here2]}),
        slice_manifest({"addresses": [IP.here]}, suffix="2"),
    )
    count = sum(outcome in at(IP.here) for outcome in cluster.connect(POD, IP.vip, times=3000))
    assert 1300 < count < 1700  # 1500 on average, give or take 7 standard deviations.  Counted twice it were 2000


@pytest.mark.parametrize("first", [READY, DRAINING], ids=["ready first", "terminating first"])
def test_a_ghost_does_not_hide_a_pod_that_is_not_terminating(lab: Lab, first: Manifest) -> None:
    """Of two entries for an endpoint the entry that is not terminating counts, in either order of slices."""
    second = DRAINING if first is READY else READY
    cluster = Manifests(
        lab,
        service_manifest(),
        slice_manifest({"addresses": [IP.here], **first}),
        slice_manifest({"addresses": [IP.here], **second}, {"addresses": [IP.here2]}, suffix="2"),
    )
    assert cluster.outcomes(POD, IP.vip) == at(IP.here, IP.here2)
