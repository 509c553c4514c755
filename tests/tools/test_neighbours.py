"""Neighbours on a node: each has a script, and a neighbour that isn't there is no success."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nftproxy_conformance.lab import obstacle

from nftproxy.model.errors import Unavailable
from tools.neighbours import trial
from tools.neighbours.trial import BESIDE, try_beside
from tools.support.subjects import NEIGHBOURS


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_each_neighbour_has_its_steps(name: str) -> None:
    """The script of each neighbour defines how it starts, what shows that it works, and its reload."""
    define = f'source "{BESIDE.with_name(f"{name}.sh")}" && declare -F start works reload'
    subprocess.run(["bash", "-euc", define], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
@pytest.mark.parametrize(
    ("start", "works", "fault"),
    [("echo no program; false", "true", "no program"), ("true", "false", "works: status 1")],
)
def test_a_neighbour_that_does_not_work_fails(
    start: str, works: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial fails if the neighbour doesn't start, or if its rules aren't there."""
    (tmp_path / "beside.sh").write_text(BESIDE.read_text())
    (tmp_path / "test.sh").write_text(f"start() {{ {start}; }}\nworks() {{ {works}; }}\nreload() {{ :; }}\n")
    monkeypatch.setattr(trial, "BESIDE", tmp_path / "beside.sh")
    with pytest.raises(Unavailable, match=fault):
        try_beside("test")
