"""How explanations word the algorithms."""

from __future__ import annotations

import pytest

from nftproxy.explanation.answering import explain
from nftproxy.explanation.question import Question, parse_to
from tests.support.factories import pipeline, service, slice_of

ENDPOINTS = slice_of(endpoints=["10.1.0.4", "10.1.0.5"])


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [
        ("random", "drawn at random"),
        ("round-robin", "one after the other (round-robin)"),
        ("source-hash", "by a hash of the client's address (source-hash)"),
        ("source-hash-with-port", "by a hash of the client's address and port (source-hash-with-port)"),
        ("consistent-hash", "by a hash of the client's address that moves few clients (consistent-hash)"),
        (
            "consistent-hash-with-port",
            "by a hash of the client's address and port that moves few clients (consistent-hash-with-port)",
        ),
    ],
)
def test_a_case_says_how_an_endpoint_is_drawn(algorithm: str, how: str) -> None:
    """A case has the algorithm by its name, and in words."""
    made = pipeline(service(annotations={"algorithm": algorithm}), ENDPOINTS)
    (place,) = explain(made, Question(parse_to("10.96.0.10:80"), None)).places
    assert {(case.drawn, case.why) for case in place.cases} == {(algorithm, f"to one of 2 endpoints, {how}")}
