"""The servers that the tests in this directory use."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from nftproxy_conformance.apiserver import ApiServer

from tests.conformance.apiserver.clients import client_of


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A server without TLS that lets everybody do everything."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def client(server: ApiServer) -> Iterator[httpx.Client]:
    """A client of that server."""
    with client_of(server) as client:
        yield client


@pytest.fixture
def guarded() -> Iterator[ApiServer]:
    """A server with TLS and authentication."""
    with ApiServer(tls=True, authenticate=True) as server:
        yield server
