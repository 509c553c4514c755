"""`nftproxy top`: its format, and what it prints without an agent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from nftproxy.agent.socket.answers import ConnectionRow, Connections
from nftproxy.agent.socket.connection_rows import largest, unnamed
from nftproxy.commands.top import lines_of
from nftproxy.kernel.conntrack.connection_counts import ConnectionCounts, Translation
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.errors import Unavailable
from tests.support.command import nftproxy


def way(address: str, port: int, endpoint: str = "10.1.0.4") -> Translation:
    """From an address and port to an endpoint."""
    return Translation(Protocol.TCP, Address(address), port, Address(endpoint), 8080)


def test_without_names_addresses_are_shown() -> None:
    """Without an agent each place is shown by its address and port."""
    counts = {way("10.96.0.10", 80): 2, way("fd00:96::10", 80): 1}
    top = largest(unnamed(ConnectionCounts(Counter(counts), 0, Counter({way("10.96.0.10", 80): 1})), "no agent"))
    assert [line.split() for line in lines_of(top)] == [
        ["SERVICE", "PORT", "ENDPOINT", "CONNECTIONS", "UNANSWERED"],
        ["<none>", "10.96.0.10:80/TCP", "10.1.0.4:8080", "2", "1"],
        ["<none>", "[fd00:96::10]:80/TCP", "10.1.0.4:8080", "1", "0"],
    ]
    assert top.problem == "no agent"


def test_what_does_not_fit_is_added_up() -> None:
    """Rows beyond a terminal's lines, and connections without a row, are in a single sum."""
    rows = tuple(ConnectionRow("shop/web", "80", "tcp", f"10.1.0.{n}:8080", n, 1, n == 3) for n in (1, 2, 3))
    top = largest(Connections(0, 10, rows))
    assert top.connections == 16
    assert list(lines_of(top, 1)) == [
        "SERVICE    PORT     ENDPOINT               CONNECTIONS   UNANSWERED",
        "shop/web   80/TCP   10.1.0.3:8080 (gone)   3             1",
        "and 13 more",
    ]


def test_without_an_agent(namespace: None, tmp_path: Path) -> None:  # noqa: ARG001 -- where there are no connections
    """Where no agent answers a warning says so, and the table is printed all the same, once in a pipe."""
    done = nftproxy("top", "--agent-socket", str(tmp_path / "none.sock"))
    assert (done.status, done.out.splitlines()) == (0, ["SERVICE   PORT   ENDPOINT   CONNECTIONS   UNANSWERED"])
    assert done.err.startswith("warning: NFT023: no agent answers at ")
    assert "addresses are shown instead of Services" in done.err


def test_without_an_agent_and_without_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If conntrack can't be read either, as in a pod, the error says first why the agent doesn't answer."""

    def denied() -> ConnectionCounts:
        raise Unavailable("conntrack can't be read: Operation not permitted")

    monkeypatch.setattr("nftproxy.commands.top.active_connections", denied)
    done = nftproxy("top", "--agent-socket", str(tmp_path / "none.sock"))
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: NFT023: no agent answers at ")
    assert "; conntrack can't be read: Operation not permitted\n" in done.err
