"""The bench's own parts: what they make of figures, of messages and of a trace.  What it measures is no test."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest

from nftproxy.lab import obstacle
from nftproxy.lab.apiserver.manifests import documents
from nftproxy.lab.node import Node
from tools.bench import cluster, figures, offline, report
from tools.bench.cluster import Size
from tools.bench.dumps import dumped
from tools.bench.listener import Listener
from tools.bench.stages import Stopwatch
from tools.bench.targets import MILLISECONDS, RATIO, Target

needs_root = pytest.mark.skipif(bool(obstacle()), reason=obstacle())
SMALL = Size(30, 10)


def test_a_distribution_is_noted_by_its_ranks() -> None:
    """The 99th percentile of a hundred values is the second greatest."""
    noted: figures.Figures = {}
    figures.note(noted, "x", range(100, 0, -1))
    assert noted == {"x/count": 100, "x/min": 1, "x/p50": 50.5, "x/p99": 99, "x/max": 100}


@pytest.mark.parametrize(
    ("value", "shown", "verdict"),
    [
        (0.004, "4 ms", "met"),
        (0.005, "5 ms", "met"),
        (0.0061, "6.10 ms", "missed by 22%"),
        (0.0201, "20.1 ms", "missed: 4 x"),
    ],
)
def test_a_row_tells_how_far_a_target_is_met(value: float, shown: str, verdict: str) -> None:
    """A figure at its limit meets it; beyond, the row tells by how much it is missed."""
    row = Target("a change", "a", 0.005, MILLISECONDS).row({"a": value})
    assert row == ("a change", "<= 5 ms", shown, verdict)


def test_a_ratio_needs_both_figures() -> None:
    """A row that compares two figures isn't there while one is missing."""
    target = Target("growth", "many", 1.5, RATIO, "few")
    assert target.row({"many": 3.0}) is None
    assert target.row({"many": 3.0, "few": 2.0}) == ("growth", "<= 1.50 x", "1.50 x", "met")


def test_tables_are_written_between_their_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table takes the place of the one before; all else stays, and so does the table of what wasn't measured."""
    page = tmp_path / "page.md"
    names = ("machine", "targets", "kinds", "stages", "shapes")
    page.write_text("".join(f"# {name}\n<!-- bench: {name} -->\nold\n<!-- end: {name} -->\n" for name in names))
    monkeypatch.setattr(report, "DOCUMENT", page)
    for _ in range(2):
        report.write({"start/10000": 1.5})
    sections = page.read_text().split("# ")
    assert "| process start to complete rules, cold, 10,000 x 10 | <= 2 s | 1.50 s | met |" in sections[2]
    assert sections[3] == "kinds\n<!-- bench: kinds -->\nold\n<!-- end: kinds -->\n"


def test_a_cluster_has_no_address_twice() -> None:
    """No two pods, and no two Services, of the largest cluster have an address in common."""
    pods = [pod.address for number in range(1_000) for pod in cluster.pods(SMALL, number)]
    fresh = [cluster.Pod(cluster.SPARE + number).address for number in range(1_000)]
    vips = [cluster.vip(number) for number in range(1_000)]
    assert len({*pods, *fresh, *vips}) == len(pods) + len(fresh) + len(vips)


def test_both_formats_are_the_same_cluster(tmp_path: Path) -> None:
    """What is rendered from YAML is what is rendered from JSON."""
    as_json = cluster.write(SMALL, tmp_path / "cluster.json")
    as_yaml = offline.write_yaml(SMALL, tmp_path / "cluster.yaml")
    assert list(documents(as_json)) == list(documents(as_yaml)) == list(cluster.objects(SMALL))


def test_a_stage_has_only_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stage inside another takes is not the other's; the steps of a generator are its own."""
    clock = itertools.count()
    monkeypatch.setattr("tools.bench.stages.time.perf_counter", lambda: next(clock))
    stopwatch = Stopwatch()
    inner = stopwatch.around("inner", lambda: None)
    steps = stopwatch.around("steps", lambda: (number for number in range(2)))
    stopwatch.around("outer", lambda: (inner(), list(steps())))()
    taken = stopwatch.take()
    assert taken["inner"] == 1
    assert taken["steps"] == 4  # making it, two steps, and finding the end
    assert taken["outer"] == 6  # before, between and after these
    assert stopwatch.take() == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "nlmsg_type=0xa0d /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|0x300, nlmsg_seq=1",
            "GETSETELEM",
        ),
        (
            "nlmsg_type=NFNL_SUBSYS_NFTABLES<<8|NFT_MSG_GETRULE, nlmsg_flags=NLM_F_REQUEST|NLM_F_DUMP, nlmsg_seq=0",
            "GETRULE",
        ),
        ("nlmsg_type=0xa10 /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST, nlmsg_seq=1", None),
        ("nlmsg_type=0xa0c /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|0x400, nlmsg_seq=1", None),
    ],
)
def test_a_dump_is_known_in_a_trace(line: str, message: str | None) -> None:
    """A request for a dump is known by name, whether strace can name it or not; others are none."""
    assert list(dumped(line)) == ([message] if message else [])


@needs_root
def test_a_commit_is_heard_with_all_that_it_did() -> None:
    """The listener tells of each commit once, with how many elements and rules it touched, and their bytes."""
    with Node("heard") as node, Listener(node) as listener:
        node.load("table ip t { set s { type ipv4_addr; }\nchain c { accept\n}\n}\n")
        node.load("add element ip t s { 10.1.2.3, 10.1.2.4 }")
        heard = listener.wait((socket.inet_aton("10.1.2.4"),))
        assert [(each.elements, each.rules) for each in heard] == [(0, 1), (2, 0)]
        assert heard[0].time < heard[1].time
        with pytest.raises(TimeoutError, match="of 0"):
            listener.wait(timeout=0.01)
