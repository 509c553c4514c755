"""After any fault between the agent and the API server, the kernel's rules are right again.

Each test injects a fault while objects are created, changed and deleted, and then compares every element in the kernel.
"""

from __future__ import annotations

import time

import pytest
from nftproxy_conformance.apiserver import ApiServer, Request, faults
from nftproxy_conformance.lab import DROPPED, TCP_RESET, Origin, endpoint

from tests.support.waiting import PATIENCE
from tests.system.faults.bench import CROWD, PERMISSIONS, PLURALS, Bench, change, endpoints, pod, service, vip
from tests.system.faults.hasty import TIMES

pytestmark = pytest.mark.slow

AGENT = "tests.system.faults.hasty"
MOST = 8
"""Requests for a resource in a test: a few failures, with a list and a watch for each."""
LONGEST_PAUSE = TIMES.longest_error / 2
"""Seconds between two attempts while a fault lasts, at least.  The pauses before are 0.025, 0.05, 0.1 and 0.2 s."""

STREAM_FAULTS: dict[str, faults.Action] = {
    "ends": faults.EndWatch(),
    "reset": faults.Reset(),
    "black hole": faults.BlackHole(),
    "line cut": faults.CutLine(),
    "line cut, reset": faults.CutLine(faults.Parting.RESET),
    "410": faults.error_event(410, reason="Expired"),
    "429": faults.error_event(429),
    "500": faults.error_event(500),
    "unknown type": faults.unknown_event(),
    "HTML": faults.Inject(b"<html>\n"),
}
WATCH_FAULTS: dict[str, faults.Action] = {
    "410": faults.Respond(410),
    "429": faults.Respond(429, retry_after=1),
    "500": faults.Respond(500),
    "503": faults.Respond(503),
    "reset": faults.Reset(),
}
LIST_FAULTS: dict[str, faults.Action] = {
    "429": faults.Respond(429, retry_after=1),
    "500": faults.Respond(500),
    "503 of a proxy": faults.Respond(503, body=b"<html>Service Unavailable</html>"),
    "cut": faults.Truncate(then=faults.Parting.END),
    "cut, closed": faults.Truncate(),
    "reset": faults.Reset(),
}


def with_each(table: dict[str, faults.Action]) -> pytest.MarkDecorator:
    """Parametrize a test by the faults of a table."""
    return pytest.mark.parametrize("action", table.values(), ids=table.keys())


def assert_calm(bench: Bench, most: int = MOST) -> None:
    """Assert that no resource had more than `most` requests."""
    counts = {plural: len(bench.requests(resource=plural)) for plural in PLURALS}
    assert max(counts.values()) <= most, counts


def assert_paced(bench: Bench, began: float) -> None:
    """Assert that no resource had more requests than pauses allow while a fault lasts, since a monotonic time."""
    counts = {plural: len(bench.requests(resource=plural)) for plural in PLURALS}
    most = 2 * (5 + (time.monotonic() - began) / LONGEST_PAUSE)  # a list may come with each watch
    assert max(counts.values()) <= most, counts


@with_each(STREAM_FAULTS)
def test_streams(bench: Bench, server: ApiServer, action: faults.Action) -> None:
    """A fault inside a watch loses no change and no deletion, and costs few requests."""
    server.faults.add(*(faults.Fault(action, verb="watch", resource=name) for name in ("services", "endpointslices")))
    change(server)
    bench.wait_until_right()
    change(server)
    bench.wait_until_right()
    assert_calm(bench)
    if action != STREAM_FAULTS["black hole"]:  # which lasts until a watch is silent for too long, as others may be, too
        assert not bench.requests(resource="nodes"), "another watch was disturbed"


@with_each(WATCH_FAULTS)
def test_watches(bench: Bench, server: ApiServer, action: faults.Action) -> None:
    """A refused watch is retried, and loses no change."""
    server.faults.add(
        faults.Fault(action, verb="watch", resource="services"),
        faults.Fault(faults.EndWatch(), verb="watch", resource="services"),
    )
    change(server)
    bench.wait_until_right()
    assert not server.faults.waiting
    assert_calm(bench)


@with_each(LIST_FAULTS)
def test_lists(bench: Bench, server: ApiServer, action: faults.Action) -> None:
    """After a failed list, the next list shows the agent the objects deleted before it."""
    server.faults.add(
        faults.Fault(action, verb="list", resource="services"),
        faults.Fault(faults.error_event(410), verb="watch", resource="services"),
    )
    change(server)
    server.compact()
    bench.wait_until_right()
    assert not server.faults.waiting
    assert_calm(bench)


