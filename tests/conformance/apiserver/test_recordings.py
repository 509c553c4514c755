"""The test API server answers every recorded request as a real server did: tests/support/recordings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer

from tests.conformance.apiserver.clients import bearer, client_of
from tests.support.recordings import EXCHANGES, Exchange

PACE = 100.0
"""Recorded seconds in a second.  The longest watch lasts for 130."""

LEFT_OUT = {
    "message",
    "description",
    "managedFields",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "nodeInfo",
    "images",
}
"""Sentences, and values that differ each time."""

ALLOCATED = {"clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort"}
"""Values that the server allocates freely, but consistently."""

HEADERS = ("cache-control", "content-type", "retry-after", "transfer-encoding", "warning")
"""Headers that were recorded."""

LONGER = {"list one Node by field selector", "list EndpointSlices", "table instead of objects"}
"""Answers that were chunked for their length, most of which the facts leave out."""

_VERSIONED = {"Status", "Table"}
_DIGITS = re.compile("[0-9]+")
_SUFFIX = re.compile(r"(?<=^node-0[-.])[a-z0-9]{5}$")


class Facts:
    """The facts that two answers must share: all but sentences, times and random values.

    Allocated values are numbered in order, so that a port that appears twice has the same number.
    """

    def __init__(self) -> None:
        self._given: dict[Any, str] = {}

    def of(self, value: Any, name: str = "") -> Any:
        """The facts in a value, which is that of a field of this name."""
        if isinstance(value, dict):
            return {key: self.of(inner, key) for key, inner in sorted(value.items()) if key not in LEFT_OUT}
        if isinstance(value, list):
            return [self.of(inner, name) for inner in value]
        if name in ALLOCATED and value != "None":
            return self._given.setdefault((name[:9], value), f"{name[:9]} {len(self._given)}")
        if name == "name" and isinstance(value, str):
            return _SUFFIX.sub("*", value)
        return value


def facts(answer: Any) -> Any:
    """The facts in an answer, without the version of a list."""
    found = Facts().of(answer)
    if found["kind"] == "Table":
        columns = [column["name"] for column in found["columnDefinitions"]]
        for row in found["rows"]:
            row["cells"] = [_DIGITS.sub("#", text) for text in row["cells"]]
            row["cells"][columns.index("Age")] = "some time"
    if isinstance(answer, dict) and (answer["kind"].endswith("List") or answer["kind"] in _VERSIONED):
        found["metadata"].pop("resourceVersion", None)
    return found


def kinds(lines: list[Any]) -> list[tuple[Any, ...]]:
    """The events in lines of a watch: type and object, without the version of a bookmark."""
    found = []
    for line in lines:
        if line.get("kind") == "Status":
            found.append(("", facts(line)))
            continue
        is_bookmark = line["type"] == "BOOKMARK"
        thing = facts(line["object"])
        if is_bookmark:
            thing["metadata"].pop("resourceVersion")
        found.append((line["type"], thing))
    return found


@pytest.fixture(scope="module")
def replayed() -> Iterator[dict[str, httpx.Response]]:
    """All recorded requests, sent to a test API server in order.  The answers are by exchange."""
    with ApiServer(authenticate=True) as server, client_of(server) as client:
        server.settings.pace = PACE
        yield {exchange.name: replay(server, client, exchange) for exchange in EXCHANGES}


def replay(server: ApiServer, client: httpx.Client, exchange: Exchange) -> httpx.Response:
    """Send a request after the writes that preceded it."""
    for other in exchange.before:
        server.advance(other.revision - 1)
        if other.put is not None:
            server.put(other.put)
        elif other.delete is not None:
            server.delete(*other.delete)
    if exchange is EXCHANGES[0]:
        server.compact()
    version = ((exchange.answer or {}).get("metadata") or {}).get("resourceVersion")
    if exchange.method != "GET" and version:
        server.advance(int(version) - 1)
    headers = {"accept": exchange.accept}
    if exchange.user != "nobody":
        headers |= bearer("none" if exchange.user == "stranger" else server.token)
    if exchange.content_type:
        headers["content-type"] = exchange.content_type
    content = None if exchange.body is None else json.dumps(exchange.body)
    return client.request(exchange.method, exchange.path, headers=headers, content=content)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_a_recorded_request_is_answered_as_by_a_real_server(
    replayed: dict[str, httpx.Response], exchange: Exchange
) -> None:
    """Status, headers, reasons and causes are those of the real server.  Sentences may differ."""
    response = replayed[exchange.name]
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    expected = dict(exchange.headers)
    if "warning" in headers:
        headers["warning"] = headers["warning"].split()[0]
    if exchange.name in LONGER:
        assert expected.pop("transfer-encoding") == "chunked"
    assert (response.status_code, headers) == (exchange.status, expected)
    if exchange.lines is not None:
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert kinds(lines) == kinds([line for _, line in exchange.lines])
    elif exchange.answer is not None:
        is_yaml = response.headers["content-type"] == "application/yaml"
        assert facts(yaml.safe_load(response.text) if is_yaml else response.json()) == facts(exchange.answer)
    else:
        assert not response.headers["content-type"].startswith("application/")
