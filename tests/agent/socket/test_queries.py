"""The agent's answers from memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from nftproxy.agent.socket import queries
from nftproxy.agent.socket.answers import End, Line, ServiceRow
from nftproxy.agent.socket.queries import QueryContext
from nftproxy.agent.socket.readiness import ClusterUnknown
from nftproxy.model.errors import BadInput
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import ObjectKey, Service
from nftproxy.pipeline import Pipeline
from nftproxy.sources.activity import ResourceActivity
from tests.agent.reporting.test_metrics import reporter
from tests.support.factories import pipeline, service

MANY = 300


def knowing(made: Pipeline) -> QueryContext:
    """All that there is to ask."""
    reports = reporter(made)
    reports.ingested()
    return QueryContext(made, reports, 0.0, "1.0.6", lambda: "here", dict)


def crowd() -> Pipeline:
    """Many Services."""
    made = pipeline()
    made.ingest(
        [
            Put(service(f"shop/s{number:04}", cluster_ips=(f"10.96.{number >> 8}.{number & 255}",)))
            for number in range(MANY)
        ]
    )
    return made


async def lines(answer: AsyncIterator[bytes]) -> list[Line]:
    """An answer as values."""
    text = b"".join([piece async for piece in answer])
    return msgspec.json.Decoder(Line).decode_lines(text)


def test_a_listing_lets_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing may stop after each Service, and Services that come and go meanwhile do it no harm."""
    monkeypatch.setattr(queries, "PIECE", 0.0)
    made = crowd()

    async def scenario() -> tuple[int, list[Line]]:
        pieces = 0
        found = b""
        async for piece in queries.query_handlers(knowing(made))["/v1/services"]({}):
            if not pieces:
                made.ingest([Removed(Service, ObjectKey("shop", "s0299")), Put(service("shop/zz"))])
            pieces += 1
            found += piece
        return pieces, msgspec.json.Decoder(Line).decode_lines(found)

    pieces, rows = asyncio.run(scenario())
    assert pieces > MANY
    assert len(rows) in (MANY, MANY + 1)
    assert rows[-1] == End()


def test_a_listing_is_of_a_namespace_and_of_labels() -> None:
    """The namespace and the selector filter the listing, and an invalid selector is bad input."""
    made = pipeline()
    made.ingest([Put(service("shop/a", labels=(("app", "x"),))), Put(service("shop/b"))])
    answer = queries.query_handlers(knowing(made))["/v1/services"]
    chosen = [
        [row.service for row in asyncio.run(lines(answer(query))) if isinstance(row, ServiceRow)]
        for query in ({}, {"namespace": "shop"}, {"namespace": "other"}, {"selector": "app=x"}, {"selector": "!app"})
    ]
    assert chosen == [["a", "b"], ["a", "b"], [], ["a"], ["b"]]
    with pytest.raises(BadInput):
        asyncio.run(lines(answer({"selector": "a b"})))


@pytest.mark.parametrize("limit", ["0", "-1", "x", "10001", "99999999999", "٣", "000001000000"])
def test_limits_are_bounded(limit: str) -> None:
    """An invalid limit, or a limit that is too high, is bad input."""
    with pytest.raises(BadInput, match="limit"):
        asyncio.run(lines(queries.query_handlers(knowing(pipeline()))["/v1/affinity"]({"limit": limit})))


@pytest.mark.parametrize("path", ["services", "endpoints", "conflicts", "quarantined", "affinity", "explain", "node"])
def test_nothing_is_answered_before_the_first_listing(path: str) -> None:
    """Without the whole cluster there is no listing, not even an empty listing, and no explanation."""
    made = crowd()
    activity = ResourceActivity("services", problem="403 Forbidden")
    reports = reporter(made)
    reports.activities = lambda: (activity,)
    reports.waits_for(["services", "endpointslices"])
    known = QueryContext(made, reports, 0.0, "1.0.6", lambda: "here", dict)
    why = r"waits for the first listing of services \(403 Forbidden\), and for the first listing of endpointslices; "
    with pytest.raises(ClusterUnknown, match=why):
        asyncio.run(lines(queries.query_handlers(known)[f"/v1/{path}"]({"to": "10.96.0.1:80"})))
