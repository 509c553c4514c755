"""The extensions for which strategies draw."""

from __future__ import annotations

from nftproxy_conformance.strategies.extensions.algorithms import ALGORITHMS
from nftproxy_conformance.strategies.extensions.client_limits import CLIENT_LIMITS
from nftproxy_conformance.strategies.extensions.counts import COUNTS
from nftproxy_conformance.strategies.extensions.external_addresses import CLOSED_AND_PINGED
from nftproxy_conformance.strategies.extensions.failover import FAILOVER
from nftproxy_conformance.strategies.extensions.inputs import Inputs
from nftproxy_conformance.strategies.extensions.least_connections import LEAST_CONNECTIONS

INPUTS: tuple[Inputs, ...] = (
    ALGORITHMS,
    CLIENT_LIMITS,
    COUNTS,
    CLOSED_AND_PINGED,
    FAILOVER,
    LEAST_CONNECTIONS,
)
