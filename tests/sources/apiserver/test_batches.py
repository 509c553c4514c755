"""What is reported of a cluster: all there is at first, and then each change, in batches of what is there already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest

from nftproxy.api.pauses import Times
from nftproxy.lab.apiserver import ApiServer
from nftproxy.lab.apiserver.faults import Fault, error_event
from nftproxy.model.errors import Problem
from nftproxy.model.events import Listed
from nftproxy.model.objects import ClusterObject, EndpointSlice, Node, Service, ServiceCIDR
from nftproxy.sources.apiserver import Cluster
from nftproxy.sources.streams import gathered
from tests.sources.apiserver.following import (
    PLURALS,
    RESOURCES,
    Object,
    change,
    endpoint_slice,
    following,
    reach,
    service,
)

# ---- when nothing goes wrong ---------------------------------------------------------------------------------------


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
    """Events that are there already are one batch."""

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


def test_models() -> None:
    """Every kind is followed as what it is in the model."""
    models: list[type[ClusterObject]] = [Node, ServiceCIDR, Service, EndpointSlice]
    assert [resource.model for resource in RESOURCES] == models
    assert [resource.kind.name for resource in RESOURCES] == [model.__name__ for model in models]


# ---- what is wrong with objects ------------------------------------------------------------------------------------


def test_problems(server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Faults in objects are logged and reported once, however often they come, and so is how many there are."""
    counts: list[int] = []
    fields: list[str] = []

    def take(count: int, fresh: Sequence[Problem]) -> None:
        counts.append(count)
        fields.extend(problem.field for problem in fresh)

    cluster = reach(server, tmp_path, report_problems=take)
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
    assert fields == ["endpoints[1].addresses[0]"]
    assert caplog.text.count("EndpointSlice shop/s60-x: endpoints[1].addresses[0]") == 1


# ---- streams -------------------------------------------------------------------------------------------------------


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
        ([b"a", None, b"b", b"", b"c", b"d", None, b"e"], [b"a", b"b", b"cd", b"e"]),
        ([b"", b"a"], [b"a"]),
        ([b"a", httpx.ReadError("lost")], [b"a", "lost"]),
        ([httpx.ReadError("lost")], ["lost"]),
    ],
)
def test_gathers(chunks: list[bytes | Exception | None], wanted: list[bytes | str]) -> None:
    """What was waited for comes at once, what is there by then together, and an error after all before it."""

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
    monkeypatch.setattr("nftproxy.sources.streams.MOST_AT_ONCE", 3)

    async def run() -> list[bytes]:
        return [piece async for piece in gathered(_chunks(*[b"x"] * 7))]

    assert asyncio.run(run()) == [b"xxx", b"xxx", b"x"]
