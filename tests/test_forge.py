"""The files for the forge (.github) name commands, files and people that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import CHECKOUT

FORGE = CHECKOUT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")

by_workflow = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda path: path.stem)


def steps(file: Path) -> list[dict[str, Any]]:
    """The steps of a workflow's jobs."""
    return [step for job in yaml.safe_load(file.read_text())["jobs"].values() for step in job["steps"]]


@by_workflow
def test_a_workflow_runs_commands_that_exist(file: Path) -> None:
    """Each step calls a script, a target of the Makefile or an environment of tox, besides apt, git and gh."""
    for line in "".join(f"{step['run'].strip()}\n" for step in steps(file) if "run" in step).splitlines():
        program, *words = line.split()
        if program == "make":
            assert re.search(rf"^{words[0]}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
        elif program == ".venv/bin/tox":
            assert f"[testenv:{words[2]}]" in (CHECKOUT / "tox.ini").read_text()
        elif program not in ("apt-get", "gh", "git"):
            assert (CHECKOUT / program).exists(), line


@by_workflow
def test_a_workflow_may_do_little(file: Path) -> None:
    """Actions of others are pinned to a commit, and a workflow that strangers can start only reads."""
    used = [step["uses"] for step in steps(file) if "uses" in step]
    assert [each for each in used if not re.search("@[0-9a-f]{40}$", each)] == []
    workflow = yaml.safe_load(file.read_text())
    if "pull_request" in workflow[True]:  # YAML 1.1 reads the key `on` so
        assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("file", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_what_the_forge_asks_for(file: Path) -> None:
    """A form has a name, a description and fields with labels, each with its own id."""
    form = yaml.safe_load(file.read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    assert all(each["attributes"]["label"] for each in fields)
    assert len({each["id"] for each in fields}) == len(fields) > 0


def test_owned_files_exist() -> None:
    """Each pattern in CODEOWNERS matches a file, and has an owner."""
    lines = [line for line in (FORGE / "CODEOWNERS").read_text().splitlines() if not line.startswith("#")]
    assert lines
    for pattern, *owners in map(str.split, lines):
        assert list(CHECKOUT.glob(pattern.lstrip("/")))
        assert owners
        assert all(owner.startswith("@") for owner in owners)


def test_conduct_and_weaknesses_are_reported_to_nobody_in_particular() -> None:
    """No page of the forge has an address of mail, since reports go through the forge."""
    assert [path.name for path in FORGE.rglob("*.*") if re.search(r"\w@\w+\.\w", path.read_text())] == []
