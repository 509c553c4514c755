"""Explanations of made-up clusters, held to the specification: docs/semantics.md as code (conformance/oracle.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies import quick, worlds

from tests.support.explained import as_known, disagreements, pipeline_of, some_questions

QUESTIONS = 12
"""The number of questions about each cluster, of some hundreds that would be worthwhile."""


@given(world=worlds.worlds, start=st.integers(0, 1000))
@quick(40)
def test_explanations_agree_with_the_oracle(world: World, start: int) -> None:
    """An answer has exactly the endpoints, sources and fates that the specification allows."""
    world = as_known(world)
    asked = some_questions(world, start, QUESTIONS)
    oracle = Oracle(world)
    assert disagreements(pipeline_of(world), asked, [oracle.expected(probe) for probe in asked]) == []
