"""The Service that owns each front whose packets the kernel counts."""

from __future__ import annotations

from nftproxy.extensions.counts.counted_fronts import CountedFronts, FrontKind, ServiceFront
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.claims import NODE, Claim
from tests.support.factories import IPV4, elements, key, pipeline, service, slice_of


def counting(*objects: Service) -> tuple[Pipeline, CountedFronts]:
    """A pipeline with counts, and its owners."""
    made = pipeline(*objects, service_counts=True)
    return made, made.view(CountedFronts)


def tcp(address: str, port: int = 80) -> Claim:
    """A front."""
    return Claim(Address(address), Protocol.TCP, port)


def front(name: str, kind: FrontKind, port: str = "http") -> ServiceFront:
    """The fronts that are counted together."""
    return ServiceFront(key(name), port, Protocol.TCP, kind)


def test_nothing_is_kept_where_nothing_is_counted() -> None:
    """Without serviceCounts a pipeline keeps only the owners of fronts with screened clients."""
    made = pipeline(service())
    assert made.view(CountedFronts).is_empty
    made.ingest([Put(service("shop/login", cluster_ips=["10.96.0.20"], annotations={"client-connections": "5"}))])
    assert made.view(CountedFronts).owner(tcp("10.96.0.10")) is None
    assert made.view(CountedFronts).owner(tcp("10.96.0.20")) == front("shop/login", FrontKind.CLUSTER_IP)
    made.ingest([Put(service("shop/login", cluster_ips=["10.96.0.20"]))])
    assert made.view(CountedFronts).is_empty


def test_each_kind_of_front() -> None:
    """ClusterIPs, external IPs, load balancers' and node ports are counted apart, both families' together."""
    web = service(
        type="LoadBalancer",
        cluster_ips=["10.96.0.10", "fd00:96::10"],
        external_ips=["203.0.113.9", "203.0.113.7"],
        load_balancer_ips=["203.0.113.7"],
        ports=["http:80:30080"],
    )
    _, fronts = counting(web)
    assert fronts.owner(tcp("10.96.0.10")) == front("shop/web", FrontKind.CLUSTER_IP)
    assert fronts.owner(tcp("fd00:96::10")) == front("shop/web", FrontKind.CLUSTER_IP)
    assert fronts.owner(tcp("203.0.113.9")) == front("shop/web", FrontKind.EXTERNAL_IP)
    assert fronts.owner(tcp("203.0.113.7")) == front("shop/web", FrontKind.LOAD_BALANCER)
    assert fronts.owner(Claim(NODE, Protocol.TCP, 30080)) == front("shop/web", FrontKind.NODE_PORT)
    assert fronts.owner(tcp("10.96.0.10", 81)) is None
    assert fronts.owner(Claim(Address("10.96.0.10"), Protocol.UDP, 80)) is None


def test_a_port_without_a_name() -> None:
    """A Service's only port is called by its number if it has no name."""
    _, fronts = counting(service(ports=["80"]))
    assert fronts.owner(tcp("10.96.0.10")) == front("shop/web", FrontKind.CLUSTER_IP, port="80")


def test_what_a_service_does_not_get_is_not_its_own() -> None:
    """A contested address belongs to its owner, and passes on when that Service goes."""
    old = service("shop/old", cluster_ips=["10.96.0.11"], external_ips=["203.0.113.9"], created=1)
    new = service("shop/new", cluster_ips=["10.96.0.12"], external_ips=["203.0.113.9"], created=2)
    made, fronts = counting(old, new)
    contested = tcp("203.0.113.9")
    assert fronts.owner(contested) == front("shop/old", FrontKind.EXTERNAL_IP)
    assert not fronts.exists(front("shop/new", FrontKind.EXTERNAL_IP))
    made.ingest([Removed(Service, key("shop/old"))])
    assert fronts.owner(contested) == front("shop/new", FrontKind.EXTERNAL_IP)
    assert not fronts.exists(front("shop/old", FrontKind.EXTERNAL_IP))


def test_a_front_passes_from_one_service_to_another() -> None:
    """A front that moves between Services in one round belongs to its new Service, in either order."""
    for first, second in (("shop/a", "shop/b"), ("shop/b", "shop/a")):
        made, fronts = counting(service(first), service(second, cluster_ips=["10.96.0.11"]))
        made.ingest([Put(service(first, cluster_ips=["10.96.0.11"])), Put(service(second))])
        assert fronts.owner(tcp("10.96.0.10")) == front(second, FrontKind.CLUSTER_IP)
        assert fronts.owner(tcp("10.96.0.11")) == front(first, FrontKind.CLUSTER_IP)


def test_a_front_exists_as_long_as_one_address_has_it() -> None:
    """A kind of fronts ends with the last of its addresses."""
    made, fronts = counting(service(external_ips=["203.0.113.9", "203.0.113.8"]))
    kind = front("shop/web", FrontKind.EXTERNAL_IP)
    made.ingest([Put(service(external_ips=["203.0.113.8"]))])
    assert fronts.exists(kind)
    made.ingest([Put(service())])
    assert not fronts.exists(kind)


def test_a_change_of_endpoints_changes_no_set_that_counts() -> None:
    """With counts, another endpoint is the same two elements as without."""
    objects = service(), slice_of(endpoints=["10.1.1.4", "10.1.1.5"])
    more = slice_of(endpoints=["10.1.1.4", "10.1.1.5", "10.1.1.6"])
    texts = []
    for counts in (False, True):
        made = pipeline(*objects, service_counts=counts)
        made.ingest([Put(more)])
        made.ingest([Put(objects[1])])
        texts.append(made.ingest([Put(more)]).text)
    assert texts[0] == texts[1] != ""


def test_fronts_without_local_endpoints() -> None:
    """Where counts are on, fronts of policy Local are marked while only other nodes have endpoints."""
    web = service(cluster_ips=["10.96.0.10"], external_ips=["203.0.113.9"], external_policy="Local")
    away, here = slice_of(endpoints=["10.1.1.4@node-b"]), slice_of(endpoints=["10.1.0.4@node-a"])
    made = pipeline(web, away, service_counts=True)
    assert elements(made, IPV4, "none-local") == {"203.0.113.9 . tcp . 80": ""}
    made.ingest([Put(here)])
    assert elements(made, IPV4, "none-local") == {}
    made.ingest([Put(slice_of(endpoints=[]))])
    assert elements(made, IPV4, "none-local") == {}
    assert elements(pipeline(web, away), IPV4, "none-local") == {}
