"""The client of a cluster.  No fault of the cluster is logged as an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from nftproxy_conformance.apiserver import ApiServer

from nftproxy.sources.api_client import ApiClient
from tests.sources.api_client.following import (
    BOOKMARKS,
    FUTURE_WAIT,
    endpoint_slice,
    node,
    reach,
    service,
    service_cidr,
)


@pytest.fixture(autouse=True)
def no_surprises(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No fault in these tests is logged as an error, as only defects are."""
    yield
    ours = (record for record in caplog.get_records("call") if record.name.startswith("nftproxy"))
    assert [record.getMessage() for record in ours if record.levelno >= logging.ERROR] == []


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A server with TLS that wants a token, with a few objects."""
    with ApiServer(tls=True, authenticate=True) as server:
        server.settings.bookmark_interval = BOOKMARKS
        server.settings.future_wait = FUTURE_WAIT
        server.settings.version = "v1.99.0"
        server.put(node(), node("node-b"), service_cidr())
        for number in range(5):
            server.put(service(number), endpoint_slice(number))
        yield server


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> ApiClient:
    """That server's cluster, by a kubeconfig."""
    return reach(server, tmp_path)