@pytest.mark.parametrize("has_status", [True, False])
def test_compacted_while_away(bench: Bench, server: ApiServer, has_status: bool) -> None:
    """History that is compacted while a watch is cut costs a single listing, and deletions in it aren't lost."""

    def loses_history(_: Request) -> bool:
        """Change objects and compact the history, before the watch that follows the cut watch."""
        change(server)
        server.compact()
        return True

    server.settings.expired_watch_has_status = has_status
    server.faults.add(faults.Fault(faults.Slow(before=0.0), verb="watch", resource="services", when=loses_history))
    server.faults.add(faults.Fault(faults.Reset(), verb="watch", resource="services"))
    bench.wait_until(lambda: bench.requests(verb="watch", resource="services"))
    bench.wait_until_right()
    server.settings.expired_watch_has_status = False
    assert len(bench.listings("services")) == 1
    assert_calm(bench)


@pytest.mark.parametrize("keeps_history", [True, False])
def test_server_restarts(bench: Bench, server: ApiServer, keeps_history: bool) -> None:
    """An outage of the API server changes no rule, and objects deleted during the outage are gone after it."""
    before = bench.held()
    server.stop()
    change(server)
    time.sleep(0.5)
    assert bench.held() == before
    if not keeps_history:
        server.compact()
    server.start()
    bench.wait_until_right()
    assert len(bench.listings("services")) == (0 if keeps_history else 1)
    assert_calm(bench)


def test_restored_from_a_backup(bench: Bench, server: ApiServer) -> None:
    """After etcd is restored, Services that the cluster no longer has aren't served, and new Services are."""
    backup = server.revision
    server.put(*(service(number) for number in range(60, 91)), *(endpoints(number) for number in range(60, 91)))
    bench.wait_until_right()
    assert bench.lab.connect(Origin.POD, vip(75), 80) == endpoint(pod(75), 8080)
    bench.count_anew()
    server.restart(revision=backup)
    bench.wait_until_right()
    assert bench.lab.connect(Origin.POD, vip(75), 80) == DROPPED
    assert {plural: len(bench.listings(plural)) for plural in PLURALS} == dict.fromkeys(PLURALS, 1)
    assert_calm(bench, 4)
    change(server)
    bench.wait_until_right()


def test_tokens_rotate(bench: Bench, server: ApiServer) -> None:
    """A token that is replaced in its file in time is used before any request is refused."""
    server.rotate_token()
    server.faults.add(*(faults.Fault(faults.EndWatch(), verb="watch", resource=plural) for plural in PLURALS))
    change(server)
    bench.wait_until_right()
    assert {request.status for request in bench.requests()} == {200}
    assert_calm(bench)


def test_tokens_expire(bench: Bench, server: ApiServer) -> None:
    """While the token is expired, the agent keeps its rules and waits for a new token."""
    before, began = bench.held(), time.monotonic()
    server.expire_token()
    server.faults.add(*(faults.Fault(faults.EndWatch(), verb="watch", resource=plural) for plural in PLURALS))
    change(server)
    server.wait_for_requests(2, status=401, resource="services", timeout=PATIENCE)
    assert bench.held() == before
    server.rotate_token()
    bench.wait_until_right()
    assert_paced(bench, began)


def test_one_that_may_not(bench: Bench, server: ApiServer) -> None:
    """A forbidden resource keeps its last known objects, and the agent follows all other resources."""
    began = time.monotonic()
    server.rbac = [each for each in PERMISSIONS if each[1] != "endpointslices"]
    server.faults.add(faults.Fault(faults.EndWatch(), verb="watch", resource="endpointslices"))
    server.wait_for_requests(1, status=403, resource="endpointslices", timeout=PATIENCE)
    server.put(service(90))
    bench.wait_until(lambda: bench.lab.connect(Origin.POD, vip(90), 80) == TCP_RESET)
    assert bench.lab.connect(Origin.POD, vip(2), 80) == endpoint(pod(2), 8080)
    server.delete("Service", "shop", "s90")
    bench.wait_until(lambda: bench.lab.connect(Origin.POD, vip(90), 80) == DROPPED)
    server.put(endpoints(2, pod(77)))
    server.rbac = PERMISSIONS
    bench.wait_until_right()
    assert bench.lab.connect(Origin.POD, vip(2), 80) == endpoint(pod(77), 8080)
    assert_paced(bench, began)
    assert {request.resource for request in bench.requests()} == {"endpointslices"}


