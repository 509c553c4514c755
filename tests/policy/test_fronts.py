"""The addresses and ports of a Service, their owners, and the reason for each loss."""

from __future__ import annotations

from nftproxy.model.addresses import Family
from nftproxy.policy.claims import Denial
from nftproxy.policy.fronts import LostClaim
from nftproxy.policy.restrictions import lost_claims
from tests.support.factories import IPV4, IPV6, claim, key, pipeline, service


def test_every_lost_port_is_listed() -> None:
    """Each port of a Service counts, and of its ClusterIPs and external addresses each."""
    ports, addresses = ["a:80", "b:81"], ["203.0.113.8", "203.0.113.9"]
    made = pipeline(
        service(created=1, ports=ports, external_ips=addresses),
        service("blog/api", created=2, cluster_ips=["10.96.0.20"], ports=ports, external_ips=addresses),
    )
    lost = lost_claims(made.state, made.settings, IPV4, made.state.services[key("blog/api")])
    assert [(each.port_name, each.what) for each in lost] == [
        (name, f"{address}:{port}/TCP") for name, port in (("a", 80), ("b", 81)) for address in addresses
    ]


def test_a_lost_claim_names_the_winner() -> None:
    """Every address, port and node port that a Service claims in vain is listed, with the winner."""
    older, younger = (
        service(name, created=age, ports=["http:80:30080"]) for age, name in ((1, "shop/web"), (2, "blog/api"))
    )
    made = pipeline(older, younger)
    lost = lost_claims(made.state, made.settings, IPV4, made.state.services[key("blog/api")])
    assert lost == [
        LostClaim(key("blog/api"), "http", claim("10.96.0.10 80/tcp"), "10.96.0.10:80/TCP", Denial.TAKEN),
        LostClaim(key("blog/api"), "http", claim("30080/tcp"), "node:30080/TCP", Denial.TAKEN),
    ]
    why = "it belongs to Service shop/web, which takes precedence"
    assert [each.why(made.state.claims) for each in lost] == [why, why]
    assert lost_claims(made.state, made.settings, IPV4, made.state.services[key("shop/web")]) == []
    assert lost_claims(made.state, made.settings, IPV6, made.state.services[key("blog/api")]) == []


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
    assert lost == [
        LostClaim(key("shop/younger"), "", claim("32000/tcp"), "health-check node port 32000", Denial.TAKEN)
    ]
    assert lost[0].why(made.state.claims) == "it belongs to Service shop/older, which takes precedence"
