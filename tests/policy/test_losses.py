"""The claims that Services don't get are known while they last, and new once."""

from __future__ import annotations

from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import Service
from tests.support.factories import key, pipeline, service, slice_of


def test_a_loss_is_reported_once() -> None:
    """A loss is reported when it happens, and not again until the Service has had the front again."""
    losers = [service(f"shop/z{i}", cluster_ips=[f"10.96.0.{20 + i}"], ports=["http:80:30080"]) for i in range(2)]
    made = pipeline(service(ports=["http:80:30080"]), *losers)
    assert {lost.service for lost in made.losses.pop_judged().losses} == {each.key for each in losers}
    assert made.losses.pop_judged().losses == []
    made.ingest([Put(slice_of("shop/z1"))])
    assert made.losses.pop_judged().losses == []
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
