"""Explanations of made-up clusters, held to the specification: docs/semantics.md as code (conformance/oracle.py)."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies import quick, worlds

from nftproxy.explanation.answering import explain
from nftproxy.extensions.external_addresses.fields import Ping
from nftproxy.model.addresses import Address
from tests.support.explained import as_known, disagreements, pipeline_of, question, some_questions
from tests.support.factories import config_of

QUESTIONS = 12
"""The number of questions about each cluster, of some hundreds that would be worthwhile."""


@given(world=worlds.worlds | worlds.silent_worlds(), start=st.integers(0, 1000))
@quick(40)
def test_explanations_agree_with_the_oracle(world: World, start: int) -> None:
    """An answer has exactly the endpoints, sources and fates that the specification allows."""
    world = as_known(world)
    asked = some_questions(world, start, QUESTIONS)
    oracle = Oracle(world)
    assert disagreements(pipeline_of(world), asked, [oracle.expected(probe) for probe in asked]) == []


@given(world=worlds.worlds, start=st.integers(0, 1000))
@quick(40)
def test_answers_to_pings_agree_with_the_oracle(world: World, start: int) -> None:
    """The remark about pings has the specification's answer.  It stands at virtual addresses alone."""
    world = as_known(world._replace(config=config_of(world.config, ping=Ping.ANSWER)))
    made, oracle = pipeline_of(world), Oracle(world)
    for probe in some_questions(world, start, QUESTIONS):
        assert probe.source
        (place,) = explain(made, question(probe)).places
        said = [note.rpartition(": ")[2] for note in place.notes if note.startswith("pings from")]
        answers = oracle.answers_ping(probe.origin, Address(probe.address), Address(probe.source))
        assert said in ([], ["answered" if answers else "rejected"])
        event(f"{said} {answers}")
