"""Addresses and ranges in spellings that API servers have stored, and deny since Kubernetes 1.36 (KEP-4858)."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import DROPPED, Lab, Origin
from nftproxy_conformance.subjects.spellings import respelt

from nftproxy.model.codes import Code
from tests.support import objects
from tests.support.cluster import IP, Ip, at, everywhere, masqueraded
from tests.system.packets.manifests import Manifest, Manifests, service_manifest, slice_manifest


def stored(ip: Ip, **spec: object) -> tuple[Manifest, Manifest]:
    """A load balancer's Service with an endpoint on this node."""
    given = {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}], "externalIPs": [ip.external]}
    kind = "IPv6" if ip.is_ipv6 else "IPv4"
    target = slice_manifest(objects.endpoint(ip.here, "node-a"), addressType=kind)
    return service_manifest(given | spec, vip=ip.vip, status=objects.balancer(ip.balanced)), target


def test_all_addresses_are_served_however_they_are_spelt(lab: Lab, ip: Ip) -> None:
    """ClusterIP, external IP, load balancer IP and endpoint in old spellings get the traffic of their values."""
    manifests = list(map(respelt, stored(ip)))
    assert manifests != list(stored(ip))
    cluster = Manifests(lab, *manifests)
    for front in ("vip", "external", "balanced", "node"):
        assert cluster.outcomes(Origin.OUTSIDE, *ip.front(front)) == masqueraded(ip.here)
    assert {problem.code for problem in cluster.problems} == {Code.OLD_SPELLING}


@pytest.mark.parametrize("form", ["zeros", "mapped"])
def test_a_range_restricts_the_family_that_it_means(lab: Lab, form: str) -> None:
    """Leading zeros, and an IPv4-mapped range, restrict the load balancer's IPv4 address to the range's clients."""
    text = {"zeros": "198.051.100.0/024", "mapped": "::ffff:198.51.100.0/120"}[form]
    cluster = Manifests(lab, *stored(IP, loadBalancerSourceRanges=[text], externalTrafficPolicy="Local"))
    assert cluster.outcomes(Origin.OUTSIDE, IP.balanced) == at(IP.here)
    assert cluster.outcomes(Origin.OUTSIDE, IP.balanced, source="198.51.101.200") == {DROPPED}


@pytest.mark.parametrize("text", ["::ffff:198.51.100.0/95", "::ffff:198.51.100.0/129", "198.51.100.0:/24"])
def test_an_unclear_range_closes_both_families(lab: Lab, ip: Ip, text: str) -> None:
    """A range that may be meant for either family, and can't be read, admits nobody in both."""
    cluster = Manifests(lab, *stored(ip, loadBalancerSourceRanges=[text]))
    assert cluster.by_origin(ip.balanced, times=2) == everywhere(DROPPED)
    assert cluster.outcomes(Origin.OUTSIDE, ip.vip) == masqueraded(ip.here)


def test_two_spellings_are_the_same_endpoint(lab: Lab) -> None:
    """An endpoint that two slices spell differently has a single slot."""
    service, target = stored(IP)
    other = slice_manifest(objects.endpoint("010.01.0.004", "node-a"), suffix="2")
    cluster = Manifests(lab, service, target, other)
    assert cluster.outcomes(Origin.POD, IP.vip) == at(IP.here)
    assert f"{IP.vip} . 80 . 0.0.0.1" not in cluster.pipeline.full_transaction({}).text
