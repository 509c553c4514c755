"""The annotations of denied ranges and of ranges for further fronts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nftproxy.api.annotation_parsers import MAX_RANGES
from nftproxy.extensions.client_limits.annotations import DENIED_RANGES, RANGES_FOR
from nftproxy.model.objects import Service
from tests.support import raw


@pytest.mark.parametrize(
    ("text", "ranges", "problem"),
    [
        ("192.0.2.0/24,2001:db8::/32, 192.0.2.0/24", ["192.0.2.0/24", "2001:db8::/32"], ""),
        ("192.0.2.9/24", ["192.0.2.0/24"], ""),
        ("192.0.2.0/24,x", ["192.0.2.0/24"], "has 'x', which is not a CIDR: the rest is in force"),
        ("x,,192.0.2.0/24", ["192.0.2.0/24"], "has 'x', which is not a CIDR (and 1 more faults): the rest is in force"),
        ("x", [], "has 'x', which is not a CIDR: the annotation has no effect"),
        ("", [], "has '', which is not a CIDR: the annotation has no effect"),
    ],
)
def test_denied_ranges(text: str, ranges: list[str], problem: str) -> None:
    """A bad range is reported, and the good ranges are denied."""
    made, problems = service_with({"nftproxy.dev/denied-source-ranges": text})
    assert [str(each) for each in made.options[DENIED_RANGES]] == ranges
    field = "Service shop/web: metadata.annotations[nftproxy.dev/denied-source-ranges]"
    assert problems == ([f"{field}: {problem}"] if problem else [])


def test_denied_ranges_are_bounded() -> None:
    """Only the first thousand ranges are denied, and that is a single problem."""
    text = ",".join(f"10.{n // 250}.{n % 250}.0/24" for n in range(MAX_RANGES + 5))
    made, problems = service_with({"nftproxy.dev/denied-source-ranges": text})
    assert len(made.options[DENIED_RANGES]) == MAX_RANGES
    assert [problem.partition("]: ")[2] for problem in problems] == [
        "has more than 1000 elements: the rest is in force"
    ]


@pytest.mark.parametrize(
    ("text", "words", "count"),
    [
        ("node-ports", {"node-ports"}, 0),
        ("external-ips, node-ports", {"external-ips", "node-ports"}, 0),
        ("node-port", set(), 1),
        ("node-port,external-ips", {"external-ips"}, 1),
        ("cluster-ips", set(), 1),
    ],
)
def test_source_ranges_for(text: str, words: set[str], count: int) -> None:
    """Each known word has its effect, and an unknown word is reported."""
    made, problems = service_with({"nftproxy.dev/source-ranges-for": text})
    assert {each.value for each in made.options[RANGES_FOR]} == words
    assert len(problems) == count


def service_with(given: Mapping[str, str]) -> tuple[Service, list[str]]:
    """The Service with these annotations, and the problems."""
    outcome, problems = raw.read(raw.changed(raw.SERVICE, "metadata|annotations", dict(given)))
    assert isinstance(outcome, Service)
    return outcome, problems
