"""A Service's fields: values that are read, values that are lost alone, and values that fail closed."""

from __future__ import annotations

import pytest
from msgspec import structs

from nftproxy.model.addresses import Protocol
from nftproxy.model.objects import Service, ServicePort, ServiceType, TrafficDistribution, TrafficPolicy
from tests.support.raw import SERVICE, WEB, Raw, changed, read, service, shown

SECOND = "10.96.0.11 is a second IPv4 address: only the first counts"
BAD_TIMEOUT = "{} is not from 1 to 86400 seconds: taken as 10800"
THREE_HOURS = {"affinity_timeout": 10800}

# ---- a Service's fields ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"clusterIP": "10.96.0.10"}, ["10.96.0.10"]),
        ({"clusterIP": "10.96.0.10", "clusterIPs": []}, ["10.96.0.10"]),
        ({"clusterIPs": ["fd00:96::10", "10.96.0.10"]}, ["fd00:96::10", "10.96.0.10"]),
        ({"clusterIP": "10.96.0.11", "clusterIPs": ["10.96.0.10"]}, ["10.96.0.10"]),
        ({"clusterIP": "FD00:96:0::0010"}, ["fd00:96::10"]),
    ],
)
def test_cluster_ips(spec: Raw, expected: list[str]) -> None:
    """The field clusterIPs counts before clusterIP, and addresses become canonical."""
    made, problems = service("spec", spec)
    plain = Service(WEB, 1714558830, ServiceType.CLUSTER_IP, tuple(expected), (), labels=(("app", "web"),))  # type: ignore[arg-type]
    assert (made, problems) == (plain, [])


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            {"clusterIPs": ["10.96.0.256"]},
            "spec.clusterIPs[0]: '10.96.0.256' does not appear to be an IPv4 or IPv6 address",
        ),
        ({"clusterIP": "x"}, "spec.clusterIP: 'x' does not appear to be an IPv4 or IPv6 address"),
    ],
)
def test_without_a_readable_cluster_ip_the_service_is_lost(spec: Raw, problem: str) -> None:
    """A Service without any readable ClusterIP is lost and reported."""
    assert read(changed(SERVICE, "spec", spec)) == (None, [f"Service shop/web: {problem}"])


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("203.0.113.0300", "'203.0.113.300' does not appear to be an IPv4 or IPv6 address"),
        ("::ffff:127.0.0.1", "'127.0.0.1' is a loopback, link-local, multicast, broadcast or unspecified address"),
        ("fe80::1%eth0", "'fe80::1%eth0' has a zone or is an IPv4-mapped IPv6 address"),
        ("127.0.0.1", "'127.0.0.1' is a loopback, link-local, multicast, broadcast or unspecified address"),
        (" 203.0.113.7", "' 203.0.113.7' does not appear to be an IPv4 or IPv6 address"),
        (3405803783, "3405803783 is not a string"),
        (None, "null is not a string"),
        ("9" * 10_000, f"'{'9' * 59}... is not an IP address"),
    ],
)
def test_a_bad_external_ip_is_lost_alone(address: object, problem: str) -> None:
    """A bad external IP is lost alone, and reported with its index in the file."""
    made, problems = service("spec.externalIPs", ["203.0.113.6", address, "203.0.113.8", "203.0.113.6"])
    assert made.external_ips == ("203.0.113.6", "203.0.113.8")
    assert problems == [f"Service shop/web: spec.externalIPs[1]: {problem}"]


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("spec.ports.0.port", 0, "0 is not a port from 1 to 65535"),
        ("spec.ports.0.port", 65536, "65536 is not a port from 1 to 65535"),
        ("spec.ports.0.port", 10**400, "a huge number is not a port from 1 to 65535"),
        ("spec.ports.0.port", -(2**63), "-9223372036854775808 is not a port from 1 to 65535"),
        ("spec.ports.0.port", None, "is missing"),
        ("spec.ports.0.port", "80", "'80' is not an integer"),
        ("spec.ports.0.port", 80.0, "80.0 is not an integer"),
        ("spec.ports.0.port", True, "true is not an integer"),
        ("spec.ports.0.protocol", "ICMP", "'ICMP' is not TCP, UDP or SCTP"),
        ("spec.ports.0.protocol", "tcp", "'tcp' is not TCP, UDP or SCTP"),
        ("spec.ports.0.protocol", 6, "6 is not a string"),
        ("spec.ports.0.name", "Http", "'Http' is not a port name (a DNS label of at most 63 characters)"),
        ("spec.ports.0.name", {}, "an object is not a string"),
        ("spec.ports.0", None, "null is not an object"),
        ("spec.ports.0", [], "a list is not an object"),
    ],
)
def test_a_bad_port_is_lost_alone(path: str, value: object, problem: str) -> None:
    """A port without a good name, protocol and number is lost, and the rest stays."""
    made, problems = service(path, value)
    assert made.ports == (ServicePort("dns", Protocol.UDP, 53, 30053),)
    assert problems == [f"Service shop/web: {shown(path)}: {problem}"]


