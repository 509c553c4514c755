"""Explanations of made-up clusters, held to the specification: docs/semantics.md as code (conformance/oracle.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nftproxy.conformance import strategies, worlds
from nftproxy.conformance.oracle import Oracle, World
from tests.support.explained import as_known, disagreements, pipeline_of, some_questions

QUESTIONS = 12
"""Questions about each cluster, of some hundreds that are worth asking."""


@given(world=worlds.worlds, start=st.integers(0, 1000))
@strategies.quick(40)
def test_explanations_agree_with_the_oracle(world: World, start: int) -> None:
    """What a question is answered is all that the specification allows, and nothing else: endpoints, sources, fate."""
    world = as_known(world)
    asked = some_questions(world, start, QUESTIONS)
    oracle = Oracle(world)
    assert disagreements(pipeline_of(world), asked, [oracle.expected(probe) for probe in asked]) == []
