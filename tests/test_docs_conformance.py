"""tests/system/e2e/kubernetes.md lists our tests for each test of Kubernetes, and every test of ours is in it.

A test is named by its module in tests/system/e2e and its function, `services.hairpin`, or as pytest names it,
`path::function`.  A test of Kubernetes that no proxy can pass or fail has a reason in place of a test.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
E2E = CHECKOUT / "tests" / "system" / "e2e"
PAGE = E2E / "kubernetes.md"

ROWS: list[tuple[str, str]] = re.findall(
    r"^\| (?!Kubernetes' test|---)(.+?) \| (.+?) \|$",
    PAGE.read_text(),
    re.MULTILINE,
)
WITHOUT_PROXY = (
    "the API server, no proxy",
    "controllers, no proxy",
    "the CNI plugin, no proxy",
    "a cloud's load balancer",
    "iptables mode only",
)
"""All reasons for which a test of Kubernetes has none here."""


def path_of(test: str) -> tuple[Path, str]:
    """The file and the function that a test's name stands for."""
    if "::" in test:
        path, _, function = test.partition("::")
        return CHECKOUT / path, function
    module, _, function = test.partition(".")
    return E2E / f"test_{module}.py", f"test_{function}"


def functions(path: Path) -> set[str]:
    """The tests in a file."""
    module = importlib.import_module(".".join(path.relative_to(CHECKOUT).with_suffix("").parts))
    return {name for name, value in vars(module).items() if name.startswith("test_") and callable(value)}


@pytest.mark.parametrize(("name", "ours"), ROWS, ids=[name for name, _ in ROWS])
def test_name_has_a_test(name: str, ours: str) -> None:
    """Each of Kubernetes' tests of a service proxy has a test here, or a reason why no proxy can pass or fail it."""
    tests = re.findall(r"`([^`]+)`", ours)
    if not tests:
        assert ours.removeprefix("- (").removesuffix(")") in WITHOUT_PROXY, name
    for path, function in map(path_of, tests):
        assert function in functions(path), f"{path}: {function}"


def test_every_test_has_a_name() -> None:
    """Every end-to-end test here stands for a test of Kubernetes."""
    named = {path_of(test) for _, ours in ROWS for test in re.findall(r"`([^`]+)`", ours)}
    assert {(path, function) for path in E2E.glob("test_*.py") for function in functions(path)} <= named


def test_no_name_is_listed_twice() -> None:
    """Each of Kubernetes' tests has one row in its section."""
    sections = PAGE.read_text().split("\n## ")
    for section in sections:
        names = re.findall(r"^\| (.+?) \| .+ \|$", section, re.MULTILINE)
        assert len(set(names)) == len(names)