def test_paths_count_what_was_lost() -> None:
    """After an element of the wrong type, later elements are still reported at their own index."""
    _, problems = service("spec.ports", [5, {"port": 0}])
    assert problems == [
        "Service shop/web: spec.ports[0]: 5 is not an object",
        "Service shop/web: spec.ports[1].port: 0 is not a port from 1 to 65535",
    ]


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ({"port": 80}, ServicePort("", Protocol.TCP, 80)),
        ({"port": 80, "name": None, "protocol": None, "nodePort": None}, ServicePort("", Protocol.TCP, 80)),
        ({"port": 80, "name": "", "nodePort": 0}, ServicePort("", Protocol.TCP, 80)),
        ({"port": 80, "protocol": "SCTP"}, ServicePort("", Protocol.SCTP, 80)),
    ],
)
def test_defaults_of_a_port(port: Raw, expected: ServicePort) -> None:
    """A port is TCP, without a name and without a node port unless it says otherwise."""
    assert service("spec.ports", [port])[0].ports == (expected,)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (70000, "70000 is not a port from 1 to 65535"),
        (-1, "-1 is not a port from 1 to 65535"),
        ("x", "'x' is not an integer"),
    ],
)
def test_a_bad_node_port_leaves_the_port(value: object, problem: str) -> None:
    """A bad nodePort is lost alone."""
    made, problems = service("spec.ports.0.nodePort", value)
    assert made.ports[0] == ServicePort("http", Protocol.TCP, 80, 0)
    assert problems == [f"Service shop/web: spec.ports[0].nodePort: {problem}"]


@pytest.mark.parametrize(("kind", "node_port"), [("ClusterIP", 0), ("NodePort", 30080), ("LoadBalancer", 30080)])
def test_node_ports_by_type(kind: str, node_port: int) -> None:
    """Node ports count for types NodePort and LoadBalancer only."""
    assert service("spec.type", kind)[0].ports[0].node_port == node_port


@pytest.mark.parametrize("later", [{"name": "http", "port": 81}, {"name": "web", "port": 80}])
def test_of_equal_ports_the_first_stays(later: Raw) -> None:
    """A port that repeats an earlier port's name or number, with its protocol, is lost and reported."""
    made, problems = service("spec.ports.-", later)
    assert [port.name for port in made.ports] == ["http", "dns"]
    assert problems == [
        "Service shop/web: spec.ports[2]: repeats the name or the number of an earlier port with the same protocol"
    ]


def test_ports_may_differ_in_protocol_only() -> None:
    """The same name and number with another protocol is another port."""
    made, problems = service(
        "spec.ports", [{"name": "dns", "port": 53}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    )
    assert (len(made.ports), problems) == (2, [])


@pytest.mark.parametrize("kind", ["ClusterIP", "LoadBalancer"])
def test_any_number_of_ports_may_have_no_node_port(kind: str) -> None:
    """No node port is no conflict with that of another port."""
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 0}, {"name": "c", "port": 82}]
    made, problems = service("spec", {"type": kind, "clusterIP": "10.96.0.10", "ports": ports})
    assert ([port.node_port for port in made.ports], problems) == ([0, 0, 0], [])


