"""Servers that go and come back, and resources that are unavailable, which disturb no other resources."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from nftproxy_conformance.apiserver import ApiServer, Request
from nftproxy_conformance.apiserver.faults import BlackHole, Fault, Reset, Respond, Slow

from nftproxy.api.pauses import Pause
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Listed
from nftproxy.model.objects import ServiceCIDR
from nftproxy.sources import api_client
from nftproxy.sources.api_client import ApiClient
from nftproxy.sources.api_connection import Timeouts
from tests.sources.api_client.following import (
    BOOKMARKS,
    PLURALS,
    TIMES,
    change,
    following,
    listings,
    questions,
    reach,
    service,
)

# ---- servers that come and go --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_history", [True, False])
async def test_server_restarts(server: ApiServer, cluster: ApiClient, keeps_history: bool) -> None:
    """After an outage watches continue.  If the server has lost its history, a listing shows the deletions."""
    async with following(server, cluster) as seen:
        await seen.right()
        server.stop()
        change(server)
        await asyncio.sleep(0.3)
        if not keeps_history:
            server.compact()
        server.start()
        await seen.right()
    lists = listings(server, "services")
    assert len(lists) == (1 if keeps_history else 2)
    assert all(request.query["resourceVersion"] != "0" for request in lists[1:])


async def test_ended_connections_leave_no_memory_behind(server: ApiServer, cluster: ApiClient) -> None:
    """The buffers of a connection go when it ends, not when Python looks for garbage, which an agent seldom does."""

    def connections() -> int:
        """The number of the client's connections by TLS, also of connections that are garbage."""
        return sum(isinstance(each, ssl.SSLObject) and not each.server_side for each in gc.get_objects())

    gc.collect()
    before = connections()
    with garbage_kept():
        async with following(server, cluster) as seen:
            await seen.right()
            for _ in range(5):
                server.faults.add(*(Fault(Reset(), verb="watch", resource=name) for name in PLURALS))
                server.restart()
                await seen.right()
            assert connections() - before <= 2 * len(PLURALS)
        assert connections() - before <= 1


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """Keep Python from looking for garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_compacted_while_away(server: ApiServer, cluster: ApiClient) -> None:
    """History that is lost while a watch is cut costs only that resource a listing."""
    async with following(server, cluster) as seen:
        await seen.right()

        def loses_history(_: Request) -> bool:
            """Change objects without keeping the history, before the watch that follows the interrupted watch."""
            change(server)
            server.compact()
            return True

        server.faults.add(Fault(Slow(before=0.0), verb="watch", resource="services", when=loses_history))
        server.faults.add(Fault(Reset(), verb="watch", resource="services"))
        await seen.until(lambda: len(listings(server, "services")) > 1)
        await seen.right()
    assert len(listings(server, "services")) == 2
    assert len(listings(server, "endpointslices")) == 1


@pytest.mark.parametrize("has_status", [True, False])
async def test_expired_watches(server: ApiServer, cluster: ApiClient, has_status: bool) -> None:
    """That a version is gone is understood as an HTTP status and as an ERROR alike."""
    server.settings.expired_watch_has_status = has_status
    await test_compacted_while_away(server, cluster)


@pytest.mark.parametrize("bookmarks", [BOOKMARKS, None])
async def test_restored_from_a_backup(server: ApiServer, cluster: ApiClient, bookmarks: float | None) -> None:
    """A server that has gone back in time is probed and listed anew.  Objects that it doesn't have are dropped."""
    async with following(server, cluster) as seen:
        await seen.right()
        backup = server.revision
        for number in range(10):
            server.put(service(300 + number))
        await seen.right()
        server.settings.bookmark_interval = bookmarks
        server.restart(revision=backup)
        await seen.right()
        assert len(seen.state.services) == 5
        server.settings.bookmark_interval = BOOKMARKS
        for number in range(20):
            server.put(service(400 + number))
        await seen.right()
    (question,) = questions(server, "services")
    assert server.requests(verb="watch", status=504) == []
    assert [len(listings(server, plural)) for plural in ("services", "nodes")] == [2, 2]
    watches = server.requests(verb="watch", resource="services")
    assert [each.time > question.time for each in watches] == [False, True], "no watch from the future"


async def test_a_watch_from_the_future_is_never_believed(server: ApiServer, cluster: ApiClient) -> None:
    """After a restore with many writes since, when the version is past ours again, no deletion is missed either."""
    async with following(server, cluster) as seen:
        await seen.right()
        backup = server.revision
        for number in range(10):
            server.put(service(300 + number))
        await seen.right()
        server.stop()
        server.restore(backup)
        for number in range(30):
            server.put(service(400 + number))
        server.compact()  # the cache of a server that starts has none of this
        server.start()
        await seen.right()
        assert len(seen.state.services) == 35


