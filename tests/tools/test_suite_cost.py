"""The table of the tests' cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.processes import CHECKOUT
from tools.suite_cost import PYTHON, lines, read, table


def test_the_table_has_a_row_for_each_folder(tmp_path: Path) -> None:
    """Seconds are summed up by folder and kind, the most expensive folder comes first."""
    file = tmp_path / "costs"
    file.write_text(
        f"1.500\t{PYTHON}\ttests/policy/test_a.py::test_b[c]\n"
        f"0.250\t{PYTHON}\ttests/policy/choosing/test_d.py::test_e\n"
        "4.000\tother processes\ttests/test_f.py::test_g\n"
    )
    found = [line.split() for line in lines(list(table(list(read(file)))))]
    assert found[1:] == [["all", "3", "4", "2", "6"], ["tests", "1", "4", "4"], ["tests/policy", "2", "2", "2"]]


def test_the_plugin_writes_a_line_for_each_test(tmp_path: Path) -> None:
    """A run with the plugin leaves a line for each test, with its kind and its name."""
    (tmp_path / "test_h.py").write_text("def test_i():\n    pass\n")
    options = ["-p", "tools.suite_cost", "--cost", str(tmp_path / "costs"), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path / "test_h.py")]
    subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL)
    (cost,) = read(tmp_path / "costs")
    assert (cost.kind, cost.test.rpartition("/")[2]) == (PYTHON, "test_h.py::test_i")
