"""Many simulated nodes after an outage of the API server, with our reflector and with a model of client-go's."""

from __future__ import annotations

import pytest

from tools.bench.outages import BACKUP, LATER, client_go, ours, simulate

NODES = 150
SOON = 5.0
"""The rules must be right within `SOON` seconds of the server's return."""


@pytest.mark.parametrize("away", [0.5, 12.0, 120.0])
@pytest.mark.parametrize("version", [LATER, BACKUP], ids=["history lost", "backup restored"])
def test_right_within_seconds(away: float, version: int) -> None:
    """After an outage of any length 99 of 100 nodes have listed everything within seconds of the server's return."""
    result = simulate(NODES, away, ours(seed=1), version)
    assert len(result.seconds) == NODES
    assert result.percentile(99) < SOON
    assert result.requests["list"] == 4 * NODES, "each resource once"


@pytest.mark.parametrize("away", [0.5, 12.0, 120.0])
def test_no_more_load_than_client_go(away: float) -> None:
    """The server gets no more requests than from the same number of client-go nodes, and the same number of lists."""
    result, other = (simulate(NODES, away, make) for make in (ours(seed=1), client_go(seed=1)))
    assert result.requests.total() <= other.requests.total()
    assert result.requests["list"] == other.requests["list"]
    assert result.requests["watch"] < other.requests["watch"]
    assert result.percentile(99) < other.percentile(99)


def test_attempts_to_connect_are_bounded() -> None:
    """During an outage a node tries a few times a second, and no more often in a long outage."""
    minutes, hour = (simulate(5, away, ours(seed=1)).attempts for away in (120.0, 3600.0))
    assert 1.0 < hour <= minutes < 3.0


def test_nodes_do_not_come_at_once() -> None:
    """Nodes that lost the server at the same moment come back spread over the pause between two attempts."""
    result = simulate(NODES, 60.0, ours(seed=1))
    assert result.peak < 0.8 * result.requests.total()
    assert len({round(seconds, 1) for seconds in result.seconds}) >= 8
