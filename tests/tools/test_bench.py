"""The bench's parts: their treatment of figures, messages and traces.  The bench's measurements aren't tested."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.node import Node

from tools.bench import cluster, figures, report, work
from tools.bench.cluster import Size
from tools.bench.dumps import DUMP
from tools.bench.listener import Listener

needs_root = pytest.mark.skipif(bool(obstacle()), reason=obstacle())
SMALL = Size(30, 10)


def test_a_distribution_is_noted_by_its_ranks() -> None:
    """The 99th percentile of a hundred values is the second greatest."""
    noted: figures.Figures = {}
    figures.note(noted, "x", range(100, 0, -1))
    assert noted == {"x/p50": 50.5, "x/p99": 99, "x/max": 100}


def test_tables_are_written_between_their_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new table replaces the previous table, and all else on the page stays, also a table without measurements."""
    page = tmp_path / "page.md"
    names = ("machine", "growth", "loads")
    page.write_text("".join(f"# {name}\n<!-- bench: {name} -->\nold\n<!-- end: {name} -->\n" for name in names))
    monkeypatch.setattr(report, "DOCUMENT", page)
    for _ in range(2):
        report.write({"start/10000": 1.5})
    sections = page.read_text().split("# ")
    assert "| 10,000 x 10 |  |  | 1.50 s |  |\n<!-- end" in sections[2]
    report.write({"sustained/cores": 0.25, "sustained/p99": 0.03125, "restart/10000": 1.0})
    changed = page.read_text().split("# ")
    assert changed[2] == sections[2]
    assert changed[3].splitlines()[2:-1] == [
        "| 10,000 x 10 | measured |",
        "| --- | --- |",
        "| 200 changes a second for a minute: cores; p99 | 0.25; 31.2 ms |",
    ]


def test_a_cluster_has_no_address_twice() -> None:
    """No two pods, and no two Services, of the largest cluster have an address in common."""
    pods = [pod.address for number in range(1_000) for pod in cluster.pods(SMALL, number)]
    fresh = [cluster.Pod(cluster.SPARE + number).address for number in range(1_000)]
    vips = [cluster.vip(number) for number in range(1_000)]
    assert len({*pods, *fresh, *vips}) == len(pods) + len(fresh) + len(vips)


@pytest.mark.parametrize(
    ("line", "is_dump"),
    [
        ("nlmsg_type=0xa0d /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|0x300, nlmsg_seq=1", True),
        ("nlmsg_type=NFNL_SUBSYS_NFTABLES<<8|NFT_MSG_GETRULE, nlmsg_flags=NLM_F_REQUEST|NLM_F_DUMP, nlmsg_seq=0", True),
        ("nlmsg_type=0xa10 /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST, nlmsg_seq=1", False),
        ("nlmsg_type=0xa0c /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|0x400, nlmsg_seq=1", False),
    ],
)
def test_a_dump_is_known_in_a_trace(line: str, is_dump: bool) -> None:
    """A request for a dump is recognized, even if strace can't name it, and other requests are ignored."""
    assert bool(DUMP.search(line)) is is_dump


def test_lines_grow_with_the_work() -> None:
    """Loops count without any call, the count is the same each time, and quadratic work is known by its growth."""

    def counted(size: int) -> list[int]:
        return [
            work.lines(lambda: [None for _ in range(size)]),
            work.lines(lambda: [None for _ in range(size) for _ in range(size)]),
        ]

    few, many = counted(200), counted(400)
    assert few == counted(200)
    assert [round(twice / once, 1) for once, twice in zip(few, many, strict=True)] == [2.0, 4.0]


def test_elements_are_counted_for_small_clusters() -> None:
    """Every way of choosing endpoints touches some elements of a large Service, but not most of them."""
    found: figures.Figures = {}
    work.measure_large(found)
    assert len(found) == len(work.WAYS)
    assert all(0 < share < 0.2 for share in found.values())


@needs_root
def test_a_commit_is_heard_with_all_that_it_did() -> None:
    """The listener reports each commit once, with the numbers of its elements and rules."""
    with Node("heard") as node, Listener(node) as listener:
        node.load("table ip t { set s { type ipv4_addr; }\nchain c { accept\n}\n}\n")
        node.load("add element ip t s { 10.1.2.3, 10.1.2.4 }")
        heard = listener.wait((socket.inet_aton("10.1.2.4"),))
        assert [(each.elements, each.rules) for each in heard] == [(0, 1), (2, 0)]
        assert heard[0].time < heard[1].time
        with pytest.raises(TimeoutError, match="of 0"):
            listener.wait(timeout=0.01)
