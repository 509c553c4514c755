"""Services that may exchange a front change together, all others in turn."""

from __future__ import annotations

from typing import Any

import pytest

from nftproxy.model.addresses import Address
from nftproxy.model.objects import ObjectKey, Service, TrafficDistribution
from nftproxy.policy.exchanges import Versions, exchanging, inseparable
from tests.support.factories import key, service, settings

NODE_ADDRESSES = [Address("192.168.0.2")]
WEB = service("shop/web", cluster_ips=["10.96.0.10"], ports=["80:30080"], external_ips=["198.51.100.7"])


@pytest.mark.parametrize(
    ("other", "together"),
    [
        (service("shop/other", cluster_ips=["10.96.0.11"], ports=["80:30081"]), False),
        (service("shop/other", cluster_ips=["10.96.0.10"], ports=["81:30081"]), True),
        (service("shop/other", cluster_ips=["10.96.0.11"], external_ips=["198.51.100.7"]), True),
        (service("shop/other", cluster_ips=["10.96.0.11"], load_balancer_ips=["198.51.100.7"]), True),
        (service("shop/other", cluster_ips=["10.96.0.11"], ports=["81:30080"]), True),
        (service("shop/other", cluster_ips=["10.96.0.11"], ports=["30080"], external_ips=["192.168.0.2"]), True),
        (service("shop/other", cluster_ips=["10.96.0.11"], ports=["80"], external_ips=["192.168.0.2"]), False),
        (service("shop/other", cluster_ips=["10.96.0.11"], ports=["80:30081", "http:81:30080"]), True),
        (service("shop/other", cluster_ips=["10.96.0.11"], ports=["80:30080/udp"]), False),
        (service("shop/other", cluster_ips=["10.96.0.11"], health_check_node_port=30080), True),
        (service("shop/other", cluster_ips=["10.96.0.11"], health_check_node_port=30081), False),
    ],
)
def test_services_with_a_place_in_common_are_a_group(other: Service, together: bool) -> None:
    """A place is an address, or a node port, which an external address of the node and health checks have too.

    Either version counts.
    """
    keys = [WEB.key, other.key]
    for versions in ((None, WEB), (WEB, None)):
        found = exchanging({WEB.key: versions, other.key: (None, other)}, NODE_ADDRESSES)
        assert found == ([keys] if together else [[each] for each in keys])


def test_a_service_between_two_others_joins_them() -> None:
    """Services that have no place in common are a group if a third Service has a place of both."""
    others = [service(f"shop/{name}", cluster_ips=[f"10.96.0.{name}"], external_ips=[]) for name in ("1", "2", "3")]
    between = service("shop/between", cluster_ips=["10.96.0.9"], external_ips=["10.96.0.1", "10.96.0.3"])
    changes = {each.key: (each, each) for each in (*others, between)}
    assert exchanging(changes, []) == [[key("shop/1"), key("shop/3"), key("shop/between")], [key("shop/2")]]


RIVAL = service("shop/rival", cluster_ips=["10.96.0.10"])
ANYWHERE, PINNED = (
    tuple(service(str(each.key), cluster_ips=["10.96.0.10"], affinity_timeout=seconds) for each in (WEB, RIVAL))
    for seconds in (None, 60)
)


@pytest.mark.parametrize(
    ("versions", "together"),
    [
        ([(ANYWHERE[0], PINNED[0]), (ANYWHERE[1], PINNED[1])], False),
        ([(ANYWHERE[0], PINNED[0]), (ANYWHERE[1], ANYWHERE[1])], False),
        ([(ANYWHERE[0], PINNED[0]), (None, ANYWHERE[1])], True),
        ([(ANYWHERE[0], PINNED[0]), (ANYWHERE[1], None)], True),
        ([(ANYWHERE[0], PINNED[0]), (ANYWHERE[1], service("shop/rival", cluster_ips=["10.96.0.9"]))], True),
        ([(None, ANYWHERE[0])], False),
        ([(ANYWHERE[0], None)], False),
    ],
    ids=["all keep fronts", "one is the same", "one comes", "one goes", "one moves", "alone, comes", "alone, goes"],
)
def test_services_that_keep_their_fronts_change_in_turn(versions: list[Versions], together: bool) -> None:
    """Of Services with an address in common, each changes in turn if all of them keep their fronts."""
    changes = {each.key: (old, new) for old, new in versions if (each := new or old)}
    keys = list(changes)
    assert inseparable(settings(), changes, NODE_ADDRESSES) == ([keys] if together else [])


DENYING = {"denied-source-ranges": "192.0.2.0/24"}


@pytest.mark.parametrize(
    ("old", "new", "keeps"),
    [
        ({}, {"labels": (("app", "web"),)}, True),
        ({}, {"faults": ("NFT211: metadata.annotations[nftproxy.dev/new]: is not known",)}, True),
        ({}, {"proxied_ips": (Address("203.0.113.7"),)}, True),
        ({}, {"affinity_timeout": 60}, True),
        ({}, {"traffic_distribution": TrafficDistribution.PREFER_SAME_ZONE}, True),
        ({}, {"annotations": {"algorithm": "round-robin"}}, True),
        ({}, {"annotations": DENYING}, False),
        ({"annotations": DENYING}, {}, False),
        ({"annotations": DENYING}, {"annotations": DENYING}, True),
        ({}, {"source_ranges": ["192.0.2.0/24"]}, False),
        ({}, {"cluster_ips": ["10.96.0.11"]}, False),
        ({}, {"ports": ["80:30081"]}, False),
    ],
)
def test_a_service_that_keeps_its_fronts_changes_port_by_port(
    old: dict[str, Any], new: dict[str, Any], keeps: bool
) -> None:
    """A Service changes at once if its fronts differ, or the source ranges, which a block of one port has for all."""
    changes = {WEB.key: (service(**old), service(**new))}
    assert inseparable(settings(), changes, NODE_ADDRESSES) == ([] if keeps else [[WEB.key]])


def test_services_with_nothing_in_common_are_judged_apart() -> None:
    """Services that come change in turn if they have no place in common, beside others that must change at once."""
    others = [service(f"shop/{name}", cluster_ips=["10.96.0.11"]) for name in ("one", "two")]
    changes: dict[ObjectKey, Versions] = {each.key: (None, each) for each in (WEB, *others)}
    assert inseparable(settings(), changes, NODE_ADDRESSES) == [[each.key for each in others]]
    alone = {each.key: (None, each) for each in (WEB, others[0])}
    assert inseparable(settings(), alone, NODE_ADDRESSES) == []