def test_of_equal_node_ports_the_first_stays() -> None:
    """A node port that an earlier port has, with its protocol, is lost alone."""
    made, problems = service("spec.ports.-", {"name": "more", "port": 90, "nodePort": 30080})
    assert made.ports[2] == ServicePort("more", Protocol.TCP, 90, 0)
    assert problems == ["Service shop/web: spec.ports[2].nodePort: 30080 is already a port's with the same protocol"]


@pytest.mark.parametrize(
    ("ingress", "served", "proxied"),
    [
        ({"ip": "203.0.113.80"}, ["203.0.113.80"], []),
        ({"ip": "203.0.113.80", "ipMode": None}, ["203.0.113.80"], []),
        ({"ip": "203.0.113.80", "ipMode": ""}, ["203.0.113.80"], []),
        ({"ip": "203.0.113.80", "ipMode": "VIP"}, ["203.0.113.80"], []),
        ({"ip": "203.0.113.80", "ipMode": "Proxy"}, [], ["203.0.113.80"]),
        ({"hostname": "lb.example.com"}, [], []),
        ({"hostname": "lb.example.com", "ip": ""}, [], []),
    ],
)
def test_load_balancer_ips(ingress: Raw, served: list[str], proxied: list[str]) -> None:
    """Ingress IPs are served unless their mode is Proxy, and are kept with it for people.  Hostnames don't count."""
    made, problems = service("status.loadBalancer.ingress", [ingress])
    assert (list(made.load_balancer_ips), list(made.proxied_ips), problems) == (served, proxied, [])


def test_each_load_balancer_ip_counts_once() -> None:
    """Several ingress points are several addresses, without unreadable and repeated addresses."""
    addresses = ["203.0.113.80", "203.0.113.81", "203.0.113", "203.0.113.80"]
    made, problems = service("status.loadBalancer.ingress", [{"ip": address} for address in addresses])
    assert made.load_balancer_ips == ("203.0.113.80", "203.0.113.81")
    assert len(problems) == 1


@pytest.mark.parametrize("kind", ["ClusterIP", "NodePort"])
def test_only_a_load_balancer_has_load_balancer_fields(kind: str) -> None:
    """Ingress IPs, source ranges and the health-check port count for type LoadBalancer only."""
    made, problems = service("spec.type", kind)
    assert (made.load_balancer_ips, made.source_ranges, made.health_check_node_port) == ((), (), 0)
    assert problems == []


def test_no_health_check_without_policy_local() -> None:
    """The health-check port counts with externalTrafficPolicy Local only."""
    assert service("spec.externalTrafficPolicy", "Cluster")[0].health_check_node_port == 0


@pytest.mark.parametrize(
    ("kind", "external_ips", "policy"),
    [
        ("LoadBalancer", [], TrafficPolicy.LOCAL),
        ("NodePort", [], TrafficPolicy.LOCAL),
        ("ClusterIP", ["203.0.113.7"], TrafficPolicy.LOCAL),
        ("ClusterIP", [], TrafficPolicy.CLUSTER),
    ],
)
def test_where_the_external_policy_counts(kind: str, external_ips: list[str], policy: TrafficPolicy) -> None:
    """externalTrafficPolicy counts where there may be external addresses."""  # noqa: D403
    raw = changed(changed(SERVICE, "spec.type", kind), "spec.externalIPs", external_ips)
    outcome, _ = read(raw)
    assert isinstance(outcome, Service)
    assert outcome.external_policy is policy


