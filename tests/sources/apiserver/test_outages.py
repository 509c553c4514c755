"""Servers that go and come back, and resources that can't be had, which disturb no others."""

from __future__ import annotations

import asyncio
import time

import pytest

from nftproxy.model.events import Listed
from nftproxy.model.objects import ServiceCIDR
from nftproxy.sources.apiserver import Cluster
from tests.sources.apiserver.following import BOOKMARKS, PATIENCE, PLURALS, TIMES, change, following, service
from tests.support.apiserver import ApiServer, BlackHole, Fault, Reset, Respond, Slow

# ---- servers that come and go --------------------------------------------------------------------------------------


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


# ---- one and the others --------------------------------------------------------------------------------------------


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
