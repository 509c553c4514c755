"""A Service whose rules the kernel refuses, due to a bad template.  All other Services are served."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Origin, endpoint

from tests.system.faults.bench import Bench, endpoints, pod, service, vip
from tests.system.packets.manifests import Manifest

pytestmark = pytest.mark.slow

REFUSED = """
{% for address in cluster_ips if (address | string).startswith("10.96.7.") %}
add element {{ table }} services { {{ address }} . tcp . 1 : goto nowhere }
{% endfor %}
"""
NUMBERS = itertools.count((7 << 8) + 1)
"""The numbers of bad Services, whose usual addresses are refused.  Each test has its own number, so that no log line of
an earlier test counts."""
QUARANTINED = "nftproxy_services_quarantined"


@pytest.fixture
def bad(server: ApiServer) -> Iterator[int]:
    """The number of a bad Service, which is deleted at the end."""
    number = next(NUMBERS)
    yield number
    for kind, name in (("Service", f"s{number}"), ("EndpointSlice", f"s{number}-1")):
        if server.get(kind, "shop", name):
            server.delete(kind, "shop", name)


def said(number: int) -> str:
    """The log line of a Service that is quarantined."""
    return f"Service shop/s{number} is quarantined for IPv4: the kernel refuses its rules: "


def is_served(bench: Bench, number: int, pods: int | None = None) -> bool:
    """Whether connections to a Service reach its pod."""
    return bench.lab.connect(Origin.POD, vip(number), 80) == endpoint(pod(pods or number), 8080)


def quarantine(bench: Bench, server: ApiServer, number: int, *more: Manifest) -> None:
    """Create a bad Service, with more objects, and wait until it is quarantined."""
    loads = bench.log().count("loaded the rules")
    server.put(service(number), endpoints(number), *more)
    bench.wait_until(lambda: said(number) in bench.log() and bench.log().count("loaded the rules") > loads)


def test_a_refused_service_is_quarantined_and_named(bench: Bench, server: ApiServer, bad: int) -> None:
    """A bad Service is named in log, metrics and an Event, and all other Services are served."""
    quarantine(bench, server, bad, service(67), endpoints(67))
    bench.wait_until(lambda: all(is_served(bench, number) for number in (1, 2, 3, 4, 5, 67)))
    assert not is_served(bench, bad)
    bench.wait_until(lambda: bench.metric(QUARANTINED) == 1)
    bench.wait_until(lambda: events(server, bad))
    (event,) = events(server, bad)
    assert (event["reason"], event["regarding"]["kind"]) == ("RulesRefused", "Service")
    assert "goto nowhere" in event["note"]
    assert bench.healthz().status == 200


def events(server: ApiServer, number: int) -> list[dict[str, Any]]:
    """The Events on a Service."""
    return [each for each in server.objects("Event") if each["regarding"]["name"] == f"s{number}"]


def test_other_services_change_beside_a_refused_service(bench: Bench, server: ApiServer, bad: int) -> None:
    """Later changes of other Services reach the kernel, by a small transaction each."""
    quarantine(bench, server, bad)
    loads = bench.log().count("loaded the rules")
    for number in range(10):
        server.put(endpoints(1, pod(100 + number)))
        bench.wait_until(lambda number=number: is_served(bench, 1, 100 + number))  # type: ignore[misc]
    assert bench.log().count("loaded the rules") == loads


def test_a_refused_service_is_found_at_a_start(bench: Bench, server: ApiServer, bad: int) -> None:
    """An agent that starts beside a bad Service quarantines it, and another Service is served all the time."""
    quarantine(bench, server, bad)
    bench.stop()
    known = bench.log().count(said(bad))
    bench.start()
    while bench.log().count(said(bad)) == known:
        assert is_served(bench, 2)
    assert is_served(bench, 2)


def test_a_corrected_service_leaves_quarantine(bench: Bench, server: ApiServer, bad: int) -> None:
    """A bad Service is served once it has an address whose rules the kernel accepts."""
    quarantine(bench, server, bad)
    other = vip(bad - 1024)
    server.put({**service(bad), "spec": {**service(bad)["spec"], "clusterIP": other, "clusterIPs": [other]}})
    bench.wait_until_right()
    bench.wait_until(lambda: bench.metric(QUARANTINED) == 0)
    assert is_served(bench, bad - 1024, bad)


def test_deletion_of_a_refused_service_ends_its_quarantine(bench: Bench, server: ApiServer, bad: int) -> None:
    """When a bad Service is deleted, its quarantine ends and the rules are right."""
    quarantine(bench, server, bad)
    server.delete("Service", "shop", f"s{bad}")
    bench.wait_until(lambda: bench.metric(QUARANTINED) == 0)
    bench.wait_until_right()
