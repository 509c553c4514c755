"""Processes of tests end, however the test does."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.processes import killed_on_error


def test_a_process_of_a_test_that_fails_is_killed() -> None:
    """A test that fails inside the context doesn't wait for its process, and the error stays."""
    with (
        pytest.raises(AssertionError, match="the test"),
        subprocess.Popen(["sleep", "3600"]) as process,
        killed_on_error(process),
    ):
        raise AssertionError("the test failed")
    assert process.returncode == -9