@pytest.mark.parametrize(
    ("path", "value", "problem", "expected"),
    [
        ("spec.clusterIPs.1", "10.96.0.11", SECOND, {"cluster_ips": ("10.96.0.10",)}),
        ("spec.internalTrafficPolicy", "local", "'local' is not one of Cluster, Local: taken as Cluster", {}),
        (
            "spec.sessionAffinity",
            "Cookie",
            "'Cookie' is not one of None, ClientIP: taken as None",
            {"affinity_timeout": None},
        ),
        (
            "metadata.creationTimestamp",
            "yesterday",
            "'yesterday' is not a time as in 2024-05-01T10:20:30Z: taken as the oldest",
            {"created": 0},
        ),
        ("spec.healthCheckNodePort", 99999, "99999 is not a port from 1 to 65535", {"health_check_node_port": 0}),
        ("spec.externalIPs", "203.0.113.7", "'203.0.113.7' is not a list", {"external_ips": ()}),
        (
            "spec.externalTrafficPolicy",
            "Near",
            "'Near' is not one of Cluster, Local: taken as Cluster",
            {"external_policy": TrafficPolicy.CLUSTER, "health_check_node_port": 0},
        ),
        ("spec.sessionAffinityConfig", [], "a list is not an object", {"affinity_timeout": 10800}),
        *(
            ("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, BAD_TIMEOUT.format(seconds), THREE_HOURS)
            for seconds in (0, -1, 86401)
        ),
        ("status", "x", "'x' is not an object", {"load_balancer_ips": ()}),
        (
            "status.loadBalancer.ingress.0.ip",
            "::1",
            "'::1' is a loopback, link-local, multicast, broadcast or unspecified address",
            {"load_balancer_ips": ()},
        ),
        ("status.loadBalancer.ingress.0.ipMode", "Magic", "'Magic' is not VIP or Proxy", {"load_balancer_ips": ()}),
        (
            "spec.trafficDistribution",
            "PreferFar",
            "'PreferFar' is not one of none, PreferClose, PreferSameZone, PreferSameNode: taken as none",
            {},
        ),
    ],
)
def test_a_bad_field_is_lost_alone(path: str, value: object, problem: str, expected: Raw) -> None:
    """Any other bad field has its default, is reported, and leaves the rest of the Service as it was."""
    good, _ = service()
    made, problems = service(path, value)
    assert problems == [f"Service shop/web: {shown(path)}: {problem}"]
    assert structs.replace(made, faults=()) == structs.replace(good, **expected)
    (fault,) = made.faults
    assert fault.endswith(f": {shown(path)}: {problem}")
    assert fault.startswith("NFT2")


@pytest.mark.parametrize("word", ["Cluster", "Local"])
def test_the_internal_policy_is_read(word: str) -> None:
    """internalTrafficPolicy is a field of its own: that example's external policy is Local."""  # noqa: D403
    made, problems = service("spec.internalTrafficPolicy", word)
    assert (made.internal_policy, made.external_policy, problems) == (TrafficPolicy(word), TrafficPolicy.LOCAL, [])


@pytest.mark.parametrize("word", ["PreferClose", "PreferSameZone", "PreferSameNode"])
def test_the_traffic_distribution_is_read(word: str) -> None:
    """Every value that the API knows is read (spec.trafficDistribution)."""
    made, problems = service("spec.trafficDistribution", word)
    assert (made.traffic_distribution, problems) == (TrafficDistribution(word), [])


def test_a_bad_type_is_cluster_ip() -> None:
    """A Service of an unknown type keeps the properties of every Service."""
    made, problems = service("spec.type", "Loadbalancer")
    assert made.type is ServiceType.CLUSTER_IP
    assert problems == [
        "Service shop/web: spec.type: 'Loadbalancer' is not one of ClusterIP, NodePort, LoadBalancer: "
        "taken as ClusterIP"
    ]


@pytest.mark.parametrize(
    ("affinity", "config", "timeout"),
    [
        ("None", {"clientIP": {"timeoutSeconds": 600}}, None),
        (None, None, None),
        ("ClientIP", None, 10800),
        ("ClientIP", {}, 10800),
        ("ClientIP", {"clientIP": {}}, 10800),
        ("ClientIP", {"clientIP": {"timeoutSeconds": 1}}, 1),
        ("ClientIP", {"clientIP": {"timeoutSeconds": 86400}}, 86400),
    ],
)
def test_session_affinity(affinity: object, config: object, timeout: int | None) -> None:
    """Session affinity ClientIP lasts as long as it says, three hours by default."""
    raw = changed(changed(SERVICE, "spec.sessionAffinity", affinity), "spec.sessionAffinityConfig", config)
    outcome, problems = read(raw)
    assert isinstance(outcome, Service)
    assert (outcome.affinity_timeout, problems) == (timeout, [])


# ---- source ranges ---------------------------------------------------------------------------------------------------


CLOSED_4 = "spec.loadBalancerSourceRanges: no IPv4 range can be read: the load balancer's addresses admit nobody"
CLOSED_6 = "spec.loadBalancerSourceRanges: no IPv6 range can be read: the load balancer's addresses admit nobody"


@pytest.mark.parametrize(
    ("given_ranges", "expected", "closed"),
    [
        (None, [], []),
        ([], [], []),
        (["10.0.0.0/8", " fd00::/8 "], ["10.0.0.0/8", "fd00::/8"], []),
        (["10.0.0.7/8", "10.0.0.0/8"], ["10.0.0.0/8"], []),
        (["0.0.0.0/0"], ["0.0.0.0/0"], []),
        (["10.0.0.0/8", "10.0.0.0/33"], ["10.0.0.0/8"], []),
        (["10.0.0.0"], ["0.0.0.0/32"], [CLOSED_4]),
        (["fd00::/129"], ["::/128"], [CLOSED_6]),
        (["10.0.0.0/8", "fd00::"], ["10.0.0.0/8", "::/128"], [CLOSED_6]),
        (["all"], ["0.0.0.0/32", "::/128"], [CLOSED_4, CLOSED_6]),
        (["fd00::", "10.0.0.0"], ["0.0.0.0/32", "::/128"], [CLOSED_4, CLOSED_6]),
        (["fd00::/8", "10.0.0.0/8", "10.0.0.0"], ["fd00::/8", "10.0.0.0/8"], []),
        ([None], ["0.0.0.0/32", "::/128"], [CLOSED_4, CLOSED_6]),
        (["10.0.0.0/8", 10], ["10.0.0.0/8", "::/128"], [CLOSED_6]),
        ("10.0.0.0/8", ["0.0.0.0/32", "::/128"], [CLOSED_4, CLOSED_6]),
        ({}, ["0.0.0.0/32", "::/128"], [CLOSED_4, CLOSED_6]),
        (["::ffff:192.0.2.0/120"], ["192.0.2.0/24"], []),
        (["::FFFF:c000:0200/120", "192.0.2.0/24"], ["192.0.2.0/24"], []),
        (["::ffff:0.0.0.0/96"], ["0.0.0.0/0"], []),
        (["::ffff:192.0.2.0/64"], ["0.0.0.0/32", "::/128"], [CLOSED_4, CLOSED_6]),
        (["::ffff:c000:200/129"], ["0.0.0.0/32", "::/128"], [CLOSED_4, CLOSED_6]),
        (["::ffff:192.0.2/120"], ["0.0.0.0/32", "::/128"], [CLOSED_4, CLOSED_6]),
        (["192.0.2.0:/24"], ["0.0.0.0/32", "::/128"], [CLOSED_4, CLOSED_6]),
        (["198.051.100.000/024"], ["198.51.100.0/24"], []),
    ],
)
def test_source_ranges(given_ranges: object, expected: list[str], closed: list[str]) -> None:
    """Bad source ranges are skipped, but where they were all that restricted a family nobody is admitted."""
    made, problems = service("spec.loadBalancerSourceRanges", given_ranges)
    assert [str(source) for source in made.source_ranges] == expected
    assert [problem.removeprefix("Service shop/web: ") for problem in problems if "admit" in problem] == closed


def test_source_ranges_that_are_no_list_are_reported() -> None:
    """A value that is no list is reported, beside its consequences."""
    _, problems = service("spec.loadBalancerSourceRanges", "10.0.0.0/8")
    assert problems[0] == "Service shop/web: spec.loadBalancerSourceRanges: '10.0.0.0/8' is not a list"


def test_a_bad_source_range_is_reported() -> None:
    """A source range that can't be read is reported with its path."""
    _, problems = service("spec.loadBalancerSourceRanges", ["10.0.0.0/8", "10.0.0/8"])
    assert problems == [
        "Service shop/web: spec.loadBalancerSourceRanges[1]: '10.0.0' does not appear to be an IPv4 or IPv6 address"
    ]


OPEN_6 = "has no IPv6 range: the load balancer's IPv6 addresses are open to all"


@pytest.mark.parametrize(
    ("given_ranges", "addresses", "problems"),
    [
        (["10.0.0.0/8"], ["203.0.113.80", "2001:db8::80"], [OPEN_6]),
        (["10.0.0.0/8"], ["203.0.113.80"], []),
        (["10.0.0.0/8", "::/0"], ["203.0.113.80", "2001:db8::80"], []),
        ([], ["203.0.113.80", "2001:db8::80"], []),
        (["10.0.0.0/8"], [], []),
    ],
)
def test_a_family_that_stays_open_is_reported(
    given_ranges: list[str], addresses: list[str], problems: list[str]
) -> None:
    """If ranges restrict one family alone, and the load balancer has addresses of the other, a note says so."""
    raw = changed(SERVICE, "spec.loadBalancerSourceRanges", given_ranges)
    outcome, found = read(changed(raw, "status.loadBalancer.ingress", [{"ip": each} for each in addresses]))
    assert isinstance(outcome, Service)
    assert found == [f"Service shop/web: spec.loadBalancerSourceRanges: {each}" for each in problems]
    assert all(each.startswith("NFT213: ") for each in outcome.faults)


@pytest.mark.parametrize(
    ("path", "value", "field", "expected"),
    [
        ("spec.clusterIPs.0", "10.96.011.012", "cluster_ips", ("10.96.11.12", "fd00:96::10")),
        ("spec.externalIPs.0", "203.0.113.007", "external_ips", ("203.0.113.7",)),
        ("spec.externalIPs.0", "02001:0db8::00007", "external_ips", ("2001:db8::7",)),
        ("status.loadBalancer.ingress.0.ip", "::ffff:203.0.113.080", "load_balancer_ips", ("203.0.113.80",)),
    ],
)
def test_stored_spellings_are_read_and_reported(path: str, value: str, field: str, expected: tuple[str, ...]) -> None:
    """Leading zeros are decimal, a mapped address is IPv4, and both are reported with the value that is used."""
    made, problems = service(path, value)
    assert getattr(made, field) == expected
    used = next(each for each in expected if each != "fd00:96::10")
    assert problems == [
        f"Service shop/web: {shown(path)}: '{value}' is read as {used}: newer API servers deny this spelling"
    ]
    assert made.faults[0].startswith("NFT212: ")


def test_the_source_range_annotation_is_not_read() -> None:
    """The annotation that cloud providers read restricts nothing here, as in kube-proxy."""
    raw = changed(SERVICE, "spec.loadBalancerSourceRanges", None)
    raw["metadata"]["annotations"] = {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}
    outcome, problems = read(raw)
    assert isinstance(outcome, Service)
    assert (outcome.source_ranges, problems) == ((), [])


# ---- its labels ------------------------------------------------------------------------------------------------------


def test_labels() -> None:
    """A Service has its labels, in their order.  Services with the same label share it."""
    given = {"app": "web", "example.com/release": "", "a": "B.c_d"}
    made, problems = service("metadata.labels", given)
    assert (made.labels, problems) == (tuple(given.items()), [])
    again, _ = service("metadata.labels", {"app": "web"})
    assert again.labels[0] is made.labels[0]


@pytest.mark.parametrize(("key", "value"), [("a b", "x"), ("a/b/c", "x"), ("", "x"), ("app", "a b"), ("app", 5)])
def test_what_is_no_label_is_lost_alone(key: str, value: object) -> None:
    """A key or value that Kubernetes doesn't take is reported, and nothing else is lost."""
    made, problems = service("metadata.labels", {"tier": "front", key: value})
    assert made.labels == (("tier", "front"),)
    assert len(problems) == 1
    assert problems[0].endswith("is not a label")


def test_labels_are_bounded() -> None:
    """Of more labels than anyone has the first are kept, and that is reported."""
    made, problems = service("metadata.labels", {f"l{number}": "" for number in range(100)})
    assert len(made.labels) == 64
    assert problems == ["Service shop/web: metadata.labels: only 64 of 100 labels are known to `nftproxy list`"]
