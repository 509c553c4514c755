"""Many simulated nodes after an outage of the API server, with our reflector and beside a model of client-go's."""

from __future__ import annotations

import pytest

from tools.bench.outages import BACKUP, LATER, client_go, ours, simulate

NODES = 150
SOON = 5.0
"""Seconds after the server's return within which rules are to be right."""


@pytest.mark.parametrize("away", [0.5, 12.0, 120.0])
@pytest.mark.parametrize("version", [LATER, BACKUP], ids=["history lost", "backup restored"])
def test_right_within_seconds(away: float, version: int) -> None:
    """However long the server was away, 99 of 100 nodes have listed everything within seconds of its return."""
    result = simulate(NODES, away, ours(seed=1), version)
    assert len(result.seconds) == NODES
    assert result.percentile(99) < SOON
    assert result.requests["list"] == 4 * NODES, "each resource once"


@pytest.mark.parametrize("away", [0.5, 12.0, 120.0])
def test_no_more_load_than_client_go(away: float) -> None:
    """The server gets no more requests than from as many nodes of client-go's, and as many lists."""
    result, other = (simulate(NODES, away, make) for make in (ours(seed=1), client_go(seed=1)))
    assert result.requests.total() <= other.requests.total()
    assert result.requests["list"] == other.requests["list"]
    assert result.requests["watch"] < other.requests["watch"]
    assert result.percentile(99) < other.percentile(99)


def test_attempts_to_connect_are_bounded() -> None:
    """While nobody answers, a node tries a few times in each second, and no more when it has gone on for long."""
    minutes, hour = (simulate(5, away, ours(seed=1)).attempts for away in (120.0, 3600.0))
    assert 1.0 < hour <= minutes < 3.0


def test_nodes_do_not_come_at_once() -> None:
    """Nodes that all lost the server in one moment come back spread over the pause between two attempts."""
    result = simulate(NODES, 60.0, ours(seed=1))
    assert result.peak < 0.8 * result.requests.total()
    assert len({round(seconds, 1) for seconds in result.seconds}) >= 8
