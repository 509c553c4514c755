"""Which families the node must forward, and doesn't."""

from __future__ import annotations

from nftproxy.agent.node_watch import not_forwarded
from nftproxy.model.addresses import Family
from tests.support.factories import pipeline, service, slice_of

OFF = {"ipv4/ip_forward": 0, "ipv6/conf/all/forwarding": 0}


def test_families_with_services_must_be_forwarded() -> None:
    """A family is named if it has Services and its sysctl is 0, and not where the sysctl can't be read."""
    made = pipeline(service(), slice_of())
    assert not_forwarded(made, lambda _: OFF) == {Family.IPV4: "ipv4/ip_forward"}
    assert not_forwarded(made, lambda _: OFF | {"ipv4/ip_forward": 1}) == {}
    assert not_forwarded(made, lambda _: {}) == {}
    assert not_forwarded(pipeline(), lambda _: OFF) == {}
