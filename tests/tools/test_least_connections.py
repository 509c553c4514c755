"""The comparison of ways to choose a pod: its requests, and a short run with our own rules."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nftproxy_conformance.lab import obstacle

from tools.bench import least_connections
from tools.bench.least_connections import OWN, Case, Outcome, compare, main, requests_of, row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "decisions" / "least-connections.md"


def test_options_on_the_page_exist() -> None:
    """The page shows the command, whose options have defaults."""
    assert " -m tools.bench.least_connections\n" in PAGE.read_text()
    main.make_context("least_connections", [])


def test_all_ways_have_the_same_requests() -> None:
    """A seed gives the same requests: 70 % of what the pods can do, spread over the nodes."""
    case = Case(4.0, 3)
    made = requests_of(case, 1_000.0, seed=1)
    assert made == requests_of(case, 1_000.0, seed=1)
    assert made != requests_of(case, 1_000.0, seed=2)
    assert sum(each.work for each in made) / 1_000.0 == pytest.approx(0.7 * 2.25 * 8, rel=0.05)
    assert {each.node for each in made} == {0, 1, 2}


def test_a_row() -> None:
    """A row has the mean, the 99th percentile and the requests of each pod."""
    outcomes = [Outcome("pod-0", 1.0)] * 150 + [Outcome("pod-2", 3.0)] * 50
    assert row("lc", outcomes, "") == ("IPVS lc", "1.5 s", "3.0 s", "150, 0, 50", "")


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_our_rules_answer_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is answered by some pod, and each way has a row."""
    monkeypatch.setattr(least_connections, "WORK", 0.05)
    case = Case(1.0, 1)
    asked = len(requests_of(case, 0.2, seed=1))
    rows = asyncio.run(compare(OWN, case, 0.2, seed=1))
    assert [cells[0] for cells in rows] == ["nftproxy, random", "nftproxy, least-connections"]
    assert [sum(map(int, cells[3].split(", "))) for cells in rows] == [asked, asked]
