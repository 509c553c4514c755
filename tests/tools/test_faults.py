"""The tests of the default run catch the faults of tests/faults.toml."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from nftproxy_conformance.lab import obstacle

from tests.support.processes import CHECKOUT

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

FAULTS = tomllib.loads((CHECKOUT / "tests" / "faults.toml").read_text())["fault"]
PARTS = ("nftproxy", "templates", "tests", "tools", "examples", "docs", "conformance", "pyproject.toml")
SOME_FAILED = 1
"""pytest's exit status if tests failed, and nothing else went wrong."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, whose modules come before the installed modules."""
    made = tmp_path_factory.mktemp("copy")
    for name in PARTS:
        whole = CHECKOUT / name
        if whole.is_dir():
            shutil.copytree(whole, made / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(whole, made / name)
    return made


def test_there_are_twenty() -> None:
    """Each fault has a name of its own."""
    assert len({each["name"] for each in FAULTS}) == len(FAULTS) == 20


@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each["name"])
def test_a_fault_is_caught(copy: Path, fault: dict[str, Any]) -> None:
    """Its tests fail with the fault."""
    path = copy / fault["file"]
    right = path.read_text()
    assert right.count(fault["old"]) == 1
    path.write_text(right.replace(fault["old"], fault["new"]))
    try:
        tests = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault["tests"].split()]
        done = subprocess.run(tests, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    finally:
        path.write_text(right)
    assert done.returncode == SOME_FAILED, done.stdout[-2000:]
    assert str(CHECKOUT / "nftproxy") not in done.stdout, "the checkout's modules were tried"
