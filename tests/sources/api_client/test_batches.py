"""The events of a cluster: first all objects, and then each change, in batches of the data that has come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence, Sized
from contextlib import aclosing
from pathlib import Path

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.faults import Fault, error_event

from nftproxy.api.pauses import ReflectorTimes
from nftproxy.model.errors import Problem
from nftproxy.model.events import Listed
from nftproxy.sources.api_client import ApiClient
from tests.sources.api_client.following import (
    PLURALS,
    RESOURCES,
    Object,
    change,
    endpoint_slice,
    following,
    reach,
    service,
)
from tests.support.waiting import until

# ---- when nothing goes wrong ---------------------------------------------------------------------------------------


async def test_the_first_batch_has_all_objects(server: ApiServer, cluster: ApiClient) -> None:
    """The first batch of each resource has all objects, and is requested once.  Then come changes, batch by batch."""
    async with following(server, cluster) as seen:
        await seen.right()
        for resource in RESOURCES:
            ((first,),) = seen.batches[resource.plural]
            assert isinstance(first, Listed)
            assert first.kind is resource.model
        change(server)
        await seen.right()
    assert sorted(request.resource for request in server.requests(verb="list")) == sorted(PLURALS)
    assert {request.query["resourceVersion"] for request in server.requests(verb="list")} == {"0"}
    assert len(server.requests(verb="watch")) == len(PLURALS)
    assert len(server.requests()) == 2 * len(PLURALS), "nothing else is asked for, not even the version"
    assert all(request.query["allowWatchBookmarks"] == "true" for request in server.requests(verb="watch"))


async def test_a_listing_is_not_kept(server: ApiServer, cluster: ApiClient) -> None:
    """While the client waits for the next event, it holds no objects of the listing."""
    (services,) = (each for each in RESOURCES if each.plural == "services")
    async with aclosing(cluster.list_and_watch(services)) as source:
        events = await anext(source)
        following_event = asyncio.create_task(anext(source))
        await until(lambda: bool(server.requests(verb="watch", resource="services")))
        alone = [*events]
        assert sys.getrefcount(events) == sys.getrefcount(alone)
        del events
        (listed,) = alone
        assert isinstance(listed, Listed)
        of_nobody_else = (object(),)
        kept, control = listed.objects[0], of_nobody_else[0]
        assert sys.getrefcount(kept) == sys.getrefcount(control)
        following_event.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following_event


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
async def test_objects_that_cease_to_matter(
    server: ApiServer, cluster: ApiClient, plain: Object, other: Object
) -> None:
    """An object that is now for another proxy, or unreadable, is removed, and comes back."""
    async with following(server, cluster) as seen:
        await seen.right()
        held: Sized = seen.state.services if plain["kind"] == "Service" else seen.state._slices
        known = len(held)
        for version, count in ((other, known - 1), (plain, known), (other, known - 1)):
            server.put(version)
            await seen.until(lambda: len(held) == count)  # noqa: B023
        await seen.right()


async def test_watches_end_and_go_on(server: ApiServer, tmp_path: Path) -> None:
    """A watch that ends at its timeout is followed at once by a watch from the last version, bookmarks included."""
    cluster = reach(server, tmp_path, times=ReflectorTimes(shortest_watch=1, longest_watch=1, healthy=0.5))
    async with following(server, cluster, [RESOURCES[2]]) as seen:
        await seen.until(lambda: seen.requests(verb="watch") >= 3)
        server.put(service(7))
        await seen.until(lambda: len(seen.batches["services"]) == 2)
    versions = [int(request.query["resourceVersion"]) for request in server.requests(verb="watch")]
    assert versions == sorted(set(versions))
    assert len(server.requests(verb="list")) == 1


# ---- what is wrong with objects ------------------------------------------------------------------------------------


async def test_problems(server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    assert fields == ["endpoints[1].addresses[0]"]
    assert caplog.text.count("EndpointSlice shop/s60-x: endpoints[1].addresses[0]") == 1