@pytest.mark.parametrize("code", [201, 403, 503])
async def test_any_answer_ends_the_pauses(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """Any answer of a server that is back ends the pauses of all resources, however long they are."""
    times = msgspec.structs.replace(TIMES, first_attempt=7200.0, longest_attempt=7200.0)
    cluster = reach(server, tmp_path, times=times)
    async with following(server, cluster) as seen:
        await seen.right()
        await asyncio.sleep(TIMES.healthy)
        server.stop()
        change(server)
        await seen.until(lambda: all(each.what == "pausing" for each in cluster.activities.values()))
        assert len(re.findall(r"trying again in [0-9]{4}", caplog.text)) < len(PLURALS), "each reason once for all"
        server.start()
        server.faults.add(Fault(Respond(code), verb="create"))
        with contextlib.suppress(Unavailable):
            await cluster.send_event("default", {})
        await seen.right()
    await cluster.aclose()


async def test_the_log_is_not_filled_while_nobody_answers(
    cluster: ApiClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage is logged once whatever the reasons, again after a minute, and at its end.  Other errors always are.

    A denial is logged once for all resources with its words, and again after a minute.
    """
    caplog.set_level(logging.INFO)
    clock = [1000.0]
    monkeypatch.setattr(api_client, "now", lambda: clock[0])
    lost, unhelpful = Pause(reason="lost", awaits_server=True), Pause(reason="500")
    denied = Pause(reason="401", code=Code.API_DENIED)
    is_news = cluster._is_news
    assert not is_news(lost._replace(is_fault=False)), "a balancer has cut an idle connection"
    assert [is_news(each) for each in (lost, lost, lost._replace(reason="refused"))] == [True, False, False]
    assert [is_news(each) for each in (denied, denied, denied._replace(reason="403"))] == [True, False, True]
    clock[0] += 60.0
    assert [is_news(lost), is_news(lost)] == [True, False]
    assert [is_news(denied), is_news(denied)] == [True, False]
    assert all(is_news(unhelpful) for _ in range(3))
    cluster.end_pauses()
    cluster.end_pauses()
    assert caplog.messages == ["the API server answers again, after 60.0 s"]
    assert is_news(lost)


async def test_waits_for_the_server(server: ApiServer, cluster: ApiClient, caplog: pytest.LogCaptureFixture) -> None:
    """The agent waits for a server that isn't there yet."""
    server.stop()
    async with following(server, cluster) as seen:
        await seen.until(lambda: "trying again in" in caplog.text)
        assert not any(seen.batches.values())
        server.start()
        await seen.right()


async def test_black_hole(server: ApiServer, tmp_path: Path) -> None:
    """A connection that is dead but open is noticed by the bookmarks that don't come, and without any other sign."""
    patience = Timeouts(silence=10 * BOOKMARKS)
    async with following(server, reach(server, tmp_path, patience=patience)) as seen:
        await seen.right()
        await asyncio.sleep(2 * patience.silence)
        assert seen.requests(verb="watch") == len(PLURALS), "bookmarks are a sign of life"
        server.faults.add(Fault(BlackHole(), verb="watch", resource="services"))
        server.put(service(9))
        await seen.right()
    assert len(listings(server, "services")) == 1
    assert len(questions(server, "services")) == 1


async def test_watches_are_probed(server: ApiServer, cluster: ApiClient) -> None:
    """The kernel probes the connection of each watch, so that dropped packets are noticed before a bookmark is late."""
    async with following(server, cluster) as seen:
        await seen.right()
        command = ["ss", "--tcp", "--options", "--no-header", "dport", "=", str(server.port)]
        run = functools.partial(subprocess.run, command, check=True, capture_output=True, text=True)
        found = (await asyncio.to_thread(run)).stdout
    assert found.count("timer:(keepalive,") >= len(PLURALS)


# ---- one and the others --------------------------------------------------------------------------------------------


async def test_one_that_may_not(server: ApiServer, cluster: ApiClient, caplog: pytest.LogCaptureFixture) -> None:
    """A forbidden resource is requested again and again, and logged.  Other resources aren't affected."""
    server.rbac = [("", "*", "*"), ("networking.k8s.io", "*", "*")]
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
    assert "endpointslices: 403 Forbidden" in caplog.text


async def test_a_kind_that_is_not_there(server: ApiServer, cluster: ApiClient) -> None:
    """A cluster without ServiceCIDRs has an empty list of them, and if they come later they are found."""
    server.faults.add(Fault(Respond(404, body=b"404 page not found\n"), resource="servicecidrs", count=2))
    async with following(server, cluster) as seen:
        await seen.ready()
        assert seen.batches["servicecidrs"][0] == [Listed(ServiceCIDR, ())]
        await seen.right()


async def test_a_kind_that_never_comes(server: ApiServer, cluster: ApiClient) -> None:
    """A kind that isn't there is looked for seldom: in each of its versions, and then not for a while."""
    server.faults.add(Fault(Respond(404), resource="servicecidrs", count=None))
    async with following(server, cluster) as seen:
        await seen.ready()
        began = time.monotonic()
        await asyncio.sleep(5 * TIMES.absent)
        assert seen.requests(status=404) <= 2 * (2 + (time.monotonic() - began) / TIMES.absent)
        assert len(seen.batches["servicecidrs"]) == 1


async def test_the_next_address_of_a_name_is_tried_after_a_failure(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first address of the server's name takes connections and ends them, the next request tries the second."""
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *more: int) -> list[object]:
        names = ["127.0.0.9", "127.0.0.1"] if host == "localhost" else [host]
        return [place for name in names for place in look_up(name, port, *more)]

    async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    config = server.write_kubeconfig(tmp_path / "kubeconfig", url=f"https://localhost:{server.port}")
    async with (
        await asyncio.start_server(end, "127.0.0.9", server.port),
        following(server, ApiClient(str(config), times=TIMES)) as seen,
    ):
        await seen.right()
        change(server)
        await seen.right()
