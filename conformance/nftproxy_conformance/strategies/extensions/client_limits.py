"""Strategies for client limits: limits that no client of a trial reaches, and denied ranges."""

from __future__ import annotations

from hypothesis import strategies as st

from nftproxy.extensions.client_limits.annotations import CONNECTION_RATE, CONNECTIONS, DENIED_RANGES
from nftproxy.model.annotations import Rate
from nftproxy_conformance.strategies.extensions.inputs import Inputs
from nftproxy_conformance.strategies.values import SOURCES, some

GENEROUS = Rate(10_000, 100_000)
"""A limit that no client of a trial reaches.  Limits have tests of their own."""

CLIENT_LIMITS = Inputs(
    values={
        CONNECTION_RATE: st.just(GENEROUS),
        CONNECTIONS: st.just(10_000),
        DENIED_RANGES: some(SOURCES, least=1),
    }
)
