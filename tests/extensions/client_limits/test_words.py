"""How explanations word the annotations that restrict clients."""

from __future__ import annotations

import pytest

from nftproxy.explanation.answer import PlaceRestriction
from nftproxy.explanation.answering import explain
from nftproxy.explanation.question import Question, parse_to
from tests.support.factories import pipeline, service, slice_of


@pytest.mark.parametrize(
    ("to", "denied"), [("10.96.0.10:80", ("198.51.100.0/24",)), ("[fd00:96::10]:80", ("2001:db8::/32",))]
)
def test_a_place_names_the_denied_ranges_of_its_family(to: str, denied: tuple[str, ...]) -> None:
    """Of a dual-stack Service's denied ranges, the explanation of an address has those of its family alone."""
    given = {"denied-source-ranges": "198.51.100.0/24, 2001:db8::/32"}
    made = pipeline(
        service(cluster_ips=["10.96.0.10", "fd00:96::10"], annotations=given),
        slice_of("shop/web", ["10.1.0.4"]),
        slice_of("shop/web", ["fd00:1::4"], suffix="ip6"),
    )
    (place,) = explain(made, Question(parse_to(to), None)).places
    assert place.restrictions == (PlaceRestriction(f"denied ranges: {denied[0]}", denied),)
