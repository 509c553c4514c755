"""Algorithms, of Services and of a configuration."""

from __future__ import annotations

from hypothesis import strategies as st

from nftproxy.extensions.algorithms.annotations import ALGORITHM, Algorithm
from nftproxy.extensions.algorithms.fields import DEFAULT_ALGORITHM
from nftproxy_conformance.strategies.extensions.inputs import Inputs

TABLES = (Algorithm.CONSISTENT_HASH, Algorithm.CONSISTENT_HASH_WITH_PORT)
"""The algorithms for which each front has a table of thousands of rows."""
drawn_algorithms = tuple(each for each in Algorithm if each not in TABLES)
"""The algorithms that strategies draw.  Tables are slow, so only tests with small tables add them."""


@st.composite
def algorithms(draw: st.DrawFn) -> Algorithm:
    """An algorithm that strategies draw."""
    return draw(st.sampled_from(drawn_algorithms))


ALGORITHMS = Inputs(
    values={ALGORITHM: algorithms()},
    fields=lambda _: {DEFAULT_ALGORITHM: st.just(Algorithm.RANDOM) | algorithms()},
)
