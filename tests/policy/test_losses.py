"""The claims that Services don't get are known while they last, and new once."""

from __future__ import annotations

import msgspec

from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import Service
from nftproxy.policy.losses import JudgedClaims
from tests.support.factories import key, pipeline, service, slice_of

WHAT = ("10.96.0.10:80/TCP", "node:30080/TCP", "10.96.0.10:81/TCP", "node:30081/TCP")
"""The claims that both of two Services with the same address and ports have."""


def test_a_loss_is_reported_once() -> None:
    """A loss is reported when it happens, and not again until the Service has had the front again."""
    losers = [service(f"shop/z{i}", cluster_ips=[f"10.96.0.{20 + i}"], ports=["http:80:30080"]) for i in range(2)]
    made = pipeline(service(ports=["http:80:30080"]), *losers)
    assert {lost.service for lost in made.losses.pop_judged().losses} == {each.key for each in losers}
    assert made.losses.pop_judged().losses == []
    made.ingest([Put(slice_of("shop/z1"))])
    assert made.losses.pop_judged().losses == []
    made.ingest([Put(msgspec.structs.replace(losers[1], affinity_timeout=60))])
    assert made.losses.pop_judged() == JudgedClaims({key("shop/z1")}, [])
    made.ingest([Removed(Service, key("shop/web"))])
    made.ingest([Put(service(ports=["http:80:30080"]))])
    assert [lost.service for lost in made.losses.pop_judged().losses] == [key("shop/z0")]


def test_losses_are_listed_while_they_last() -> None:
    """Each loss of a Service is listed for each family, a node port once, until the winner goes."""
    both = ["10.96.0.10", "fd00:96::10"]
    older = service("shop/older", cluster_ips=both, ports=["80:30080"])
    made = pipeline(older, service(cluster_ips=both, created=1, ports=["80:30080"]))
    (losses,) = made.losses.by_service.values()
    assert [each.what for each in losses] == ["10.96.0.10:80/TCP", "node:30080/TCP", "[fd00:96::10]:80/TCP"]
    made.ingest([Put(service("shop/older", cluster_ips=["10.96.0.20"]))])
    assert made.losses.by_service == {}


def test_losses_are_listed_in_the_order_of_the_services() -> None:
    """All losses of a Service are new at once, and those of all Services are listed by name."""
    winner = service("shop/older", ports=["80:30080", "81:30081"])
    later = [service(f"shop/{name}", created=1, ports=["80:30080", "81:30081"]) for name in ("z", "a")]
    made = pipeline(winner)
    for each in later:
        made.ingest([Put(each)])
    expected = [(name, what) for name in ("a", "z") for what in WHAT]
    assert [(lost.service.name, lost.what) for lost in made.losses.all()] == expected
    judged = made.losses.pop_judged()
    assert sorted((lost.service.name, lost.what) for lost in judged.losses) == sorted(expected)
    assert judged.services == {winner.key, *(each.key for each in later)}
