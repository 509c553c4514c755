"""Two processes give the same results, errors and rules as one process."""

from __future__ import annotations

import errno
import gc
import itertools
import json
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import yaml

from nftproxy.kernel.in_two import in_two
from nftproxy.library import Cluster
from nftproxy.sources.files import load
from tests.support import objects
from tests.support.processes import no_files_left

PARENT = os.getpid()


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def test_three_of_five_items_are_mapped_in_a_child() -> None:
    """The results are in the order of the items, and more of them than a pipe holds."""
    found = list(in_two(lambda item: (item, os.getpid(), "x" * 50_000), range(7)))
    assert [item for item, _, _ in found] == list(range(7))
    assert [pid != PARENT for _, pid, _ in found] == [False, True, False, True, True, False, True]
    with pytest.raises(ChildProcessError):  # its end was waited for
        os.waitpid(found[1][1], os.WNOHANG)


def test_each_fork_has_a_number_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that has mapped its items is replaced, so that its memory is bounded.  A single last item needs none."""
    monkeypatch.setattr("nftproxy.kernel.in_two.OF_A_FORK", 5)
    found = list(in_two(lambda item: (item, os.getpid()), range(16)))
    assert [item for item, _ in found] == list(range(16))
    assert [len({pid for _, pid in found[start : start + 5]} - {PARENT}) for start in range(0, 16, 5)] == [1, 1, 1, 0]
    assert len({pid for _, pid in found}) == 4


def test_nothing_looks_for_garbage_meanwhile() -> None:
    """A search would write to all objects, in either process, and so end the sharing of their memory."""
    assert gc.isenabled()
    assert list(in_two(lambda _: gc.isenabled(), range(5))) == [False] * 5
    assert gc.isenabled()


def test_an_early_end_ends_the_child() -> None:
    """If the reader of the results stops early, the child is killed, even while it computes."""

    def compute(item: int) -> int:
        if os.getpid() != PARENT and item == 3:
            time.sleep(600)
        return os.getpid()

    found = in_two(compute, range(6))
    assert isinstance(found, Generator)
    _, child, _ = itertools.islice(found, 3)
    found.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_a_child_is_forked_beside_threads() -> None:
    """The child needs nothing that belongs to a thread, such as the lock that a thread holds here."""
    lock, may_end, has_it = threading.Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has_it.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert has_it.wait(60)
        assert list(in_two(lambda item: item * 2, range(7))) == list(range(0, 14, 2))
    finally:
        may_end.set()
        thread.join()


def test_a_single_item_or_processor_needs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then everything is mapped in this process."""
    assert list(in_two(lambda _: os.getpid(), [1])) == [PARENT]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert list(in_two(lambda _: os.getpid(), [1, 2, 3])) == [PARENT] * 3


def test_a_process_that_can_not_be_forked_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be forked, this process does all, and keeps no file open."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    assert list(in_two(lambda _: os.getpid(), range(6))) == [PARENT] * 6
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_without_a_pipe_this_process_does_all() -> None:
    """If the process may open no further file, no process is forked."""
    with no_files_left():
        assert list(in_two(lambda _: os.getpid(), range(6))) == [PARENT] * 6


@pytest.mark.parametrize("bad", [2, 3])
def test_an_error_is_raised_wherever_it_happens(bad: int) -> None:
    """An exception in either process is raised here."""

    def fail(item: int) -> int:
        if item == bad:
            raise LookupError(item)
        return item

    with pytest.raises(LookupError, match=str(bad)):
        list(in_two(fail, range(6)))


@pytest.mark.parametrize("status", [0, 1])
def test_the_work_of_a_dead_child_is_repeated(status: int) -> None:
    """A child that ends early costs time and no result."""

    def die(item: int) -> int:
        if os.getpid() != PARENT:
            os._exit(status)
        return item

    assert list(in_two(die, range(6))) == list(range(6))


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster.json"])
def test_manifests_and_rules_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Parts of a file, parsed and compiled in two processes, give the same objects, problems and rules."""
    for module in ("nftproxy.sources.files.TOGETHER", "nftproxy.api.parse.TOGETHER", "nftproxy.pipeline.STEP"):
        monkeypatch.setattr(module, 3)
    given = [
        each
        for number in range(10)
        for each in (
            objects.service(f"s{number}", vips=[f"10.96.0.{number + 1}"], ports=["http:80"]),
            objects.endpoint_slice(
                f"s{number}-1", "10.1.0.4@a", "10.1.0.05@b", service=f"s{number}", ports=["http:8080"]
            ),
        )
    ]
    path = tmp_path / name
    if path.suffix == ".json":
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*given, {}, given[3]]}))
    else:
        text = yaml.safe_dump_all(given, explicit_start=True)
        path.write_text(text.replace("name: s7\n", "name: 's7\n") + "---\n{}\n")
    alone = load([path])
    assert len(alone.problems) > 10
    assert load([path], each=in_two) == alone
    assert Cluster(alone, "a", each=in_two).render() == Cluster(alone, "a").render()
