"""What the agent answers from what it has in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from nftproxy.agent import questions
from nftproxy.agent.answers import End, Line, ServiceRow
from nftproxy.agent.questions import Knowledge
from nftproxy.model.errors import BadInput
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import ObjectKey, Service
from nftproxy.pipeline import Pipeline
from tests.agent.test_metrics import vitals
from tests.support.factories import pipeline, service

MANY = 300


def knowing(made: Pipeline) -> Knowledge:
    """All that there is to ask."""
    return Knowledge(made, vitals(made), 0.0, "1.0.6", lambda: "here", lambda: (), dict)


def crowd() -> Pipeline:
    """Many Services."""
    made = pipeline()
    made.apply(
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
    """A listing may stop after each Service, and those that come and go meanwhile do it no harm."""
    monkeypatch.setattr(questions, "PIECE", 0.0)
    made = crowd()

    async def scenario() -> tuple[int, list[Line]]:
        pieces = 0
        found = b""
        async for piece in questions.questions(knowing(made))["/v1/services"]({}):
            if not pieces:
                made.apply([Removed(Service, ObjectKey("shop", "s0299")), Put(service("shop/zz"))])
            pieces += 1
            found += piece
        return pieces, msgspec.json.Decoder(Line).decode_lines(found)

    pieces, rows = asyncio.run(scenario())
    assert pieces > MANY
    assert len(rows) in (MANY, MANY + 1)
    assert rows[-1] == End()


def test_a_listing_is_of_a_namespace_and_of_labels() -> None:
    """The namespace and the selector choose; what can't be read is bad input."""
    made = pipeline()
    made.apply([Put(service("shop/a", labels=(("app", "x"),))), Put(service("shop/b"))])
    answer = questions.questions(knowing(made))["/v1/services"]
    chosen = [
        [row.service for row in asyncio.run(lines(answer(query))) if isinstance(row, ServiceRow)]
        for query in ({}, {"namespace": "shop"}, {"namespace": "other"}, {"selector": "app=x"}, {"selector": "!app"})
    ]
    assert chosen == [["a", "b"], ["a", "b"], [], ["a"], ["b"]]
    with pytest.raises(BadInput):
        asyncio.run(lines(answer({"selector": "a b"})))


@pytest.mark.parametrize("limit", ["0", "-1", "x", "10001", "99999999999", "٣", "000001000000"])
def test_limits_are_bounded(limit: str) -> None:
    """A limit that is none, or too high, is bad input."""
    with pytest.raises(BadInput, match="limit"):
        asyncio.run(lines(questions.questions(knowing(pipeline()))["/v1/affinity"]({"limit": limit})))
