"""A change of a plain Service enters few files of ours, from the API's socket to the kernel's commit, and after it.

entered.txt has these files, with the number of their functions that a change enters.  `UPDATE_EXAMPLES=1` writes it.
The list should become shorter.  Some files are entered by some of the changes only: the order in which tasks get their
turn differs.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab, obstacle

from tests.support.waiting import wait_until
from tests.system.faults.bench import PERMISSIONS, Bench, endpoints, furnish
from tests.system.plain_change.profiled import RECORDS

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
ENTERED = HERE / "entered.txt"
LIFE_OF_A_CHANGE = HERE.parents[2] / "docs" / "life-of-a-change.md"
PHASES = ("before the commit", "after the commit")
WARMING_UP = 2
"""Changes that are the first of their kind: they declare the chains that draw one of N endpoints, and fill caches."""
CHANGES = 6
NEVER = 3600
"""Seconds between periodic checks."""

Functions = frozenset[tuple[str, str]]


class Entered(NamedTuple):
    """The functions that each of several changes enters, and those that some of them enter."""

    always: Functions
    sometimes: Functions


def counted(functions: Functions) -> Counter[str]:
    """The number of functions of each file."""
    return Counter(file for file, _ in functions)


def written(entered: list[Entered]) -> str:
    """The text of entered.txt."""
    return "\n".join(_block(phase, found) for phase, found in zip(PHASES, entered, strict=True))


def _block(phase: str, found: Entered) -> str:
    files, always = counted(found.sometimes), counted(found.always)
    head = f"{phase}: every change enters {len(always)} files and {always.total()} functions\n"
    rows = (f"{file} {count}{'' if file in always else ' sometimes'}\n" for file, count in sorted(files.items()))
    return "".join([head, *rows])


def listed() -> list[Counter[str]]:
    """The files of each phase in entered.txt, with the number of their functions."""
    blocks = ENTERED.read_text().split("\n\n")
    return [
        Counter({file: int(count) for file, count in re.findall(r"^(\S+\.py) (\d+)", block, re.MULTILINE)})
        for block in blocks
    ]


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> list[Entered]:
    """The functions that changes of a plain Service's EndpointSlice enter, before and after the commit."""
    if why := obstacle():
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("agent")
    records = directory / "records"
    records.touch()

    def count() -> int:
        return len(records.read_text().splitlines())

    with (
        pytest.MonkeyPatch.context() as patch,
        Lab() as lab,
        ApiServer(tls=True, authenticate=True, make_socket=lab.node.socket) as server,
        Bench(lab, server, directory, "tests.system.plain_change.profiled", NEVER) as bench,
    ):
        patch.setenv(RECORDS, str(records))
        server.rbac = PERMISSIONS
        furnish(server)
        bench.start()
        bench.wait_until_right()
        for number in range(WARMING_UP + CHANGES):
            before = count()
            server.put(endpoints(1, *("10.1.2.1", "10.1.2.2", "10.1.2.3")[: 2 + number % 2]))
            bench.wait_until_right()
            wait_until(lambda before=before: count() > before, bench.log)  # type: ignore[misc]
    changes = [json.loads(line) for line in records.read_text().splitlines()[-CHANGES:]]
    sets = [[frozenset(map(tuple, change[phase])) for change in changes] for phase in range(len(PHASES))]
    return [Entered(frozenset.intersection(*each), frozenset.union(*each)) for each in sets]


@pytest.mark.skipif("UPDATE_EXAMPLES" not in os.environ, reason="UPDATE_EXAMPLES is not set")
def test_write_the_list(entered: list[Entered]) -> None:
    """entered.txt is written anew, if that is asked for."""
    ENTERED.write_text(written(entered))


@pytest.mark.parametrize("phase", [0, 1], ids=PHASES)
def test_a_plain_change_enters_no_other_file(entered: list[Entered], phase: int) -> None:
    """Every file that each change enters is on the list, and these files have no more functions than there."""
    found, allowed = counted(entered[phase].always), listed()[phase]
    assert sorted(found.keys() - allowed.keys()) == []
    assert found.total() <= allowed.total(), found - allowed


def test_the_list_is_short() -> None:
    """Every change enters at most 35 files before the commit, and 15 after it."""
    blocks = ENTERED.read_text().split("\n\n")
    always = [len(re.findall(r"^\S+\.py \d+$", block, re.MULTILINE)) for block in blocks]
    assert always[0] <= 35
    assert always[1] <= 15


def test_the_steps_of_the_life_of_a_change_are_entered() -> None:
    """Each file that a step of docs/life-of-a-change.md names is one that a plain change enters."""
    steps = LIFE_OF_A_CHANGE.read_text().partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.py)`", steps)
    assert named
    assert [file for file in named if not any(file in phase for phase in listed())] == []
