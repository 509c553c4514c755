"""Algorithms, of Services and of a configuration."""

from __future__ import annotations

from hypothesis import strategies as st

from nftproxy.extensions.algorithms.fields import DEFAULT_ALGORITHM
from nftproxy.model.annotations import ALGORITHM, Algorithm
from nftproxy_conformance.strategies.extensions.inputs import Inputs
from nftproxy_conformance.strategies.values import algorithms

ALGORITHMS = Inputs(
    values={ALGORITHM: algorithms()},
    fields=lambda _: {DEFAULT_ALGORITHM: st.just(Algorithm.RANDOM) | algorithms()},
)