@pytest.mark.parametrize(
    "fault",
    [
        faults.Fault(faults.error_event(410), verb="watch", count=None),
        faults.Fault(faults.Respond(500), count=None),
    ],
    ids=["410", "500"],
)
def test_no_hot_loop(bench: Bench, server: ApiServer, fault: faults.Fault) -> None:
    """A lasting fault costs few requests and no rule, and rules are right again after its end."""
    began = time.monotonic()
    server.faults.add(fault, *(faults.Fault(faults.EndWatch(), verb="watch", resource=plural) for plural in PLURALS))
    time.sleep(1.0)
    assert bench.is_right()
    assert_paced(bench, began)
    change(server)
    server.faults.clear()
    bench.wait_until_right()


# Half a cluster


@pytest.mark.parametrize(
    ("plural", "action"),
    [
        ("services", faults.Respond(500)),
        ("services", faults.Slow(before=3600.0)),
        ("endpointslices", faults.Respond(403)),
        ("endpointslices", faults.Truncate(0.9, faults.Parting.END)),
        ("nodes", faults.Respond(503)),
    ],
    ids=["500", "slow", "403", "cut", "503"],
)
def test_half_a_cluster_deletes_nothing(bench: Bench, server: ApiServer, plural: str, action: faults.Action) -> None:
    """An agent that starts and can't list a resource leaves the rules in the kernel as they are."""
    bench.stop()
    before = bench.held()
    bench.count_anew()
    server.faults.add(
        faults.Fault(action, verb="list", resource=plural, count=1 if isinstance(action, faults.Slow) else None)
    )
    change(server)
    bench.start()
    others = PLURALS - {plural}
    bench.wait_until(lambda: all(server.watches(each) for each in others))
    bench.wait_until(lambda: isinstance(action, faults.Slow) or len(bench.requests(verb="list", resource=plural)) >= 2)
    time.sleep(0.3)
    assert bench.held() == before
    bench.count_anew()  # the slower the machine, the more attempts are made until here
    server.faults.clear()
    if isinstance(action, faults.Slow):
        server.restart()  # else the answer of the slow list comes in an hour
    bench.wait_until_right()
    assert_calm(bench)


def test_no_server_at_the_start(bench: Bench, server: ApiServer) -> None:
    """An agent that starts before the API server leaves the rules as they are until the server is up.

    The outage is logged once for all resources.
    """
    bench.stop()
    before = bench.held()
    server.stop()
    change(server)
    with bench.logging("no connection to 127.0.0.1:"):
        bench.start()
    assert bench.held() == before
    server.start()
    bench.wait_until_right()


# Lists in pages


@pytest.fixture(scope="module")
def crowd(shared_bench: Bench) -> None:
    """So many Services that a list has two pages.  They stay until the end, so tests with this fixture come last."""
    shared_bench.server.put(*(service(number) for number in range(CROWD, CROWD + 600)))
    shared_bench.wait_until_right()


def list_in_pages(server: ApiServer, *more: faults.Fault) -> None:
    """Make the agent list Services in pages, as if the server had no watch cache."""

    def wants_the_cache(request: Request) -> bool:
        return "resourceVersion" in request.query

    server.faults.add(faults.Fault(faults.Respond(410), verb="list", resource="services", when=wants_the_cache), *more)
    server.faults.add(faults.Fault(faults.error_event(410), verb="watch", resource="services"))


def goes_on(request: Request) -> bool:
    """Whether a request is for a page after the first page."""
    return "continue" in request.query


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("action", [faults.Respond(500), faults.Reset(), faults.Truncate()], ids=repr)
def test_a_page_fails(bench: Bench, server: ApiServer, action: faults.Action) -> None:
    """While the second page of a list fails no rule changes, and a retry brings all changes."""
    before = bench.held()
    list_in_pages(server, faults.Fault(action, verb="list", resource="services", when=goes_on))
    bench.wait_until(lambda: any(map(goes_on, bench.requests(verb="list"))))
    assert bench.held() == before
    bench.wait_until(lambda: sum(map(goes_on, bench.requests(verb="list"))) >= 2)
    server.delete("Service", "shop", f"s{CROWD + 599}")
    bench.wait_until_right()
    server.put(service(CROWD + 599))
    assert_calm(bench)


@pytest.mark.usefixtures("crowd")
def test_a_page_has_expired(bench: Bench, server: ApiServer) -> None:
    """After an expired continue token, the agent lists without pages and drops the Service deleted meanwhile."""

    def compacts(request: Request) -> bool:
        if goes_on(request):
            server.delete("Service", "shop", f"s{CROWD}")
            server.compact()
        return False

    list_in_pages(server, faults.Fault(faults.Respond(500), verb="list", resource="services", when=compacts))
    bench.wait_until(lambda: bench.requests(verb="watch", resource="services"))
    bench.wait_until_right()
    assert vip(CROWD) not in str(bench.held())
    assert not goes_on(bench.requests(verb="list", resource="services")[-1])
    assert_calm(bench)
