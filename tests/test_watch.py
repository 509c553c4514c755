"""The cluster is followed over real connections, and whatever goes wrong with them, what is known is right afterwards.

Each test has a server with TLS that wants a token, follows all of its resources, lets something go wrong while objects
come, change and go, and then waits until what the events made is what the server has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from nftproxy import watch
from nftproxy.credentials import Credentials, read_credentials
from nftproxy.errors import BadInput
from nftproxy.model import ClusterObject, EndpointSlice, Ignored, Node, Service, ServiceCIDR
from nftproxy.parse import parse_object
from nftproxy.reflector import Times
from nftproxy.selection import Resource, resources
from nftproxy.state import ClusterState, Event, Listed
from nftproxy.streams import gathered
from nftproxy.watch import Cluster, Patience
from tests.apiserver import (
    Action,
    ApiServer,
    BlackHole,
    CutLine,
    Duplicate,
    EndWatch,
    Fault,
    Inject,
    Parting,
    Proof,
    Reset,
    Respond,
    Slow,
    Stale,
    Swap,
    Truncate,
    error_event,
    unknown_event,
)

NODE = "node-a"
RESOURCES = resources(NODE)
PLURALS = {resource.plural for resource in RESOURCES}
TIMES = Times(shortest_watch=30, longest_watch=60, healthy=0.3, absent=0.1)
PATIENCE = Patience(connect=0.5, answer=0.3, silence=0.4, first_pause=0.02, longest_pause=0.2)
BOOKMARKS = 0.1
"""Seconds between bookmarks: some of them fit into the time in which a watch must not be silent."""
SOON = 5.0
"""Seconds within which the state must be right again; most often it is within a tenth."""

Object = dict[str, Any]


def service(number: int, **more: Any) -> Object:
    """A Service."""
    spec = {"clusterIP": f"10.96.{number >> 8}.{number & 255}", "ports": [{"port": 80}]}
    metadata = {"name": f"s{number}", "namespace": "shop"}
    return {"kind": "Service", "metadata": metadata | more, "spec": spec}


def endpoint_slice(number: int, *, port: int = 8080, labels: Object | None = None) -> Object:
    """The EndpointSlice of a Service."""
    return {
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"s{number}-x",
            "namespace": "shop",
            "labels": {"kubernetes.io/service-name": f"s{number}"} | (labels or {}),
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [f"10.0.0.{number & 255}"], "nodeName": NODE}],
    }


def node(name: str = NODE, zone: str = "a") -> Object:
    """A Node."""
    return {"kind": "Node", "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}}


def service_cidr(name: str = "kubernetes") -> Object:
    """A ServiceCIDR."""
    return {"kind": "ServiceCIDR", "metadata": {"name": name}, "spec": {"cidrs": ["10.96.0.0/16"]}}


def shown(state: ClusterState) -> dict[str, object]:
    """All that a state knows of the cluster."""
    return {
        "services": state.services,
        "slices": state._slices,
        "node": state.node,
        "cidrs": state._service_cidrs,
    }


def truth(server: ApiServer) -> dict[str, object]:
    """All that there is to know: the server's objects, parsed one by one."""
    state = ClusterState(NODE)
    for resource in RESOURCES:
        outcomes = [parse_object(each, "", [], kind=resource.kind) for each in server.objects(resource.kind.name)]
        values = tuple(value for value in outcomes if value is not None and not isinstance(value, Ignored))
        state.apply(Listed(resource.model, values))
    return shown(state)


class Following:
    """A cluster that is followed: the state that events make, and every batch of them."""

    def __init__(self, server: ApiServer, cluster: Cluster) -> None:
        self.server = server
        self.state = ClusterState(NODE)
        self.batches: dict[str, list[list[Event]]] = {plural: [] for plural in PLURALS}
        self._cluster = cluster

    async def run(self, resource: Resource) -> None:
        """Follow one resource until cancelled."""
        async for events in self._cluster.follow(resource):
            assert events, "nothing is told"
            self.batches[resource.plural].append(events)
            for event in events:
                self.state.apply(event)

    async def until(self, condition: Callable[[], bool], patience: float = SOON) -> None:
        """Wait for something to be so."""
        end = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < end, self._report()
            await asyncio.sleep(0.005)

    async def right(self, patience: float = SOON) -> None:
        """Wait until the state is what the server has, and all watches run."""
        await self.until(lambda: shown(self.state) == truth(self.server) and self.is_watching(), patience)

    def is_watching(self) -> bool:
        """Whether each resource has its watch."""
        return all(self.server.watches(plural) == 1 for plural in PLURALS)

    async def ready(self) -> None:
        """Wait until each resource has been listed."""
        await self.until(lambda: all(self.batches.values()))

    def requests(self, **wanted: Any) -> int:
        """How many requests of a sort the server had."""
        return len(self.server.requests(**wanted))

    def _report(self) -> str:
        had, wants = shown(self.state), truth(self.server)
        differing = [name for name in wants if had[name] != wants[name]]
        made = "\n".join(f"{r.verb} {r.resource} {dict(r.query)}: {r.status}" for r in self.server.requests()[-30:])
        return f"not so; state is wrong about {differing}, batches: {self.batches}; requests:\n{made}"


