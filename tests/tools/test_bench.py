"""The bench's parts: their treatment of figures, messages and traces.  The bench's measurements aren't tested."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest
from nftproxy_conformance.apiserver.documents import documents
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.node import Node

from tools.bench import cluster, figures, offline, report, work
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
    """A figure up to its limit meets the target, and for a figure above it the row shows the excess."""
    row = Target("a change", "a", 0.005, MILLISECONDS).row({"a": value})
    assert row == ("a change", "<= 5 ms", shown, verdict)


@pytest.mark.parametrize(("figure", "verdict"), [(0.0099, "met"), (0.011, "missed by 10%")])
def test_a_time_is_judged_by_the_speed_of_the_hour(figure: float, verdict: str) -> None:
    """In an hour in which the fixed work takes twice as long, a time may be twice the limit."""
    slow = {"work/changes/100": 2 * figures.QUIET_WORK, "a": figure}
    row = Target("a change", "a", 0.005, MILLISECONDS).row(slow)
    assert row is not None
    assert row[1::2] == ("<= 5 ms", verdict)
    ratio = Target("a ratio", "b", 1.0, RATIO).row(slow | {"b": 2.0})
    assert ratio == ("a ratio", "<= 1 x", "2 x", "missed by 100%")


def test_a_ratio_needs_both_figures() -> None:
    """A row that compares two figures is left out if either figure is missing."""
    target = Target("growth", "many", 1.5, RATIO, "few")
    assert target.row({"many": 3.0}) is None
    assert target.row({"many": 3.0, "few": 2.0}) == ("growth", "<= 1.50 x", "1.50 x", "met")


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


def test_targets_are_printed_only() -> None:
    """Targets are printed beside their figures, but not written to any page."""
    row = "| process start to complete rules, cold, 10,000 x 10 | <= 2 s | 1.50 s | met |"
    assert row in report.sections({"start/10000": 1.5})["targets"]
    assert "targets" not in report.WRITTEN


def test_a_cluster_has_no_address_twice() -> None:
    """No two pods, and no two Services, of the largest cluster have an address in common."""
    pods = [pod.address for number in range(1_000) for pod in cluster.pods(SMALL, number)]
    fresh = [cluster.Pod(cluster.SPARE + number).address for number in range(1_000)]
    vips = [cluster.vip(number) for number in range(1_000)]
    assert len({*pods, *fresh, *vips}) == len(pods) + len(fresh) + len(vips)


def test_both_formats_are_the_same_cluster(tmp_path: Path) -> None:
    """YAML and JSON have the same objects."""
    as_json = cluster.write(SMALL, tmp_path / "cluster.json")
    as_yaml = offline.write_yaml(SMALL, tmp_path / "cluster.yaml")
    assert list(documents(as_json)) == list(documents(as_yaml)) == list(cluster.objects(SMALL))


def test_a_stage_has_only_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an inner stage isn't counted for the outer stage, and a generator's steps count for its own stage."""
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
    """A request for a dump is recognized by name, even if strace can't name it, and other requests are ignored."""
    assert list(dumped(line)) == ([message] if message else [])


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
