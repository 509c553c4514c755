"""One Service whose rules the kernel refuses, as this agent's templates write them badly: others lose nothing by it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from nftproxy.lab import Origin, endpoint
from nftproxy.lab.apiserver import ApiServer
from tests.system.faults.bench import Bench, endpoints, pod, service, vip

BAD = 66
"""The number of the Service that is refused, for as long as it has its usual address."""
REFUSED = """
{% for address in cluster_ips if (address | string) == "10.96.0.66" %}
add element {{ table }} services { {{ address }} . tcp . 1 : goto nowhere }
{% endfor %}
"""
QUARANTINED = "nftproxy_services_quarantined"
SAID = "Service shop/s66 is quarantined for IPv4: the kernel refuses its rules: Could not process rule"


@pytest.fixture
def server(bench: Bench, server: ApiServer) -> Iterator[ApiServer]:
    """The API server, which has no bad Service any more at the end."""
    yield server
    for kind, name in (("Service", "s66"), ("EndpointSlice", "s66-1")):
        with contextlib.suppress(KeyError):
            server.delete(kind, "shop", name)
    bench.wait_until(lambda: bench.metric(QUARANTINED) == 0)


def is_served(bench: Bench, number: int, pods: int | None = None) -> bool:
    """Whether connections to a Service reach its pod."""
    return bench.lab.connect(Origin.POD, vip(number), 80) == endpoint(pod(pods or number), 8080)


def quarantine(bench: Bench, server: ApiServer) -> None:
    """Let the bad Service come, and wait until it is known to be."""
    known = bench.log().count(SAID)
    server.put(service(BAD), endpoints(BAD))
    bench.wait_until(lambda: bench.log().count(SAID) > known)
    bench.wait_until(lambda: bench.metric(QUARANTINED) == 1)  # the log may be first


def test_it_is_quarantined_and_named(bench: Bench, server: ApiServer) -> None:
    """All others are served, those that come with it too; log, metrics and an Event on it say what is wrong."""
    server.put(service(BAD), endpoints(BAD), service(67), endpoints(67))
    bench.wait_until(lambda: SAID in bench.log())
    assert all(is_served(bench, number) for number in (1, 2, 3, 4, 5, 67))
    assert not is_served(bench, BAD)
    bench.wait_until(lambda: bench.metric(QUARANTINED) == 1)
    bench.wait_until(lambda: any(each["reason"] == "RulesRefused" for each in server.objects("Event")))
    (event,) = [each for each in server.objects("Event") if each["reason"] == "RulesRefused"]
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Service", "s66")
    assert "goto nowhere" in event["note"]
    assert bench.healthz().status == 200


def test_others_follow_their_changes_as_ever(bench: Bench, server: ApiServer) -> None:
    """What comes later is in the kernel at once, by a small transaction each."""
    quarantine(bench, server)
    loads = bench.log().count("loaded the rules")
    for number in range(10):
        server.put(endpoints(1, pod(100 + number)))
        bench.wait_until(lambda number=number: is_served(bench, 1, 100 + number), 1.0)  # type: ignore[misc]
    assert bench.log().count("loaded the rules") == loads


def test_it_is_found_at_a_start_too(bench: Bench, server: ApiServer) -> None:
    """An agent that starts where it is there already serves all others, and has taken no rules away meanwhile."""
    quarantine(bench, server)
    known = bench.log().count(SAID)
    bench.stop()
    bench.start()
    while bench.log().count(SAID) == known:
        assert is_served(bench, 2)
    assert is_served(bench, 2)


def test_it_is_served_once_it_can_be(bench: Bench, server: ApiServer) -> None:
    """With another address the kernel takes its rules."""
    quarantine(bench, server)
    server.put({**service(BAD), "spec": {**service(BAD)["spec"], "clusterIP": vip(70), "clusterIPs": [vip(70)]}})
    bench.wait_until_right()
    assert bench.metric(QUARANTINED) == 0
    assert is_served(bench, 70, BAD)


def test_it_may_go(bench: Bench, server: ApiServer) -> None:
    """Without it all is as if it had never been there."""
    quarantine(bench, server)
    server.delete("Service", "shop", "s66")
    bench.wait_until(lambda: bench.metric(QUARANTINED) == 0)
    bench.wait_until_right()