@contextlib.asynccontextmanager
async def following(
    server: ApiServer, cluster: Cluster, only: Sequence[Resource] = RESOURCES
) -> AsyncIterator[Following]:
    """Follow a cluster, and stop at the end."""
    following = Following(server, cluster)
    tasks = [asyncio.create_task(following.run(resource)) for resource in only]
    try:
        yield following
        for task in tasks:
            if task.done():
                task.result()
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(server.wait_for_watches, 0)


@pytest.fixture(autouse=True)
def no_surprises(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever goes wrong in these tests, nothing is logged as an error, as only oversights are."""
    yield
    ours = (record for record in caplog.get_records("call") if record.name.startswith("nftproxy"))
    assert [record.getMessage() for record in ours if record.levelno >= logging.ERROR] == []


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A server with TLS that wants a token, with a few objects."""
    with ApiServer(tls=True, authenticate=True) as server:
        server.settings.bookmark_interval = BOOKMARKS
        server.settings.version = "v1.99.0"
        server.put(node(), node("node-b"), service_cidr())
        for number in range(5):
            server.put(service(number), endpoint_slice(number))
        yield server


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> Cluster:
    """That server's cluster, by a kubeconfig."""
    return reach(server, tmp_path)


def reach(server: ApiServer, directory: Path, **more: Any) -> Cluster:
    """The cluster of a server, by a kubeconfig in a directory."""
    config = server.write_kubeconfig(directory / "kubeconfig")
    return Cluster(str(config), **{"times": TIMES, "patience": PATIENCE} | more)


def change(server: ApiServer, *, start: int = 100) -> None:
    """Let objects of all kinds come, change and go."""
    server.put(service(start), service(start + 1), endpoint_slice(start), endpoint_slice(0, port=9000 + start % 100))
    server.put(service(1, labels={"changed": str(start)}), node(zone=f"z{start}"), service_cidr(f"c{start}"))
    server.delete("Service", "shop", f"s{start}")
    if server.get("EndpointSlice", "shop", "s2-x"):
        server.delete("EndpointSlice", "shop", "s2-x")
        server.delete("Service", "shop", "s2")


# When nothing goes wrong


def test_tells_all_first(server: ApiServer, cluster: Cluster) -> None:
    """The first batch of each resource is all there is, and is asked for once; then come changes, batch by batch."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            for resource in RESOURCES:
                ((first,),) = seen.batches[resource.plural]
                assert isinstance(first, Listed)
                assert first.kind is resource.model
            change(server)
            await seen.right()

    asyncio.run(run())
    assert sorted(request.resource for request in server.requests(verb="list")) == sorted(PLURALS)
    assert {request.query["resourceVersion"] for request in server.requests(verb="list")} == {"0"}
    assert len(server.requests(verb="watch")) == len(PLURALS)
    assert len(server.requests()) == 2 * len(PLURALS), "nothing else is asked for, not even the version"
    assert all(request.query["allowWatchBookmarks"] == "true" for request in server.requests(verb="watch"))


def test_many_changes_are_few_batches(server: ApiServer, cluster: Cluster) -> None:
    """Events that are there already are told together."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            server.put(*(service(number) for number in range(1000, 1500)))
            await seen.until(lambda: len(seen.state.services) == 505)
            batches = seen.batches["services"][1:]
            assert sum(map(len, batches)) == 500
            assert len(batches) < 100

    asyncio.run(run())


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        (service(1), service(1, labels={"service.kubernetes.io/service-proxy-name": "other"})),
        (service(1), {**service(1), "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}),
        (service(1), {**service(1), "spec": {"type": "ExternalName", "externalName": "example.test"}}),
        (service(1), {**service(1), "spec": {"clusterIP": ["what"], "clusterIPs": "is", "ports": "this"}}),
        (endpoint_slice(1), endpoint_slice(1, labels={"service.kubernetes.io/headless": ""})),
        (endpoint_slice(1), {**endpoint_slice(1), "addressType": "FQDN"}),
        (endpoint_slice(1), {**endpoint_slice(1), "addressType": 7}),
    ],
)
def test_objects_that_cease_to_matter(server: ApiServer, cluster: Cluster, plain: Object, other: Object) -> None:
    """An object that is for others now, or can't be read any more, is removed, and comes back."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            known = len(seen.state.services) + len(seen.state._slices)
            for version, count in ((other, known - 1), (plain, known), (other, known - 1)):
                server.put(version)
                await seen.until(lambda: len(seen.state.services) + len(seen.state._slices) == count)  # noqa: B023
            await seen.right()

    asyncio.run(run())


def test_watches_end_and_go_on(server: ApiServer, tmp_path: Path) -> None:
    """A watch that ends at its timeout is followed at once by one from the last version, bookmarks included."""
    cluster = reach(server, tmp_path, times=Times(shortest_watch=1, longest_watch=1, healthy=0.5))

    async def run() -> None:
        async with following(server, cluster, [RESOURCES[2]]) as seen:
            await seen.until(lambda: seen.requests(verb="watch") >= 3)
            server.put(service(7))
            await seen.until(lambda: len(seen.batches["services"]) == 2)

    asyncio.run(run())
    versions = [int(request.query["resourceVersion"]) for request in server.requests(verb="watch")]
    assert versions == sorted(set(versions))
    assert len(server.requests(verb="list")) == 1


# Faults


STREAM_FAULTS = {
    "ends": EndWatch(),
    "reset": Reset(),
    "black hole": BlackHole(),
    "line cut": CutLine(),
    "line cut, closed": CutLine(Parting.CLOSE),
    "line cut, silent": CutLine(Parting.HANG),
    "line cut, reset": CutLine(Parting.RESET),
    "twice": Duplicate(),
    "out of order": Swap(),
    "410": error_event(410, reason="Expired"),
    "410 and on": Inject(error_event(410).data),
    "429": error_event(429),
    "500": error_event(500),
    "403": error_event(403),
    "0": Inject(b'{"type":"ERROR","object":{"kind":"Status"}}\n'),
    "ERROR of nothing": Inject(b'{"type":"ERROR","object":null}\n'),
    "unknown type": unknown_event(),
    "HTML": Inject(b"<html>\n"),
    "not UTF-8": Inject(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}\n'),
    "no object": Inject(b'{"type":"ADDED"}\n'),
    "bad object": Inject(b'{"type":"ADDED","object":[]}\n'),
    "blank": Inject(b"\n\r\n"),
}
ANSWER_FAULTS = {
    **{str(code): Respond(code) for code in (400, 401, 403, 404, 410, 422, 429, 500, 503, 504)},
    "429 of a queue": Respond(429, body=b"Too many requests\n"),
    "502 of a proxy": Respond(502, body=b"<html>Bad Gateway</html>"),
    "slow": Slow(before=0.2),
    "too slow": Slow(before=0.6),
    "reset": Reset(),
}
LIST_FAULTS = ANSWER_FAULTS | {
    "black hole": BlackHole(),
    "HTML": Respond(200, body=b"<html>Welcome</html>"),
    "no list": Respond(200, body=b"{}"),
    "another list": Respond(200, body=b'{"kind":"List","metadata":{"resourceVersion":"1"},"items":[]}'),
    "cut": Truncate(then=Parting.END),
    "cut, closed": Truncate(then=Parting.CLOSE),
    "cut, silent": Truncate(then=Parting.HANG),
    "slowly": Slow(during=0.3),
}


def faults(table: dict[str, Any]) -> pytest.MarkDecorator:
    """One test for each fault."""
    return pytest.mark.parametrize("action", table.values(), ids=table.keys())


@faults(STREAM_FAULTS)
def test_faults_in_watches(server: ApiServer, cluster: Cluster, action: Action) -> None:
    """Whatever happens to watches that run, changes meanwhile are not missed, and other watches not disturbed."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            server.faults.add(*(Fault(action, verb="watch", resource=name) for name in ("services", "endpointslices")))
            change(server)
            await seen.right()
            change(server, start=200)
            await seen.right()
            assert seen.requests(verb="watch", resource="nodes") == 1
            assert 1 <= seen.requests(verb="watch", resource="services") <= 4

    asyncio.run(run())


@faults(ANSWER_FAULTS)
def test_faults_of_watches(server: ApiServer, cluster: Cluster, action: Action) -> None:
    """Whatever a watch is answered, a few times, it runs in the end, from where the last one was."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            server.faults.add(Fault(action, verb="watch", resource="services", count=3))
            server.faults.add(Fault(EndWatch(), verb="watch", resource="services"))
            change(server)
            await seen.right()
            change(server, start=200)
            await seen.right()
            assert seen.requests(verb="watch", resource="endpointslices") == 1

    asyncio.run(run())


@faults(LIST_FAULTS | {"stale": Stale(4)})
def test_faults_of_first_lists(server: ApiServer, cluster: Cluster, action: Action) -> None:
    """Whatever a first list is answered, a few times, nothing is told before the whole of it has come."""

    async def run() -> None:
        for plural in ("services", "endpointslices"):
            server.faults.add(Fault(action, verb="list", resource=plural, count=2))
        async with following(server, cluster) as seen:
            await seen.ready()
            ((first, *more),) = seen.batches["services"][:1]
            assert isinstance(first, Listed)
            assert not more
            assert isinstance(action, Stale) or len(first.objects) == 5
            await seen.right()

    asyncio.run(run())


@faults(LIST_FAULTS)
def test_faults_of_later_lists(server: ApiServer, cluster: Cluster, action: Action) -> None:
    """Whatever a later list is answered, a few times, what is known stays until the whole of the new one has come."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            known = set(seen.state.services)
            server.faults.add(Fault(action, verb="list", resource="services", count=2))
            server.faults.add(Fault(error_event(410), verb="watch", resource="services"))
            server.put(service(50))
            await seen.until(lambda: len(seen.state.services) == 6)
            assert set(seen.state.services) > known
            await seen.right()
            assert all(len(event.objects) >= 5 for [event] in seen.batches["services"] if isinstance(event, Listed))

    asyncio.run(run())


EVERLASTING = {
    "list 500": Fault(Respond(500), verb="list", count=None),
    "list 410": Fault(Respond(410), verb="list", count=None),
    "list 404": Fault(Respond(404), verb="list", resource="services", count=None),
    "list reset": Fault(Reset(), verb="list", count=None),
    "all 401": Fault(Respond(401), count=None),
    "all 403": Fault(Respond(403), count=None),
    "all 429": Fault(Respond(429), count=None),
    "watch 410": Fault(Respond(410), verb="watch", count=None),
    "watch 404": Fault(Respond(404), verb="watch", count=None),
    "watch 500": Fault(Respond(500), verb="watch", count=None),
    "ERROR 410": Fault(error_event(410), verb="watch", count=None),
    "ERROR 500": Fault(error_event(500), verb="watch", count=None),
    "ends": Fault(EndWatch(), verb="watch", count=None),
    "HTML": Fault(Inject(b"<html>\n"), verb="watch", count=None),
    "reset": Fault(Reset(), verb="watch", count=None),
}


@pytest.mark.parametrize("fault", EVERLASTING.values(), ids=EVERLASTING.keys())
def test_no_hot_loop(server: ApiServer, cluster: Cluster, fault: Fault) -> None:
    """A fault that doesn't end costs a request or two for each pause, not more; and when it ends, all is well."""
    server.faults.add(fault)

    async def run() -> None:
        async with following(server, cluster) as seen:
            began = time.monotonic()
            await asyncio.sleep(0.6)
            await seen.until(lambda: seen.requests(resource="services") >= 4)
            # Pauses are at least 0.01, 0.02, 0.04, 0.08, 0.1, 0.1, ... seconds; a listing may come with each watch
            assert seen.requests(resource="services") <= 2 * (5 + (time.monotonic() - began) / 0.1)
            change(server)
            server.faults.clear()
            await seen.right()

    asyncio.run(run())


def test_retry_after(server: ApiServer, cluster: Cluster) -> None:
    """A server that asks for a second of peace gets it, for lists and for watches, and a little more."""
    for verb in ("list", "watch"):
        server.faults.add(Fault(Respond(429, retry_after=1), verb=verb, resource="services"))

    async def run() -> None:
        async with following(server, cluster, [RESOURCES[2]]) as seen:
            await seen.until(lambda: server.watches() == 1)

    asyncio.run(run())
    for verb in ("list", "watch"):
        refused, heard = server.requests(verb=verb)
        assert 1.0 <= heard.time - refused.time < 1.5


# Listing in pages


def pages(server: ApiServer, monkeypatch: pytest.MonkeyPatch, *more: Fault) -> None:
    """Have Services listed in pages of two: the server has no cache to list from."""
    monkeypatch.setattr("nftproxy.reflector.PAGE", 2)
    server.faults.add(
        Fault(Respond(410), verb="list", resource="services", when=lambda request: "resourceVersion" in request.query)
    )
    server.faults.add(*more)


def test_pages(server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in pages is told as one."""
    pages(server, monkeypatch)

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            assert len(seen.batches["services"]) == 1

    asyncio.run(run())
    asked = ["continue" in request.query for request in server.requests(verb="list", resource="services")]
    assert asked == [False, False, True, True]


@pytest.mark.parametrize("action", [Respond(500), Respond(429), Reset(), BlackHole(), Truncate()], ids=repr)
def test_a_page_fails(server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, action: Action) -> None:
    """A page that fails once is asked for again, and the pages before it are not."""
    pages(server, monkeypatch)
    server.faults.add(Fault(action, verb="list", resource="services", when=lambda request: "continue" in request.query))

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            assert len(seen.batches["services"]) == 1

    asyncio.run(run())
    asked = ["continue" in request.query for request in server.requests(verb="list", resource="services")]
    assert asked == [False, False, True, True, True]


def test_a_page_has_expired(server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are gone are given up, for a list of everything at once, without what was deleted meanwhile."""
    pages(server, monkeypatch)

    def compacted(request: Any) -> bool:
        if "continue" in request.query:
            server.delete("Service", "shop", "s0")
            server.compact()
        return False

    server.faults.add(Fault(Respond(500), verb="list", resource="services", when=compacted))

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            assert len(seen.batches["services"]) == 1
            assert len(seen.state.services) == 4

    asyncio.run(run())
    last = server.requests(verb="list", resource="services")[-1]
    assert not {"limit", "continue", "resourceVersion"} & last.query.keys()


# Servers that come and go


@pytest.mark.parametrize("keeps_history", [True, False])
def test_server_restarts(server: ApiServer, cluster: Cluster, keeps_history: bool) -> None:
    """After an outage watches go on where they were; if that is forgotten, a listing tells what has been deleted."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            server.stop()
            change(server)
            await asyncio.sleep(0.3)
            if not keeps_history:
                server.compact()
            server.start()
            await seen.right()

    asyncio.run(run())
    lists = server.requests(verb="list", resource="services")
    assert len(lists) == (1 if keeps_history else 2)
    assert all(request.query["resourceVersion"] != "0" for request in lists[1:])


def test_compacted_while_away(server: ApiServer, cluster: Cluster) -> None:
    """History that is lost while a watch is cut costs that resource one listing, and no other."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            server.faults.add(Fault(Slow(before=0.2), verb="watch", resource="services"))
            server.faults.add(Fault(Reset(), verb="watch", resource="services"))
            await seen.until(lambda: server.watches("services") == 0)
            change(server)
            server.compact()
            await seen.right()

    asyncio.run(run())
    assert len(server.requests(verb="list", resource="services")) == 2
    assert len(server.requests(verb="list", resource="endpointslices")) == 1


@pytest.mark.parametrize("has_status", [True, False])
def test_expired_watches(server: ApiServer, cluster: Cluster, has_status: bool) -> None:
    """That a version is gone is understood as an HTTP status and as an ERROR alike."""
    server.settings.expired_watch_has_status = has_status
    test_compacted_while_away(server, cluster)


def test_restored_from_a_backup(server: ApiServer, cluster: Cluster) -> None:
    """A server that has gone back in time leaves watches from the future silent; that is found out by listing."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            for number in range(10):
                server.put(service(300 + number))
            await seen.right()
            server.settings.bookmark_interval = None
            server.restart(revision=4)
            server.settings.bookmark_interval = BOOKMARKS
            server.delete("Service", "shop", "s300")
            await seen.right()

    asyncio.run(run())


def test_waits_for_the_server(server: ApiServer, cluster: Cluster) -> None:
    """If there is no server yet, it is waited for."""
    server.stop()

    async def run() -> None:
        async with following(server, cluster) as seen:
            await asyncio.sleep(0.2)
            assert not any(seen.batches.values())
            server.start()
            await seen.right()

    asyncio.run(run())


def test_black_hole(server: ApiServer, cluster: Cluster) -> None:
    """A connection that is dead but open is noticed by the bookmarks that don't come, and without any other sign."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            await asyncio.sleep(2 * PATIENCE.silence)
            assert seen.requests(verb="watch") == len(PLURALS), "bookmarks are a sign of life"
            server.faults.add(Fault(BlackHole(), verb="watch", resource="services"))
            began = time.monotonic()
            server.put(service(9))
            await seen.right()
            assert time.monotonic() - began < PATIENCE.silence + 0.3

    asyncio.run(run())
    assert len(server.requests(verb="list", resource="services")) == 1


# One and the others


def test_one_that_may_not(server: ApiServer, cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A resource that is forbidden is asked for again and again, says so, and the others never notice."""
    server.rbac = [("", "*", "*"), ("networking.k8s.io", "*", "*")]

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.until(lambda: seen.requests(status=403) >= 4)
            for number in range(20, 30):
                server.put(service(number))
                await seen.until(lambda: len(seen.state.services) == len(server.objects("Service")))
            assert seen.batches["endpointslices"] == []
            for plural in PLURALS - {"endpointslices"}:
                assert seen.requests(verb="watch", resource=plural) == 1
            server.rbac = None
            await seen.right()

    asyncio.run(run())
    assert "endpointslices: 403 Forbidden" in caplog.text


def test_a_kind_that_is_not_there(server: ApiServer, cluster: Cluster) -> None:
    """A cluster without ServiceCIDRs has an empty list of them, and if they come later they are found."""
    server.faults.add(Fault(Respond(404, body=b"404 page not found\n"), resource="servicecidrs", count=2))

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.ready()
            assert seen.batches["servicecidrs"][0] == [Listed(ServiceCIDR, ())]
            await seen.right()

    asyncio.run(run())


def test_a_kind_that_never_comes(server: ApiServer, cluster: Cluster) -> None:
    """A kind that isn't there is looked for seldom: in each of its versions, and then not for a while."""
    server.faults.add(Fault(Respond(404), resource="servicecidrs", count=None))

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.ready()
            began = time.monotonic()
            await asyncio.sleep(5 * TIMES.absent)
            assert seen.requests(status=404) <= 2 * (2 + (time.monotonic() - began) / TIMES.absent)
            assert len(seen.batches["servicecidrs"]) == 1

    asyncio.run(run())


# Credentials


def test_tokens_are_read_before_they_expire(server: ApiServer, cluster: Cluster) -> None:
    """A token that has been replaced in the file is used for the next request: nothing is ever refused."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            for start in (100, 200):
                server.rotate_token()
                server.faults.add(Fault(EndWatch(), verb="watch", count=len(PLURALS)))
                change(server, start=start)
                await seen.right()

    asyncio.run(run())
    assert {request.status for request in server.requests()} == {200}
    assert len({request.headers["authorization"] for request in server.requests()}) == 3


def test_expired_token(server: ApiServer, cluster: Cluster) -> None:
    """While no good token is in the file requests are refused, with pauses; once one is there, they go on."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            server.rotate_token(publish=False)
            server.faults.add(Fault(EndWatch(), verb="watch", resource="services"))
            change(server)
            await seen.until(lambda: seen.requests(status=401) >= 4)
            server.publish_token()
            await seen.right()
            for plural in PLURALS - {"services"}:
                assert seen.requests(resource=plural) == 2, "others run on"

    asyncio.run(run())


def test_in_a_pod(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod the service account's token is used, and read anew when kubelet has replaced it."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    account = server.write_service_account(tmp_path)
    cluster = Cluster(account=account, times=TIMES, patience=PATIENCE)

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            server.rotate_token()
            server.faults.add(Fault(EndWatch(), verb="watch", count=len(PLURALS)))
            change(server)
            await seen.right()

    asyncio.run(run())
    assert {request.status for request in server.requests()} == {200}


def rewrite(path: Path, **tweaks: Object) -> Path:
    """Change the cluster and the user in a kubeconfig."""
    config = yaml.safe_load(path.read_text())
    for section, values in tweaks.items():
        inner = config[f"{section}s"][0][section]
        for name, value in values.items():
            inner[name.replace("_", "-")] = value
        config[f"{section}s"][0][section] = {name: value for name, value in inner.items() if value is not None}
    path.write_text(yaml.safe_dump(config))
    return path


def reads(server: ApiServer, config: Path, **more: Any) -> None:
    """Follow a cluster by a kubeconfig until all is known."""
    cluster = Cluster(str(config), **{"times": TIMES, "patience": PATIENCE} | more)

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()

    asyncio.run(run())


def test_token_file(server: ApiServer, tmp_path: Path) -> None:
    """A kubeconfig may name a file with a token, relative to itself, which goes before a token and may end a line."""
    (tmp_path / "token").write_text(f"{server.token}\n")
    config = server.write_kubeconfig(tmp_path / "kubeconfig", embed=False)
    reads(server, rewrite(config, user={"token": "old", "tokenFile": "token"}))
    assert {request.status for request in server.requests()} == {200}


@pytest.mark.parametrize("embed", [True, False])
def test_certificates(server: ApiServer, tmp_path: Path, embed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client certificate may stand in the kubeconfig or beside it, and no key is left behind in any file."""
    left = tmp_path / "left"
    left.mkdir()
    monkeypatch.setenv("HOME", str(left))
    monkeypatch.setattr("tempfile.tempdir", str(left))
    reads(server, server.write_kubeconfig(tmp_path / "kubeconfig", proof=Proof.CERTIFICATE, embed=embed))
    assert {request.user for request in server.requests()} == {"kubernetes-admin"}
    assert list(left.iterdir()) == []


def test_plugin(server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A program may be asked for the token, again when the token is refused, and again when the program fails."""
    (tmp_path / "token").write_text(server.token)
    code = """import sys; print('{"status": {"token": "%s"}}' % open(sys.argv[1]).read())"""
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "python3",
        "args": ["-c", code, str(tmp_path / "token")],
    }
    config = rewrite(server.write_kubeconfig(tmp_path / "kubeconfig"), user={"token": None, "exec": plugin})
    cluster = Cluster(str(config), times=TIMES, patience=PATIENCE)

    async def run() -> None:
        async with following(server, cluster, [RESOURCES[2]]) as seen:
            await seen.until(lambda: server.watches("services") == 1)
            token = server.rotate_token(publish=False)
            server.faults.add(Fault(EndWatch(), verb="watch"))
            await seen.until(lambda: seen.requests(status=401) >= 1)
            (tmp_path / "token").unlink()
            await seen.until(lambda: "no credentials: Process exited" in caplog.text)
            (tmp_path / "token").write_text(token)
            server.put(service(9))
            await seen.until(lambda: len(seen.batches["services"]) == 2)

    asyncio.run(run())


def test_broken_kubeconfig(server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A kubeconfig that breaks while it is used is complained of once, and what it said last still counts."""
    cluster = reach(server, tmp_path)
    (tmp_path / "kubeconfig").write_text("clusters: [")

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()

    asyncio.run(run())
    assert caplog.text.count("keeping the credentials") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("clusters: [", "is not YAML"),
        ("a: 1", "missing required field"),
        ("{clusters: [], contexts: [], users: [], current-context: 7}", r"\$.current-context"),
        ("{clusters: [], contexts: [], users: [], current-context: x}", "current-context: leads to 'x'"),
    ],
)
def test_bad_kubeconfigs(tmp_path: Path, text: str, complaint: str) -> None:
    """A kubeconfig that is wrong when the agent starts is bad input, with what is wrong with it."""
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(BadInput, match=complaint):
        Cluster(str(path))


@pytest.mark.parametrize(
    ("cluster", "user", "complaint"),
    [
        ({"certificate_authority_data": "?"}, {}, "not base64"),
        ({"certificate_authority_data": None, "certificate_authority": "nowhere"}, {}, "No such file"),
        ({"server": None}, {}, "missing required field `server`"),
        ({}, {"tokenFile": "nowhere"}, "No such file"),
        ({}, {"auth_provider": {"name": "oidc"}}, "gone from Kubernetes"),
        ({}, {"username": "a", "password": "b"}, "gone from Kubernetes"),
    ],
)
def test_bad_credentials(server: ApiServer, tmp_path: Path, cluster: Object, user: Object, complaint: str) -> None:
    """So are credentials that aren't there, or aren't any."""
    config = rewrite(server.write_kubeconfig(tmp_path / "kubeconfig"), cluster=cluster, user=user)
    with pytest.raises(BadInput, match=complaint):
        Cluster(str(config))


def test_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a pod and without a kubeconfig, what is missing is named."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadInput, match=r"clientConnection\.kubeconfig"):
        Cluster(account=tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(BadInput, match=r"ca\.crt: No such file"):
        Cluster(account=tmp_path)
    for name in ("ca.crt", "token"):
        (tmp_path / name).write_text("text\n")
    assert read_credentials("", tmp_path) == Credentials("https://[fd00::1]:443", b"text\n", "text")


# Addresses


def test_a_cold_node(server: ApiServer, tmp_path: Path) -> None:
    """Where nobody answers at the configured address, another one is used, and kept."""
    config = rewrite(
        server.write_kubeconfig(tmp_path / "kubeconfig"), cluster={"server": f"https://127.0.0.9:{server.port}"}
    )
    reads(server, config, api_servers=[f"https://127.0.0.8:{server.port}", server.url])
    assert {request.status for request in server.requests()} == {200}


def test_fails_over(tmp_path: Path) -> None:
    """An address that no longer works is left for the next, and the one after the last is the first again."""
    with ApiServer(tls=True, authenticate=True, hosts=("127.0.0.1", "127.0.0.2")) as server:
        server.settings.bookmark_interval = BOOKMARKS
        other = f"https://127.0.0.2:{server.port}"
        cluster = reach(server, tmp_path, api_servers=[other])

        async def run() -> None:
            async with following(server, cluster) as seen:
                await seen.right()
                assert cluster.address == server.url
                server.faults.add(Fault(Respond(503), verb="watch", resource="nodes"))
                server.faults.add(Fault(EndWatch(), verb="watch", resource="nodes"))
                await seen.until(lambda: cluster.address == other)
                await seen.right()
                assert seen.requests(verb="watch") == len(PLURALS) + 2, "only one had to move"
                server.stop()
                await asyncio.sleep(0.1)
                server.start()
                change(server)
                await seen.right()

        asyncio.run(run())


def test_strangers_get_no_token(server: ApiServer, tmp_path: Path) -> None:
    """An address with a certificate from elsewhere, or for another name, is not talked to."""
    with ApiServer(tls=True) as stranger:
        config = server.write_kubeconfig(tmp_path / "kubeconfig", url=stranger.url)
        reads(server, config, api_servers=[server.url])
    assert stranger.requests() == []


def test_server_names(server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The kubeconfig's tls-server-name is what the certificate must be for, whatever the address."""
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    reads(server, rewrite(config, cluster={"tls_server_name": "localhost"}))
    server.forget_requests()
    cluster = Cluster(
        str(rewrite(config, cluster={"tls_server_name": "example.test"})), patience=Patience(first_pause=60.0)
    )

    async def run() -> None:
        async with following(server, cluster, [RESOURCES[2]]) as seen:
            await seen.until(lambda: "services: ConnectError" in caplog.text)

    asyncio.run(run())
    assert server.requests() == []


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:6443", "https://", "https://[::1", "https://a:b", ""])
def test_bad_addresses(server: ApiServer, tmp_path: Path, url: str) -> None:
    """Another address must be a URL that is as safe as the first."""
    with pytest.raises(BadInput, match=r"--api-server: .* is not a URL like https://127\.0\.0\.1"):
        reach(server, tmp_path, api_servers=[url])


# What is wrong with objects


def test_problems(server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Faults in objects are logged once, however often they come, and how many there are is told."""
    counts: list[int] = []
    cluster = reach(server, tmp_path, tell_problems=counts.append)
    bad = endpoint_slice(60)
    bad["endpoints"].append({"addresses": ["nonsense"]})
    server.put(bad)

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            for port in (90, 91):
                server.put(bad | {"ports": [{"name": "", "port": port}]})
                await seen.right()
            server.faults.add(Fault(error_event(410), verb="watch", resource="endpointslices"))
            await seen.until(lambda: seen.requests(verb="list", resource="endpointslices") == 2)
            await seen.right()
            assert counts == [1]
            server.put(endpoint_slice(60))
            await seen.until(lambda: counts == [1, 0])

    asyncio.run(run())
    assert caplog.text.count("EndpointSlice shop/s60-x: endpoints[1].addresses[0]") == 1


# Streams


async def _chunks(*chunks: bytes | Exception | None) -> AsyncIterator[bytes]:
    """These chunks; None is a while in which nothing comes."""
    for chunk in chunks:
        if chunk is None:
            await asyncio.sleep(0.01)
        elif isinstance(chunk, Exception):
            raise chunk
        else:
            yield chunk


@pytest.mark.parametrize(
    ("chunks", "wanted"),
    [
        ([], []),
        ([b"a", b"b", b"c"], [b"abc"]),
        ([b"a", None, b"b", b"", b"c", None], [b"a", b"bc"]),
        ([b"", b"a"], [b"a"]),
        ([b"a", httpx.ReadError("lost")], [b"a", "lost"]),
        ([httpx.ReadError("lost")], ["lost"]),
    ],
)
def test_gathers(chunks: list[bytes | Exception | None], wanted: list[bytes | str]) -> None:
    """What is there is taken together, what isn't is not waited for, and an error comes after all before it."""

    async def run() -> list[bytes | str]:
        found: list[bytes | str] = []
        try:
            async for piece in gathered(_chunks(*chunks)):
                found.append(piece)  # noqa: PERF401  # it may end with an error
        except httpx.ReadError as error:
            found.append(str(error))
        return found

    assert asyncio.run(run()) == wanted


def test_does_not_gather_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that never pauses is taken in pieces."""
    monkeypatch.setattr("nftproxy.streams.MOST_AT_ONCE", 3)

    async def run() -> list[bytes]:
        return [piece async for piece in gathered(_chunks(*[b"x"] * 7))]

    assert asyncio.run(run()) == [b"xxx", b"xxx", b"x"]


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (httpx.ReadError("lost"), OSError("reset"), "ReadError: lost"),
        (httpx.ReadError(""), OSError("reset"), "OSError: reset"),
        (httpx.ReadError(""), None, "ReadError"),
    ],
    ids=["its own", "its cause's", "none"],
)
def test_a_fault_is_never_told_without_words(error: Exception, cause: Exception | None, words: str) -> None:
    """The log has an error's words, or its cause's, or where there are none its name alone."""
    error.__cause__ = cause
    assert watch._words(error) == words


def test_models() -> None:
    """Every kind is followed as what it is in the model."""
    models: list[type[ClusterObject]] = [Node, ServiceCIDR, Service, EndpointSlice]
    assert [resource.model for resource in RESOURCES] == models
    assert [resource.kind.name for resource in RESOURCES] == [model.__name__ for model in models]
