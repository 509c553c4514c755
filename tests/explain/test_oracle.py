"""Explanations of made-up clusters, held to the specification: docs/semantics.md as code (conformance/oracle.py)."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nftproxy.conformance import strategies
from nftproxy.conformance.oracle import Oracle, World
from nftproxy.conformance.probes import probes
from nftproxy.lab import Probe
from tests.support.explained import as_known, disagreements, pipeline_of

QUESTIONS = 12
"""Questions about each cluster, of some hundreds that are worth asking."""


def some_questions(world: World, start: int, most: int) -> list[Probe]:
    """A few of the connections worth trying, from all over the list."""
    all_of_them = list(probes(world))
    step = max(1, len(all_of_them) // most)
    return list(itertools.islice(all_of_them, start % step, None, step))[:most]


@given(world=strategies.worlds, start=st.integers(0, 1000))
@strategies.quick(40)
def test_explanations_agree_with_the_oracle(world: World, start: int) -> None:
    """What a question is answered is all that the specification allows, and nothing else: endpoints, sources, fate."""
    world = as_known(world)
    asked = some_questions(world, start, QUESTIONS)
    oracle = Oracle(world)
    assert disagreements(pipeline_of(world), asked, [oracle.expected(probe) for probe in asked]) == []
